"""System calls inside another process."""

import os
import platform
from collections.abc import Sequence

from gpusnap.errors import TargetError
from gpusnap.native.extension import EXTENSION
from gpusnap.native.memory import read_process

_INSTRUCTIONS = {"x86_64": b"\x0f\x05", "aarch64": b"\x01\x00\x00\xd4"}
"""What enters the kernel: ``syscall``, ``svc #0``."""

_TIMEOUT_MS = 10_000


def vdso_of(pid: int) -> tuple[int, int] | None:
    """Where the code lies that the kernel maps everywhere; another program has it elsewhere.

    Raises:
        ProcessLookupError: The process has ended.
    """
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as maps:  # noqa: PTH123
            lines = maps.readlines()
    except FileNotFoundError:
        raise ProcessLookupError from None
    if not lines:  # of one that is not reaped yet
        raise ProcessLookupError
    ranges = [line.split()[0] for line in lines if line.endswith("[vdso]\n")]
    if not ranges:
        return None
    start, end = (int(part, 16) for part in ranges[0].split("-"))
    return start, end


def _address_of_syscall(pid: int) -> int | None:
    """An instruction that enters the kernel."""
    instruction, found = _INSTRUCTIONS.get(platform.machine()), vdso_of(pid)
    if instruction is None or found is None:
        return None
    start, end = found
    code = bytearray(end - start)
    read_process(pid, start, code)
    offset = code.find(instruction)
    return None if offset < 0 else start + offset


def _thread(pid: int) -> int:
    """A thread that can run: the main one may have ended before the others."""
    threads = sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))
    for thread in threads:
        with open(f"/proc/{pid}/task/{thread}/stat", "rb") as stat:  # noqa: PTH123
            if stat.read().rpartition(b")")[2].split()[0] not in b"ZX":
                return thread
    raise ProcessLookupError


def call_inside(
    pid: int, calls: Sequence[tuple[int, ...]], *, timeout_ms: int = _TIMEOUT_MS
) -> list[int]:
    """Have a process make system calls; it is stopped meanwhile and notices nothing.

    Args:
        pid: The process, which the caller may trace and nobody else does.
        calls: Each the kernel's number of a call and up to three arguments.
        timeout_ms: How long it may take to stop, in milliseconds.

    Returns:
        What each call gave; negative numbers are errors.

    Raises:
        TargetError: It ended, did not stop, or is traced by another.
    """
    failed = f"Process {pid} cannot be made to close what it inherited"
    try:
        address = _address_of_syscall(pid)
        if EXTENSION is None or address is None:
            raise TargetError(f"{failed}: gpusnap cannot do that on this machine")
        thread = _thread(pid)
    except (FileNotFoundError, ProcessLookupError) as error:
        raise TargetError(f"{failed}: it has ended") from error
    lib, ffi = EXTENSION
    array = ffi.new("struct gpusnap_call[]", len(calls))
    for slot, (number, *arguments) in zip(array, calls, strict=True):
        slot.number = number
        slot.arguments = [*arguments, 0, 0, 0][:3]
    done = lib.gpusnap_inject(thread, address, array, len(calls), timeout_ms)
    if done != len(calls):
        reason = os.strerror(-done) if done < 0 else "it ended meanwhile"
        raise TargetError(f"{failed}: {reason}")
    return [int(slot.result) for slot in array]


def same_file(first: int, second: int, descriptor: int) -> bool:
    """Whether two processes hold the very same open file under one number, as after a fork.

    False where one of them ended or does not hold it, or the kernel does not say.
    """
    return EXTENSION is not None and bool(
        EXTENSION.lib.gpusnap_same_file(first, second, descriptor)
    )


def share(first: int, second: int) -> bool:
    """Whether two processes have one memory, or one table of descriptors, as after a vfork.

    False also where the kernel does not say.
    """
    return EXTENSION is not None and bool(EXTENSION.lib.gpusnap_share(first, second))
