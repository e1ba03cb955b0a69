import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusnap.errors import IncompatibleError, IntegrityError
from gpusnap.events import Phase
from gpusnap.repository import FORMAT_VERSION, FileDigest, Manifest, PhaseTime, SavedOptions
from gpusnap.repository.layout import WITH_PARTS
from gpusnap.repository.manifest import decode, decode_versioned, encode, timestamp
from gpusnap.types import Device, DeviceImage, DeviceUse, Finding, Region, Severity
from tests.repository.samples import TARGET, manifest

PATH = Path("repo/a/manifest.json")
DIGEST = FileDigest(path="criu/core-7.img", size=9, crc32=0xFFFFFFFF, sha256="0" * 64)
FULL = msgspec.structs.replace(
    manifest("a", (DIGEST,)),
    backend="nvidia",
    claimed=(7,),
    device_regions=DeviceImage(
        regions=(Region(7, 0x7F00_0000_0000, 1 << 33),),
        uses=(DeviceUse(pid=7, device_uuid="GPU-1", memory=1 << 33),),
    ),
    devices=(Device(index=0, uuid="GPU-1", vendor="NVIDIA", model="H200"),),
    options=SavedOptions(shell_job=True, ghost_limit=1 << 20),
    phases=(PhaseTime(phase=Phase.DUMP, microseconds=12),),
    parent="p",
    findings=(Finding(code="c", severity=Severity.WARNING, text="t"),),
)


def changed(**changes: object) -> bytes:
    plain: dict[str, Any] = json.loads(encode(FULL))
    return json.dumps(plain | changes).encode()


def with_pid(pid: int) -> bytes:
    process = msgspec.to_builtins(TARGET.root) | {"id": {"pid": pid, "start_ticks": 1}}
    return changed(target={"processes": [process]}, claimed=[], device_regions=None)


def file(**changes: object) -> bytes:
    plain = {"path": "criu/a", "size": 1, "crc32": 1, "sha256": "0" * 64}
    return changed(files=[plain | changes])


LARGE = msgspec.structs.replace(DIGEST, sha256=None, blake3_parts="1" * 64)
PARTED = msgspec.structs.replace(
    FULL, files=(LARGE, msgspec.structs.replace(DIGEST, path="criu/b")), format_version=WITH_PARTS
)


def parted(**changes: object) -> bytes:
    """A manifest with a large file, of version 2 or another."""
    version = changes.pop("format_version", WITH_PARTS)
    plain = {"path": "criu/a", "size": 1, "crc32": 1, "sha256": None, "blake3_parts": "0" * 64}
    return changed(files=[plain | changes], format_version=version)


def test_round_trip_with_a_large_file() -> None:
    assert decode(encode(PARTED), PATH) == PARTED


def test_a_large_file_makes_it_a_newer_version_and_nothing_else_does() -> None:
    first, *_ = json.loads(encode(FULL))["files"]
    assert set(first) == {"path", "size", "crc32", "sha256"}
    assert manifest("a", (DIGEST,)).format_version == FORMAT_VERSION
    assert manifest("a", PARTED.files).format_version == WITH_PARTS
    with pytest.raises(ValueError, match="knows no sums in parts"):
        msgspec.structs.replace(FULL, files=(LARGE,))
    with pytest.raises(IncompatibleError, match="version 2, newer than 1"):
        decode_versioned(encode(PARTED), Manifest, PATH, FORMAT_VERSION)


def test_round_trip() -> None:
    assert decode(encode(FULL), PATH) == FULL


@pytest.mark.parametrize("pid", [1, (1 << 22) - 1])
def test_every_pid_of_the_kernel(pid: int) -> None:
    assert decode(with_pid(pid), PATH).target.root.pid == pid


def test_people_can_read_it() -> None:
    lines = encode(FULL).decode().splitlines()
    assert '  "backend": "nvidia",' in lines


def test_command_line_of_any_bytes() -> None:
    process = msgspec.structs.replace(TARGET.root, command=("x\udcff",))
    odd = msgspec.structs.replace(
        FULL, target=msgspec.structs.replace(TARGET, processes=(process,))
    )
    assert decode(encode(odd), PATH).target.root.command == ("x\\udcff",)


def test_unknown_fields_of_the_same_version_are_passed_over() -> None:
    assert decode(changed(comment="later"), PATH) == FULL


def test_newer_version_is_named() -> None:
    with pytest.raises(IncompatibleError, match="version 3, newer than 2") as caught:
        decode(b'{"format_version": 3, "target": "of another shape"}', PATH)
    assert caught.value.cure


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"{}",
        b"[" * 100_000,
        b'{"x":' * 100_000,
        changed(format_version=0),
        changed(format_version=-1),
        changed(format_version="1"),
        changed(name=".."),
        changed(name="a/b"),
        changed(id=""),
        changed(created="yesterday"),
        changed(created="2026-13-01T00:00:00Z"),
        changed(created="2026-01-01T00:00:00"),
        changed(created="2026-01-01T00:00:00+01:00"),
        changed(target={"processes": []}),
        with_pid(0),
        with_pid(-7),
        with_pid(1 << 22),
        changed(claimed=[8]),
        changed(claimed=[7, -1]),
        changed(engine="steam"),
        changed(frozen_us=-1),
        changed(options={"ghost_limit": -1}),
        changed(files=[msgspec.to_builtins(DIGEST)] * 2),
        file(path="/etc/passwd"),
        file(path="../a"),
        file(path="criu/../../a"),
        file(path="./a"),
        file(path="criu//a"),
        file(path="criu/"),
        file(path=""),
        file(path="."),
        file(path="a\0b"),
        file(size=-1),
        file(size=1.5),
        file(crc32=-1),
        file(crc32=1 << 32),
        file(sha256="0" * 63),
        file(sha256="A" * 64),
        file(sha256="0" * 64 + "\n"),
        parted(format_version=1),
        parted(sha256="0" * 64),
        parted(blake3_parts="0" * 63),
        parted(blake3_parts="0" * 66),
        parted(blake3_parts="G" * 64),
        parted(blake3_parts="0" * 64 + "\n"),
        parted(blake3_parts=7),
        parted(blake3_parts=["0" * 64]),
        parted(size=-1),
        parted(path="../a"),
    ],
)
def test_damage_is_a_sentence(data: bytes) -> None:
    with pytest.raises(IntegrityError, match=r"repo/a/manifest.json is damaged: "):
        decode(data, PATH)


@given(st.data(), st.sampled_from([FULL, PARTED]))
def test_mangled_json_never_raises_anything_else(data: st.DataObject, whole: Manifest) -> None:
    mangled = bytearray(encode(whole))
    for _ in range(data.draw(st.integers(1, 5))):
        position = data.draw(st.integers(0, len(mangled) - 1))
        mangled[position] = data.draw(st.integers(0, 255))
    sentence = ""
    try:
        decode(bytes(mangled), PATH)
    except (IntegrityError, IncompatibleError) as error:
        sentence = error.text
    assert "\n" not in sentence


def test_timestamps_sort_as_text_and_are_utc() -> None:
    first, second = timestamp(), timestamp()
    assert first <= second
    assert first.endswith("Z")
    assert len(first) == len("2026-01-31T12:00:00.000000Z")
