"""Everything that can be seen of a process tree before a checkpoint."""

import msgspec

from gpusnap.criu import Criu
from gpusnap.findings.descriptors import check_descriptors
from gpusnap.findings.memory import check_memory
from gpusnap.findings.needs import Needs, Wishes, choose
from gpusnap.findings.process import check_processes
from gpusnap.findings.sockets import Sockets, check_pipes, check_sockets, check_unix_peers
from gpusnap.findings.terminals import check_terminals
from gpusnap.findings.view import look
from gpusnap.scrub import find_leftovers
from gpusnap.types import Claim, Finding, Target


class Inspected(msgspec.Struct, frozen=True):
    """What stands in the way of a dump, and what CRIU needs for it."""

    findings: tuple[Finding, ...] = ()
    needs: Needs = Needs()


def inspect_tree(
    target: Target, claim: Claim | None, criu: Criu | None, wishes: Wishes
) -> Inspected:
    """Look at every process of a tree; changes nothing.

    Args:
        target: The tree.
        claim: Which of its processes have device state, None where none has.
        criu: The CRIU that would dump it, None where there is none.
        wishes: What the user said of CRIU's options.
    """
    view = look(target, claim.pids if claim else ())
    sockets = Sockets(view)
    needs = choose(view, sockets, wishes)
    findings = (
        *check_processes(view),
        *check_descriptors(view, find_leftovers(target, claim) if claim else ()),
        *check_terminals(view),
        *check_memory(view, criu),
        *check_sockets(sockets, criu, tcp_established=wishes.tcp_established),
        *check_unix_peers(sockets, external=needs.options.ext_unix_sockets),
        *check_pipes(view),
        *needs.findings,
    )
    return Inspected(findings, needs)
