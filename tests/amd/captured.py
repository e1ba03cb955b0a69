"""Lays out the files of captured machines; captured/README.md says where they come from."""

import re
from pathlib import Path

from tests.amd.invented import Machine

FOLDER = Path(__file__).parent / "captured"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.txt")))

_FILE = re.compile(r"^== (.+)\n", re.MULTILINE)
_NODE = re.compile(r"class/kfd/kfd/topology/nodes/(\d+)/properties")


def read_capture(name: str) -> dict[str, str]:
    """The files of a machine: path below /sys to content."""
    _, *parts = _FILE.split((FOLDER / f"{name}.txt").read_text())
    return dict(zip(parts[::2], parts[1::2], strict=True))


def lay_out(machine: Machine, name: str) -> None:
    """Write all files of a capture, and invent the ``gpu_id`` of nodes that lack it there."""
    files = read_capture(name)
    for path, content in files.items():
        machine.write(path, content)
        node = _NODE.fullmatch(path)
        if node and path.replace("properties", "gpu_id") not in files:
            number = int(node[1])
            invented = 0 if "\nsimd_count 0\n" in content else 10_000 + number
            machine.write(f"{machine.node(number)}/gpu_id", f"{invented}\n")
