"""checkpoint_self: the program that runs on, and those that are brought back."""

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import gpusnap
from gpusnap.errors import EXIT_WARNINGS, IntegrityError
from gpusnap.jobs.record import Run, RunOptions, write_run
from gpusnap.journal import entries
from gpusnap.repository import Manifest, Snapshot, open_snapshot
from gpusnap.repository.layout import MANIFEST, MANIFEST_DIGEST
from gpusnap.repository.manifest import digest_line, encode
from gpusnap.target import identity
from tests.e2e.jobs import Site, await_true, start_detached
from tests.e2e.test_new_pids import end, set_variables
from tests.inprocess.programs import ROOT, Program

LOOP = """
import ctypes
from gpusnap.testing.device import SimulatedDevice

ctypes.CDLL(None).prctl(36, ctypes.c_ulong(1))  # PR_SET_CHILD_SUBREAPER
buffer = SimulatedDevice.open(0).allocate(4096)
buffer.copy_in(b"what is on the device")

@gpusnap.before_checkpoint
def close():
    say("close")

@gpusnap.after_checkpoint(deadline=5)
def reopen(result):
    say("reopen", result.outcome)

@gpusnap.after_restore
def reseed():
    say("reseed")

def subreaper():
    flag = ctypes.c_int()
    ctypes.CDLL(None).prctl(37, ctypes.byref(flag))
    return flag.value

for number in (1, 2):
    result = gpusnap.checkpoint_self(f"snapshot-{number}", kill=number == 2, tags=["mine"])
    say(number, result.outcome, result.snapshot, len(result.devices), dict(result.overrides))
    say(number, result.path, *result.devices)
    say(number, buffer.copy_out()[:21].decode(), subreaper())
    wait_for(f"go-{number}-{result.outcome}")
say("done")
"""


@pytest.fixture
def variables(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    set_variables(monkeypatch, site)
    return site


@pytest.fixture
def looping(variables: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[Program]:
    monkeypatch.chdir(variables.folder)
    program = Program.start(variables, LOOP)
    yield program
    program.end()


def test_saved_restored_and_saved_again(looping: Program) -> None:
    """In one test, for each part needs the one before."""
    looping.says("1 what is on the device 1")
    first, second = (device.uuid for device in gpusnap.devices(backend="simulated"))
    path = looping.site.repository / "snapshot-1"
    assert looping.lines == [
        "close",
        "reopen saved",
        "1 saved snapshot-1 1 {}",
        f"1 {path} {first}",
        "1 what is on the device 1",
    ]
    snapshot = open_snapshot(path)
    assert snapshot.manifest.mailbox is not None
    assert (snapshot.manifest.mailbox.pid, snapshot.manifest.tags) == (looping.pid, ("mine",))
    looping.end()
    refuse_another_mailbox(looping, snapshot)
    restore_elsewhere(looping, path)
    assert looping.lines[5:] == [
        "reseed",
        "1 restored snapshot-1 1 {'lr': '3e-4', 'tag': 'a=b'}",
        f"1 {path} {second}",
        "1 what is on the device 1",
    ]
    save_in_a_namespace(looping)
    gpusnap.restore_checkpoint("snapshot-2")
    (looping.site.folder / "go-2-restored").touch()
    looping.says("done")
    assert looping.lines[-5:] == [
        "reseed",
        "2 restored snapshot-2 1 {}",
        f"2 {looping.site.repository / 'snapshot-2'} {first}",
        "2 what is on the device 1",
        "done",
    ]
    assert entries() == ()


def refuse_another_mailbox(program: Program, snapshot: Snapshot) -> None:
    """What is not known to wait is not written into, and does not live."""
    assert snapshot.manifest.mailbox is not None
    wrong = msgspec.structs.replace(snapshot.manifest.mailbox, nonce="0" * 32)
    rewrite(snapshot.path, msgspec.structs.replace(snapshot.manifest, mailbox=wrong))
    with pytest.raises(IntegrityError, match="has no mailbox at"):
        gpusnap.restore_checkpoint(snapshot.path)
    await_true(lambda: identity(program.pid) is None, "nothing of it is left")
    rewrite(snapshot.path, snapshot.manifest)


def rewrite(path: Path, manifest: Manifest) -> None:
    data = encode(manifest)
    (path / MANIFEST).write_bytes(data)
    (path / MANIFEST_DIGEST).write_bytes(digest_line(data))


def restore_elsewhere(program: Program, path: Path) -> None:
    answer = program.site.gpusnap(
        "restore", path, "--device-map", "0=1", "--set", "lr=3e-4", "--set", "tag=a=b"
    )
    assert answer.returncode == EXIT_WARNINGS, answer.stderr
    program.says("1 what is on the device 1", times=2)
    program.end()


def save_in_a_namespace(program: Program) -> None:
    """One with PIDs of its own saves itself and ends."""
    target = gpusnap.restore_checkpoint("snapshot-1", new_pids=True, overrides={"lr": "1"})
    try:
        program.says("1 restored snapshot-1 1 {'lr': '1'}")
        (program.site.folder / "go-1-restored").touch()
        await_true(lambda: identity(target.root_pid) is None, "it is saved and gone")
    finally:
        end(target)
    saved = open_snapshot(program.site.repository / "snapshot-2")
    assert saved.manifest.target.pids == (program.pid,)


STEPS = """
import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # which the helper must not inherit
signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
for number in range(3):
    result = gpusnap.step()
    say(number, result and result.outcome, result and result.snapshot, result and result.overrides)
    wait_for("go")
"""


def test_steps_of_a_run_whose_root_is_another_process(
    variables: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(variables.folder)
    folder = variables.folder / "runs" / "night"
    run = Run(
        name="night",
        directory=str(variables.folder),
        repository=str(variables.repository),
        options=RunOptions(every_steps=2),
        boot_id="",
    )
    write_run(folder, run)
    # A shell that waits for the program below it
    shell = ["sh", "-c", 'until [ -e begin ]; do sleep 0.02; done; "$@"; true', "sh"]
    monkeypatch.setenv("GPUSNAP_RUN", str(folder))
    program = Program.start(variables, STEPS, *shell)
    try:
        write_run(folder, msgspec.structs.replace(run, root=identity(program.pid)))
        (variables.folder / "begin").touch()
        program.says("0 None None None")
        (variables.folder / "go").touch()
        program.says("2 None None None")
        snapshot = open_snapshot(variables.repository / "night-000001")
        mailbox = snapshot.manifest.mailbox
        assert snapshot.manifest.target.root.pid == program.pid
        assert mailbox is not None
        assert mailbox.pid in snapshot.manifest.target.pids[1:]
        assert snapshot.manifest.tags == ("run:night",)
        await_true(lambda: identity(program.pid) is None, "it ends")
        gpusnap.restore_checkpoint("night-000001", overrides={"tag": "b"})
        program.says("1 restored night-000001 {'tag': 'b'}")
        program.says("2 None None None", times=2)
    finally:
        program.end()


FAILING = """
import subprocess
from gpusnap.testing.device import SimulatedDevice
buffer = SimulatedDevice.open(0).allocate(4096)
buffer.copy_in(b"device")

def strike(point, action, **options):
    with open("strike/plan", "w") as file:
        file.write(f"{point} {action} {os.getpid()}")
    attempt(**options)
    os.unlink("strike/plan")
    say(point, buffer.copy_out()[:6].decode())

gpusnap.after_checkpoint(lambda result: say("after", result))
attempt(output_path="repository/taken", gpu_sync=True)
attempt(output_path="repository/taken")
strike("finished:checkpoint", "kill")
strike("finished:publish", "kill", kill=True, output_path="complete")
try:
    strike("finished:lock", "interrupt")
except KeyboardInterrupt:
    say("interrupted", buffer.copy_out()[:6].decode())
    os.unlink("strike/plan")
say("runs on")
time.sleep(60)
"""


def test_whatever_fails_the_program_runs_on(
    variables: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(variables.folder)
    program = Program.start(variables, FAILING)
    try:
        program.says("runs on")
    finally:
        program.end()
    lines = iter(program.lines)
    assert next(lines).startswith("after Checkpointed(outcome='saved'")
    killed = "GpusnapError gpusnap was killed while it saved this program"
    for expected in (
        "NameTakenError Snapshot taken exists in",
        *(killed, "finished:checkpoint device"),
        *(killed, "finished:publish device"),
    ):
        if "device" not in expected:
            assert next(lines) == "after None"
        assert next(lines).startswith(expected)
    assert [*lines] == ["after None", "interrupted device", "runs on"]
    assert open_snapshot(variables.repository / "complete").manifest.left_running is False
    assert entries() == ()


CONTAINED = """
attempt(output_path="one")
gpusnap.step_aside()
say("pid", os.getpid() > 1, os.getppid())
say(gpusnap.checkpoint_self("one").outcome)
import signal
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(7))
say("ready")
while True:
    time.sleep(0.01)
"""


def test_the_first_process_of_a_container(variables: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(variables.folder)
    code = variables.folder / "code"
    unshare = ["unshare", "--pid", "--mount-proc", "--fork", "--kill-child"]
    # CRIU sees only files of the namespace
    inside = ["sh", "-c", 'exec "$@" </dev/null >/dev/null 2>errors', "sh"]
    shell = ["sh", "-c", f'"$@"; echo $? > {code}', "sh", *unshare, *inside]
    program = Program.start(variables, CONTAINED, *shell)
    try:
        program.says("ready")
        assert program.lines[0] == (
            "TargetError The first process of a container cannot be saved from within it"
        )
        assert program.lines[1:] == ["pid True 1", "saved", "ready"]
        # The kernel names the children of the shell, of unshare, and so on
        init = _child(_child(program.pid))
        os.kill(init, signal.SIGUSR1)
        await_true(
            lambda: code.exists() and code.read_text() == "7\n", "the exit code is passed on"
        )
    finally:
        program.end()


def _child(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text())


def test_the_example_of_the_page(variables: Site) -> None:
    page = (ROOT / "docs/how-to/in-your-program.md").read_text()
    (script,) = re.findall(r"`count.py`:\n\n```python\n(.*?)```", page, re.DOTALL)
    (line,) = re.findall(r"`setsid python (count.py < /dev/null >> count.log 2>&1)`", page)
    (restore,) = re.findall(r"`gpusnap (restore ten .*?)`", page)
    (variables.folder / "count.py").write_text(script)
    log = variables.folder / "count.log"
    command = ["sh", "-c", f'cd {variables.folder}; exec "{sys.executable}" {line}']
    start_detached(command, variables.folder / "pid", variables.environment)
    pid = int((variables.folder / "pid").read_text())
    await_true(lambda: identity(pid) is None, "it counts to its end")
    answer = variables.gpusnap(*restore.split())
    assert answer.returncode == 0, answer.stderr
    await_true(lambda: identity(pid) is None, "it counts to its end again")
    first = [f"{number} 0.01" for number in range(10)]
    after = [f"{number} 0.01" for number in range(10, 20)]
    again = [f"{number} 0.02" for number in range(10, 20)]
    assert log.read_text().splitlines() == [*first, "saved", *after, "restored", *again]


UNPRIVILEGED = """
attempt(output_path="one")
say("runs on")
"""


def test_without_privileges(variables: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(variables.folder)
    program = Program.start(variables, UNPRIVILEGED, "setpriv", "--bounding-set=-all")
    program.says("runs on")
    missing = "CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_CHECKPOINT_RESTORE"
    text = f"gpusnap lacks {missing} to freeze, save and restore processes [privilege]"
    assert program.lines[0] == f"PrivilegeError {text}"
