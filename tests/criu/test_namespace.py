"""A PID namespace, its first process, and the way into it."""

import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusnap.criu import Leash, Namespace, namespace
from gpusnap.criu.namespace import spare_pids
from gpusnap.errors import GpusnapError, NotFoundError, PrivilegeError
from gpusnap.pids import SAME, map_of
from gpusnap.target import is_zombie, pid_namespace, pids_in
from tests.e2e.jobs import await_true

pytestmark = pytest.mark.usefixtures("root")
SOURCES = Path(__file__).resolve().parents[2] / "cffi_build" / "init"
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wshadow", "-Wconversion", "-Wstrict-prototypes")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-pie", "-no-pie")
"""Not position-independent: some kernels may put such a program where the sanitizer's heap goes."""

SUBREAPER = 36


@pytest.fixture
def reaper() -> Iterator[None]:
    """Have what loses its parent become a child of this process, which can then wait for it."""
    libc = ctypes.CDLL(None)
    assert libc.prctl(SUBREAPER, 1, 0, 0, 0) == 0
    yield
    libc.prctl(SUBREAPER, 0, 0, 0, 0)


def run_inside(made: Namespace, script: str) -> None:
    """Run a shell script inside as process 1000, a child of the namespace's first process."""
    outer = f"echo 999 > /proc/sys/kernel/ns_last_pid; ({script}) &"
    subprocess.run(
        made.joining(["sh", "-c", outer]),
        pass_fds=[made.descriptor],
        check=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("script", "action", "code"),
    [
        ("exit 7", None, 7),
        ("kill -9 $(sh -c 'echo $PPID')", None, 128 + 9),
        ("trap 'exit 9' USR1; while :; do sleep 0.01; done", signal.SIGUSR1, 9),
        ("(sleep 0.2; exit 3) & exit 4", None, 4),
    ],
)
def test_the_first_process_ends_as_the_root_did(
    reaper: None, script: str, action: signal.Signals | None, code: int
) -> None:
    with Namespace([1000]) as made:
        run_inside(made, script)
        made.let_go()
        if action is not None:
            await_true(lambda: caught(made, action), "the trap is set")
            os.kill(made.init.pid, action)
        _pid, status = os.waitpid(made.init.pid, 0)
    assert os.waitstatus_to_exitcode(status) == code


@pytest.mark.parametrize("let_go", [True, False])
def test_on_the_leash_of_another_it_ends_with_that(reaper: None, let_go: bool) -> None:
    leash = Leash()
    with Namespace([1000], leash) as made:
        namespace = pid_namespace(made.init.pid) or ""
        run_inside(made, "sleep 60")
        if let_go:
            made.let_go()
    if let_go:
        assert 1000 in pids_in(namespace), "it lives on"
        leash.close()
    _pid, status = os.waitpid(made.init.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 1
    assert not pids_in(namespace)


def test_on_a_leash_it_ends_as_the_root_did(reaper: None) -> None:
    leash = Leash()
    with Namespace([1000], leash) as made:
        run_inside(made, "exit 7")
        made.let_go()
        _pid, status = os.waitpid(made.init.pid, 0)
    leash.close()
    assert os.waitstatus_to_exitcode(status) == 7


def caught(made: Namespace, action: signal.Signals) -> bool:
    root = found(made).get(1000)
    status = Path(f"/proc/{root}/status").read_text()
    mask = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(mask, 16) >> (action - 1) & 1)


def test_it_costs_little() -> None:
    with Namespace([1000]) as made:
        status = Path(f"/proc/{made.init.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
        assert int(line.split()[1]) < 4096


def test_without_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    # Wherever the project lies, the program may be run by anyone from here.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        program = shutil.copy(namespace._program(), folder)
        monkeypatch.setattr(namespace, "_program", lambda: program)
        _refused_without_permission()


def _refused_without_permission() -> None:
    os.seteuid(65534)
    try:
        with pytest.raises(PrivilegeError, match=r"PID namespace: .* Operation not permitted"):
            Namespace([1000])
    finally:
        os.seteuid(0)


def instead(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    """Have a shell script run in the place of the program, which it knows as ``$program``."""
    path = folder / "program"
    path.write_text(f"#!/bin/sh\nprogram={namespace._program()}\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setattr(namespace, "_program", lambda: str(path))


def test_a_preloaded_library_stays_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/no/such/library.so")
    with Namespace([1000]) as made:
        environment = Path(f"/proc/{made.init.pid}/environ").read_bytes().split(b"\0")
    assert not [each for each in environment if each.startswith(b"LD_PRELOAD=")]


def test_a_word_is_no_refusal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    instead(monkeypatch, tmp_path, 'echo "by the way" >&2; exec "$program" "$@"')
    with Namespace([1000]) as made:
        assert found(made) == {1: made.init.pid}


@pytest.mark.parametrize("code", [0, 1])
def test_the_words_of_a_refusal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int) -> None:
    instead(monkeypatch, tmp_path, f'echo "no room" >&2; exit {code}')
    with pytest.raises(GpusnapError, match=r"a PID namespace: no room$"):
        Namespace([1000])


def test_who_is_not_inside() -> None:
    with Namespace([1000]) as made:
        found = map_of(made.init.pid)
        assert found.translate(1) == made.init.pid
        with pytest.raises(NotFoundError, match="Process 1000 has no PID"):
            found.translate(1000)


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_under_sanitizers(
    reaper: None, compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"No {compiler} here")
    program = str(tmp_path / "gpusnap_init")
    options = ("-std=c11", "-g", *WARNINGS, *SANITIZERS)
    command = [compiler, *options, *map(str, SOURCES.glob("*.c")), "-o", program]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if "cannot find" in built.stderr:
        pytest.skip(f"{compiler} has no sanitizers here")
    assert built.returncode == 0, built.stderr
    monkeypatch.setattr(namespace, "_program", lambda: program)
    # Its search for leaks needs a thread, which has no place in a new PID namespace
    monkeypatch.setenv("ASAN_OPTIONS", "detect_leaks=0")
    with Namespace([1000]) as made:
        run_inside(made, "sleep 0.1; exit 7")
        made.let_go()
        _pid, status = os.waitpid(made.init.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 7


@given(st.lists(st.integers(2, 32767), max_size=400))
def test_spare_pids_are_free(pids: list[int]) -> None:
    begin = spare_pids(pids)
    assert begin >= 300
    assert not set(range(begin + 1, begin + 257)) & set(pids)


def test_what_has_ended_is_still_inside() -> None:
    # It ends only once its parent is a program that does not reap it
    child = "until grep -q sleep /proc/$$/comm; do sleep 0.01; done"
    with Namespace([1000]) as made:
        command = made.joining(["sh", "-c", f"({child}) & echo $!; exec sleep 60"])
        with subprocess.Popen(
            command, pass_fds=[made.descriptor], stdout=subprocess.PIPE, text=True
        ) as joined:
            try:
                assert joined.stdout is not None
                ended = int(joined.stdout.readline())
                await_true(lambda: is_zombie(found(made).get(ended, 0)), "it has ended")
                assert set(found(made)) == {1, ended - 1, ended}
            finally:
                made.end()


def found(made: Namespace) -> dict[int, int]:
    return pids_in(pid_namespace(made.init.pid) or "")


def test_the_way_back() -> None:
    with Namespace([1000]) as made:
        found = map_of(made.init.pid)
        assert found.inverse.translate(made.init.pid) == 1
        assert found.inverse.get(os.getpid()) == 0
    assert SAME.inverse.translate(7) == SAME.get(7) == 7
