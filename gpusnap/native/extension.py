"""The compiled extension, where there is one."""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from _cffi_backend import FFI

    from gpusnap._native import _Library


class Extension(NamedTuple):
    """The two names of a cffi module: its functions, and what makes C values of Python's."""

    lib: "_Library"
    ffi: "FFI"


def _load() -> Extension | None:
    """Pass over an extension that is absent, and no other.

    One that is there but cannot be loaded is a broken installation, which must not pass unseen.
    """
    try:
        from gpusnap._native import ffi, lib  # noqa: PLC0415  absent on some platforms
    except ModuleNotFoundError:
        return None
    return Extension(lib, ffi)


EXTENSION = _load()
