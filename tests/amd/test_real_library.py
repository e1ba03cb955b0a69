"""The real libraries on an invented tree of sysfs, where they are installed.

They read ``/sys`` itself, so the tree is mounted there, in a mount namespace of the test's own.
The properties of the node are captured ones: the libraries want all of them.
"""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest

from gpusnap_amd.loader import NAMES
from gpusnap_amd.readings import Readings
from tests.amd.captured import read_capture
from tests.amd.invented import VRAM, Machine

BOARD = "devices/pci0000:c0/0000:c0:00.0/0000:c1:00.0"
USED = 1 << 30
LINK = """\
type 2
version_major 0
version_minor 0
node_from {}
node_to {}
weight 20
min_latency 0
max_latency 0
min_bandwidth 312
max_bandwidth 64000
recommended_transfer_size 0
flags 1
"""
FILES = {
    "vendor": "0x1002\n",
    "device": "0x74a2\n",
    "class": "0x038000\n",
    "uevent": "DRIVER=amdgpu\nPCI_SLOT_NAME=0000:c1:00.0\n",
    "vbios_version": "113-INVENTED\n",
    "mem_info_vram_total": f"{VRAM}\n",
    "mem_info_vram_used": f"{USED}\n",
    "hwmon/hwmon0/name": "amdgpu\n",
    "hwmon/hwmon0/in0_label": "vddgfx\n",
    "hwmon/hwmon0/temp1_label": "edge\n",
    "hwmon/hwmon0/temp1_input": "41000\n",
    "hwmon/hwmon0/temp2_label": "junction\n",
    "hwmon/hwmon0/temp3_label": "mem\n",
}
SCRIPT = """
import msgspec
from gpusnap_amd.libraries import Libraries
libraries = Libraries()
print(msgspec.json.encode(libraries.read()).decode())
libraries.close()
"""
# The libraries leave a lock in shared memory behind: /dev/shm is the namespace's own too.
MOUNT = 'mount --bind "$0" /sys && mount -t tmpfs tmpfs /dev/shm && exec "$@"'

needs_libraries = pytest.mark.skipif(
    not any(map(find_spec, NAMES)), reason=f"none of {', '.join(NAMES)} is installed"
)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")


@pytest.fixture
def tree(machine: Machine) -> Path:
    """One GPU, as KFD and as a PCI device with its links."""
    machine.add_cpu(0)
    machine.add_gpu(1)
    captured = read_capture("mi308x-cpx")[f"{machine.node(2)}/properties"]
    properties = captured.replace("location_id 2560", f"location_id {0xC100}")
    machine.write(f"{machine.node(1)}/properties", properties)
    machine.write(f"{machine.node(1)}/name", "ip discovery\n")
    for here, there in ((0, 1), (1, 0)):
        machine.write(f"{machine.node(here)}/io_links/0/properties", LINK.format(here, there))
    machine.write("module/amdgpu/initstate", "live\n")
    for name, content in FILES.items():
        machine.write(f"{BOARD}/{name}", content)
    link_board(machine.sysfs)
    return machine.sysfs


def link_board(sysfs: Path) -> None:
    for name in ("card0", "renderD128"):
        card = sysfs / BOARD / "drm" / name
        card.mkdir(parents=True)
        (card / "device").symlink_to("../..")
        link = sysfs / "class/drm" / name
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(f"../../{BOARD}/drm/{name}")
    devices = sysfs / "bus/pci/devices"
    devices.mkdir(parents=True)
    (devices / "0000:c1:00.0").symlink_to(f"../../../{BOARD}")


@needs_libraries
@needs_root
def test_on_an_invented_tree(tree: Path) -> None:
    unshare = [shutil.which("unshare") or "unshare", "--mount", "--propagation", "private"]
    done = subprocess.run(
        [*unshare, "sh", "-c", MOUNT, tree, sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    readings = msgspec.json.decode(done.stdout, type=Readings)
    if readings.library is None:
        pytest.skip("; ".join(readings.failures))
    (gpu,) = readings.gpus
    assert gpu.pci in {"c1:00.0", "0000:c1:00.0"}
    assert gpu.memory_used == USED
