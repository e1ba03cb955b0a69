"""Which device replaces which, by the backend's answer and by the user's choice."""

from collections.abc import Mapping

import msgspec
import pytest

from gpusnap.device_map import NO_CHOICE, Before, DeviceChoice, Mapped, choose_devices, map_devices
from gpusnap.errors import GpusnapError, NoBackendError, NotFoundError, UsageError
from gpusnap.hookspecs import hookimpl
from gpusnap.plugins import Backend, Plugins
from gpusnap.testing.backend import SimulatedBackend
from gpusnap.types import (
    BackendInfo,
    Capability,
    Compatibility,
    Device,
    DeviceMap,
    DeviceUse,
    Engine,
    Severity,
)
from gpusnap_nvidia import NvidiaBackend

PID = 7
STALE = "device-map-stale"


def backend_of(plugin: object) -> Backend:
    plugins = Plugins()
    plugins.register(plugin, "one", is_backend=True)
    return plugins.backend("one")


SIMULATED = backend_of(SimulatedBackend())
NVIDIA = backend_of(NvidiaBackend())


def devices(uuids: str, **changes: Mapping[str, object]) -> tuple[Device, ...]:
    """Devices with letters for UUIDs, in this order; changes by letter."""
    plain = Device(
        index=0,
        uuid="",
        vendor="Simulated",
        model="One",
        memory_total=100,
        memory_free=100,
        driver_version="1.0",
    )
    return tuple(
        msgspec.structs.replace(plain, index=index, uuid=uuid, **changes.get(uuid, {}))
        for index, uuid in enumerate(uuids)
    )


def before(saved: tuple[Device, ...], **uses: int) -> Before:
    """What one process held, by the UUIDs of devices; without any nothing is known."""
    known = (DeviceUse(pid=PID, device_uuid=uuid, memory=size) for uuid, size in uses.items())
    return Before(devices=saved, pids=(PID,), uses=tuple(known))


def moves(found: Mapped) -> dict[str, str]:
    """The map by letters; one that keeps devices where they are is not shown."""
    assert found.device_map is not None, found.findings
    old, new = zip(*found.device_map.pairs, strict=True)
    assert sorted(new) == sorted(set(new)), "each is taken once"
    return {before: now for before, now in zip(old, new, strict=True) if before != now}


def choose(
    saved: Before,
    present: tuple[Device, ...],
    pairs: str = "",
    allowed: str = "",
    backend: Backend = SIMULATED,
) -> Mapped:
    split = tuple((pair[0], pair[2:]) for pair in pairs.split(",") if pair)
    choice = DeviceChoice(pairs=split, devices=tuple(filter(None, allowed.split(","))))
    return map_devices(backend, saved, present, choice)


def errors(found: Mapped) -> list[tuple[str, str, str | None]]:
    return [
        (each.code, each.text, each.cure)
        for each in found.findings
        if each.severity is Severity.ERROR
    ]


@pytest.mark.parametrize(
    ("saved", "present", "pairs", "expected"),
    [
        ("ab", "ab", "0=1", {"a": "b", "b": "a"}),
        ("ab", "ab", "a=b", {"a": "b", "b": "a"}),
        ("ab", "ab", "0=0", {}),
        ("abc", "abc", "0=1", {"a": "b", "b": "a"}),
        ("abc", "abc", "2=0", {"a": "c", "c": "a"}),
        ("abc", "abc", "0=1,1=2", {"a": "b", "b": "c", "c": "a"}),
        ("ab", "cd", "0=1", {"a": "d", "b": "c"}),
        ("ab", "ba", "0=1", {}),
        ("ab", "ba", "0=0", {"a": "b", "b": "a"}),
        ("abc", "cda", "1=0", {"b": "c", "c": "d"}),
    ],
)
def test_a_map_of_some_is_completed(
    saved: str, present: str, pairs: str, expected: dict[str, str]
) -> None:
    found = choose(before(devices(saved)), devices(present), pairs)
    assert moves(found) == expected
    assert found.device_map is not None
    assert [old for old, _ in found.device_map.pairs] == list(saved), "all of them, in order"


@pytest.mark.parametrize(
    ("allowed", "uses", "expected"),
    [
        ("0", {"a": 1}, {}),
        ("1", {"a": 1}, {"a": "b", "b": "a"}),
        ("2", {"a": 1}, {"a": "c", "c": "a"}),
        # One that the processes use and that may stay does not make room for another.
        ("1,2", {"a": 1, "b": 1}, {"a": "c", "c": "a"}),
        ("0,1,2", {"a": 1, "b": 1}, {}),
    ],
)
def test_only_the_devices_that_are_allowed(
    allowed: str, uses: dict[str, int], expected: dict[str, str]
) -> None:
    found = choose(before(devices("abc"), **uses), devices("abc"), allowed=allowed)
    assert moves(found) == expected


def test_a_process_of_which_nothing_is_known_may_be_on_all() -> None:
    found = choose(before(devices("ab")), devices("ab"), allowed="1")
    assert errors(found) == [
        (
            "device-map-unfit",
            (
                "No device is left that can replace saved device 0 (a): the processes use 2, "
                "and --devices allows 1"
            ),
            "Choose other devices, or use --device-map 0=0,1=1",
        )
    ]


def test_devices_are_matched_by_what_fits() -> None:
    two = {"model": "Two"}
    saved, present = devices("abc", c=two), devices("def", d=two)
    found = choose(before(saved), present, "0=2")
    assert found.device_map == DeviceMap(pairs=(("a", "f"), ("b", "e"), ("c", "d")))


def test_memory_decides_where_the_rest_goes() -> None:
    """The others make room: device c, in whose place a would go, is nearly full."""
    full = {"memory_free": 5}
    saved, present = devices("abc"), devices("def", d=full)
    found = choose(before(saved, a=10, b=1, c=1), present, "2=1")
    assert found.device_map == DeviceMap(pairs=(("a", "f"), ("b", "d"), ("c", "e")))
    assert errors(found) == []


def test_a_map_that_was_wished_is_refused_for_memory() -> None:
    present = devices("ab", b={"memory_free": 5})
    found = choose(before(devices("ab"), a=10), present, "0=1")
    assert errors(found) == [
        (
            "device-memory-free",
            "Device 1 (One) has 5 bytes free, 10 bytes are needed there",
            "End or suspend what uses that device (gpusnap ps), or use --device-map 0=0,1=1",
        )
    ]


def test_another_device_is_offered_where_memory_is_short() -> None:
    present = devices("ab", a={"memory_free": 5})
    ((code, _, cure),) = errors(choose(before(devices("ab"), a=10), present))
    assert code == "device-memory-free"
    assert cure is not None
    assert cure.endswith(", or use --device-map 0=1,1=0")


def test_nothing_is_offered_where_nothing_fits() -> None:
    present = devices("ab", a={"memory_free": 5}, b={"memory_free": 5})
    ((_, _, cure),) = errors(choose(before(devices("ab"), a=10), present))
    assert cure == "End or suspend what uses that device (gpusnap ps)"


@pytest.mark.parametrize("backend", [SIMULATED, NVIDIA])
def test_another_model(backend: Backend) -> None:
    present = devices("ab", b={"model": "Two"})
    ((code, text, cure),) = errors(choose(before(present), present, "0=1", backend=backend))
    assert code == "device-model"
    assert "Two" in text
    forced = choose(before(present), present, "0=1", backend=backend).device_map
    assert forced is None, "nor can the other one go to the place that is left"
    assert cure is not None
    assert cure.lower().endswith("use --device-map 0=0,1=1")


def test_what_may_be_forced_keeps_to_the_choice() -> None:
    present = devices("abc", b={"model": "Two"})
    saved = before(devices("abc", c={"model": "Two"}))
    found = choose(saved, present, "0=1,2=2")
    assert found.device_map == DeviceMap(pairs=(("a", "b"), ("b", "a"), ("c", "c")))
    assert [code for code, _, _ in errors(found)] == ["device-model", "device-model"]


@pytest.mark.parametrize("backend", [SIMULATED, NVIDIA])
def test_models_in_another_order(backend: Backend) -> None:
    two = {"model": "Two"}
    found = choose(before(devices("ab", b=two)), devices("cd", c=two), backend=backend)
    assert {code for code, _, _ in errors(found)} == {"device-model"}
    assert all(str(cure).endswith("se --device-map 0=1,1=0") for _, _, cure in errors(found))
    assert choose(
        before(devices("ab", b=two)), devices("cd", c=two), "0=1", backend=backend
    ).device_map == DeviceMap(pairs=(("a", "d"), ("b", "c")))


def test_the_same_devices_in_another_order() -> None:
    """NVIDIA's may be meant by their place or by their name: the user says which."""
    saved, present = before(devices("ab"), a=1), devices("ba")
    ((code, _, cure),) = errors(choose(saved, present, backend=NVIDIA))
    assert code == "device-order"
    assert cure == "Put the GPUs back into their old slots, or use --device-map 0=1,1=0"
    found = choose(saved, present, "0=1,1=0", backend=NVIDIA)
    assert found.device_map is not None
    assert found.device_map.identity
    assert [each.code for each in found.findings] == [STALE], "its number is another"


@pytest.mark.parametrize("pairs", ["", "0=0"])
@pytest.mark.parametrize("present", ["a", "abc"])
def test_more_or_fewer_devices(present: str, pairs: str) -> None:
    found = choose(before(devices("ab")), devices(present), pairs)
    assert errors(found) == [
        (
            "device-count",
            f"The snapshot was taken with 2 devices, this machine has {len(present)}",
            "Restore on a machine with as many devices",
        )
    ]


@pytest.mark.parametrize(
    ("pairs", "allowed", "error", "text"),
    [
        ("2=0", "", NotFoundError, "There is no device '2' among those saved"),
        ("0=7", "", NotFoundError, "There is no device '7' on this machine"),
        ("0=GPU", "", NotFoundError, "There is no device 'GPU' on this machine"),
        ("", "0,9", NotFoundError, "There is no device '9' on this machine"),
        ("0=1,0=0", "", UsageError, "The device map names device 0 twice on one side"),
        ("0=1,1=1", "", UsageError, "The device map names device 1 twice on one side"),
        ("0=0,1=a", "", UsageError, "The device map names device a twice on one side"),
        ("0=1", "0", UsageError, "Device 1 is in the device map and not in --devices"),
    ],
)
def test_choices_that_cannot_be(
    pairs: str, allowed: str, error: type[GpusnapError], text: str
) -> None:
    with pytest.raises(error) as caught:
        choose(before(devices("ab"), a=1), devices("ab"), pairs, allowed)
    assert caught.value.text == text
    assert caught.value.cure


def test_beginnings_of_uuids() -> None:
    named = ("GPU-1a", "GPU-1b", "GPU-1")
    present = tuple(
        msgspec.structs.replace(each, uuid=uuid)
        for each, uuid in zip(devices("abc"), named, strict=True)
    )
    found = choose(before(present), present, "0=GPU-1b")
    assert found.device_map is not None
    assert found.device_map.pairs[0] == ("GPU-1a", "GPU-1b")
    whole = choose(before(present), present, "0=GPU-1")
    assert whole.device_map is not None
    assert whole.device_map.pairs[0] == ("GPU-1a", "GPU-1"), "a whole UUID is no beginning"
    with pytest.raises(UsageError, match="'GPU-' is the beginning of several devices on this"):
        choose(before(present), present, "0=GPU-")


def test_what_goes_stale_is_told() -> None:
    saved = before(devices("abc"), a=1)
    (finding,) = choose(saved, devices("abc"), "0=1").findings
    assert finding.severity is Severity.WARNING
    assert finding.code == STALE
    assert "go from device 0 (a) to device 1 (b); what they remember" in finding.text
    assert choose(saved, devices("abc"), "0=0").findings == ()
    assert choose(saved, devices("abc"), "1=2").findings == (), "nobody is on those"


def test_without_a_choice_the_backend_maps() -> None:
    found = map_devices(SIMULATED, before(devices("ab"), a=1), devices("ca"))
    assert found.device_map == DeviceMap(pairs=(("a", "a"), ("b", "c")))
    assert [each.code for each in found.findings] == [STALE], "its number is another"


class Fixed(SimulatedBackend):
    """A backend that puts processes where they were."""

    @hookimpl
    def gpusnap_backend_info(self) -> BackendInfo:
        return BackendInfo(
            name="fixed", vendor="nobody", capabilities=frozenset({Capability.CHECKPOINT})
        )


class Lenient(SimulatedBackend):
    """A backend that does with more devices than were saved."""

    @hookimpl
    def gpusnap_compatible(
        self, saved: tuple[Device, ...], devices: tuple[Device, ...]
    ) -> Compatibility:
        pairs = zip(saved, devices, strict=False)
        return DeviceMap(pairs=tuple((old.uuid, new.uuid) for old, new in pairs))


def test_a_backend_that_cannot_remap() -> None:
    fixed, saved = backend_of(Fixed()), before(devices("ab"), a=10)
    with pytest.raises(NoBackendError, match="does not offer remap"):
        choose(saved, devices("ab"), "0=1", backend=fixed)
    found = choose(saved, devices("ab", a={"memory_free": 5}), backend=fixed)
    ((_, _, cure),) = errors(found)
    assert cure == "End or suspend what uses that device (gpusnap ps)"


def test_a_backend_that_does_with_more_devices() -> None:
    found = choose(before(devices("a")), devices("abc"), "0=2", backend=backend_of(Lenient()))
    assert found.device_map == DeviceMap(pairs=(("a", "c"),))


def test_criu_s_own_plugin_chooses_itself() -> None:
    saved = msgspec.structs.replace(before(devices("ab")), engine=Engine.CRIU_PLUGIN)
    with pytest.raises(NoBackendError, match="CRIU's own plugin"):
        choose(saved, devices("ab"), "0=1")
    assert map_devices(SIMULATED, saved, devices("ab"), NO_CHOICE).findings == ()


def test_choices_from_python() -> None:
    expected = DeviceChoice(pairs=(("0", "1"),), devices=("1", "GPU-a"))
    assert choose_devices({0: 1}, [1, "GPU-a"]) == expected
    assert choose_devices([("0", 1)], (1, "GPU-a")) == expected
    assert choose_devices(devices="GPU-a") == DeviceChoice(devices=("GPU-a",))
    assert not choose_devices()


@pytest.mark.parametrize("name", [True, None, 1.5])
def test_names_that_name_nothing(name: object) -> None:
    with pytest.raises(UsageError, match="names no device"):
        choose_devices({0: name})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "pairs",
    [[0, 1], "0=1", "01", ["0=1"], ["01"], [b"01"], [(0,)], [(0, 1, 2)], [{0, 1}], 0, None, b"0"],
)
def test_what_is_no_map(pairs: object) -> None:
    with pytest.raises(UsageError, match=r"is no (device map|pair)"):
        choose_devices(pairs)  # type: ignore[arg-type]


@pytest.mark.parametrize("devices", [0, None, b"0"])
def test_what_is_no_list_of_devices(devices: object) -> None:
    with pytest.raises(UsageError, match="no list of devices"):
        choose_devices(devices=devices)  # type: ignore[arg-type]
