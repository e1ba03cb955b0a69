"""Decides which device at hand replaces which saved one.

Without a choice of the user's that is the backend's answer. A choice names some devices; the
driver wants all of them named, also those that nobody uses (measured on NVIDIA's), so it is
completed to a map that covers every saved device and gives none of those at hand away twice.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import msgspec

from gpusnap.checks import check_device_memory
from gpusnap.errors import NoBackendError, NotFoundError, UsageError
from gpusnap.plugins import Backend
from gpusnap.types import (
    Capability,
    Device,
    DeviceMap,
    DeviceUse,
    Engine,
    Finding,
    Incompatible,
    Severity,
)

DeviceReference: TypeAlias = int | str
"""A device by its index, its UUID or a unique beginning of that."""

DeviceNames: TypeAlias = (
    Mapping[int, DeviceReference]
    | Mapping[str, DeviceReference]
    | Mapping[DeviceReference, DeviceReference]
    | Collection[tuple[DeviceReference, DeviceReference]]
)
"""Saved devices and those that are to replace them."""

_SHORT_UUID = 12
"""Characters that are shown of a UUID where many are listed."""


class DeviceChoice(msgspec.Struct, frozen=True, kw_only=True):
    """What the user says of devices, each by its index, its UUID or a unique beginning of that.

    Attributes:
        pairs: A saved device and the one at hand that is to replace it.
        devices: The devices at hand that the processes may use; none means all.
    """

    pairs: tuple[tuple[str, str], ...] = ()
    devices: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """True where anything was said."""
        return bool(self.pairs or self.devices)


NO_CHOICE = DeviceChoice()


def choose_devices(
    device_map: DeviceNames = (), devices: Collection[DeviceReference] = ()
) -> DeviceChoice:
    """Make a choice of what a caller names.

    Raises:
        UsageError: It is no map or no list, or a device is named by something else than an
            index or a text.
    """
    pairs = device_map.items() if isinstance(device_map, Mapping) else device_map
    if not _is_list(pairs):
        msg = f"{device_map!r} is no device map: that takes a dictionary of old devices to new ones"
        raise UsageError(msg)
    wanted = [devices] if isinstance(devices, str) else devices
    if not _is_list(wanted):
        raise UsageError(f"{devices!r} is no list of devices")
    return DeviceChoice(
        pairs=tuple(map(_pair, pairs)),
        devices=tuple(map(_reference, wanted)),
    )


def _is_list(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | bytes)


def _pair(pair: object) -> tuple[str, str]:
    match pair:
        case [old, new]:  # which no text is, also one of two letters
            return _reference(old), _reference(new)
    msg = f"{pair!r} is no pair of an old device and the one that is to replace it"
    raise UsageError(msg)


def _reference(device: object) -> str:
    if isinstance(device, bool) or not isinstance(device, int | str):
        msg = f"{device!r} names no device: that takes an index, or a UUID or its beginning"
        raise UsageError(msg)
    return str(device)


class Before(msgspec.Struct, frozen=True, kw_only=True):
    """The devices when the processes were saved, and what these held there.

    Attributes:
        devices: All devices of the machine, in order.
        pids: The processes with device state.
        uses: What is known of what they held.
        engine: Who puts it back.
    """

    devices: tuple[Device, ...]
    pids: tuple[int, ...] = ()
    engine: Engine = Engine.DRIVER
    uses: tuple[DeviceUse, ...] = ()

    def memory_on(self, device: Device) -> int:
        """Bytes that a device held of them, as far as is known."""
        return sum(use.memory for use in self.uses if use.device_uuid == device.uuid)

    def is_on(self, device: Device) -> bool:
        """Whether they use a device; a process of which nothing is known may be on any."""
        known = {use.pid for use in self.uses}
        named = any(use.device_uuid == device.uuid for use in self.uses)
        return named or not known.issuperset(self.pids) or not self.pids


class Mapped(msgspec.Struct, frozen=True):
    """The map, None where there is none, and what is to be said of it."""

    device_map: DeviceMap | None
    findings: tuple[Finding, ...]


class _Case(msgspec.Struct, frozen=True):
    """The devices of before and those at hand, which go by their positions from here on."""

    backend: Backend
    before: Before
    present: tuple[Device, ...]

    @property
    def saved(self) -> tuple[Device, ...]:
        """The devices of before."""
        return self.before.devices

    @property
    def movable(self) -> bool:
        """Whether it is gpusnap that says where the processes go."""
        return self.before.engine is Engine.DRIVER and self.backend.offers(Capability.REMAP)


class _Wish(msgspec.Struct, frozen=True):
    """A choice whose devices were found.

    Attributes:
        fixed: Saved device to the one that the user gave it.
        allowed: Devices at hand for the processes, None for all.
    """

    fixed: dict[int, int] = {}
    allowed: frozenset[int] | None = None


_NO_WISH = _Wish()


def map_devices(
    backend: Backend,
    before: Before,
    present: tuple[Device, ...],
    choice: DeviceChoice = NO_CHOICE,
) -> Mapped:
    """Map every saved device to one at hand, and say what stands in the way or goes stale.

    Args:
        backend: The backend of the devices.
        before: The devices and the processes as they were saved.
        present: All devices of this machine, in order.
        choice: What the user says.

    Returns:
        A map, where there is one; it may come with errors, which the user may force.

    Raises:
        UsageError: The choice contradicts itself.
        NotFoundError: It names a device that does not exist.
        NoBackendError: Nobody can put the processes onto devices of one's choice.
    """
    case = _Case(backend, before, present)
    mapped = _by_choice(case, choice) if choice else _by_backend(case)
    if mapped.device_map is None:
        return Mapped(None, _offer(case, mapped.findings))
    memory = check_device_memory(before.uses, mapped.device_map, present)
    errors = _offer(case, (*mapped.findings, *memory))
    return Mapped(mapped.device_map, (*errors, *_stale(case, mapped.device_map)))


def _by_backend(case: _Case) -> Mapped:
    answer = case.backend.compatible(case.saved, case.present)
    if isinstance(answer, Incompatible):
        return Mapped(None, answer.findings)
    return Mapped(answer, ())


def _by_choice(case: _Case, choice: DeviceChoice) -> Mapped:
    case.backend.require(Capability.REMAP)
    if not case.movable:
        msg = "The devices were saved by CRIU's own plugin, which chooses the new ones itself"
        raise NoBackendError(msg, cure="Do without a choice, or checkpoint with --engine driver")
    wish = _find_wish(case, choice)
    if findings := _refused_count(case):
        return Mapped(None, findings)
    misfits = tuple(_misfits(case, wish))
    # Without regard to memory there may be a map, and what it lacks is then told.
    found = _complete(case, wish, memory=True)
    if len(found) < len(case.saved):
        found = _complete(case, wish, memory=False)
    if len(found) < len(case.saved):
        return Mapped(None, misfits or (_left_over(case, wish, found),))
    return Mapped(_as_map(case, found), misfits)


def _refused_count(case: _Case) -> tuple[Finding, ...]:
    """Where there are more or fewer devices, no choice makes good what the backend refuses."""
    return () if len(case.saved) == len(case.present) else _by_backend(case).findings


def _find_wish(case: _Case, choice: DeviceChoice) -> _Wish:
    fixed: dict[int, int] = {}
    for before, now in choice.pairs:
        old = _find(before, case.saved, "among those saved")
        new = _find(now, case.present, "on this machine")
        if old in fixed or new in fixed.values():
            twice = before if old in fixed else now
            raise UsageError(
                f"The device map names device {twice} twice on one side",
                cure="Give each saved device a device of its own",
            )
        fixed[old] = new
    allowed = [_find(each, case.present, "on this machine") for each in choice.devices]
    wish = _Wish(fixed, frozenset(allowed) if allowed else None)
    for old, new in fixed.items():
        if not _allows(case, wish, old, new):
            msg = f"Device {case.present[new].index} is in the device map and not in --devices"
            raise UsageError(msg, cure="Add it to --devices, or leave that option out")
    return wish


def _find(reference: str, devices: Sequence[Device], where: str) -> int:
    """The position of a device that the user named.

    Raises:
        NotFoundError: There is none.
        UsageError: There are several.
    """
    named = [each.uuid == reference or str(each.index) == reference for each in devices]
    begun = [bool(reference) and each.uuid.startswith(reference) for each in devices]
    numeric = reference.isascii() and reference.isdigit()
    found = [at for at, is_it in enumerate(named if numeric or any(named) else begun) if is_it]
    listed = ", ".join(f"{each.index} ({each.uuid})" for each in devices) or "none"
    if not found:
        msg = f"There is no device {reference!r} {where}"
        raise NotFoundError(msg, cure=f"Those there are: {listed}")
    if len(found) > 1:
        msg = f"{reference!r} is the beginning of several devices {where}"
        raise UsageError(msg, cure=f"Name one of {listed}")
    return found[0]


def _allows(case: _Case, wish: _Wish, old: int, new: int) -> bool:
    """Devices without state of the processes only change places and may go anywhere."""
    return wish.allowed is None or new in wish.allowed or not case.before.is_on(case.saved[old])


def _misfits(case: _Case, wish: _Wish) -> Iterator[Finding]:
    for old, new in wish.fixed.items():
        answer = case.backend.compatible((case.saved[old],), (case.present[new],))
        if isinstance(answer, Incompatible):
            yield from answer.findings


def _complete(case: _Case, wish: _Wish, *, memory: bool) -> dict[int, int]:
    """Give as many saved devices as possible one at hand, by position.

    What the user gave comes first, then what the processes use, then the rest. In each, a device
    that is still there replaces itself; the others get the like of them in the same position, or
    elsewhere.
    """
    everyone = range(len(case.saved))
    candidates = [list(_candidates(case, wish, old, memory=memory)) for old in everyone]
    used = [old for old in everyone if case.before.is_on(case.saved[old])]
    placed: dict[int, int] = {}
    for group in (wish.fixed, used, everyone):
        for old in _without(placed, group):
            _place_free(old, [new for new in candidates[old] if _is_own(case, old, new)], placed)
        for old in _without(placed, group):
            _place(old, candidates, placed, set())
    return {old: new for new, old in placed.items()}


def _without(placed: Mapping[int, int], group: Iterable[int]) -> list[int]:
    return [old for old in group if old not in placed.values()]


def _is_own(case: _Case, old: int, new: int) -> bool:
    return case.saved[old].uuid == case.present[new].uuid


def _candidates(case: _Case, wish: _Wish, old: int, *, memory: bool) -> Iterator[int]:
    if old in wish.fixed:
        yield wish.fixed[old]
        return
    before = case.saved[old]
    nearest = sorted(range(len(case.present)), key=lambda new: (new != old, new))
    for new in nearest:
        now = case.present[new]
        fits = isinstance(case.backend.compatible((before,), (now,)), DeviceMap)
        roomy = now.memory_free is None or case.before.memory_on(before) <= now.memory_free
        if fits and (roomy or not memory) and _allows(case, wish, old, new):
            yield new


def _place(
    old: int, candidates: Sequence[Sequence[int]], placed: dict[int, int], seen: set[int]
) -> bool:
    """Find a place for one more, and other places for those that it drives out (Kuhn's way)."""
    if _place_free(old, candidates[old], placed):
        return True
    for new in candidates[old]:
        if new not in seen:
            seen.add(new)
            if _place(placed[new], candidates, placed, seen):
                placed[new] = old
                return True
    return False


def _place_free(old: int, candidates: Sequence[int], placed: dict[int, int]) -> bool:
    new = next((new for new in candidates if new not in placed), None)
    if new is None:
        return False
    placed[new] = old
    return True


def _as_map(case: _Case, found: Mapping[int, int]) -> DeviceMap:
    return DeviceMap(
        pairs=tuple(
            (device.uuid, case.present[found[old]].uuid) for old, device in enumerate(case.saved)
        )
    )


def _left_over(case: _Case, wish: _Wish, found: Mapping[int, int]) -> Finding:
    device = next(device for old, device in enumerate(case.saved) if old not in found)
    text = f"No device is left that can replace saved device {device.index} ({device.uuid})"
    if wish.allowed is not None:
        used = sum(map(case.before.is_on, case.saved))
        text += f": the processes use {used}, and --devices allows {len(wish.allowed)}"
    return Finding(
        code="device-map-unfit",
        severity=Severity.ERROR,
        text=text,
        cure="Choose other devices",
    )


def _offer(case: _Case, findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Add the map that would fit to the cures of what stands in the way, where there is one."""
    if not findings or not case.movable or _refused_count(case):
        return findings
    found = _complete(case, _NO_WISH, memory=True)
    if len(found) < len(case.saved):
        return findings
    saved, present = case.saved, case.present
    pairs = ",".join(f"{saved[old].index}={present[found[old]].index}" for old in sorted(found))
    return tuple(_with_offer(finding, f"--device-map {pairs}") for finding in findings)


def _with_offer(finding: Finding, option: str) -> Finding:
    cure = f"{finding.cure}, or use {option}" if finding.cure else f"Use {option}"
    return msgspec.structs.replace(finding, cure=cure)


def _stale(case: _Case, device_map: DeviceMap) -> Iterator[Finding]:
    """Warn of what the driver cannot change: what processes themselves remember of a device."""
    replacement = dict(device_map.pairs)
    at_hand = {device.uuid: device for device in case.present}
    pairs = [(old, at_hand.get(replacement.get(old.uuid, old.uuid))) for old in case.saved]
    moves = [
        f"from device {_short(old)} to device {_short(new)}"
        for old, new in pairs
        if new is not None and _moves(old, new) and case.before.is_on(old)
    ]
    if moves:
        yield Finding(
            code="device-map-stale",
            severity=Severity.WARNING,
            text=f"The processes go {', '.join(moves)}; what they remember of devices stays as it "
            "was: UUIDs, bus addresses, numbers in management libraries, lists of visible devices",
            cure="Have what watches devices by these look for them again",
        )


def _moves(old: Device, new: Device) -> bool:
    return (old.uuid, old.index) != (new.uuid, new.index)


def _short(device: Device) -> str:
    return f"{device.index} ({device.uuid[:_SHORT_UUID]})"
