"""Binary records of packs and index; docs/reference/snapshot-format.md describes every byte."""

import secrets
import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

import msgspec

from gpusnap.datapath.spans import PAGE, Kind, Span
from gpusnap.native import crc32

VERSION = 1
"""Version of packs and index that this code writes."""

INDEX = "index"
HEADER = PAGE
"""Bytes of a pack in front of its first chunk."""

CHUNK = 1 << 20
"""Most bytes of memory in one chunk."""

_PACK, _FOOT, _INDEX = b"GPUSPACK", b"GPUSFOOT", b"GPUSINDX"
_CRC = struct.Struct("<I")
_PACK_HEADER = struct.Struct("<8sII16s")
_SPAN = struct.Struct("<QQqII")
_CHUNK = struct.Struct("<QQIIIIII")
_FOOTER = struct.Struct("<8sIIQQ16s")
_INDEX_HEADER = struct.Struct("<8sIIII")
_PACK_ENTRY = struct.Struct("<16sQQ")

CHUNK_RECORD = _CHUNK.size

_KINDS = {Kind.DEVICE: 1, Kind.HOST: 2}
_KIND_OF = {number: kind for kind, number in _KINDS.items()}


class Codec(IntEnum):
    """How the bytes of a chunk are stored."""

    RAW = 0
    LZ4 = 1
    ZSTD = 2
    PLANES2_ZSTD = 3
    PLANES4_ZSTD = 4

    @property
    def label(self) -> str:
        """Its name in reports."""
        return self.name.lower().replace("_", "-")


class FormatError(ValueError):
    """Bytes that are not what the format says; the text is half a sentence."""


class NewerError(FormatError):
    """Intact, but of a version that this code does not know."""


class Chunk(NamedTuple):
    """One chunk: which memory, and where it is stored.

    Attributes:
        offset: Where in its span it begins.
        position: Where in its pack it is stored.
        span: Number of its span.
        length: Bytes of memory.
        stored: Bytes in the pack, without the zeros up to the next page.
        codec: How they are stored, a :class:`Codec` once checked.
        crc: CRC-32 of the memory.
        stored_crc: CRC-32 of what is in the pack, with the zeros up to the next page.
    """

    offset: int
    position: int
    span: int
    length: int
    stored: int
    codec: int
    crc: int
    stored_crc: int

    @property
    def extent(self) -> int:
        """Bytes that the chunk takes in the pack."""
        return whole_pages(self.stored)

    def encode(self) -> bytes:
        """The record of the chunk."""
        return _CHUNK.pack(*self)


class Pack(msgspec.Struct, frozen=True):
    """One pack as the index knows it.

    Attributes:
        id: 16 bytes that no other pack has.
        length: Length of the file.
        records: Records of its chunks, in the order of their positions.
    """

    id: bytes
    length: int
    records: bytes

    def chunks(self) -> list[Chunk]:
        """The chunks."""
        return [Chunk(*fields) for fields in _CHUNK.iter_unpack(self.records)]


class Index(msgspec.Struct, frozen=True):
    """All of a saved memory but its bytes."""

    spans: tuple[Span, ...]
    packs: tuple[Pack, ...]


def whole_pages(length: int) -> int:
    """The length rounded up to whole pages."""
    return (length + PAGE - 1) // PAGE * PAGE


def pack_name(number: int) -> str:
    """Name of a pack in its folder."""
    return f"{number:03d}.pack"


def new_pack_id() -> bytes:
    """An identifier that no other pack has."""
    return secrets.token_bytes(16)


def _sealed(data: bytes) -> bytes:
    return data + _CRC.pack(crc32(data))


def _check_seal(data: bytes, what: str) -> None:
    body = memoryview(data)[: -_CRC.size]
    if _CRC.pack(crc32(body)) != data[-_CRC.size :]:
        raise FormatError(f"{what} does not match its checksum")


def encode_header(pack_id: bytes) -> bytes:
    """The first :data:`HEADER` bytes of a pack."""
    fields = _PACK_HEADER.pack(_PACK, VERSION, 0, pack_id)
    return _sealed(fields.ljust(HEADER - _CRC.size, b"\0"))


def encode_footer(pack_id: bytes, position: int, spans: Sequence[Span], records: bytes) -> bytes:
    """What stands behind the last chunk of a pack, to be read from the end of the file."""
    tail = _FOOTER.pack(_FOOT, VERSION, len(spans), len(records) // CHUNK_RECORD, position, pack_id)
    return _sealed(b"".join(map(_encode_span, spans)) + records + tail)


def footer_length(spans: int, records: int) -> int:
    """Length of the footer of a pack, from the number of spans and the length of its records."""
    return spans * _SPAN.size + records + _FOOTER.size + _CRC.size


def _encode_span(span: Span) -> bytes:
    return _SPAN.pack(span.start, span.length, span.priority, span.pid, _KINDS[span.kind])


def encode_index(index: Index) -> bytes:
    """The file of that name."""
    return _sealed(
        _INDEX_HEADER.pack(_INDEX, VERSION, PAGE, len(index.spans), len(index.packs))
        + b"".join(map(_encode_span, index.spans))
        + b"".join(map(_encode_pack, index.packs))
        + b"".join(pack.records for pack in index.packs)
    )


def _encode_pack(pack: Pack) -> bytes:
    return _PACK_ENTRY.pack(pack.id, pack.length, len(pack.records) // CHUNK_RECORD)


class _Cursor:
    """Reads one table after another, never past the end."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self._at = 0

    def take(self, length: int) -> memoryview:
        if length > len(self._data) - self._at:
            raise FormatError("a table is longer than the file")
        self._at += length
        return self._data[self._at - length : self._at]

    def finish(self) -> None:
        if self._at != len(self._data):
            raise FormatError("something stands behind its tables")


def decode_index(data: bytes) -> Index:
    """Read the index.

    The counts in it are believed only as far as the file is long.

    Raises:
        FormatError: It is damaged.
        NewerError: A newer gpusnap wrote it.
    """
    if len(data) < _INDEX_HEADER.size + _CRC.size or not data.startswith(_INDEX):
        raise FormatError("it does not begin as an index")
    _check_seal(data, "it")
    cursor = _Cursor(data[: -_CRC.size])
    _magic, version, page, spans, packs = _INDEX_HEADER.unpack(cursor.take(_INDEX_HEADER.size))
    if version > VERSION:
        raise NewerError(f"it is of version {version}")
    if version != VERSION or page != PAGE:
        raise FormatError("its header is not one that was ever written")
    found = tuple(_decode_spans(cursor.take(spans * _SPAN.size)))
    entries = list(_PACK_ENTRY.iter_unpack(cursor.take(packs * _PACK_ENTRY.size)))
    tables = [bytes(cursor.take(chunks * CHUNK_RECORD)) for _, _, chunks in entries]
    cursor.finish()
    return Index(found, tuple(_packs(entries, tables)))


def _decode_spans(data: memoryview) -> Iterable[Span]:
    for start, length, priority, pid, kind in _SPAN.iter_unpack(data):
        if kind not in _KIND_OF:
            raise FormatError(f"no kind of memory has number {kind}")
        yield Span(pid, start, length, _KIND_OF[kind], priority)


def _packs(entries: Sequence[tuple[bytes, int, int]], tables: Sequence[bytes]) -> Iterable[Pack]:
    for (pack_id, length, _count), records in zip(entries, tables, strict=True):
        yield Pack(pack_id, length, records)
