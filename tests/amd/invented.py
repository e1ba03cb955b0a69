"""An invented machine: sysfs and proc files as the amdgpu driver would lay them out.

No value in here was read from hardware. Names and formats follow the kernel's sources; sizes,
numbers and names of products are made up.
"""

from pathlib import Path

from gpusnap.types import Process, ProcessId, Target

VRAM = 64 << 30
UNIQUE = 0x00C0FFEE00C0FFEE
PROPERTIES = {
    "cpu_cores_count": 0,
    "simd_count": 304,
    "gfx_target_version": 90402,
    "vendor_id": 4098,
    "device_id": 0x74A1,
    "location_id": 0xC100,
    "domain": 0,
    "drm_render_minor": 128,
    "fw_version": 177,
    "capability": 0x0010_0000,
    "sdma_fw_version": 22,
    "unique_id": UNIQUE,
}


class Machine:
    """A root for ``/sys`` and one for ``/proc``."""

    def __init__(self, root: Path) -> None:
        self.sysfs = root / "sys"
        self.proc = root / "proc"
        self.use_namespace("pid:[4026531836]")

    def use_namespace(self, name: str) -> None:
        link = self.proc / "self/ns/pid"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(name)

    def write(self, path: str, content: str | bytes) -> Path:
        file = self.sysfs / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)  # writing over a file may wait for the disk
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return file

    def node(self, number: int) -> str:
        return f"class/kfd/kfd/topology/nodes/{number}"

    def add_cpu(self, number: int = 0) -> None:
        self.write(f"{self.node(number)}/gpu_id", "0\n")
        self.write(f"{self.node(number)}/properties", "cpu_cores_count 64\nsimd_count 0\n")

    def add_gpu(self, number: int = 1, *, used: int | None = None, **changes: int) -> None:
        lines = (f"{name} {value}" for name, value in (PROPERTIES | changes).items())
        bank = f"{self.node(number)}/mem_banks/0"
        self.write(f"{self.node(number)}/gpu_id", f"{1000 + number}\n")
        self.write(f"{self.node(number)}/properties", "\n".join(lines) + "\n")
        self.write(f"{bank}/properties", f"heap_type 1\nsize_in_bytes {VRAM}\nflags 0\n")
        if used is not None:
            self.write(f"{bank}/used_memory", f"{used}\n")

    def add_board(self, pci: str = "0000:c1:00.0", /, **files: str | bytes) -> None:
        folder = f"bus/pci/devices/{pci}"
        self.write(f"{folder}/vendor", "0x1002\n")
        for name, content in files.items():
            self.write(f"{folder}/{name}", content)

    def add_kfd_process(self, pid: int, vram: dict[int, int]) -> None:
        folder = self.sysfs / f"class/kfd/kfd/proc/{pid}"
        (folder / "queues").mkdir(parents=True)
        for node, size in vram.items():
            self.write(f"class/kfd/kfd/proc/{pid}/vram_{1000 + node}", f"{size}\n")

    def add_process(self, pid: int, *opened: str) -> None:
        folder = self.proc / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "comm").write_text("train\n")
        for number, path in enumerate(opened):
            (folder / f"fd/{number}").symlink_to(path)


def make_target(*pids: int) -> Target:
    return Target(
        processes=tuple(
            Process(
                id=ProcessId(pid, 1), parent_pid=1, session_id=1, command=("train",), name="train"
            )
            for pid in pids
        )
    )
