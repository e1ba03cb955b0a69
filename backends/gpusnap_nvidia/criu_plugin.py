"""Sets up CRIU's own cuda plugin, for the engine that lets CRIU drive the device.

CRIU loads every plugin of the folder it is given, and another vendor's stops a dump. So it is
given a folder that holds this one alone.
"""

import atexit
import functools
import os
import shutil
import tempfile
from pathlib import Path

from gpusnap.errors import NoBackendError
from gpusnap.types import CriuOptions

PLUGIN_VARIABLE = "GPUSNAP_CUDA_PLUGIN"
"""Environment variable that names the plugin's file."""

TOOL_VARIABLE = "GPUSNAP_CUDA_CHECKPOINT"
"""Environment variable that names NVIDIA's cuda-checkpoint, which the plugin runs."""

PLUGIN_NAME = "cuda_plugin"
_PLUGIN_FILE = f"{PLUGIN_NAME}.so"
_FOLDERS = ("/usr/lib/criu", "/usr/lib64/criu", "/usr/local/lib/criu")


def plugin_options() -> CriuOptions:
    """What CRIU needs to be given, for a dump as for a restore.

    Raises:
        NoBackendError: The plugin or cuda-checkpoint is not installed.
    """
    folder = _folder(_find_plugin(), _find_tool())
    return CriuOptions(
        plugin_directory=str(folder / "plugins"),
        environment={"PATH": str(folder / "bin")},
        inventory_plugin=PLUGIN_NAME,
    )


@functools.cache
def _folder(plugin: Path, tool: Path) -> Path:
    """A private folder with the plugin and the tool under the names CRIU expects."""
    folder = Path(tempfile.mkdtemp(prefix="gpusnap-cuda-plugin-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for link, file in ((f"plugins/{_PLUGIN_FILE}", plugin), ("bin/cuda-checkpoint", tool)):
        (folder / link).parent.mkdir()
        (folder / link).symlink_to(file.resolve())
    return folder


def _find_plugin() -> Path:
    named = os.environ.get(PLUGIN_VARIABLE)
    candidates = [named] if named else [f"{folder}/{_PLUGIN_FILE}" for folder in _FOLDERS]
    for candidate in candidates:
        if Path(candidate).is_file():
            return Path(candidate)
    raise NoBackendError(
        f"CRIU's cuda plugin is not installed: there is no {' or '.join(candidates)}",
        cure=f"Build it from CRIU's sources and name it in {PLUGIN_VARIABLE}, "
        "or use the driver engine",
    )


def _find_tool() -> Path:
    named = os.environ.get(TOOL_VARIABLE)
    found = shutil.which(named or "cuda-checkpoint")
    if found is None:
        raise NoBackendError(
            f"CRIU's cuda plugin needs {named or 'cuda-checkpoint'}, which is not there",
            cure="Install NVIDIA's cuda-checkpoint on the path or name it in "
            f"{TOOL_VARIABLE}, or use the driver engine",
        )
    return Path(found)
