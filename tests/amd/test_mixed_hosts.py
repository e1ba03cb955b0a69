"""NVIDIA and AMD devices in one machine, and targets that use both."""

import pytest

from gpusnap.checks import choose_backend
from gpusnap.errors import TargetError, UsageError
from gpusnap.hookspecs import hookimpl
from gpusnap.plugins import Plugins
from gpusnap.testing.backend import SimulatedBackend
from gpusnap.types import BackendInfo, Capability, Claim, Operation, Probe, Target
from gpusnap_amd import AmdBackend
from tests.amd.invented import Machine, make_target


class OtherBackend(SimulatedBackend):
    """Claims the processes it is told to."""

    def __init__(self, vendor: str, *pids: int) -> None:
        super().__init__()
        self._vendor = vendor
        self._pids = pids

    @hookimpl
    def gpusnap_backend_info(self) -> BackendInfo:
        return BackendInfo(
            name="other", vendor=self._vendor, capabilities=frozenset({Capability.CHECKPOINT})
        )

    @hookimpl
    def gpusnap_probe(self) -> Probe:
        return Probe(usable=True)

    @hookimpl
    def gpusnap_claim(self, target: Target) -> Claim:
        pids = tuple(pid for pid in target.pids if pid in self._pids)
        return Claim(pids=pids, reason="told so")


def mixed(machine: Machine, other: OtherBackend) -> Plugins:
    machine.add_gpu(1)
    machine.add_kfd_process(70, {1: 5})
    plugins = Plugins()
    plugins.register(AmdBackend(machine.sysfs, machine.proc), "amd", is_backend=True)
    plugins.register(other, "other", is_backend=True)
    return plugins


def test_each_vendor_has_its_targets(machine: Machine) -> None:
    plugins = mixed(machine, OtherBackend("NVIDIA", 71))
    for pid, name in ((70, "amd"), (71, "other")):
        claimed = choose_backend(make_target(pid), plugins)
        assert claimed.backend is not None
        assert (claimed.backend.name, claimed.pids) == (name, (pid,))
    assert choose_backend(make_target(72), plugins).backend is None


@pytest.mark.parametrize("name", [None, "amd", "other"])
@pytest.mark.parametrize("pids", [(70,), (69, 70, 71)])
def test_a_target_that_uses_both_is_refused(
    machine: Machine, pids: tuple[int, ...], name: str | None
) -> None:
    """Naming a backend does not help: the state in the other's devices would be lost."""
    plugins = mixed(machine, OtherBackend("NVIDIA", pids[-1]))
    with pytest.raises(TargetError) as refusal:
        choose_backend(make_target(*pids), plugins, name)
    assert f"AMD (process 70) and NVIDIA (process {pids[-1]})" in refusal.value.text


@pytest.mark.parametrize("name", ["amd", "other"])
def test_one_that_is_resumed_is_not_refused(machine: Machine, name: str) -> None:
    plugins = mixed(machine, OtherBackend("NVIDIA", 70))
    claimed = choose_backend(make_target(70), plugins, name, Operation.RESUME)
    assert claimed.backend is not None
    assert (claimed.backend.name, claimed.pids) == (name, (70,))
    with pytest.raises(UsageError, match="amd and other"):
        choose_backend(make_target(70), plugins, None, Operation.RESUME)


def test_two_backends_of_one_vendor_can_be_chosen_from(machine: Machine) -> None:
    plugins = mixed(machine, OtherBackend("AMD", 70))
    with pytest.raises(UsageError, match="amd and other"):
        choose_backend(make_target(70), plugins)
    claimed = choose_backend(make_target(70), plugins, "other")
    assert claimed.backend is not None
    assert claimed.backend.name == "other"
