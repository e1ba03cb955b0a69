"""Loads amdsmi or pyrsmi; runs in a worker process, see :mod:`gpusnap_amd.libraries`.

Both packages may be installed without the library beneath them, or with one of another
version. What they then raise on import is not only ImportError, and some of it is printed.
"""

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple, cast

from gpusnap_amd.amdsmi_calls import open_amdsmi, read_amdsmi
from gpusnap_amd.pyrsmi_calls import open_pyrsmi, read_pyrsmi
from gpusnap_amd.readings import Reading, Readings


class _Library(NamedTuple):
    name: str
    module: str
    open: Callable[[ModuleType], None]
    read: Callable[[ModuleType], tuple[Reading, ...]]


_LIBRARIES = (
    _Library("amdsmi", "amdsmi", open_amdsmi, read_amdsmi),
    _Library("pyrsmi", "pyrsmi.rocml", open_pyrsmi, read_pyrsmi),
)
NAMES = tuple(library.name for library in _LIBRARIES)


class Loader:
    """The first library that loads and opens, tried once a process."""

    def __init__(self) -> None:
        self._failures: list[str] = []
        self._loaded: tuple[_Library, ModuleType] | None = None
        for library in _LIBRARIES:
            if self._loaded is None:
                self._try(library)

    def _try(self, library: _Library) -> None:
        try:
            module = importlib.import_module(library.module)
            library.open(module)
            self._loaded = (library, module)
        except ModuleNotFoundError as error:
            if error.name not in {library.name, library.module}:
                self._fail(library, error)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - KeyError has been seen
            self._fail(library, error)

    def _fail(self, library: _Library, error: BaseException) -> None:
        said = f"{type(error).__name__}: {error}"
        self._failures.append(f"{library.name} is installed but does not work ({said})")
        # pyrsmi imports amdsmi too, and is prepared for ImportError alone.
        sys.modules[library.name] = cast("ModuleType", None)

    def read(self) -> Readings:
        """Ask the library that could be loaded, if any."""
        if self._loaded is None:
            return Readings(failures=tuple(self._failures))
        library, module = self._loaded
        return Readings(
            library=library.name, gpus=library.read(module), failures=tuple(self._failures)
        )
