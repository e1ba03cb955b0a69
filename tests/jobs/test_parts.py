"""The parts that a supervision is made of, each by itself."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpusnap.criu import Leash, Namespace
from gpusnap.errors import GpusnapError, IntegrityError, PrivilegeError
from gpusnap.jobs.adoption import Continuation, adopting
from gpusnap.jobs.comeback import Comeback
from gpusnap.jobs.doctor import Doctor
from gpusnap.jobs.echo import Echo
from gpusnap.jobs.health import Limits, Seen, faults
from gpusnap.jobs.leaving import Leaving
from gpusnap.jobs.opening import Request, name_of
from gpusnap.jobs.outputs import cut_back, read_lengths
from gpusnap.jobs.process import Job, end_remains
from gpusnap.jobs.record import RUN_VARIABLE, Run, RunOptions, read_run, write_run
from gpusnap.jobs.schedule import Backoff, Schedule
from gpusnap.jobs.snapshots import KEPT_BY_DEFAULT, retention
from gpusnap.jobs.work import Work
from gpusnap.restore import RestoredTarget
from gpusnap.target import alive, identity, pid_namespace, pids_in, read_process
from gpusnap.types import Device, DeviceMap, EccCounts, Health, ProcessId
from tests.criu.test_namespace import run_inside
from tests.e2e.jobs import await_true
from tests.repository.samples import powerless


class Passed:
    """An echo of a file, and what it has passed on."""

    def __init__(self, folder: Path) -> None:
        self.source = folder / "source"
        self.source.touch()
        self.target = folder / "target"
        self.descriptor = os.open(self.target, os.O_WRONLY | os.O_CREAT)
        self.echo = Echo(self.source, self.descriptor, 0)

    def write(self, text: str) -> None:
        with self.source.open("a") as file:
            file.write(text)

    def cut(self, length: int) -> None:
        self.echo.rewind(length)
        os.truncate(self.source, length)

    def finish(self) -> str:
        self.echo.finish()
        os.close(self.descriptor)
        return self.target.read_text()


@pytest.fixture
def passed(tmp_path: Path) -> Passed:
    return Passed(tmp_path)


def test_text_that_comes_again_is_passed_on_once(passed: Passed) -> None:
    passed.write("one\ntwo\nthree\n")
    passed.cut(4)
    passed.write("two\nth")
    passed.cut(4)  # it crashes again before it has come as far as the first time
    passed.write("two\nthree\nfour\n")
    assert passed.finish() == "one\ntwo\nthree\nfour\n"


def test_other_text_begins_on_a_line_of_its_own(passed: Passed) -> None:
    passed.write("one\ntwo\nstep 3 los")
    passed.cut(4)
    passed.write("two\nst")
    time.sleep(0.12)  # as long as the echo needs to look at the first part by itself
    passed.write("ep 3 took 5 s\n")
    assert passed.finish() == "one\ntwo\nstep 3 los\nstep 3 took 5 s\n"


def test_nobody_reads_any_more(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_text("text\n")
    reader, writer = os.pipe()
    os.close(reader)
    echo = Echo(source, writer, 0)
    await_true(lambda: echo.broken, "it notices")
    echo.finish()
    os.close(writer)


def test_files_are_cut_to_the_length_they_had(tmp_path: Path) -> None:
    names = ("written", "appended", "replaced")
    plain, appended, replaced = (tmp_path / name for name in names)
    (tmp_path / "stdout").write_text("begin")
    script = f"exec 3>{plain} 4>>{appended} 5>{replaced}; printf ab >&3; echo ready; sleep 60"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        lengths = read_lengths(tmp_path, [process.pid])
        process.kill()
    assert {Path(each.path).name: each.size for each in lengths} == {
        "stdout": 5,
        "written": 2,
        "replaced": 0,
    }
    for path in (plain, appended):
        path.write_text("abcd")
    other = tmp_path / "other"
    other.write_text("another file of that name")
    other.replace(replaced)
    assert cut_back(tmp_path, lengths) == (str(plain),)
    assert (plain.read_text(), appended.read_text()) == ("ab", "abcd")
    assert replaced.read_text() == "another file of that name"


HOURLY = RunOptions(every_us=3600_000_000, bound_loss_us=3700_000_000)


def test_when_a_snapshot_is_due() -> None:
    schedule = Schedule(HOURLY, 0.0)
    assert [schedule.due(3599.0), schedule.due(3600.0)] == [False, True]
    schedule.tried(3650.0)
    assert [schedule.due(7200.0), schedule.due(7250.0)] == [False, True]


def test_more_work_than_the_bound_could_be_lost() -> None:
    schedule = Schedule(HOURLY, 0.0)
    assert schedule.risk(1.0) is None
    schedule.saved(3600.0, 3800.0)
    assert schedule.risk(3800.0) == (
        "The job is saved every 3600 s and a snapshot takes 200 s: it could lose more than "
        "--bound-loss 3700 s"
    )
    assert schedule.risk(3801.0) is None, "it is told once"
    by_steps = Schedule(RunOptions(every_steps=10, bound_loss_us=1_000_000), 0.0)
    assert by_steps.risk(0.5) is None
    assert by_steps.risk(1.5) == "The job was last saved 2 s ago: more than --bound-loss 1 s"
    never = Schedule(RunOptions(bound_loss_us=1_000_000), 0.0)
    assert "Nothing saves the job" in str(never.risk(0.0))


def test_each_attempt_waits_twice_as_long() -> None:
    backoff = Backoff(100.0)
    assert [backoff.next_delay() for _ in range(4)] == [100.0, 200.0, 300.0, 300.0]
    backoff.reset()
    assert (backoff.attempts, backoff.next_delay()) == (0, 100.0)


@pytest.mark.parametrize(
    ("options", "last", "daily"),
    [
        (RunOptions(), KEPT_BY_DEFAULT, 0),
        (RunOptions(keep_last=7), 7, 0),
        (RunOptions(keep_daily=2), 1, 2),
        (RunOptions(keep_tag=("best",)), 1, 0),
    ],
)
def test_the_newest_is_always_kept(options: RunOptions, last: int, daily: int) -> None:
    policy = retention(options)
    assert (policy.keep_last, policy.keep_daily) == (last, daily)


def device(index: int, **health: object) -> Device:
    sound = Health(**health)  # type: ignore[arg-type]
    return Device(index=index, uuid=f"D{index}", vendor="V", model="M", health=sound)


def ecc(count: int) -> EccCounts:
    return EccCounts(volatile_uncorrected=count, aggregate_uncorrected=100 + count)


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        ({"ecc": ecc(5)}, {"ecc": ecc(5)}, []),
        ({"ecc": ecc(5)}, {"ecc": ecc(6)}, []),
        ({"ecc": ecc(5)}, {"ecc": ecc(7)}, ["2 new uncorrected memory errors"]),
        ({"ecc": ecc(5)}, {"ecc": ecc(2)}, ["102 new uncorrected memory errors"]),
        ({"bad_pages": 1}, {"bad_pages": 3}, ["2 new bad memory pages"]),
        ({"bad_pages": 3}, {}, []),
        ({"remap_pending": True}, {"remap_pending": True}, []),
        ({"remap_pending": False}, {"remap_pending": True}, ["a memory row waits to be remapped"]),
        ({}, {"remap_failed": True}, ["a memory row could not be remapped"]),
        ({}, {"temperature_celsius": 89}, []),
        ({}, {"temperature_celsius": 90}, ["90 degrees Celsius"]),
    ],
)
def test_only_what_became_worse_is_a_fault(
    before: dict[str, object], now: dict[str, object], told: list[str]
) -> None:
    then = device(0, **before)
    found = faults((device(0, **now),), {then.uuid: then.health}, Limits(errors=2, temperature=90))
    assert [fault.text for fault in found] == told


def test_each_fault_is_told_once() -> None:
    doctor = Doctor(RunOptions(on_ecc=1, on_temperature=90))
    doctor.remember((device(0, ecc=ecc(1)), device(1)))

    def look(used: str, *devices: Device) -> list[str]:
        seen = Seen(devices=devices, used=frozenset({used}))
        diagnosis = doctor.looked(seen)
        assert diagnosis.room == (used == "D0" or not diagnosis.faults)
        return [fault.text for fault in diagnosis.faults]

    hot = device(0, ecc=ecc(1), temperature_celsius=95)
    assert look("D0", hot, device(1)) == ["95 degrees Celsius"]
    assert look("D0", hot, device(1)) == []
    assert look("D0", device(0, ecc=ecc(1)), device(1)) == []
    assert look("D0", hot, device(1)) == ["95 degrees Celsius"]
    assert look("D1", device(0, ecc=ecc(9)), device(1)) == [], "the job is on another device"
    assert look("D0", device(0, ecc=ecc(9)), device(1)) == ["8 new uncorrected memory errors"]
    assert look("D0", device(0, ecc=ecc(9)), device(1)) == []


@pytest.fixture
def stranger() -> int:
    """A process that is no child of this one."""
    reader, writer = os.pipe()
    script = "sleep 60 & echo $!"
    found = subprocess.run(["sh", "-c", script], stdout=writer, check=True)
    os.close(writer)
    assert found.returncode == 0
    pid = int(os.read(reader, 32))
    os.close(reader)
    return pid


def test_the_exit_code_of_a_process_that_is_no_child(stranger: int) -> None:
    process = identity(stranger)
    assert process is not None
    job = Job(process)
    assert not job.ended()
    os.kill(stranger, 9)
    await_true(job.ended, "it has ended")
    assert job.code in {137, None}, "a kernel before 6.15 does not tell"
    job.close()


ANOTHER = '{"name": "another", "directory": "/", "repository": "/", "boot_id": ""}'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", r"run\.json cannot be understood"),
        ("[" * 100_000, r"run\.json cannot be understood"),
        (ANOTHER, r"run\.json is that of the run another"),
    ],
)
def test_a_run_that_cannot_be_understood(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(IntegrityError, match=words) as caught:
        read_run(tmp_path)
    assert caught.value.cure


def test_a_run_folder_of_another_user(tmp_path: Path) -> None:
    run = Run(name="job", directory="/", repository="/", boot_id="")
    with powerless(tmp_path), pytest.raises(PrivilegeError, match="denied") as caught:
        write_run(tmp_path / "job", run)
    assert caught.value.exit_code == 15
    assert caught.value.cure == "Run as its owner, or set GPUSNAP_DATA_DIR"


@pytest.mark.parametrize(("run", "ends"), [("mine", True), (None, True), ("others", False)])
def test_what_is_left_of_a_job_is_ended_and_nothing_else(
    tmp_path: Path, run: str | None, ends: bool
) -> None:
    environment = {} if run is None else {RUN_VARIABLE: str(tmp_path / run)}
    with subprocess.Popen(["/bin/sleep", "60"], env=environment) as process:
        await_true(lambda: read_process(process.pid).command, "it has its arguments")
        saved = read_process(process.pid)
        killed = end_remains(tmp_path / "mine", [saved])
        assert (killed, alive(saved.id)) == ((process.pid,) if ends else (), not ends)
        process.kill()


@pytest.fixture
def family(root: None) -> Iterator[tuple[Namespace, Leash, ProcessId]]:
    """A program in a PID namespace of its own, with a child; its first process is ours to reap."""
    with adopting(), ExitStack() as stack:
        leash = Leash()
        with Namespace([1000], leash) as made:
            namespace = pid_namespace(made.init.pid) or ""
            # As long as it is open, no other namespace gets its number
            stack.enter_context(Path(f"/proc/{made.init.pid}/ns/pid").open("rb"))
            run_inside(made, "sleep 60 & exec sleep 60")
            await_true(lambda: len(pids_in(namespace)) == 3, "they run")
            first = identity(pids_in(namespace)[1000])
            assert first is not None
            made.let_go()
            yield made, leash, first
        leash.close()
        assert pids_in(namespace) == {}


def test_what_has_left_the_tree_does_not_hold_up_the_end(
    family: tuple[Namespace, Leash, ProcessId],
) -> None:
    made, _leash, root = family
    job = Job(root, made.init)
    job.end_rest()
    assert alive(made.init), "its root lives"
    os.kill(root.pid, signal.SIGKILL)
    await_true(lambda: not alive(root), "the root is gone")
    assert not job.ended()
    job.end_rest()
    await_true(job.ended, "all is gone")
    job.close()


def test_a_continuation_is_ended_with_its_children(
    family: tuple[Namespace, Leash, ProcessId],
) -> None:
    made, leash, root = family
    target = RestoredTarget(
        root_pid=root.pid,
        processes=(root,),
        snapshot="",
        device_map=DeviceMap(),
        phases=(),
        init_pid=made.init.pid,
    )
    with Continuation(target, leash) as continuation:
        continuation.end()
        assert continuation.exit_code == 128 + signal.SIGKILL


class Followed:
    """What a comeback needs of a charge, and whom it follows."""

    def __init__(self) -> None:
        self.options = RunOptions()
        self.run = Run(name="job", directory="/", repository="/", boot_id="")
        self.schedule = Schedule(self.options, 0.0)
        self.followed: list[tuple[ProcessId, ProcessId | None]] = []
        self.texts: list[str] = []

    def note(self, **_: object) -> None:
        pass

    def follow(self, root: ProcessId, init: ProcessId | None) -> None:
        self.followed.append((root, init))

    def report(self, _happening: object, text: str, **_: object) -> None:
        self.texts.append(text)

    def trouble(self, _happening: object, text: str, error: GpusnapError) -> None:
        self.texts.append(f"{text}: {error.text}")


@pytest.mark.parametrize("nested", [True, False])
def test_a_job_that_ends_as_it_comes_back(nested: bool) -> None:
    charge = Followed()
    comeback = Comeback(charge, Doctor(charge.options))  # type: ignore[arg-type]
    target = RestoredTarget(
        root_pid=1 << 30,
        processes=(),
        snapshot="/job-000001",
        device_map=DeviceMap(),
        phases=(),
        init_pid=os.getpid() if nested else None,
    )
    comeback._follow(target)
    me = identity(os.getpid())
    assert charge.followed == ([(me, me)] if nested else []), "its init tells the exit code"
    assert nested or "It ended right after its restore" in charge.texts[0]


def test_two_that_begin_in_the_same_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSNAP_DATA_DIR", str(tmp_path))
    monkeypatch.setattr("gpusnap.jobs.opening.generated", lambda _: iter(("one", "two")))
    request = Request(command=("train",))
    assert [name_of(request), name_of(request)] == ["one", "two"]


class Charged:
    """What the way out needs of a charge, and what it does with it."""

    def __init__(self, grace_us: int) -> None:
        self.options = RunOptions(on_signal="TERM", grace_us=grace_us)
        self.passed: tuple[int, float] | None = None
        self.texts: list[str] = []
        self.work = Work()

    def report(self, _happening: object, text: str, **_: object) -> None:
        self.texts.append(text)


class Target:
    """A job that remembers its signals."""

    def __init__(self) -> None:
        self.signals: list[int] = []

    def send(self, number: int) -> None:
        self.signals.append(number)


def test_a_job_that_cannot_be_saved_in_time_gets_the_signal() -> None:
    charge, job = Charged(grace_us=1), Target()
    leaving = Leaving(charge, None)  # type: ignore[arg-type]
    assert not leaving.done_by(143)
    leaving.ask(15)
    assert leaving.asked
    time.sleep(0.001)
    leaving.turn(job)  # type: ignore[arg-type]
    assert (job.signals, leaving.asked) == ([15], False)
    assert charge.texts == ["The time to save the job is over: it gets the signal"]
    assert leaving.done_by(143), "ended by the signal, it can go on from the snapshot before"
    assert leaving.done_by(1), "programs end at a signal with all kinds of codes"
    assert not leaving.done_by(0)


def test_an_argument_that_is_no_text(tmp_path: Path) -> None:
    odd = os.fsdecode(b"\xff\n")
    run = Run(name=tmp_path.name, command=("echo", odd), directory="/", repository="/", boot_id="")
    write_run(tmp_path, run)
    assert read_run(tmp_path) == run
