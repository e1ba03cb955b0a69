"""Codecs give back what they took, and never more."""

import os
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusnap.datapath import codecs
from gpusnap.datapath.codecs import Compression, Encoder, decode
from gpusnap.datapath.records import Codec, FormatError
from gpusnap.datapath.spans import PAGE
from gpusnap.native import split_planes

ENCODERS = {each: Encoder(each) for each in Compression}
CODECS = pytest.mark.parametrize("codec", Codec)


@st.composite
def memory(draw: st.DrawFn) -> bytes:
    """Whole pages: repeated bytes, numbers with few exponents, noise."""
    pages = draw(st.integers(1, 80))
    unit = draw(st.binary(min_size=1, max_size=64))
    noise = random.Random(draw(st.integers(0, 1 << 32)))
    every = draw(st.integers(1, 9))
    data = bytearray((unit * (pages * PAGE // len(unit) + 1))[: pages * PAGE])
    data[::every] = noise.randbytes(len(data[::every]))
    return bytes(data)


@CODECS
@given(data=memory())
def test_there_and_back(codec: Codec, data: bytes) -> None:
    stored = ENCODERS[Compression.AUTO].encode(codec, memoryview(data))
    assert stored.codec in {codec, Codec.RAW}
    assert decode(stored.codec, memoryview(stored.data), len(data)) == data
    assert len(stored.data) <= len(data)


@CODECS
@given(data=memory(), stored=st.binary(max_size=2000))
def test_damage_is_no_surprise(codec: Codec, data: bytes, stored: bytes) -> None:
    whole = bytes(ENCODERS[Compression.AUTO].encode(codec, memoryview(data)).data)
    for damaged in (stored, whole[:-1], whole + b"\0", whole[: len(whole) // 2] + stored):
        try:
            found = decode(codec, memoryview(damaged), PAGE)
        except FormatError:
            continue
        assert len(found) == PAGE


@pytest.mark.parametrize("codec", [each for each in Codec if each is not Codec.RAW])
def test_more_than_promised_is_not_made(codec: Codec) -> None:
    encoded = ENCODERS[Compression.AUTO].encode(codec, memoryview(bytes(1 << 20)))
    with pytest.raises(FormatError):
        _ = bytes(decode(codec, memoryview(encoded.data), PAGE))


def test_unknown_codec() -> None:
    with pytest.raises(FormatError, match="no codec has number 9"):
        decode(9, memoryview(b""), 0)


@given(data=memory())
def test_auto_takes_what_pays(data: bytes) -> None:
    choice = ENCODERS[Compression.AUTO].choose(memoryview(data))
    assert choice.ratio <= 0.9 or choice.codec is Codec.RAW


def test_noise_is_left_as_it_is() -> None:
    noise = memoryview(os.urandom(1 << 20))
    assert ENCODERS[Compression.AUTO].choose(noise).codec is Codec.RAW
    assert ENCODERS[Compression.ZSTD].encode(Codec.ZSTD, noise).codec is Codec.RAW


def test_planes_are_made_in_the_same_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    rooms = []

    def split(data: memoryview, out: memoryview, width: int) -> None:
        rooms.append(out.obj)
        split_planes(data, out, width)

    monkeypatch.setattr(codecs, "split_planes", split)
    encoder = Encoder(Compression.ZSTD)
    for length in (1 << 20, PAGE, 1 << 20):
        encoder.encode(Codec.PLANES4_ZSTD, memoryview(bytes(length)))
        encoder.encode(Codec.PLANES2_ZSTD, memoryview(bytes(length)))
    assert len(rooms) == 6
    assert all(room is rooms[0] for room in rooms)
