"""What tells that a device has become worse since a job began to use it."""

from collections.abc import Iterator, Mapping

import msgspec

from gpusnap.checks import choose_backend
from gpusnap.errors import GpusnapError
from gpusnap.plugins import Plugins
from gpusnap.target import find_target
from gpusnap.types import Device, Health

_HEAT = "temperature"


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """From when on a device counts as faulty; None for a figure that is not looked at.

    Attributes:
        errors: So many new uncorrected errors, or pages or rows that went bad.
        temperature: Degrees Celsius.
    """

    errors: int | None = None
    temperature: int | None = None

    def __bool__(self) -> bool:
        """Whether anything is looked at."""
        return self.errors is not None or self.temperature is not None


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with a device.

    Attributes:
        kind: Which figure tells it.
        text: The same in a few words.
        lasts: Whether it is seen again at each look, as heat is; errors are counted anew.
    """

    uuid: str
    index: int
    kind: str
    text: str
    lasts: bool = False


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """The devices of a job's backend, and which of them the job uses."""

    devices: tuple[Device, ...] = ()
    used: frozenset[str] = frozenset()

    @property
    def health(self) -> dict[str, Health]:
        """The health of each device, by its UUID."""
        return {device.uuid: device.health for device in self.devices}


def look(pid: int, plugins: Plugins, backend: str | None = None) -> Seen:
    """Read the devices that a job uses; nothing where it uses none.

    Args:
        pid: The job's root.
        plugins: Where backends are looked for.
        backend: The one to use, or None.

    Raises:
        GpusnapError: The backend cannot tell.
    """
    target = find_target(pid)
    claimed = choose_backend(target, plugins, backend)
    if claimed.backend is None:
        return Seen()
    devices = claimed.backend.devices()
    uses = claimed.backend.processes()
    used = frozenset(use.device_uuid for use in uses if use.pid in target.pids)
    # A driver that does not name its processes, as in a container, leaves all under suspicion
    return Seen(devices=devices, used=used or frozenset(device.uuid for device in devices))


def all_devices(plugins: Plugins) -> tuple[Device, ...]:
    """The devices of all usable backends; one that cannot tell has none."""
    found: list[Device] = []
    for backend in plugins.usable():
        try:
            found += backend.devices()
        except GpusnapError:
            continue
    return tuple(found)


def faults(
    devices: tuple[Device, ...], before: Mapping[str, Health], limits: Limits
) -> tuple[Fault, ...]:
    """Say which devices are worse than they were.

    Args:
        devices: As they are.
        before: How they were, by UUID; one that was not there then has no old errors to tell.
        limits: What counts.
    """
    return tuple(
        Fault(uuid=device.uuid, index=device.index, kind=kind, text=text, lasts=kind == _HEAT)
        for device in devices
        for kind, text in _kinds(device.health, before.get(device.uuid, device.health), limits)
    )


def _kinds(now: Health, before: Health, limits: Limits) -> Iterator[tuple[str, str]]:
    if limits.errors is not None:
        for count, words in _grown(now, before):
            if count >= limits.errors:
                yield words, f"{count} new {words}"
        if now.remap_pending and not before.remap_pending:
            yield "remap_pending", "a memory row waits to be remapped"
        if now.remap_failed and not before.remap_failed:
            yield "remap_failed", "a memory row could not be remapped"
    hot = now.temperature_celsius
    if limits.temperature is not None and hot is not None and hot >= limits.temperature:
        yield _HEAT, f"{hot} degrees Celsius"


def _grown(now: Health, before: Health) -> Iterator[tuple[int, str]]:
    errors = max(
        _more(now.ecc.volatile_uncorrected, before.ecc.volatile_uncorrected),
        _more(now.ecc.aggregate_uncorrected, before.ecc.aggregate_uncorrected),
    )
    yield errors, "uncorrected memory errors"
    yield _more(now.bad_pages, before.bad_pages), "bad memory pages"
    rows = _more(now.remapped_rows_uncorrected, before.remapped_rows_uncorrected)
    yield rows, "remapped memory rows"


def _more(now: int | None, before: int | None) -> int:
    """By how much a count grew; one that fell was reset, and is new as a whole."""
    if now is None or before is None:
        return 0
    return now - before if now >= before else now
