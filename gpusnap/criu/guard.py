"""The guard: CRIU's plugin that keeps memory which gpusnap saves itself out of a dump.

It also names itself in the images, so that a CRIU that is not given it refuses to restore them:
the target would run on with zeros. :mod:`gpusnap.criu.guard_check` finds out whether a CRIU and
the guard fit.
"""

import shutil
from collections.abc import Iterator, Sequence
from itertools import pairwise
from mmap import PAGESIZE
from pathlib import Path

import msgspec

from gpusnap.criu.built import built_file
from gpusnap.errors import PluginError, UsageError
from gpusnap.types import CriuOptions

GUARD_NAME = "gpusnap_guard"
"""The guard in CRIU's inventory, and what its file is called."""
VARIABLE = "GPUSNAP_GUARD_RANGES"
"""Names the list of ranges to the guard; without it, a dump is left as it is."""

_FILE = f"{GUARD_NAME}.so"
_FOLDER = "guard-plugins"
_LIST = "guard-ranges"
_HIGHEST = 1 << 63


class Range(msgspec.Struct, frozen=True, order=True):
    """Whole pages of a process; in bytes."""

    pid: int
    start: int
    length: int

    @property
    def end(self) -> int:
        """The address behind the last byte."""
        return self.start + self.length


def write_ranges(ranges: Sequence[Range], work: Path) -> Path:
    """Write the list that the guard reads.

    Args:
        ranges: What to hide, in any order.
        work: An existing folder.

    Raises:
        UsageError: A range is not whole pages of a process, or two overlap.
    """
    ordered = sorted(ranges)
    _check(ordered)
    lines = [f"{each.pid} {each.start:x} {each.end:x}" for each in ordered]
    path = work / _LIST
    path.write_text(
        "\n".join(["gpusnap-guard 1", *lines, f"end {len(lines)}", ""]), encoding="ascii"
    )
    return path


def guarded(options: CriuOptions, work: Path, ranges: Sequence[Range] | None) -> CriuOptions:
    """What CRIU needs to be given to work with the guard, beside what a backend needs.

    Args:
        options: What the backend needs; its plugins are kept.
        work: An existing folder for the plugins and the list; it must stay until CRIU has ended.
        ranges: What to keep out of a dump; None for a restore.

    Raises:
        NotFoundError: The guard was not built with this installation.
        UsageError: As :func:`write_ranges`.
        PluginError: The backend's folder of plugins cannot be used.
    """
    folder = work / _FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for plugin in (guard_file(), *_plugins_of(options)):
        (folder / plugin.name).symlink_to(plugin)
    environment = dict(options.environment)
    if ranges is not None:
        # CRIU changes into its work folder before it loads plugins
        environment[VARIABLE] = str(write_ranges(ranges, work).absolute())
    return msgspec.structs.replace(options, plugin_directory=str(folder), environment=environment)


def guard_file() -> Path:
    """The guard's file, as it was built with this installation.

    Raises:
        NotFoundError: There is none.
    """
    return built_file("guard", _FILE, "CRIU's guard")


def _check(ordered: Sequence[Range]) -> None:
    for each in ordered:
        whole = each.start % PAGESIZE == 0 and each.length % PAGESIZE == 0
        if (
            not whole
            or each.pid <= 0
            or each.length <= 0
            or not 0 <= each.start < each.end <= _HIGHEST
        ):
            raise UsageError(f"{_text(each)} is no range of whole pages")
    for first, second in pairwise(ordered):
        if first.pid == second.pid and first.end > second.start:
            raise UsageError(f"{_text(first)} overlaps {_text(second)}")


def _text(each: Range) -> str:
    return f"0x{each.start:x} + {each.length} bytes of process {each.pid}"


def _plugins_of(options: CriuOptions) -> Iterator[Path]:
    """The files that CRIU would load from the backend's folder."""
    if options.plugin_directory is None:
        return
    folder = Path(options.plugin_directory).absolute()
    try:
        found = sorted(path for path in folder.iterdir() if path.name.endswith(".so"))
    except OSError as error:
        raise PluginError(f"{folder} cannot be read: {error.strerror}") from error
    for path in found:
        if path.name == _FILE:
            raise PluginError(f"{folder} holds a plugin with the name of gpusnap's own, {_FILE}")
        yield path
