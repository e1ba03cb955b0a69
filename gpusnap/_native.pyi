# Compiled at build time from cffi_build/cdefs/native.h and cffi_build/src.
from typing import Protocol

from _cffi_backend import FFI

class _Library(Protocol):
    GPUSNAP_CRC32_PORTABLE: int
    GPUSNAP_CRC32_PCLMUL: int
    GPUSNAP_CRC32_VPCLMUL: int
    GPUSNAP_CRC32_ARM: int
    def gpusnap_crc32_supported(self, implementation: int, /) -> int: ...
    def gpusnap_crc32(
        self, implementation: int, value: int, data: FFI.CData, length: int, /
    ) -> int: ...
    def gpusnap_crc32_combine(self, first: int, second: int, second_length: int, /) -> int: ...

ffi: FFI
lib: _Library
