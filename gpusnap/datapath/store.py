"""Where the memory that one worker has in hand is stored."""

from contextlib import AbstractContextManager

from gpusnap.datapath.codecs import Encoder
from gpusnap.datapath.identities import Identities, Key, Stored, identify
from gpusnap.datapath.pack import PackWriter
from gpusnap.datapath.records import Codec
from gpusnap.datapath.source import Data, Written
from gpusnap.native import Outlet


class Store:
    """Encodes and writes memory, unless the same is stored already.

    Attributes:
        encoder: What encodes it.
        kept: Where memory is stored that others may share; without identities none does.
    """

    def __init__(self, writer: PackWriter, encoder: Encoder, identities: Identities | None) -> None:
        self.encoder = encoder
        self.kept: list[tuple[Data, Stored]] = []
        self._writer = writer
        self._identities = identities

    def put(self, data: Data, memory: memoryview, codec: Codec) -> None:
        """Store memory, which must stay as it is until :meth:`flush`.

        Args:
            data: Which memory.
            memory: Its bytes.
            codec: How to encode them.
        """
        if self._identities is None:
            self._writer.append(data, self.encoder.encode(codec, memory))
        else:
            self.kept.append((data, self._claim(self._identities, data, memory, codec)))

    @property
    def may_send(self) -> bool:
        """Whether memory may be written as it is without a look at it."""
        return self.encoder.may_skip and self._identities is None and self._writer.may_send

    def outlet(self) -> Outlet | None:
        """Where memory that may be sent is written, to be noted; None before any was put."""
        return self._writer.outlet()

    def note(self, written: Written) -> None:
        """Take in what was written to the outlet."""
        self._writer.note(written)

    def writing(self) -> AbstractContextManager[None]:
        """Turn the kernel's refusals inside the block into sentences about the pack."""
        return self._writer.writing()

    def flush(self) -> None:
        """Write what was put."""
        self._writer.flush()

    def _claim(
        self, identities: Identities, data: Data, memory: memoryview, codec: Codec
    ) -> Stored:
        identity = identify(memory)
        stored, new = identities.claim(Key(identity, data.length, data.crc))
        if new:
            encoded = self.encoder.encode(codec, memory)
            stored.home = self._writer.append(data, encoded, identity)
        return stored
