"""Searches for bytes that a reader of snapshots does not bear, with coverage as its guide.

``python -m tests.hostile.fuzz READER [SECONDS]`` with atheris installed (``pip install atheris``);
READER is one of ``manifest``, ``index``, ``pack``, ``chunk``, ``images``, ``amdgpu`` (images of
CRIU's plugin for AMD GPUs), and of what is no part of a snapshot ``files`` and ``tree`` (lists of
CRIU's), ``journal``, ``run``, ``ledger``, ``mailbox``, ``answer``, ``figures`` (see ``others.py``).
It prints what it tries and ends with the input where something failed; nothing in CI runs it.
"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType

import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]

from tests.amd.dumps import new_dump, old_dump
from tests.hostile import others, samples, targets

SAVED = samples.saved(incremental=True)


def index(data: bytes) -> None:
    """A forged index beside sound packs."""
    targets.regions(SAVED | {"index": targets.sealed(data)})


def pack(data: bytes) -> None:
    """A forged pack beside a sound index."""
    targets.regions(SAVED | {"000.pack": data})


def chunk(data: bytes) -> None:
    """A chunk whose first bytes say codec and length."""
    if len(data) > 4:
        targets.chunk(data[0] % 8, data[4:], int.from_bytes(data[1:4], "little"))


def images(data: bytes) -> None:
    """Both of the images that are read."""
    targets.images({"inventory.img": data, "pstree.img": data})


DUMPS = [(dump, name) for dump in (old_dump(), new_dump()) for name in dump]


def amdgpu(data: bytes) -> None:
    """One forged image in a sound dump; the first byte says which of all."""
    if data:
        dump, name = DUMPS[data[0] % len(DUMPS)]
        others.amdgpu({**dump, name: data[1:]})


READERS: dict[str, tuple[Callable[[bytes], None], tuple[bytes, ...]]] = {
    "manifest": (targets.manifest, samples.MANIFESTS),
    "index": (index, (SAVED["index"],)),
    "pack": (pack, (SAVED["000.pack"],)),
    "chunk": (chunk, (b"\1\0\0\1" + SAVED["000.pack"][4096:8192],)),
    "images": (images, tuple(samples.IMAGES.values())),
    "amdgpu": (amdgpu, tuple(bytes([n]) + dump[name] for n, (dump, name) in enumerate(DUMPS))),
    **{name: (getattr(others, name), seeds) for name, seeds in others.SEEDS.items()},
}


def instrument(module: ModuleType) -> None:
    """Have the functions of a module tell which of their branches were taken."""
    for value in vars(module).values():
        if isinstance(value, FunctionType) and value.__module__ == module.__name__:
            atheris.instrument_func(value)


def main(name: str, seconds: str = "0") -> None:
    """Search, for so many seconds or until something fails."""
    reader, seeds = READERS[name]
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(seeds):
            Path(corpus, str(number)).write_bytes(seed)
        options = [f"-max_total_time={seconds}", "-max_len=200000", "-timeout=20", corpus]
        # Not by a hook on imports: an editable installation has one of its own
        for module in [each for at, each in sys.modules.items() if at.startswith("gpusnap")]:
            instrument(module)
        atheris.Setup([sys.argv[0], *options], reader)
        atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
