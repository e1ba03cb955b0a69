import msgspec
import pytest

from gpusnap.testing.compatibility import compare_devices
from gpusnap.types import Device, DeviceMap, Incompatible


def devices(*uuids: str, **properties: object) -> tuple[Device, ...]:
    plain = {"model": "One", "memory_total": 100, "driver_version": "1.0", **properties}
    return tuple(
        msgspec.structs.replace(
            Device(index=index, uuid=uuid, vendor="Simulated", model=""), **plain
        )
        for index, uuid in enumerate(uuids)
    )


def test_same_devices() -> None:
    answer = compare_devices(devices("a", "b"), devices("a", "b"))
    assert answer == DeviceMap(pairs=(("a", "a"), ("b", "b")))
    assert answer.identity


def test_same_devices_in_another_order_replace_themselves() -> None:
    answer = compare_devices(devices("a", "b"), devices("b", "a"))
    assert answer == DeviceMap(pairs=(("a", "a"), ("b", "b")))


def test_other_devices_are_mapped_by_order() -> None:
    answer = compare_devices(devices("a", "b"), devices("c", "d"))
    assert answer == DeviceMap(pairs=(("a", "c"), ("b", "d")))


def test_one_device_was_exchanged() -> None:
    answer = compare_devices(devices("a", "b", "c"), devices("c", "d", "a"))
    assert answer == DeviceMap(pairs=(("a", "a"), ("b", "d"), ("c", "c")))


@pytest.mark.parametrize(
    ("changes", "code", "sentence"),
    [
        ({"model": "Two"}, "device-model", "Device 0 (a) was a One, device 0 is a Two"),
        (
            {"memory_total": 50},
            "device-memory",
            "Device 0 (a) had 100 bytes of memory, device 0 has 50",
        ),
        (
            {"driver_version": "1.1"},
            "driver-version",
            "Device 0 (a) ran with driver 1.0, here it is 1.1",
        ),
    ],
)
def test_difference_is_named(changes: dict[str, object], code: str, sentence: str) -> None:
    answer = compare_devices(devices("a"), devices("b", **changes))
    assert isinstance(answer, Incompatible)
    assert [(each.code, each.text) for each in answer.findings] == [(code, sentence)]


@pytest.mark.parametrize("uuids", ["", "a", "abc"])
def test_number_is_named(uuids: str) -> None:
    answer = compare_devices(devices("a", "b"), devices(*uuids))
    assert isinstance(answer, Incompatible)
    (finding,) = answer.findings
    assert finding.code == "device-count"
    assert f"taken with 2 devices, this machine has {len(uuids)}" in finding.text


def test_every_difference_is_told() -> None:
    answer = compare_devices(devices("a", "b"), devices("c", "d", model="Two", memory_total=1))
    assert isinstance(answer, Incompatible)
    assert len(answer.findings) == 4
