"""What CRIU's own image files say of a dump."""

import struct
from pathlib import Path

from google.protobuf.message import DecodeError

from gpusnap.criu import images_pb2
from gpusnap.errors import IntegrityError

INVENTORY = "inventory.img"
MAGIC = struct.pack("<I", 0x58313116)
"""CRIU's mark of an inventory (criu/include/magic.h), the one image without a common mark."""
LENGTH = struct.Struct("<I")
LARGEST = 1 << 20
"""An inventory is some hundred bytes; a longer one is not worth reading."""


def inventory_plugins(images: Path) -> tuple[str, ...]:
    """The names of the plugins that took part in a dump.

    Args:
        images: The folder of the dump.

    Raises:
        IntegrityError: The inventory is missing or damaged.
    """
    path = images / INVENTORY
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
        inventory = images_pb2.Inventory.FromString(_payload(data))
    except OSError as error:
        raise IntegrityError(f"{path} cannot be read: {error.strerror}") from error
    except (DecodeError, ValueError) as error:
        raise IntegrityError(f"{path} is damaged: {error}") from error
    return tuple(inventory.plugins_entry.plugins)


def _payload(data: bytes) -> bytes:
    """The one message of an image file, checked against what stands around it."""
    start = len(MAGIC) + LENGTH.size
    if len(data) > LARGEST:
        raise ValueError(f"It is longer than {LARGEST} bytes")
    if len(data) < start or not data.startswith(MAGIC):
        raise ValueError("It does not begin as an inventory of CRIU")
    (length,) = LENGTH.unpack_from(data, len(MAGIC))
    if len(data) != start + length:
        raise ValueError(f"It holds {len(data) - start} bytes where {length} are announced")
    return data[start:]
