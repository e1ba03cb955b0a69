"""Sets up CRIU's amdgpu plugin, which alone can save and restore the state in KFD.

CRIU loads every plugin of the folder it is given, and another vendor's stops a dump. So it is
given a folder that holds this one alone.
"""

import atexit
import functools
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from gpusnap.errors import NoBackendError
from gpusnap.types import CriuOptions, CriuPhase
from gpusnap_amd.mapping_rules import Check, active_checks
from gpusnap_amd.plugin_log import DUMP_MEANINGS, RESTORE_MEANINGS

PLUGIN_VARIABLE = "GPUSNAP_AMDGPU_PLUGIN"
"""Environment variable that names the plugin's file."""

PLUGIN_NAME = "amdgpu_plugin"
_PLUGIN_FILE = f"{PLUGIN_NAME}.so"
_FOLDERS = (
    "/usr/lib/criu",
    "/usr/lib64/criu",
    "/usr/lib/x86_64-linux-gnu/criu",
    "/usr/local/lib/criu",
    "/usr/local/lib64/criu",
)


def plugin_options(phase: CriuPhase, environment: Mapping[str, str] = os.environ) -> CriuOptions:
    """What CRIU needs to be given.

    Args:
        phase: Dump or restore.
        environment: Where the variables that turn the plugin's checks off are looked for.

    Raises:
        NoBackendError: The plugin is not installed.
    """
    folder = str(_folder(find_plugin()))
    if phase is CriuPhase.DUMP:
        return CriuOptions(
            plugin_directory=folder,
            inventory_plugin=PLUGIN_NAME,
            expected_images=("amdgpu-kfd-*.img",),
            log_meanings=DUMP_MEANINGS,
        )
    # Said for every check, so that CRIU decides by the very ones that gpusnap compared by
    active = active_checks(environment)
    return CriuOptions(
        plugin_directory=folder,
        environment={check.value: "1" if check in active else "0" for check in Check},
        log_meanings=RESTORE_MEANINGS,
    )


def find_plugin() -> Path:
    """The plugin's file.

    Raises:
        NoBackendError: There is none.
    """
    named = os.environ.get(PLUGIN_VARIABLE)
    candidates = [named] if named else [f"{folder}/{_PLUGIN_FILE}" for folder in _FOLDERS]
    for candidate in candidates:
        if Path(candidate).is_file():
            return Path(candidate)
    raise NoBackendError(
        f"CRIU's amdgpu plugin is not installed: there is no {' or '.join(candidates)}",
        cure="Install criu-amdgpu-plugin (Fedora) or criu-plugin-amdgpu (openSUSE), or build it "
        f"from CRIU's sources and name it in {PLUGIN_VARIABLE}",
    )


@functools.cache
def _folder(plugin: Path) -> Path:
    """A private folder with the plugin under the name CRIU expects."""
    folder = Path(tempfile.mkdtemp(prefix="gpusnap-amdgpu-plugin-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / _PLUGIN_FILE).symlink_to(plugin.resolve())
    return folder
