"""Opens libcuda and calls its functions: the one module that imports the cffi declarations.

Nothing is linked: the library belongs to the driver of the machine at hand. Functions are
looked up through ``cuGetProcAddress`` with the ABI version of their declaration, for a plain
symbol look-up gives the oldest ABI; where that finds nothing, the exported name is tried.
"""

import functools
import os
from typing import Any, TypeAlias, cast

from gpusnap_nvidia._libcuda import ffi

__all__ = ["LIBRARY_VARIABLE", "CudaError", "FunctionMissing", "Libcuda", "LibcudaMissing", "ffi"]

LIBRARY_VARIABLE = "GPUSNAP_LIBCUDA"
"""Environment variable that names another libcuda than the system's."""

_VERSIONS = {
    name: int(version)
    for name, _, version in (each.rpartition("_v") for each in ffi.list_types()[0])
    if name.startswith("PFN_")
}
"""ABI version of each declared function, out of the name of its type."""

_CHECKPOINT_PREFIX = "PFN_cuCheckpointProcess"
_EXPORTED = {name: f"{name}_v2" for name in ("cuMemAlloc", "cuMemcpyHtoD", "cuMemcpyDtoH")}
"""Names under which the declared ABI is exported, where they differ."""

_RTLD_NOW = 2
_Pointer: TypeAlias = Any
"""A C pointer, which cffi leaves untyped."""


class LibcudaMissing(Exception):
    """The library could not be opened."""


class FunctionMissing(Exception):
    """The driver has no such function; the argument is its name."""


class CudaError(Exception):
    """A function of the driver answered with an error.

    Attributes:
        code: The ``CUresult``.
        name: Its name in CUDA's headers, such as ``CUDA_ERROR_NOT_READY``.
        function: The function that answered.
    """

    def __init__(self, code: int, name: str, function: str) -> None:
        super().__init__(code, name, function)
        self.code = code
        self.name = name
        self.function = function

    def __str__(self) -> str:
        return f"{self.function} failed: {self.name} ({self.code})"


class Libcuda:
    """The driver's library in this process."""

    def __init__(self) -> None:
        """Open it.

        Raises:
            LibcudaMissing: There is none, or it cannot be loaded.
        """
        path = os.environ.get(LIBRARY_VARIABLE) or "libcuda.so.1"
        self._functions: dict[str, _Pointer] = {}
        self._c = cast("_Pointer", ffi.dlopen(None))
        error = self._c.dlerror  # now: looking it up later would clear what it has to tell
        self._handle: _Pointer = self._c.dlopen(os.fsencode(path), _RTLD_NOW)
        if not self._handle:
            raise LibcudaMissing(cast("bytes", ffi.string(error())).decode())

    def call(self, name: str, *arguments: object) -> None:
        """Call a function.

        Raises:
            FunctionMissing: The driver has no such function.
            CudaError: It answered with an error.
        """
        code = self._function(name)(*arguments)
        if code != 0:
            raise CudaError(code, self._error_name(code), name)

    def missing(self) -> list[str]:
        """Names of the checkpoint functions, which came with driver 570, that this one lacks."""
        declared = [name for name in _VERSIONS if name.startswith(_CHECKPOINT_PREFIX)]
        names = [name.removeprefix("PFN_") for name in declared]
        return [name for name in names if not self._address(name)]

    def _function(self, name: str) -> _Pointer:
        if name not in self._functions:
            address = self._address(name)
            if not address:
                raise FunctionMissing(name)
            declared = f"PFN_{name}"
            self._functions[name] = ffi.cast(f"{declared}_v{_VERSIONS[declared]}", address)
        return self._functions[name]

    def _address(self, name: str) -> _Pointer:
        found = ffi.new("void **")
        status = ffi.new("int *")
        look_up: Any = self._look_up
        if look_up:
            look_up(name.encode(), found, _VERSIONS[f"PFN_{name}"], 0, status)
        return found[0] or self._exported(_EXPORTED.get(name, name))

    @functools.cached_property
    def _look_up(self) -> _Pointer:
        return ffi.cast("PFN_cuGetProcAddress_v12000", self._exported("cuGetProcAddress_v2"))

    def _exported(self, name: str) -> _Pointer:
        return self._c.dlsym(self._handle, name.encode())

    def _error_name(self, code: int) -> str:
        name: Any = ffi.new("const char **")
        if self._function("cuGetErrorName")(code, name) != 0:
            return "unknown error"
        return bytes(ffi.string(name[0])).decode()  # type: ignore[arg-type]
