import msgspec
import pytest

from gpusnap.types import Device, DeviceMap, Incompatible
from gpusnap_nvidia.match import compatible


def device(index: int, uuid: str, **changes: object) -> Device:
    plain = Device(
        index=index,
        uuid=uuid,
        vendor="NVIDIA",
        model="NVIDIA H200",
        memory_total=150_754_820_096,
        driver_version="580.159.04",
    )
    return msgspec.structs.replace(plain, **changes)


SAVED = (device(0, "GPU-a"), device(1, "GPU-b"))


def codes(answer: object) -> list[str]:
    assert isinstance(answer, Incompatible)
    return [finding.code for finding in answer.findings]


def test_the_same_machine() -> None:
    answer = compatible(SAVED, SAVED)
    assert isinstance(answer, DeviceMap)
    assert answer.identity
    assert answer.pairs == (("GPU-a", "GPU-a"), ("GPU-b", "GPU-b"))


def test_other_gpus_of_the_same_kind_are_mapped_in_order() -> None:
    answer = compatible(SAVED, (device(0, "GPU-c"), device(1, "GPU-d")))
    assert isinstance(answer, DeviceMap)
    assert not answer.identity
    assert answer.pairs == (("GPU-a", "GPU-c"), ("GPU-b", "GPU-d"))


def test_one_of_two_was_replaced() -> None:
    answer = compatible(SAVED, (device(0, "GPU-b"), device(1, "GPU-c")))
    assert isinstance(answer, DeviceMap)
    assert answer.pairs == (("GPU-a", "GPU-b"), ("GPU-b", "GPU-c"))


def test_another_count() -> None:
    assert codes(compatible(SAVED, SAVED[:1])) == ["device-count"]
    assert codes(compatible(SAVED[:1], SAVED)) == ["device-count"]


def test_another_order() -> None:
    assert codes(compatible(SAVED, (device(0, "GPU-b"), device(1, "GPU-a")))) == ["device-order"]


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"model": "NVIDIA A100"}, "device-model", "GPU 1 is a NVIDIA A100"),
        ({"memory_total": 5}, "device-memory", "GPU 1 has 5 bytes"),
        ({"driver_version": "580.1"}, "driver-version", "version 580.1"),
        ({"driver_version": None}, "driver-version", "580.159.04"),
    ],
)
def test_another_property(changes: dict[str, object], code: str, words: str) -> None:
    answer = compatible(SAVED, (SAVED[0], device(1, "GPU-b", **changes)))
    assert codes(answer) == [code]
    assert isinstance(answer, Incompatible)
    (finding,) = answer.findings
    assert words in finding.text
    assert finding.cure


def test_what_may_differ() -> None:
    now = device(1, "GPU-b", memory_free=1, pci="0000:01:00.0", firmware="9")
    assert isinstance(compatible(SAVED, (SAVED[0], now)), DeviceMap)


def test_more_memory_is_enough() -> None:
    larger = device(1, "GPU-c", memory_total=160_000_000_000)
    assert isinstance(compatible(SAVED, (SAVED[0], larger)), DeviceMap)


def test_another_compute_capability() -> None:
    saved = (device(0, "GPU-a", architecture="sm_90"),)
    answer = compatible(saved, (device(0, "GPU-b", architecture="sm_100"),))
    assert codes(answer) == ["device-model"]
    assert isinstance(compatible(saved, (device(0, "GPU-b"),)), DeviceMap), "it is not told"


def test_one_gpu_for_another() -> None:
    """As the host asks where the user chooses: by pairs, whatever their places."""
    assert compatible(SAVED[:1], SAVED[1:]) == DeviceMap(pairs=(("GPU-a", "GPU-b"),))
    other = (device(1, "GPU-b", model="NVIDIA A100"),)
    assert codes(compatible(SAVED[:1], other)) == ["device-model"]
