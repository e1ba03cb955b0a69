"""Which memory is stored already, told by its content."""

import threading
from collections.abc import Mapping
from typing import NamedTuple

from blake3 import blake3

from gpusnap.datapath.records import NO_IDENTITY, Chunk
from gpusnap.datapath.saved import Saved


class Home(NamedTuple):
    """The chunk that holds some memory: its pack and its number there."""

    pack: int
    chunk: int
    in_parent: bool = False


class Key(NamedTuple):
    """What two chunks must have in common to be taken for one."""

    identity: bytes
    length: int
    crc: int


class Stored:
    """Memory that is stored, or is just being stored by some thread.

    Attributes:
        home: Where; None until it is known.
    """

    __slots__ = ("home",)

    def __init__(self, home: Home | None = None) -> None:
        self.home = home

    def require(self) -> Home:
        """Where, once all threads have ended."""
        if self.home is None:
            raise RuntimeError("a chunk was never stored")
        return self.home


def identify(memory: memoryview) -> bytes:
    """BLAKE3 of memory, 32 bytes."""
    return blake3(memory).digest()


def key_of(chunk: Chunk) -> Key | None:
    """The key of a stored chunk; None where its identity was not computed."""
    if chunk.identity == NO_IDENTITY:
        return None
    return Key(chunk.identity, chunk.length, chunk.crc)


class Parent:
    """An earlier saved memory whose chunks need not be stored again.

    Attributes:
        saved: What is in its folder.
        known: Its chunks by their content.
    """

    def __init__(self, saved: Saved) -> None:
        self.saved = saved
        self.known = {
            key: Stored(Home(pack, number, in_parent=True))
            for pack, table in enumerate(saved.tables)
            for number, chunk in enumerate(table)
            if (key := key_of(chunk)) is not None
        }


class Identities:
    """All memory that is known, for several threads."""

    def __init__(self, parent: Mapping[Key, Stored]) -> None:
        self._known = dict(parent)
        self._lock = threading.Lock()

    def claim(self, key: Key) -> tuple[Stored, bool]:
        """Find memory, or have the caller store it.

        Returns:
            Where it is, and whether the caller is the first and has to store it.
        """
        with self._lock:
            known = self._known.get(key)
            if known is not None:
                return known, False
            self._known[key] = mine = Stored()
            return mine, True
