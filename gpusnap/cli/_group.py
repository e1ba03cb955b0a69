"""The command and its verbs."""

from importlib.metadata import version

import click

from gpusnap.cli.backends import backends
from gpusnap.cli.bench import bench
from gpusnap.cli.branch import branch
from gpusnap.cli.check import check
from gpusnap.cli.checkpoint import checkpoint
from gpusnap.cli.demo import demo
from gpusnap.cli.devices import devices
from gpusnap.cli.diff import diff
from gpusnap.cli.evidence import evidence
from gpusnap.cli.inspect import inspect
from gpusnap.cli.list import list_snapshots
from gpusnap.cli.metrics import metrics
from gpusnap.cli.preempt import preempt
from gpusnap.cli.prune import prune
from gpusnap.cli.ps import ps
from gpusnap.cli.recover import recover
from gpusnap.cli.replay import replay
from gpusnap.cli.restore import restore
from gpusnap.cli.resume import resume
from gpusnap.cli.rm import rm
from gpusnap.cli.run import run
from gpusnap.cli.setup_criu import setup_criu
from gpusnap.cli.suspend import suspend
from gpusnap.cli.verify import verify
from gpusnap.cli.watch import watch

VERBS = (
    checkpoint,
    restore,
    suspend,
    resume,
    run,
    watch,
    preempt,
    branch,
    replay,
    recover,
    list_snapshots,
    inspect,
    verify,
    diff,
    rm,
    prune,
    check,
    devices,
    ps,
    backends,
    metrics,
    setup_criu,
    demo,
    bench,
    evidence,
)


class _InOrder(click.Group):
    """A group that lists its verbs as they were added: what is used first stands first."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's name
        return [verb.name for verb in VERBS if verb.name is not None]


@click.group(cls=_InOrder, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("gpusnap"), prog_name="gpusnap", message="%(prog)s %(version)s")
def root() -> None:
    """Checkpoint running GPU processes, and bring them back where they were."""


for _verb in VERBS:
    root.add_command(_verb)
