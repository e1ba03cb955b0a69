"""Where the memory that one worker has in hand is stored."""

from contextlib import AbstractContextManager

from gpusnap.datapath.codecs import Encoder
from gpusnap.datapath.identities import Identities, Key, Stored, identify
from gpusnap.datapath.pack import PackWriter
from gpusnap.datapath.records import Codec
from gpusnap.datapath.source import Data
from gpusnap.native import Outlet


class Store:
    """Encodes and writes memory, unless the same is stored already.

    Attributes:
        encoder: What encodes it.
        kept: All memory that came, and where it is stored.
    """

    def __init__(self, writer: PackWriter, encoder: Encoder, identities: Identities | None) -> None:
        self.encoder = encoder
        self.kept: list[tuple[Data, Stored]] = []
        self._writer = writer
        self._identities = identities

    def put(self, data: Data, memory: memoryview, codec: Codec) -> None:
        """Store memory, which must stay as it is until :meth:`flush`, or take in what was written.

        Args:
            data: Which memory. What the outlet was given comes first, in the order in which it was.
            memory: Its bytes, of no account where they were written.
            codec: How to encode them.
        """
        self.kept.append((data, self._put(data, memory, codec)))

    def outlet(self) -> Outlet | None:
        """Where memory may be written as it is, and then be put; None where that cannot be."""
        return self._writer.outlet() if self._identities is None else None

    def writing(self) -> AbstractContextManager[None]:
        """Turn the kernel's refusals inside the block into sentences about the pack."""
        return self._writer.writing()

    def flush(self) -> None:
        """Write what was put."""
        self._writer.flush()

    def _put(self, data: Data, memory: memoryview, codec: Codec) -> Stored:
        if data.position is not None:
            return Stored(self._writer.note(data))
        if self._identities is None:
            return Stored(self._writer.append(data, self.encoder.encode(codec, memory)))
        identity = identify(memory)
        stored, new = self._identities.claim(Key(identity, data.length, data.crc))
        if new:
            encoded = self.encoder.encode(codec, memory)
            stored.home = self._writer.append(data, encoded, identity)
        return stored
