"""What the program is told of a snapshot of it."""

from collections.abc import Mapping
from typing import Any

import msgspec

from gpusnap.errors import IncompatibleError, UsageError
from gpusnap.mailbox import Answer, encode_answer
from gpusnap.repository import Manifest, Snapshot
from gpusnap.types import DeviceMap

_LONGEST = 32 << 10
"""Bytes of overrides as JSON: paths and devices need room in a mailbox too."""


def check_overrides(overrides: Mapping[Any, object]) -> dict[str, str]:
    """Values for a restored program: names and texts.

    Raises:
        UsageError: They are something else, or too long for a mailbox.
    """
    found: dict[str, str] = {}
    for name, value in overrides.items():
        if not isinstance(name, str) or not isinstance(value, str) or not name:
            msg = f"The override {name!r}: {value!r} is not a name with a text"
            raise UsageError(msg, cure="Give numbers as text: the program converts them")
        found[name] = value
    try:
        length = len(msgspec.json.encode(found))
    except UnicodeEncodeError:
        raise UsageError("An override holds bytes that are no text") from None
    if length > _LONGEST:
        msg = f"The overrides are {length} bytes long as JSON, more than {_LONGEST}"
        raise UsageError(msg, cure="Hand over the path of a file instead")
    return found


def require_listener(snapshot: Snapshot, overrides: Mapping[str, str]) -> None:
    """See that somebody would read the overrides.

    Raises:
        IncompatibleError: The snapshot was not made by the program itself.
    """
    if overrides and snapshot.manifest.mailbox is None:
        raise IncompatibleError(
            f"{snapshot.name} was made from outside, and its program reads no overrides",
            cure="Leave the values out, or save with gpusnap.checkpoint_self() in the program",
        )


def saved(snapshot: Snapshot) -> Answer:
    """For the program that runs on."""
    return Answer(outcome="saved", path=_text(snapshot), devices=_devices(snapshot.manifest))


def restored(snapshot: Snapshot, device_map: DeviceMap, overrides: dict[str, str]) -> Answer:
    """For the program that was brought back."""
    now = dict(device_map.pairs)
    answer = Answer(
        outcome="restored",
        path=_text(snapshot),
        devices=tuple(now.get(uuid, uuid) for uuid in _devices(snapshot.manifest)),
        overrides=overrides,
    )
    encode_answer(answer)
    return answer


def _text(snapshot: Snapshot) -> str:
    """The path of a snapshot; bytes that are no text are escaped as in a manifest."""
    return str(snapshot.path.absolute()).encode(errors="backslashreplace").decode()


def _devices(manifest: Manifest) -> tuple[str, ...]:
    """The devices of which the target held memory, in the driver's order."""
    image = manifest.device_regions
    used = {use.device_uuid for use in image.uses} if image is not None else set()
    return tuple(device.uuid for device in manifest.devices if device.uuid in used)
