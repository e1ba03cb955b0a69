"""Suspend and resume where the journal, another backend or the user gets in the way."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import gpusnap
from gpusnap.errors import DeadlineError, DeviceError, GpusnapError
from gpusnap.events import Event, OperationEnded
from gpusnap.hookspecs import hookimpl
from gpusnap.journal import Entry, Journal, Task, entries
from gpusnap.plugins import Backend, Plugins
from gpusnap.recovery import recover
from gpusnap.suspension import SuspendOptions, lent
from gpusnap.testing import Machine, create_machine, fail
from gpusnap.testing.backend import SimulatedBackend
from gpusnap.testing.backend import backend as simulated
from gpusnap.types import BackendInfo, Capability, Claim, DeviceState, Operation, Probe, Target
from tests.testing.running import Program, start_program

pytestmark = pytest.mark.usefixtures("root")

FULL = GpusnapError("The journal cannot be written: No space left on device")


class HangingBackend(SimulatedBackend):
    """Another vendor's, whose driver does not answer."""

    @hookimpl
    def gpusnap_backend_info(self) -> BackendInfo:
        capabilities = frozenset({Capability.SUSPEND})
        return BackendInfo(name="hanging", vendor="Other", capabilities=capabilities)

    @hookimpl
    def gpusnap_probe(self) -> Probe:
        return Probe(usable=True)

    @hookimpl
    def gpusnap_claim(self, target: Target) -> Claim:
        raise DeadlineError("The other vendor's driver does not answer")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = create_machine(tmp_path / "machine", memory=8 << 20)
    monkeypatch.setenv("GPUSNAP_SIM_DIR", str(machine.path))
    monkeypatch.setenv("GPUSNAP_STATE_DIR", str(tmp_path / "state"))
    return machine


@pytest.fixture
def plugins() -> Plugins:
    plugins = Plugins()
    plugins.register(simulated, "simulated", is_backend=True)
    return plugins


@pytest.fixture
def program(machine: Machine, tmp_path: Path) -> Iterator[Program]:
    program = start_program(machine, tmp_path / "log")
    program.compute()
    yield program
    program.kill()


def break_journal(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, *, when: dict[str, object]
) -> None:
    """Have every note with these values fail: a full disk keeps the old one, a signal does not."""
    write = Journal._write

    def _write(journal: Journal) -> None:
        met = all(getattr(journal.entry, field) == value for field, value in when.items())
        if not met or error is not FULL:
            write(journal)
        if met:
            raise error

    monkeypatch.setattr(Journal, "_write", _write)


def left() -> Entry:
    """The one journal there is, which nobody holds any more."""
    ((entry, held),) = entries()
    assert not held
    return entry


def recover_all(plugins: Plugins) -> None:
    """In the program that left the journal, whose workers live on."""
    (recovered,) = recover(plugins=plugins, timeout_us=60_000_000)
    assert not recovered.failed, recovered.outcome


@pytest.mark.parametrize("error", [FULL, KeyboardInterrupt()], ids=["full", "interrupted"])
def test_a_target_that_cannot_be_noted_as_suspended_runs_on(
    program: Program, plugins: Plugins, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    break_journal(monkeypatch, error, when={"suspended": True})
    with pytest.raises(type(error)):
        gpusnap.suspend(program.pid, plugins=plugins)
    program.compute()
    assert entries() == ()


def test_one_that_cannot_be_brought_back_either_is_left_to_recover(
    program: Program, plugins: Plugins, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(machine, "restore", "out-of-memory", times=3)  # as often as it is tried
    with monkeypatch.context() as patch:
        break_journal(patch, KeyboardInterrupt(), when={"suspended": True})
        with pytest.raises(KeyboardInterrupt):
            gpusnap.suspend(program.pid, plugins=plugins)
    assert not left().suspended
    recover_all(plugins)
    program.compute()


@pytest.mark.parametrize("error", [FULL, KeyboardInterrupt()], ids=["full", "interrupted"])
def test_a_resume_that_cannot_be_noted_lets_go_of_the_journal(
    program: Program, plugins: Plugins, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    gpusnap.suspend(program.pid, plugins=plugins)
    with monkeypatch.context() as patch:
        break_journal(patch, error, when={"task": Task.RESUME})
        with pytest.raises(type(error)):
            gpusnap.resume(program.pid, plugins=plugins)
    if error is FULL:
        assert left().suspended
        gpusnap.resume(program.pid, plugins=plugins)
    else:
        assert not left().suspended
        recover_all(plugins)
    program.compute()
    assert entries() == ()


def test_a_resume_asks_the_named_backend_alone(program: Program, plugins: Plugins) -> None:
    gpusnap.suspend(program.pid, plugins=plugins)
    plugins.register(HangingBackend(), "hanging", is_backend=True)
    with pytest.raises(DeadlineError):
        gpusnap.resume(program.pid, plugins=plugins)
    gpusnap.resume(program.pid, backend="simulated", plugins=plugins)
    program.compute()
    with pytest.raises(DeadlineError):  # to suspend it, both have to be asked
        gpusnap.suspend(program.pid, backend="simulated", plugins=plugins)


def test_a_target_that_the_driver_has_only_locked_is_not_taken_for_suspended(
    program: Program, plugins: Plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, first = Backend.state, iter([DeviceState.LOCKED])

    def state(backend: Backend, pids: tuple[int, ...]) -> dict[int, DeviceState]:
        told = next(first, None)
        return read(backend, pids) if told is None else dict.fromkeys(pids, told)

    monkeypatch.setattr(Backend, "state", state)
    with pytest.raises(DeviceError, match="is locked, not checkpointed"):
        gpusnap.suspend(program.pid, plugins=plugins)
    program.compute()
    assert entries() == ()


class Presser:
    """A user who presses Ctrl-C when an operation has just ended well."""

    @hookimpl
    def gpusnap_event(self, event: Event) -> None:
        if isinstance(event, OperationEnded) and event.operation is Operation.SUSPEND:
            raise KeyboardInterrupt


def test_a_target_whose_devices_are_lent_is_resumed_also_where_the_block_never_begins(
    program: Program, plugins: Plugins
) -> None:
    plugins.register(Presser(), "presser")
    with pytest.raises(KeyboardInterrupt), lent(program.pid, SuspendOptions(), plugins=plugins):
        pytest.fail("the block began")
    program.compute()
    assert entries() == ()
