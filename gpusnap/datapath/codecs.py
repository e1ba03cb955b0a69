"""How the bytes of a chunk are made smaller, and back."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

import lz4.block

from gpusnap.datapath.records import MISMATCH, Chunk, Codec, FormatError
from gpusnap.datapath.spans import whole_pages
from gpusnap.native import crc32, join_planes, split_planes

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

SAMPLES = 4
SAMPLE = 8 << 10
"""So many bytes at so many places decide how all of the memory around them is stored."""

_PAYS = 0.9
"""A codec has to leave no more than this of a sample, or `auto` does not take it."""

_DIFFERENCE = 0.01

_REPETITIONS = 0.98
"""Memory of which LZ4 leaves more has none, and planes then do better than Zstandard alone."""

_ZSTD_BLOCK = 128 << 10

_CLOSE = 0.08
"""LZ4 is several times as fast as the others: they have to leave so much less than it does."""

_FAST: Mapping[int, int] = {zstd.CompressionParameter.compression_level: 1}

_ENTROPY: Mapping[int, int] = {
    # Planes of numbers hold next to no repetitions: with a tiny table that is hardly searched,
    # entropy coding is what is left, at twice the speed of level 1 and with a better result.
    zstd.CompressionParameter.compression_level: 1,
    zstd.CompressionParameter.strategy: int(zstd.Strategy.fast),
    zstd.CompressionParameter.hash_log: 6,
    zstd.CompressionParameter.min_match: 7,
}


class Compression(StrEnum):
    """How saved memory is compressed."""

    AUTO = "auto"
    """Whatever pays for a piece of memory, measured at a sample of it."""
    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"
    """Zstandard, over the planes of numbers where that is better."""


class Encoded(NamedTuple):
    """What is stored of a chunk."""

    codec: Codec
    data: memoryview | bytes


class Choice(NamedTuple):
    """A codec with what it did to a sample: bytes left of one, and seconds it took for one."""

    codec: Codec
    ratio: float = 1.0
    cost: float = 0.0


class Encoder:
    """Encodes chunks; for one thread, because it keeps its contexts and buffers.

    Attributes:
        seconds: What encoding chunks took so far.
        length: Bytes of them.
    """

    def __init__(self, compression: Compression) -> None:
        self.seconds = 0.0
        self.length = 0
        self._compression = compression
        self._level1 = zstd.ZstdCompressor(options=_FAST)
        self._entropy = zstd.ZstdCompressor(options=_ENTROPY)
        self._encode: dict[Codec, Callable[[memoryview], memoryview | bytes]] = {
            Codec.RAW: lambda data: data,
            Codec.LZ4: lambda data: lz4.block.compress(data, store_size=False),
            Codec.ZSTD: lambda data: _frame(self._level1, data),
            Codec.PLANES2_ZSTD: lambda data: self._encode_planes(data, 2),
            Codec.PLANES4_ZSTD: lambda data: self._encode_planes(data, 4),
        }
        # Kept: a new one each time would be filled with zeros first, by which all threads wait.
        self._planes = memoryview(bytearray())

    @property
    def may_skip(self) -> bool:
        """Whether memory may be stored as it is without a look at it."""
        return self._compression in {Compression.AUTO, Compression.NONE}

    def encode(self, codec: Codec, data: memoryview) -> Encoded:
        """Encode a chunk, raw where the codec would save no page."""
        if codec is Codec.RAW:
            return Encoded(codec, data)
        begin = time.perf_counter()
        encoded = self._encode[codec](data)
        self.seconds += time.perf_counter() - begin
        self.length += len(data)
        if whole_pages(len(encoded)) >= len(data):
            return Encoded(Codec.RAW, data)
        return Encoded(codec, encoded)

    @property
    def fixed(self) -> Choice | None:
        """What is taken for all memory without a look at it, if so."""
        match self._compression:
            case Compression.NONE:
                return Choice(Codec.RAW)
            case Compression.LZ4:
                return Choice(Codec.LZ4)
            case _:
                return None

    def choose(self, sample: memoryview) -> Choice:
        """The codec for memory like a sample, whatever it costs."""
        if self.fixed is not None:
            return self.fixed
        if not sample:
            return Choice(Codec.RAW)
        fast = self._try(Codec.LZ4, sample)
        codecs = _DENSE if fast.ratio < _REPETITIONS else _DENSE[:-1]
        dense = _first_best([self._try(codec, sample) for codec in codecs])
        if self._compression is Compression.ZSTD:
            return dense
        if fast.ratio <= min(_PAYS, dense.ratio + _CLOSE):
            return fast
        return dense if dense.ratio <= _PAYS else Choice(Codec.RAW)

    def _encode_planes(self, data: memoryview, width: int) -> bytes:
        if len(self._planes) < len(data):
            self._planes = memoryview(bytearray(len(data)))
        planes = self._planes[: len(data)]
        split_planes(data, planes, width)
        size = len(planes) // width
        if size >= _ZSTD_BLOCK:
            return _frame(self._entropy, planes)
        # Each plane needs statistics of its own, which Zstandard keeps for a block.
        blocks = (
            self._entropy.compress(planes[at : at + size], zstd.ZstdCompressor.FLUSH_BLOCK)
            for at in range(0, len(planes), size)
        )
        return b"".join((*blocks, self._entropy.flush()))

    def _try(self, codec: Codec, sample: memoryview) -> Choice:
        begin = time.perf_counter()
        length = len(self._encode[codec](sample))
        cost = (time.perf_counter() - begin) / len(sample)
        return Choice(codec, length / len(sample), cost)


def _first_best(choices: Sequence[Choice]) -> Choice:
    """The one that leaves least; of two that hardly differ the one in front."""
    best, *others = choices
    for other in others:
        if other.ratio < best.ratio - _DIFFERENCE:
            best = other
    return best


_DENSE = (Codec.PLANES2_ZSTD, Codec.PLANES4_ZSTD, Codec.ZSTD)


def _frame(compressor: zstd.ZstdCompressor, data: memoryview) -> bytes:
    return compressor.compress(data, zstd.ZstdCompressor.FLUSH_FRAME)


def content(chunk: Chunk, stored: memoryview) -> memoryview:
    """The memory of a chunk, found to be what was saved.

    Args:
        chunk: Which one.
        stored: What is stored of it.

    Raises:
        FormatError: It is damaged.
    """
    data = decode(chunk.codec, stored, chunk.length)
    if crc32(data) != chunk.crc:
        raise FormatError(MISMATCH)
    return data


def decode(codec: int, stored: memoryview, length: int) -> memoryview:
    """The memory of a chunk.

    Args:
        codec: Number of the codec.
        stored: What is stored of the chunk.
        length: Bytes of memory; more is never made of it, whatever is stored.

    Raises:
        FormatError: It is damaged.
    """
    match codec:
        case Codec.RAW:
            data: memoryview | bytes | bytearray = stored
        case Codec.LZ4:
            data = _decode_lz4(stored, length)
        case Codec.ZSTD:
            data = _decode_frame(stored, length)
        case Codec.PLANES2_ZSTD | Codec.PLANES4_ZSTD:
            planes = _decode_frame(stored, length)
            data = _joined(planes, length, 2 if codec == Codec.PLANES2_ZSTD else 4)
        case _:
            raise FormatError(f"no codec has number {codec}")
    if len(data) != length:
        raise FormatError(f"it holds {len(data)} bytes instead of {length}")
    return memoryview(data)


def _decode_lz4(stored: memoryview, length: int) -> bytes:
    try:
        return bytes(lz4.block.decompress(stored, uncompressed_size=length))
    except lz4.block.LZ4BlockError as error:
        raise FormatError("LZ4 cannot decode it") from error


def _decode_frame(stored: memoryview, length: int) -> bytes:
    decoder = zstd.ZstdDecompressor()
    try:
        data = decoder.decompress(stored, max_length=length + 1)
    except zstd.ZstdError as error:
        raise FormatError("Zstandard cannot decode it") from error
    if not decoder.eof or decoder.unused_data:
        raise FormatError("it is not one Zstandard frame")
    return data


def _joined(planes: bytes, length: int, width: int) -> bytearray:
    data = bytearray(length)
    if len(planes) == length:
        join_planes(planes, data, width)
        return data
    return data[: len(planes)]
