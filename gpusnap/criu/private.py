"""Where the private copy of CRIU lies and how it is started.

The folder is relocatable: a CRIU, the libraries it was linked with and their own loader, so
that it runs whatever libraries the machine has::

    criu/sbin/criu
    criu/lib/ld-linux-x86-64.so.2, libc.so.6, ...
    criu/receipt.json        which packages it came from
"""

from pathlib import Path

import msgspec

from gpusnap.folders import data_directory

RECEIPT = "receipt.json"


class Package(msgspec.Struct, frozen=True, kw_only=True):
    """One package whose files are part of the private copy."""

    name: str
    version: str
    architecture: str
    sha256: str


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """What the private copy was made of."""

    suite: str
    packages: tuple[Package, ...]


def private_criu_directory() -> Path:
    """The folder of the private copy, whether or not it is there."""
    return data_directory() / "criu"


def private_command(directory: Path) -> tuple[str, ...] | None:
    """How the copy in ``directory`` is started; None where there is none."""
    program, libraries = directory / "sbin" / "criu", directory / "lib"
    try:
        loaders = sorted(libraries.glob("ld-linux-*.so.*"))
        if not program.is_file() or not loaders:
            return None
    except PermissionError:  # a folder of another user's is as good as none
        return None
    return (str(loaders[0]), "--library-path", str(libraries), str(program))


def write_receipt(directory: Path, receipt: Receipt) -> None:
    """Leave ``receipt`` in ``directory``."""
    text = msgspec.json.format(msgspec.json.encode(receipt), indent=2)
    (directory / RECEIPT).write_bytes(text + b"\n")
