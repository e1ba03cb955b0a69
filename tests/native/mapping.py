"""Private anonymous memory of this process, of which every page is as a test wants it."""

import ctypes
import os
from types import TracebackType
from typing import Self

PAGE = os.sysconf("SC_PAGE_SIZE")

_PRIVATE_ANONYMOUS = 0x22
_NO_HUGE_PAGES = 15
_GUARD_INSTALL = 102

_C = ctypes.CDLL(None, use_errno=True)
_C.mmap.restype = ctypes.c_void_p
_C.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
for _name in ("mprotect", "madvise"):
    getattr(_C, _name).argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_C.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class Mapping:
    """Pages, by number; none is there before it is used, and none is a huge one.

    A page without access on each side keeps holes small: memory that this process gets meanwhile
    must not come to lie in one.
    """

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self.mapped = set(range(-1, pages + 1))
        self.address: int = PAGE + _C.mmap(None, (pages + 2) * PAGE, 0, _PRIVATE_ANONYMOUS, -1, 0)
        self.protect(0, pages, 3)
        _C.madvise(self.address, pages * PAGE, _NO_HUGE_PAGES)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for page in sorted(self.mapped):
            self.unmap(page, page + 1)

    def at(self, page: int) -> int:
        return self.address + page * PAGE

    def write(self, offset: int, data: bytes) -> None:
        ctypes.memmove(self.address + offset, data, len(data))

    def read(self, offset: int, size: int) -> bytes:
        return ctypes.string_at(self.address + offset, size)

    def protect(self, first: int, end: int, protection: int) -> None:
        assert _C.mprotect(self.at(first), (end - first) * PAGE, protection) == 0

    def unmap(self, first: int, end: int) -> None:
        self.mapped -= set(range(first, end))
        assert _C.munmap(self.at(first), (end - first) * PAGE) == 0

    def guard(self, first: int, end: int) -> None:
        import pytest  # other programs than a test's import this module and must start quickly

        if _C.madvise(self.at(first), (end - first) * PAGE, _GUARD_INSTALL) != 0:
            pytest.skip("This kernel has no guard regions")
        words = os.open("/proc/self/pagemap", os.O_RDONLY)
        word = int.from_bytes(os.pread(words, 8, self.at(first) // PAGE * 8), "little")
        os.close(words)
        if not word >> 58 & 1:
            pytest.skip("This kernel does not tell which pages are of a guard region")
