"""Binary records of packs and index; docs/reference/snapshot-format.md describes every byte."""

import secrets
import struct
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from itertools import chain
from typing import NamedTuple

import msgspec

from gpusnap.datapath.spans import MOST_SPANS, PAGE, Image, Kind, Span, whole_pages
from gpusnap.native import PieceTable, Stored, crc32, crc32_chain, crc32_combine

VERSION = 1
"""Version of packs, and of an index that tells of no images."""

WITH_IMAGES = 2
"""Version of an index that tells of images, the newest that this code reads."""

INDEX = "index"
INDEX_LIMIT = 1 << 30
"""Bytes of the longest index that is read: enough for 10 TiB of memory in whole chunks."""

HEADER = PAGE
"""Bytes of a pack in front of its first chunk."""

CHUNK = 1 << 20
"""Most bytes of memory in one chunk."""

_PACK, _FOOT, _INDEX = b"GPUSPACK", b"GPUSFOOT", b"GPUSINDX"
_CRC = struct.Struct("<I")
_PACK_HEADER = struct.Struct("<8sII16s")
_SPAN = struct.Struct("<QQqII")
_CHUNK = struct.Struct("<QIIIII32s")
_CHUNK_HEAD = struct.Struct("<QII")
_ORIGIN = struct.Struct("<QI")
_PLACE_FIELDS = "QIII"
_PLACE = struct.Struct("<" + _PLACE_FIELDS)
_FOOTER = struct.Struct("<8sIIQQ16s")
_INDEX_HEADER = struct.Struct("<8sIIIIQ")
_PACK_ENTRY = struct.Struct("<16sQII")
_COUNT = struct.Struct("<I")
_IMAGE = struct.Struct("<QB")

CHUNK_RECORD = _CHUNK.size

_AT_ONCE = 1024
"""Records of places that are packed in one call."""

_STORED = PieceTable(
    stride=CHUNK_RECORD,
    crc_at=struct.calcsize("<QIIII"),
    length_at=struct.calcsize("<QI"),
    unit=PAGE,
)
"""Where records of chunks tell what is stored."""

NO_IDENTITY = bytes(32)
"""Stands for an identity that was not computed."""

_KINDS = {Kind.DEVICE: 1, Kind.HOST: 2, Kind.IMAGE: 3}
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
    """One chunk as a pack holds it.

    Attributes:
        position: Where in its pack it is stored.
        length: Bytes of memory.
        stored: Bytes in the pack, without the zeros up to the next page.
        codec: How they are stored, a :class:`Codec` once checked.
        crc: CRC-32 of the memory.
        stored_crc: CRC-32 of what is in the pack, with the zeros up to the next page.
        identity: BLAKE3 of the memory, or :data:`NO_IDENTITY`.
    """

    position: int
    length: int
    stored: int
    codec: int
    crc: int
    stored_crc: int
    identity: bytes = NO_IDENTITY

    @property
    def extent(self) -> int:
        """Bytes that the chunk takes in the pack."""
        return whole_pages(self.stored)

    def encode(self) -> bytes:
        """The record of the chunk."""
        return _CHUNK.pack(*self)


def encode_raw(position: int, stored: Iterable[Stored]) -> bytes:
    """The records of chunks that are stored as they are, one behind the other."""
    pack, found = _CHUNK.pack, list[bytes]()
    for _offset, length, crc in stored:
        found.append(pack(position, length, length, Codec.RAW, crc, crc, NO_IDENTITY))
        position += length
    return b"".join(found)


class Place(NamedTuple):
    """Memory and the chunk that holds it; several places may share one chunk.

    Attributes:
        offset: Where in its span it begins.
        span: Number of its span.
        pack: Number of the chunk's pack.
        chunk: Number of the chunk in its pack, by rising position.
    """

    offset: int
    span: int
    pack: int
    chunk: int


class Pack(msgspec.Struct, frozen=True):
    """One pack as the index knows it.

    Attributes:
        id: 16 bytes that no other pack has.
        length: Length of the file.
        footer_crc: The checksum that stands at the end of its footer.
        records: Records of all its chunks, by rising position.
    """

    id: bytes
    length: int
    footer_crc: int
    records: bytes

    def chunks(self) -> list[Chunk]:
        """The chunks."""
        return list(map(Chunk._make, _CHUNK.iter_unpack(self.records)))

    def crc(self) -> int:
        """CRC-32 of the whole file, put together from the checksums of its parts.

        It means something for a pack whose chunks fill it, as those of each index do.
        """
        crc, end = crc32(encode_header(self.id)), HEADER
        if self.records:
            position, _length, stored = _CHUNK_HEAD.unpack_from(
                self.records, len(self.records) - CHUNK_RECORD
            )
            crc, end = crc32_chain(crc, self.records, _STORED), position + whole_pages(stored)
        footer = crc32(_CRC.pack(self.footer_crc), self.footer_crc)
        return crc32_combine(crc, footer, self.length - end)


class Index(msgspec.Struct, frozen=True):
    """All of a saved memory but its bytes.

    Attributes:
        spans: The memory, in the order in which it was given.
        packs: By their numbers.
        places: Where each piece of the memory is, by rising span and offset.
        images: The image files that spans are of, by their numbers.
    """

    spans: tuple[Span, ...]
    packs: tuple[Pack, ...]
    places: tuple[Place, ...]
    images: tuple[Image, ...] = ()


def pack_name(number: int) -> str:
    """Name of a pack in its folder."""
    return f"{number:03d}.pack"


def new_pack_id() -> bytes:
    """An identifier that no other pack has."""
    return secrets.token_bytes(16)


MISMATCH = "it does not match its checksum"
"""What is wrong with a chunk of which it is known what it should be."""


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


class Origin(NamedTuple):
    """The memory that a chunk was taken from: offset in a span, and the span's number."""

    offset: int
    span: int


def encode_footer(
    pack_id: bytes,
    position: int,
    spans: Sequence[Span],
    records: bytes,
    origins: Sequence[Origin],
) -> bytes:
    """What stands behind the last chunk of a pack, to be read from the end of the file."""
    tail = _FOOTER.pack(_FOOT, VERSION, len(spans), len(origins), position, pack_id)
    tables = (*map(_encode_span, spans), records, *(_ORIGIN.pack(*origin) for origin in origins))
    return _sealed(b"".join((*tables, tail)))


def seal_of(footer: bytes) -> int:
    """The checksum at the end of a footer."""
    (seal,) = _CRC.unpack(footer[-_CRC.size :])
    return int(seal)


def footer_spans(length: int, records: int) -> int | None:
    """How many spans a footer tells of; None where no footer can be so long.

    Args:
        length: Bytes of the footer.
        records: Bytes of the records of the pack's chunks.
    """
    others = records + records // CHUNK_RECORD * _ORIGIN.size + _FOOTER.size + _CRC.size
    spans, rest = divmod(length - others, _SPAN.size)
    return spans if 0 <= spans <= MOST_SPANS and rest == 0 else None


def check_footer(footer: bytes, pack: Pack) -> None:
    """Compare a footer with what the index knows of it.

    Raises:
        FormatError: It is damaged, or that of another pack.
    """
    _check_seal(footer, "its footer")
    spans = footer_spans(len(footer), len(pack.records)) or 0
    begin, count = spans * _SPAN.size, len(pack.records) // CHUNK_RECORD
    tail = _FOOTER.pack(_FOOT, VERSION, spans, count, pack.length - len(footer), pack.id)
    same = seal_of(footer) == pack.footer_crc and footer[-len(tail) - _CRC.size :].startswith(tail)
    if not same or not footer[begin:].startswith(pack.records):
        raise FormatError("its footer is not that of the pack in the index")


def _encode_span(span: Span) -> bytes:
    return _SPAN.pack(span.start, span.length, span.priority, span.pid, _KINDS[span.kind])


def encode_index(index: Index) -> bytes:
    """The file of that name."""
    counts = len(index.spans), len(index.packs), len(index.places)
    version = WITH_IMAGES if index.images else VERSION
    return _sealed(
        _INDEX_HEADER.pack(_INDEX, version, PAGE, *counts)
        + (_encode_images(index.images) if index.images else b"")
        + b"".join(map(_encode_span, index.spans))
        + b"".join(map(_encode_pack, index.packs))
        + b"".join(pack.records for pack in index.packs)
        + b"".join(_encode_places(index.places))
    )


def _encode_places(places: Sequence[Place]) -> Iterator[bytes]:
    """Many records at a time: there may be very many of them."""
    for begin in range(0, len(places), _AT_ONCE):
        some = places[begin : begin + _AT_ONCE]
        yield struct.pack("<" + _PLACE_FIELDS * len(some), *chain.from_iterable(some))


def _encode_images(images: Sequence[Image]) -> bytes:
    names = ((image.length, image.name.encode()) for image in images)
    table = (_IMAGE.pack(length, len(name)) + name for length, name in names)
    return _COUNT.pack(len(images)) + b"".join(table)


def _encode_pack(pack: Pack) -> bytes:
    count = len(pack.records) // CHUNK_RECORD
    return _PACK_ENTRY.pack(pack.id, pack.length, count, pack.footer_crc)


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
    header = _INDEX_HEADER.unpack(cursor.take(_INDEX_HEADER.size))
    _magic, version, page, spans, packs, places = header
    if version > WITH_IMAGES:
        raise NewerError(f"it is of version {version}")
    if version < VERSION or page != PAGE:
        raise FormatError("its header is not one that was ever written")
    images = tuple(_decode_images(cursor)) if version == WITH_IMAGES else ()
    found = tuple(_decode_spans(cursor.take(spans * _SPAN.size)))
    entries = cursor.take(packs * _PACK_ENTRY.size)
    decoded = tuple(_decode_packs(entries, cursor))
    table = cursor.take(places * _PLACE.size)
    cursor.finish()
    return Index(found, decoded, tuple(map(Place._make, _PLACE.iter_unpack(table))), images)


def _decode_images(cursor: _Cursor) -> Iterator[Image]:
    (count,) = _COUNT.unpack(cursor.take(_COUNT.size))
    for _ in range(count):
        length, size = _IMAGE.unpack(cursor.take(_IMAGE.size))
        try:
            yield Image(str(cursor.take(size), "utf-8"), length)
        except UnicodeDecodeError as error:
            raise FormatError("the name of an image is no text") from error


def _decode_spans(data: memoryview) -> Iterable[Span]:
    for start, length, priority, pid, kind in _SPAN.iter_unpack(data):
        if kind not in _KIND_OF:
            raise FormatError(f"no kind of memory has number {kind}")
        yield Span(pid, start, length, _KIND_OF[kind], priority)


def _decode_packs(entries: memoryview, cursor: _Cursor) -> Iterator[Pack]:
    for pack_id, length, chunks, footer_crc in _PACK_ENTRY.iter_unpack(entries):
        yield Pack(pack_id, length, footer_crc, bytes(cursor.take(chunks * CHUNK_RECORD)))
