# Compiled at build time from cffi_build/cdefs/native.h and cffi_build/src.
from typing import Protocol

from _cffi_backend import FFI

class _Library(Protocol):
    GPUSNAP_CRC32_PORTABLE: int
    GPUSNAP_CRC32_PCLMUL: int
    GPUSNAP_CRC32_VPCLMUL_AVX: int
    GPUSNAP_CRC32_VPCLMUL: int
    GPUSNAP_CRC32_ARM: int
    def gpusnap_crc32_supported(self, implementation: int, /) -> int: ...
    def gpusnap_crc32(
        self, implementation: int, value: int, data: FFI.CData, length: int, /
    ) -> int: ...
    def gpusnap_crc32_combine(self, first: int, second: int, second_length: int, /) -> int: ...
    def gpusnap_crc32_chain(
        self, first: int, pieces: FFI.CData, count: int, table: FFI.CData, /
    ) -> int: ...
    def gpusnap_read_process(
        self,
        implementation: int,
        pid: int,
        address: int,
        data: FFI.CData,
        length: int,
        crc: FFI.CData,
        /,
    ) -> int: ...
    def gpusnap_write_process(
        self, pid: int, address: int, data: FFI.CData, length: int, /
    ) -> int: ...
    def gpusnap_nonzero_pages(
        self, data: FFI.CData, length: int, page: int, runs: FFI.CData, room: int, /
    ) -> int: ...
    def gpusnap_held_pages(
        self, words: FFI.CData, count: int, page: int, runs: FFI.CData, room: int, /
    ) -> int: ...
    def gpusnap_read_pieces(
        self,
        implementation: int,
        pieces: FFI.CData,
        count: int,
        page: int,
        data: FFI.CData,
        room: int,
        /,
    ) -> int: ...
    def gpusnap_copy_straight(
        self,
        implementation: int,
        copy: FFI.CData,
        runs: FFI.CData,
        count: int,
        page: int,
        data: FFI.CData,
        room: int,
        stored: FFI.CData,
        most: int,
        /,
    ) -> int: ...
    def gpusnap_put_extents(
        self,
        implementation: int,
        descriptor: int,
        extents: FFI.CData,
        count: int,
        page: int,
        buffer: FFI.CData,
        room: int,
        /,
    ) -> int: ...
    def gpusnap_inject(
        self, thread: int, syscall_at: int, calls: FFI.CData, count: int, timeout_ms: int, /
    ) -> int: ...
    def gpusnap_share(self, first: int, second: int, /) -> int: ...
    def gpusnap_same_file(self, first: int, second: int, descriptor: int, /) -> int: ...
    def gpusnap_split_planes(
        self, data: FFI.CData, length: int, width: int, out: FFI.CData, /
    ) -> None: ...
    def gpusnap_join_planes(
        self, data: FFI.CData, length: int, width: int, out: FFI.CData, /
    ) -> None: ...

ffi: FFI
lib: _Library
