"""Callbacks and misuse: nothing is saved, each is a clear error, the program runs on."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gpusnap
from gpusnap.errors import BusyError, CallbackError, GpusnapError, TargetError, UsageError
from gpusnap.inprocess import callbacks, itself, outside, steps
from gpusnap.inprocess.deadline import DeadlineMissed, _Watch, call_within
from gpusnap.inprocess.messages import Request
from gpusnap.inprocess.torch_state import wait_for_devices
from gpusnap.mailbox import Answer
from gpusnap.types import ProcessId


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[Answer]:
    """What helpers are to answer; there is none, and asking one too many fails."""
    left: list[Answer] = []
    monkeypatch.setattr(itself, "_ask", lambda _request: left.pop(0))
    return left


def test_the_order(answers: list[Answer]) -> None:
    called: list[Any] = []
    for number in (1, 2):
        gpusnap.before_checkpoint(lambda number=number: called.append(("before", number)))
        gpusnap.after_checkpoint(lambda number=number: called.append(("after", number)))
        gpusnap.after_restore(lambda number=number: called.append(("restored", number)))
    answers += [Answer(outcome="saved", path="/r/a"), Answer(outcome="restored", path="/r/a")]
    assert gpusnap.checkpoint_self().saved
    before = [("before", 1), ("before", 2)]
    assert called == [*before, ("after", 2), ("after", 1)]
    called.clear()
    assert gpusnap.checkpoint_self().restored
    assert called == [*before, ("restored", 2), ("restored", 1)]


def test_one_that_wants_the_result_gets_it(answers: list[Answer]) -> None:
    results: list[Any] = []

    @gpusnap.after_checkpoint
    def keep(result: object) -> None:
        results.append(result)

    gpusnap.after_checkpoint(deadline=5)(results.append)
    answers.append(Answer(outcome="saved", path="/r/a"))
    result = gpusnap.checkpoint_self()
    assert results == [result, result]
    with pytest.raises(IndexError):  # there is no second answer
        gpusnap.checkpoint_self()
    assert results[2:] == [None, None]


def wait_for_ever() -> None:
    while True:
        try:
            time.sleep(100)
        except Exception:  # noqa: BLE001, S112 - what robust code does
            continue


def fail() -> None:
    raise ValueError("no such host")


@pytest.mark.parametrize(
    ("function", "deadline", "text"),
    [
        (fail, 60, "raised ValueError: no such host"),
        (wait_for_ever, 0.1, "did not end within 0.1 s"),
    ],
)
def test_one_that_raises_or_hangs(
    function: Any, deadline: float, text: str, answers: list[Answer]
) -> None:
    threads = threading.active_count()
    called: list[str] = []
    gpusnap.before_checkpoint(lambda: called.append("before"))
    gpusnap.before_checkpoint(function, deadline=deadline)
    gpusnap.before_checkpoint(lambda: called.append("never"))
    gpusnap.after_checkpoint(lambda: called.append("after"))
    with pytest.raises(CallbackError) as raised:
        gpusnap.checkpoint_self()
    name = function.__name__
    assert raised.value.text == f"{name}, called by before_checkpoint, {text}"
    assert raised.value.callback == name
    assert called == ["before", "after"]
    assert threading.active_count() <= threads
    # The next one is not in its way
    callbacks._registered[callbacks.Moment.BEFORE].clear()
    answers.append(Answer(outcome="saved", path="/r/a"))
    assert gpusnap.checkpoint_self().saved


def test_afterwards_all_are_called_and_the_first_error_counts(answers: list[Answer]) -> None:
    called: list[str] = []
    gpusnap.after_checkpoint(lambda: called.append("last"))
    gpusnap.after_checkpoint(fail)
    gpusnap.after_checkpoint(fail)
    answers.append(Answer(outcome="saved", path="/r/a"))
    with pytest.raises(CallbackError, match="fail, called by after_checkpoint") as raised:
        gpusnap.checkpoint_self()
    assert called == ["last"]
    assert raised.value.details[1:] == ("The snapshot /r/a is complete",)


def test_after_a_failure_that_is_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_request: object) -> None:
        raise TargetError("It cannot be saved")

    monkeypatch.setattr(itself, "_ask", refuse)
    gpusnap.after_checkpoint(fail)
    with pytest.raises(TargetError, match="It cannot be saved") as raised:
        gpusnap.checkpoint_self()
    assert raised.value.details == (
        "fail, called by after_checkpoint, raised ValueError: no such host",
    )


async def later() -> None:
    """No plain function."""


def one_by_one() -> Iterator[None]:
    yield


@pytest.mark.parametrize("function", [later, one_by_one, 3])
def test_what_cannot_be_called(function: Any) -> None:
    with pytest.raises(UsageError, match="plain function"):
        gpusnap.before_checkpoint(function)
    assert callbacks._registered[callbacks.Moment.BEFORE] == []


@pytest.mark.parametrize("deadline", [0, -1, float("nan"), float("inf"), "5", None])
def test_a_deadline_that_is_none(deadline: Any) -> None:
    with pytest.raises(UsageError, match="deadline"):
        gpusnap.after_restore(fail, deadline=deadline)


def test_a_deadline_gives_its_signal_back() -> None:
    with pytest.raises(DeadlineMissed):
        call_within(0.01, wait_for_ever)
    call_within(60, time.time)
    numbers = range(signal.SIGRTMIN, signal.SIGRTMAX + 1)
    assert all(signal.getsignal(number) is signal.SIG_DFL for number in numbers)


def test_a_deadline_ends_nothing_but_its_function() -> None:
    """A signal that comes too late, or too early, must not end the program."""
    threads = threading.active_count()
    watch = _Watch(60)
    watch.start()
    signal.pthread_kill(threading.get_ident(), watch._number)
    watch.call(time.time, ())
    signal.pthread_kill(threading.get_ident(), watch._number)
    watch.stop()
    for _ in range(20):
        try:
            call_within(1e-6, time.time)
        except DeadlineMissed:
            continue
    assert threading.active_count() <= threads


def test_a_deadline_changes_no_other_signal_mask() -> None:
    watch = _Watch(60)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {watch._number})
    try:
        call_within(60, signal.pthread_sigmask, signal.SIG_BLOCK, {signal.SIGUSR1})
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert blocked == before | {watch._number, signal.SIGUSR1}


def test_one_that_exits(answers: list[Answer]) -> None:
    called: list[str] = []
    gpusnap.after_checkpoint(lambda: called.append("last"))
    gpusnap.after_checkpoint(sys.exit)
    answers.append(Answer(outcome="saved", path="/r/a"))
    with pytest.raises(SystemExit):
        gpusnap.checkpoint_self()
    assert called == ["last"]


def test_a_child_that_is_forked_meanwhile_may_save_itself(answers: list[Answer]) -> None:
    children: list[int] = []

    @gpusnap.before_checkpoint
    def fork() -> None:
        child = os.fork()
        if child == 0:
            with itself._alone():
                os._exit(7)
        children.append(child)

    answers.append(Answer(outcome="saved", path="/r/a"))
    assert gpusnap.checkpoint_self().saved
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 7


class Gone(outside.Helper):
    """A helper that was killed."""

    def __init__(self) -> None:
        super().__init__(1 << 22)


def test_a_second_interruption_waits_until_all_is_put_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left: list[BaseException | str] = [KeyboardInterrupt(), SystemExit(3), "the target runs on"]

    def recover() -> str:
        match left.pop(0):
            case BaseException() as error:
                raise error
            case text:
                return text

    monkeypatch.setattr(outside, "start", lambda _request: Gone())
    monkeypatch.setattr(outside, "recover", recover)
    with pytest.raises(SystemExit):
        gpusnap.checkpoint_self()
    assert left == []


def test_devices_that_do_not_come_back_after_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_request: object) -> None:
        raise KeyboardInterrupt

    def recover() -> str:
        raise TargetError("The devices are lost")

    monkeypatch.setattr(outside, "start", lambda _request: Gone())
    monkeypatch.setattr(itself, "_await", interrupt)
    monkeypatch.setattr(outside, "recover", recover)
    with pytest.raises(KeyboardInterrupt) as raised:
        gpusnap.checkpoint_self()
    assert raised.value.__notes__ == ["The devices are lost"]


def test_one_that_another_snapshot_brought_back_asks_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Request] = []

    def start(request: Request) -> outside.Helper:
        asked.append(request)
        return Gone()

    def answer(_helper: object) -> Answer | None:
        return Answer(outcome="saved", path="/r/a") if len(asked) > 1 else None

    starts = iter(range(10))
    monkeypatch.setattr(outside, "start", start)
    monkeypatch.setattr(itself, "_await", answer)
    monkeypatch.setattr(itself, "myself", lambda: ProcessId(os.getpid(), next(starts)))
    assert gpusnap.checkpoint_self().saved
    assert asked[0].mailbox.nonce != asked[1].mailbox.nonce


@pytest.mark.parametrize(
    ("options", "run"),
    [({}, "/runs/a"), ({"repository": "/r"}, None), ({"output_path": "b"}, None)],
)
def test_what_a_run_decides(
    options: dict[str, Any], run: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Request] = []

    def answer(request: Request) -> Answer:
        asked.append(request)
        return Answer(outcome="saved", path="/r/a")

    monkeypatch.setenv("GPUSNAP_RUN", "/runs/a")
    monkeypatch.setattr(itself, "_ask", answer)
    gpusnap.create_checkpoint(os.getpid(), **options)
    assert asked[0].run == run


@pytest.mark.parametrize("first", [[(1, 2, 3)], [("a", 1)], [(-1, 5)], [(0, 1 << 70)], 5])
def test_ranges_that_are_none(first: Any) -> None:
    with pytest.raises(UsageError):
        gpusnap.checkpoint_self(first=first)


def test_twice_at_once() -> None:
    seen: list[BaseException] = []

    @gpusnap.before_checkpoint
    def again() -> None:
        try:
            gpusnap.checkpoint_self()
        except GpusnapError as error:
            seen.append(error)
            raise

    with pytest.raises(CallbackError, match="while one of it is being made"):
        gpusnap.checkpoint_self()
    assert [type(error) for error in seen] == [BusyError]


def test_from_a_thread() -> None:
    seen: list[BaseException] = []

    def save() -> None:
        try:
            gpusnap.checkpoint_self()
        except GpusnapError as error:
            seen.append(error)

    thread = threading.Thread(target=save, name="loader")
    thread.start()
    thread.join()
    assert [str(error) for error in seen] == [
        "The program asks for its checkpoint in thread loader"
    ]
    assert isinstance(seen[0], UsageError)


class Cuda(SimpleNamespace):
    """PyTorch's part for CUDA, in which the second of three devices is not used."""

    def __init__(self, *, capturing: bool = False, used: bool = True) -> None:
        self.capturing = capturing
        self.used = used
        self.waited_for: list[int] = []

    def is_initialized(self) -> bool:
        return self.used

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def device_count(self) -> int:
        return 3

    def current_device(self) -> int:
        return 0

    def memory_reserved(self, index: int) -> int:
        return [0, 0, 512][index]

    def synchronize(self, index: int) -> None:
        self.waited_for.append(index)


def test_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=Cuda(capturing=True)))
    with pytest.raises(UsageError, match="while it captures a CUDA graph"):
        gpusnap.checkpoint_self()


@pytest.mark.parametrize(("used", "expected"), [(True, [0, 2]), (False, [])])
def test_devices_are_waited_for(
    monkeypatch: pytest.MonkeyPatch, used: bool, expected: list[int], answers: list[Answer]
) -> None:
    cuda = Cuda(used=used)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    answers += [Answer(outcome="saved", path="/r/a")] * 2
    gpusnap.checkpoint_self()
    assert cuda.waited_for == []
    gpusnap.checkpoint_self(gpu_sync=True)
    assert cuda.waited_for == expected


def test_without_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    wait_for_devices()


@pytest.mark.parametrize("timeout", [0, -1, "5", True, 1e12])
def test_a_timeout_that_is_none(timeout: Any) -> None:
    with pytest.raises(UsageError, match="timeout"):
        gpusnap.checkpoint_self(timeout=timeout)


def test_a_helper_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(GpusnapError, match=r"helper could not be started: .*No such file"):
        gpusnap.checkpoint_self()
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(GpusnapError, match="it said nothing"):
        gpusnap.checkpoint_self()


def test_a_helper_that_is_gone() -> None:
    helper = outside.Helper(1 << 22)  # no process has this PID
    assert not helper.alive()
    helper.end()


def test_steps_that_nobody_counts(monkeypatch: pytest.MonkeyPatch, answers: list[Answer]) -> None:
    monkeypatch.delenv("GPUSNAP_RUN", raising=False)
    assert [gpusnap.step() for _ in range(3)] == [None, None, None]


@pytest.mark.parametrize("kind", [TargetError, UsageError])
def test_a_step_that_cannot_be_saved_is_a_warning(
    kind: type[GpusnapError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_request: object) -> None:
        raise kind("It cannot be saved")

    monkeypatch.setattr(itself, "_ask", refuse)
    monkeypatch.setattr(steps, "_steps", counted := steps._Steps())
    counted._every = 2
    assert gpusnap.step() is None
    with pytest.warns(RuntimeWarning, match="No snapshot was made: It cannot be saved") as warned:
        assert gpusnap.step() is None
    assert warned[0].filename == __file__
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=Cuda(capturing=True)))
    counted._every = 1
    with pytest.raises(UsageError, match="captures"):
        gpusnap.step()


def test_a_run_that_cannot_be_read_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUSNAP_RUN", str(tmp_path))
    monkeypatch.setattr(steps, "_steps", steps._Steps())
    with pytest.warns(RuntimeWarning, match="No snapshot was made") as warned:
        assert [gpusnap.step() for _ in range(3)] == [None, None, None]
    assert [each.filename for each in warned] == [__file__]


def test_elsewhere_nobody_steps_aside() -> None:
    gpusnap.step_aside()
