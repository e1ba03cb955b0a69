"""Tests of how a backend compares saved devices with those at hand."""

import msgspec

from gpusnap.testing.conformance.fixtures import Fixtures
from gpusnap.testing.conformance.hooks import Hooks
from gpusnap.testing.conformance.programs import require
from gpusnap.types import Device, DeviceMap, Incompatible, Severity


class MatchingConformance(Fixtures):
    """What every restore relies on before anything is started."""

    def test_own_devices_are_compatible(self, hooks: Hooks) -> None:
        """What was saved here can come back here, each device on itself."""
        devices = hooks.devices()
        answer = hooks.compatible(devices, devices)
        if isinstance(answer, Incompatible):
            require(holds=False, text=f"The own devices do not fit: {answer.findings}")
            return
        require(answer.identity, f"The own devices are exchanged: {answer.pairs}")
        mapped = [old for old, _ in answer.pairs]
        require(mapped == [each.uuid for each in devices], "Not every saved device is mapped")

    def test_other_model_is_named(self, hooks: Hooks) -> None:
        """A device of another model is refused, and the refusal says which."""
        devices = hooks.devices()
        other = (_replaced(devices[0], model="Another Model 9000"), *devices[1:])
        self._refused(hooks, devices, other, name="Another Model 9000")

    def test_missing_device_is_named(self, hooks: Hooks) -> None:
        """One device fewer is refused."""
        devices = hooks.devices()
        self._refused(hooks, devices, devices[:-1], name=None)

    def test_smaller_device_is_refused(self, hooks: Hooks) -> None:
        """A device with a fraction of the memory is refused, where memory is known."""
        devices = hooks.devices()
        total = devices[0].memory_total
        if total is not None:
            small = _replaced(devices[0], memory_total=total // 8, memory_free=total // 8)
            self._refused(hooks, devices, (small, *devices[1:]), name=str(total // 8))

    def test_equal_device_is_mapped_or_refused(self, hooks: Hooks) -> None:
        """Another device of the same kind: a map that covers it, or a reason."""
        devices = hooks.devices()
        twin = (_replaced(devices[0], uuid=f"{devices[0].uuid[:-1]}~"), *devices[1:])
        answer = hooks.compatible(devices, twin)
        if isinstance(answer, DeviceMap):
            require((devices[0].uuid, twin[0].uuid) in answer.pairs, f"Mapped {answer.pairs}")
        else:
            _check_refusal(answer)

    def _refused(
        self,
        hooks: Hooks,
        saved: tuple[Device, ...],
        devices: tuple[Device, ...],
        *,
        name: str | None,
    ) -> None:
        answer = hooks.compatible(saved, devices)
        if isinstance(answer, DeviceMap):
            require(holds=False, text=f"Accepted with the map {answer.pairs}")
            return
        _check_refusal(answer)
        said = " ".join(finding.text for finding in answer.findings)
        require(name is None or name in said, f"The refusal does not name {name}: {said}")


def _replaced(device: Device, **changes: object) -> Device:
    return msgspec.structs.replace(device, **changes)


def _check_refusal(answer: Incompatible) -> None:
    errors = [each for each in answer.findings if each.severity is Severity.ERROR]
    require(bool(errors), "A refusal without a finding of severity error")
    for finding in errors:
        require(bool(finding.code and finding.text), f"The finding {finding} says nothing")
