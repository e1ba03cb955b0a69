"""A program of many threads that lives in a PID namespace, and loses a child in the middle."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import gpusnap
from gpusnap import dump_session
from gpusnap.criu import Namespace
from gpusnap.datapath import Span
from gpusnap.pids import map_of
from gpusnap.regions import MINIMUM_HOST, host_spans
from gpusnap.restore import RestoredTarget
from gpusnap.target import alive, identity, pid_namespace, pids_in
from gpusnap.types import Target
from tests.e2e.jobs import Site, await_true
from tests.e2e.test_new_pids import set_variables

ROOT, FIRST_THREAD, THREADS = 1000, 301, 12
PROGRAM = f"""
import os, signal, threading
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
ready, done = os.pipe()
if os.fork() == 0:
    memory = bytearray({MINIMUM_HOST * 2})
    os.write(done, b".")
    signal.pause()
os.read(ready, 1)
while os.path.exists("/proc/{FIRST_THREAD}"):
    pass  # the shell that started this
with open("/proc/sys/kernel/ns_last_pid", "w") as last:
    last.write("{FIRST_THREAD - 1}")
for _ in range({THREADS}):
    threading.Thread(target=signal.pause).start()
signal.pause()
"""


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Namespace]:
    """The program runs inside, its threads numbered like what starts next in a namespace."""
    set_variables(monkeypatch, Site.make(tmp_path / "site"))
    start = 'echo 999 > /proc/sys/kernel/ns_last_pid; setsid "$@" > /dev/null 2>&1 < /dev/null &'
    with Namespace([ROOT]) as made:
        subprocess.run(
            made.joining(["sh", "-c", start, "sh", sys.executable, "-S", "-c", PROGRAM]),
            pass_fds=[made.descriptor],
            check=True,
        )
        root = map_of(made.init.pid).translate(ROOT)
        await_true(lambda: len(threads(root)) == 1 + THREADS, "all threads run")
        yield made


def threads(pid: int) -> set[int]:
    """The threads of a process by the numbers that it sees itself."""
    texts = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status")]
    lines = [line for text in texts for line in text.splitlines() if line.startswith("NSpid:")]
    return {int(line.split()[-1]) for line in lines}


def test_threads_keep_their_numbers(made: Namespace) -> None:
    root = map_of(made.init.pid).translate(ROOT)
    before = threads(root)
    assert FIRST_THREAD in before
    gpusnap.create_checkpoint(root, "one", leave_running=False)
    restored = gpusnap.restore_checkpoint("one", new_pids=True)
    try:
        assert threads(restored.root_pid) == before
    finally:
        end(restored)


def test_a_child_that_ends_before_the_dump(
    made: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = pids_in(pid_namespace(made.init.pid) or "")
    (child,) = (members[pid] for pid in members if pid not in {1, ROOT})
    chosen: set[int] = set()

    def choose(target: Target, taken: Sequence[Span], minimum: int) -> tuple[Span, ...]:
        spans = host_spans(target, taken, minimum)
        chosen.update(span.pid for span in spans)
        os.kill(child, signal.SIGKILL)
        await_true(lambda: identity(child) is None, "the child is gone")
        return spans

    monkeypatch.setattr(dump_session, "host_spans", choose)
    snapshot = gpusnap.create_checkpoint(members[ROOT], "one")
    assert child in chosen, "its memory is large"
    assert snapshot.manifest.target.pids == (ROOT,)
    assert len(threads(members[ROOT])) == 1 + THREADS, "it runs on"
    end(gpusnap.restore_checkpoint("one", new_pids=True))


def end(restored: RestoredTarget) -> None:
    assert restored.init_pid is not None
    os.kill(restored.init_pid, signal.SIGKILL)
    await_true(lambda: not any(map(alive, restored.processes)), "it is gone")
