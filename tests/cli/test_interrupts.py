"""Signals: the first unwinds, later ones and those in a rollback wait."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpusnap.cli._interrupts import Interrupted, Interrupts
from gpusnap.events import Event, OperationEnded, Phase, PhaseFinished, PhaseStarted
from gpusnap.hookspecs import hookimpl
from gpusnap.plugins import default_plugins
from gpusnap.repository import Repository
from gpusnap.target import is_zombie
from gpusnap.types import Operation
from tests.cli.conftest import Answer, Command
from tests.repository.samples import hidden

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
BEGIN = PhaseStarted(phase=Phase.ROLLBACK)
END = PhaseFinished(phase=Phase.ROLLBACK, microseconds=1)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_unwinds_and_later_ones_wait(number: signal.Signals) -> None:
    with Interrupts() as interrupts:
        with pytest.raises(Interrupted) as raised:
            signal.raise_signal(number)
        signal.raise_signal(number)
        signal.raise_signal(signal.SIGTERM)
    assert raised.value.number == number
    failure = interrupts.failure(number)
    assert (failure.code, failure.text) == (128 + number, f"Interrupted by {number.name}")
    assert failure.cure is None


def test_a_rollback_is_not_cut_short() -> None:
    with Interrupts() as interrupts:
        interrupts.gpusnap_event(PhaseStarted(phase=Phase.DUMP))
        interrupts.gpusnap_event(BEGIN)
        signal.raise_signal(signal.SIGTERM)
    assert "could be undone" in interrupts.failure(signal.SIGTERM).text
    assert interrupts.failure(signal.SIGTERM).cure == "Run gpusnap recover"
    interrupts.gpusnap_event(END)
    failure = interrupts.failure(signal.SIGTERM)
    assert failure.text == "Interrupted by SIGTERM; what had been done so far was undone"
    assert failure.cure is None


def started(phase: Phase) -> PhaseStarted:
    return PhaseStarted(phase=phase)


def finished(phase: Phase) -> PhaseFinished:
    return PhaseFinished(phase=phase, microseconds=1)


@pytest.mark.parametrize("phase", [Phase.LOCK, Phase.CHECKPOINT])
def test_a_call_of_the_driver_is_waited_for(phase: Phase) -> None:
    with Interrupts() as interrupts:
        interrupts.gpusnap_event(started(phase))
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(Interrupted) as raised:
            interrupts.gpusnap_event(finished(phase))
    assert raised.value.number == signal.SIGTERM


def test_devices_are_given_back_before_anything_unwinds() -> None:
    with Interrupts() as interrupts:
        interrupts.gpusnap_event(started(Phase.RESTORE))
        signal.raise_signal(signal.SIGTERM)
        for phase in (Phase.RESTORE, Phase.UNLOCK):
            interrupts.gpusnap_event(started(phase))
            interrupts.gpusnap_event(finished(phase))
        with pytest.raises(Interrupted):
            interrupts.gpusnap_event(started(Phase.DIGEST))


@pytest.mark.parametrize("moment", [started, finished])
def test_from_the_publication_on_it_is_too_late(
    moment: Callable[[Phase], PhaseStarted | PhaseFinished],
) -> None:
    with Interrupts() as interrupts:
        interrupts.gpusnap_event(started(Phase.PUBLISH))
        if moment is finished:
            interrupts.gpusnap_event(finished(Phase.PUBLISH))
        signal.raise_signal(signal.SIGTERM)
        interrupts.gpusnap_event(finished(Phase.PUBLISH))
        interrupts.operation_ended(last=True)


def test_when_an_operation_has_ended_it_is_too_late() -> None:
    with Interrupts() as interrupts:
        interrupts.gpusnap_event(started(Phase.CRIU_RESTORE))
        ended = OperationEnded(id="a", operation=Operation.RESTORE, microseconds=1)
        interrupts.gpusnap_event(ended)
        signal.raise_signal(signal.SIGTERM)  # a plugin takes its time
        interrupts.operation_ended(last=True)


def test_one_that_waited_comes_before_the_next_operation() -> None:
    with Interrupts() as interrupts:
        interrupts.gpusnap_event(started(Phase.PUBLISH))
        signal.raise_signal(signal.SIGTERM)
        interrupts.gpusnap_event(finished(Phase.PUBLISH))
        with pytest.raises(Interrupted):
            interrupts.operation_ended(last=False)


def test_between_two_operations_it_unwinds_at_once() -> None:
    with Interrupts() as interrupts:
        interrupts.gpusnap_event(started(Phase.UNLOCK))
        interrupts.gpusnap_event(finished(Phase.UNLOCK))
        interrupts.operation_ended(last=False)
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGTERM)


class SignalAfter:
    """Sends a signal when a step is done, before the command line hears that it is."""

    def __init__(self, phase: Phase) -> None:
        self._phase = phase

    @hookimpl
    def gpusnap_event(self, event: Event) -> None:
        if isinstance(event, PhaseFinished) and event.phase is self._phase:
            signal.raise_signal(signal.SIGINT)


Interrupt = Callable[[Phase], None]


@pytest.fixture
def interrupt() -> Iterator[Interrupt]:
    sent: list[SignalAfter] = []

    def register(phase: Phase) -> None:
        sent.append(SignalAfter(phase))
        default_plugins().register(sent[-1], f"signal-{len(sent)}")

    yield register
    for each in sent:
        default_plugins().unregister(each)


@pytest.mark.usefixtures("real_criu")
def test_killed_targets_are_told_of(
    command: Command,
    sleeper: int,
    repository: Repository,
    interrupt: Interrupt,
) -> None:
    interrupt(Phase.PUBLISH)
    answer = command("checkpoint", sleeper, "one", "--kill", "--repo", repository.path)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.endswith("it is gone (--kill)\n")
    assert is_zombie(sleeper)
    assert [each.name for each in repository.snapshots()] == ["one"]


@pytest.mark.usefixtures("real_criu")
def test_before_the_publication_the_target_runs_on(
    command: Command,
    sleeper: int,
    repository: Repository,
    interrupt: Interrupt,
) -> None:
    interrupt(Phase.DIGEST)
    answer = command("checkpoint", sleeper, "one", "--kill", "--repo", repository.path)
    sentence = "Interrupted by SIGINT; what had been done so far was undone"
    answer.refused(130, sentence)
    assert not is_zombie(sleeper)
    assert (repository.snapshots(), hidden(repository.path)) == ((), [])


def test_other_steps_are_left_at_once() -> None:
    with Interrupts() as interrupts:
        interrupts.gpusnap_event(started(Phase.LOCK))
        interrupts.gpusnap_event(finished(Phase.LOCK))
        interrupts.gpusnap_event(started(Phase.DUMP))
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGTERM)


def test_an_error_counts_more_than_a_signal_that_waits() -> None:
    with Interrupts() as interrupts:
        interrupts.gpusnap_event(started(Phase.LOCK))
        signal.raise_signal(signal.SIGTERM)
        interrupts.gpusnap_event(BEGIN)
        interrupts.gpusnap_event(END)
        interrupts.gpusnap_event(started(Phase.DIGEST))


def test_after_the_end_nothing_unwinds() -> None:
    with Interrupts():
        pass
    signal.raise_signal(signal.SIGTERM)


def test_what_is_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Interrupts():
        signal.raise_signal(signal.SIGHUP)


def test_a_signal_as_soon_as_it_is_listened_to(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    listen = signal.signal

    def at_once(number: int, handler: Any) -> Any:
        before = listen(number, handler)
        if number == signal.SIGINT:
            signal.raise_signal(number)
        return before

    with monkeypatch.context() as patch:
        patch.setattr(signal, "signal", at_once)
        answer = command("devices")
    answer.refused(130, "Interrupted by SIGINT")


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("form", ["text", "json"])
def test_exit_code(
    command: Command, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, form: str
) -> None:
    def slow(**_: object) -> None:
        signal.raise_signal(number)

    monkeypatch.setattr("gpusnap.cli.devices.read_devices", slow)
    answer: Answer = command("devices", *(["--json"] if form == "json" else []))
    assert (answer.code, answer.out) == (128 + number, "")
    if form == "json":
        assert answer.failure["code"] == 128 + number
    else:
        assert answer.err == f"gpusnap: Interrupted by {number.name}\n"


def test_ctrl_c_while_modules_load_leaves_no_traceback() -> None:
    # Until gpusnap says what an interrupt does, it is Python's own affair.
    script = (
        "import signal, gpusnap.cli\n"
        "say = signal.signal\n"
        "signal.signal = lambda *said: (say(*said), print(flush=True))[0]\n"
        "gpusnap.cli.main()\n"
    )
    for delay in (0.0, 0.05, 0.1, 0.2):
        with subprocess.Popen(
            [sys.executable, "-c", script, "backends"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(delay)
            os.kill(process.pid, signal.SIGINT)
            _, said = process.communicate(timeout=60)
        assert b"Traceback" not in said
        assert process.returncode in {-signal.SIGINT, 128 + signal.SIGINT, 0}
