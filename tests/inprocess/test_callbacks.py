"""Callbacks and misuse: nothing is saved, each is a clear error, the program runs on."""

import signal
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

import gpusnap
from gpusnap.errors import BusyError, CallbackError, GpusnapError, TargetError, UsageError
from gpusnap.inprocess import callbacks, itself, outside
from gpusnap.inprocess.deadline import Deadline, DeadlineMissed
from gpusnap.inprocess.torch_state import wait_for_devices
from gpusnap.mailbox import Answer


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
    ("function", "text"),
    [
        (fail, "fail, called by before_checkpoint, raised ValueError: no such host"),
        (wait_for_ever, "wait_for_ever, called by before_checkpoint, did not end within 0.1 s"),
    ],
)
def test_one_that_raises_or_hangs(function: Any, text: str, answers: list[Answer]) -> None:
    called: list[str] = []
    gpusnap.before_checkpoint(lambda: called.append("before"))
    gpusnap.before_checkpoint(function, deadline=0.1)
    gpusnap.before_checkpoint(lambda: called.append("never"))
    gpusnap.after_checkpoint(lambda: called.append("after"))
    with pytest.raises(CallbackError) as raised:
        gpusnap.checkpoint_self()
    assert (raised.value.text, raised.value.callback) == (text, function.__name__)
    assert called == ["before", "after"]
    assert threading.active_count() == 1
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
    assert len(raised.value.details) == 1


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


@pytest.mark.parametrize("function", [later, 3])
def test_what_cannot_be_called(function: Any) -> None:
    with pytest.raises(UsageError, match="plain function"):
        gpusnap.before_checkpoint(function)
    with pytest.raises(UsageError, match="deadline"):
        gpusnap.before_checkpoint(fail, deadline=0)
    assert callbacks._registered[callbacks.Moment.BEFORE] == []


def test_a_deadline_gives_its_signal_back() -> None:
    with pytest.raises(DeadlineMissed), Deadline(0.01):
        wait_for_ever()
    with Deadline(60):
        pass
    numbers = range(signal.SIGRTMIN, signal.SIGRTMAX + 1)
    assert all(signal.getsignal(number) is signal.SIG_DFL for number in numbers)


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


def test_a_step_that_cannot_be_saved_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_request: object) -> None:
        raise TargetError("It cannot be saved")

    from gpusnap.inprocess import steps

    monkeypatch.setattr(itself, "_ask", refuse)
    monkeypatch.setattr(steps, "_steps", counted := steps._Steps())
    counted._every = 2
    assert gpusnap.step() is None
    with pytest.warns(RuntimeWarning, match="No snapshot was made: It cannot be saved") as warned:
        assert gpusnap.step() is None
    assert warned[0].filename == __file__


def test_elsewhere_nobody_steps_aside() -> None:
    gpusnap.step_aside()
