"""Signals: the first unwinds, later ones and those in a rollback wait."""

import os
import signal
import subprocess
import sys
import time

import pytest

from gpusnap.cli._interrupts import Interrupted, Interrupts
from gpusnap.events import Phase, PhaseFinished, PhaseStarted
from tests.cli.conftest import Answer, Command

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
    # The interpreter itself takes some 20 ms to start; until then it is Python's own affair.
    script = "import sys, gpusnap.cli; print(flush=True); gpusnap.cli.main()"
    for delay in (0.0, 0.05, 0.1, 0.2):
        with subprocess.Popen(
            [sys.executable, "-c", script, "backends"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(0.005 + delay)
            os.kill(process.pid, signal.SIGINT)
            _, said = process.communicate(timeout=30)
        assert b"Traceback" not in said
        assert process.returncode in {-signal.SIGINT, 128 + signal.SIGINT, 0}
