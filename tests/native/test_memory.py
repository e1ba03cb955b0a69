"""Copies between processes: this one's own memory, and that of a child."""

import ctypes
import os
import random
import subprocess
import sys
import zlib
from collections.abc import Iterator

import pytest

from gpusnap import native
from gpusnap.errors import UsageError
from gpusnap.native import memory
from tests.native.mapping import PAGE, Mapping

STEP = 512 << 10
PAGES = 3 * STEP // PAGE

ME = os.getpid()


@pytest.fixture(params=["extension", "python"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "python":
        monkeypatch.setattr(memory, "EXTENSION", None)
    return str(request.param)


@pytest.fixture
def mapping() -> Iterator[Mapping]:
    with Mapping(PAGES) as made:
        made.write(0, random.Random(1).randbytes(PAGES * PAGE))
        yield made


def ended_process() -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    return process


@pytest.mark.parametrize("size", [0, 1, PAGE + 1, STEP - 1, STEP, STEP + 1, 2 * STEP + 77])
@pytest.mark.parametrize("offset", [0, 1, PAGE - 1])
def test_read(mapping: Mapping, size: int, offset: int) -> None:
    buffer = bytearray(size)
    crc = native.read_process(ME, mapping.address + offset, buffer)
    assert buffer == mapping.read(offset, size)
    assert crc == zlib.crc32(buffer)


def test_read_without_a_checksum(mapping: Mapping) -> None:
    mapping.protect(5, 6, 0)  # what is refused goes another way
    buffer = bytearray(STEP)
    assert native.read_process(ME, mapping.address, buffer, checksum=False) == 0
    mapping.protect(5, 6, 3)
    assert buffer == mapping.read(0, STEP)


@pytest.mark.parametrize("size", [0, 1, PAGE + 1, STEP - 1, STEP, STEP + 1, 2 * STEP + 77])
def test_write(mapping: Mapping, size: int) -> None:
    before, data = mapping.read(0, PAGES * PAGE), random.Random(2).randbytes(size)
    native.write_process(ME, mapping.address + 5, data)
    assert mapping.read(0, PAGES * PAGE) == before[:5] + data + before[5 + size :]


def test_another_process() -> None:
    program = (
        "import ctypes, sys\n"
        "held = ctypes.create_string_buffer(b'before', 6)\n"
        "print(ctypes.addressof(held), flush=True)\n"
        "sys.stdin.read()\n"
        "print(held.raw.decode())\n"
    )
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        address = int(process.stdout.readline())
        buffer = bytearray(6)
        native.read_process(process.pid, address, buffer)
        native.write_process(process.pid, address, b"behind")
        assert buffer == b"before"
        assert process.communicate()[0] == "behind\n"


@pytest.mark.parametrize("protection", [0, 1], ids=["none", "read-only"])
@pytest.mark.parametrize("pages", [(0, 1), (PAGES - 1, PAGES), (5, 200), (0, PAGES)])
def test_protected_pages(mapping: Mapping, protection: int, pages: tuple[int, int]) -> None:
    content = mapping.read(0, PAGES * PAGE)
    mapping.protect(pages[0], pages[1], protection)
    buffer = bytearray(PAGES * PAGE)
    assert native.read_process(ME, mapping.address, buffer) == zlib.crc32(content)
    assert buffer == content
    native.write_process(ME, mapping.address, content[::-1])
    mapping.protect(0, PAGES, 3)
    assert mapping.read(0, PAGES * PAGE) == content[::-1]


def test_a_guard_region_reads_as_zeroes(mapping: Mapping) -> None:
    mapping.guard(70, 72)
    buffer = bytearray(b"x" * (PAGES * PAGE))
    crc = native.read_process(ME, mapping.address, buffer)
    assert crc == zlib.crc32(buffer)
    assert buffer[70 * PAGE : 72 * PAGE] == bytes(2 * PAGE)
    part = bytearray(b"x" * 20)
    native.read_process(ME, mapping.address + 72 * PAGE - 10, part)
    assert part == bytes(10) + mapping.read(72 * PAGE, 10)


def test_a_guard_region_is_not_written(mapping: Mapping) -> None:
    mapping.guard(70, 72)
    with pytest.raises(native.MemoryFault) as caught:
        native.write_process(ME, mapping.address, bytes(PAGES * PAGE))
    assert caught.value.address == mapping.address + 70 * PAGE


@pytest.mark.parametrize("hole", [0, 1, 64, 100, PAGES - 1])
def test_a_hole(mapping: Mapping, hole: int) -> None:
    buffer = bytearray(PAGES * PAGE)
    mapping.unmap(hole, hole + 1)
    with pytest.raises(native.MemoryFault, match="nothing is mapped there") as caught:
        native.read_process(ME, mapping.address, buffer)
    assert (caught.value.pid, caught.value.address) == (ME, mapping.address + hole * PAGE)
    with pytest.raises(native.MemoryFault) as caught:
        native.write_process(ME, mapping.address, buffer)
    assert (caught.value.pid, caught.value.address) == (ME, mapping.address + hole * PAGE)


def test_a_process_that_has_ended() -> None:
    with ended_process() as process:
        for _ in ("zombie", "gone"):
            with pytest.raises(native.MemoryFault, match="has ended") as caught:
                native.read_process(process.pid, 4096, bytearray(10))
            with pytest.raises(native.MemoryFault, match="has ended"):
                native.write_process(process.pid, 4096, b"data")
            assert (caught.value.pid, caught.value.address) == (process.pid, 4096)
            process.wait()


def test_addresses_that_cannot_be() -> None:
    for address in (-1, 2**63, 2**64):
        with pytest.raises(UsageError, match="No process has"):
            native.read_process(ME, address, bytearray(1))
        with pytest.raises(UsageError, match="No process has"):
            native.write_process(ME, address, b"1")


def test_the_kernels_addresses_are_refused() -> None:
    with pytest.raises(native.MemoryFault):
        native.read_process(ME, 2**63 - PAGE, bytearray(PAGE))


def test_the_buffer_is_let_go(mapping: Mapping) -> None:
    buffer = bytearray(STEP)
    native.read_process(ME, mapping.address, buffer)
    native.write_process(ME, mapping.address, buffer)
    buffer.append(1)  # raises BufferError while a view of it is held


def test_a_buffer_that_is_no_bytes(mapping: Mapping) -> None:
    numbers = (ctypes.c_uint32 * 100)()
    native.read_process(ME, mapping.address, numbers)
    assert bytes(numbers) == mapping.read(0, 400)


def test_a_buffer_that_cannot_be_written_is_refused(mapping: Mapping) -> None:
    with pytest.raises((BufferError, TypeError, ValueError)):
        native.read_process(ME, mapping.address, b"12345")


def test_the_extension_does_it_where_it_can(
    way: str, mapping: Mapping, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a refusal nothing goes through /proc/PID/mem, with the extension."""
    monkeypatch.setattr(memory, "opened", None)
    buffer = bytearray(PAGES * PAGE)
    if way == "python":
        with pytest.raises(TypeError):
            native.read_process(ME, mapping.address, buffer)
        return
    native.read_process(ME, mapping.address, buffer)
    native.write_process(ME, mapping.address, buffer)
