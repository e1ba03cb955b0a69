"""Abstract Unix sockets: which names a restore needs, and others for those that are in use."""

import itertools
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusnap.abstract_sockets import (
    Reservations,
    _renamed,
    _variant,
    compare_names,
)
from gpusnap.criu import AbstractName, abstract_names, images_pb2, rename_sockets, unsealed
from gpusnap.criu.images import COMMON_MAGIC, FILES_MAGIC
from tests.descriptors import descriptors, none_left_open
from tests.test_sockets import ESTABLISHED, entry, write

STREAM, DATAGRAM, PACKETS = socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET
OWN = b"\0gpusnap-test-%d" % os.getpid()
"""What names of this test begin with."""


@pytest.fixture
def bound() -> Iterator[list[socket.socket]]:
    """Sockets to be closed at the end."""
    sockets: list[socket.socket] = []
    yield sockets
    for each in sockets:
        each.close()


def bind(name: bytes, kind: int = STREAM) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, kind)
    made.bind(name)
    return made


def choose_names(images: Path, reservations: Reservations) -> dict[AbstractName, AbstractName]:
    return compare_names(images, reservations, copy=True).renamed


def chosen(images: Path) -> list[bytes]:
    with Reservations() as reservations:
        return [new.name for new in choose_names(images, reservations).values()]


def test_which_names_a_restore_needs(tmp_path: Path) -> None:
    write(
        tmp_path,
        images_pb2.FileEntry(id=1, reg=images_pb2.RegularFile(flags=0, pos=0, name=b"/a")),
        entry(b"\0one"),
        entry(b"\0one"),
        entry(b"\0one", kind=DATAGRAM),
        entry(b"\0two\0", ESTABLISHED, DATAGRAM),
        entry(b"\0accepted", ESTABLISHED),
        entry(b"\0accepted", ESTABLISHED, PACKETS),
        entry(b"\0outside", kind=DATAGRAM, uflags=1),
        entry(b"\0strange", kind=4_000_000_000),
        entry(b"/run/file"),
        entry(b""),
    )
    needed = [(STREAM, b"\0one"), (DATAGRAM, b"\0one"), (DATAGRAM, b"\0two\0")]
    assert [(each.kind, each.name) for each in abstract_names(tmp_path)] == needed
    (tmp_path / "netns-9.img").touch()
    assert abstract_names(tmp_path) == (), "a network namespace of its own has room for all"
    assert abstract_names(tmp_path / "other") == (), "a dump without this list"


def test_a_name_in_use_gets_a_number(tmp_path: Path, bound: list[socket.socket]) -> None:
    write(tmp_path, entry(OWN), entry(OWN, kind=DATAGRAM), entry(OWN + b"-4"))
    assert chosen(tmp_path) == []
    bound.append(bind(OWN))
    assert chosen(tmp_path) == [OWN + b"-2"], "datagrams have names of their own"
    bound.append(bind(OWN + b"-2"))
    bound.append(bind(OWN + b"-3"))
    assert chosen(tmp_path) == [OWN + b"-5"], "the fourth is another one's of the snapshot"


def test_a_connection_of_a_listener_that_is_gone_leaves_the_name_free(
    tmp_path: Path, bound: list[socket.socket]
) -> None:
    write(tmp_path, entry(OWN))
    with bind(OWN) as listener:
        listener.listen()
        bound.append(socket.socket(socket.AF_UNIX, STREAM))
        bound[0].connect(OWN)
        bound.append(listener.accept()[0])
        assert chosen(tmp_path) == [OWN + b"-2"]
    assert bound[1].getsockname() == OWN
    assert chosen(tmp_path) == []


def test_restores_under_way_take_different_names(tmp_path: Path) -> None:
    write(tmp_path, entry(OWN))
    with Reservations() as first, Reservations() as second, Reservations() as third:
        assert choose_names(tmp_path, first) == {}
        wanted = AbstractName(STREAM, OWN)
        assert choose_names(tmp_path, second) == {wanted: AbstractName(STREAM, OWN + b"-2")}
        assert choose_names(tmp_path, third) == {wanted: AbstractName(STREAM, OWN + b"-3")}
    assert chosen(tmp_path) == []


def test_more_names_than_are_reserved(tmp_path: Path, bound: list[socket.socket]) -> None:
    names = [OWN + b"/%d" % number for number in range(200)]
    write(tmp_path, *map(entry, names))
    bound.append(bind(names[-1]))
    before = len(descriptors())
    with none_left_open(), Reservations() as reservations:
        (new,) = choose_names(tmp_path, reservations).values()
        assert len(descriptors()) < before + 100
    assert new.name == names[-1] + b"-2"


@given(st.binary(max_size=107), st.integers(2, 10**9))
def test_a_variant_is_a_name_that_the_kernel_takes(rest: bytes, number: int) -> None:
    name = b"\0" + rest
    made = _variant(name, number)
    assert made[:1] == b"\0"
    ends = name.rstrip(b"\0").endswith(b"-%d" % number)  # a longest one: the next is tried then
    assert made != name or (ends and len(name) >= 107)
    assert len(made) <= max(107, len(name))
    assert made.endswith(b"\0") == rest.endswith(b"\0")
    assert b"-%d" % number in made


def test_a_finding_says_what_is_called_how() -> None:
    private, other = b"\0cuda-uvmfd-4026531836-7\0", b"\0a\0b\n\xff"
    shown = "@cuda-uvmfd-4026531836-7"
    names = [
        (AbstractName(STREAM, name), AbstractName(STREAM, _variant(name, 2)))
        for name in (private, other)
    ]
    found = [(each.severity, each.text) for each in itertools.starmap(_renamed, names)]
    assert found == [
        (
            "info",
            f"The abstract Unix socket {shown} is in use: the copy has {shown}-2",
        ),
        (
            "warning",
            r"The abstract Unix socket @a@b\n\\xff is in use: the copy has @a@b\n\\xff-2",
        ),
    ]


def test_without_a_copy_a_name_in_use_is_an_error(
    tmp_path: Path, bound: list[socket.socket]
) -> None:
    write(tmp_path, entry(OWN), entry(OWN + b"-free"))
    bound.append(bind(OWN))
    with Reservations() as reservations:
        (found,) = compare_names(tmp_path, reservations, copy=False).findings
    assert (found.code, found.severity) == ("abstract-socket-taken", "error")
    assert f"@{OWN[1:].decode()} of the snapshot is in use" in found.text
    assert "--new-pids" in (found.cure or "")


def test_only_the_name_is_changed_and_only_in_the_copy(tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    # Field 1 of an entry and fields 2 and 9 of a socket are CRIU's, of which gpusnap knows nothing
    unknown = images_pb2.FileEntry.FromString(b"\x08\x05" + entry(OWN).SerializeToString())
    unknown.usk.MergeFromString(b"\x10\x07\x4a\x02\x08\x01")
    write(snapshot, unknown, entry(b"\0other"), entry(OWN, ESTABLISHED))
    before = (snapshot / "files.img").read_bytes()
    images = unsealed(snapshot, tmp_path)
    old = AbstractName(STREAM, OWN)
    rename_sockets(images, {old: AbstractName(STREAM, OWN + b"-2")})
    assert (snapshot / "files.img").read_bytes() == before
    expected = images_pb2.FileEntry()
    expected.CopyFrom(unknown)
    expected.usk.name = OWN + b"-2"
    written = tmp_path / "expected"
    written.mkdir()
    write(written, expected, entry(b"\0other"), entry(OWN, ESTABLISHED))
    assert (images / "files.img").read_bytes() == (written / "files.img").read_bytes()
    assert b"\x10\x07" in expected.SerializeToString()
    assert before.startswith(COMMON_MAGIC + FILES_MAGIC)
