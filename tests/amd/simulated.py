"""A machine with a simulated KFD: the real CRIU and its real amdgpu plugin on top of it.

It lives in a mount namespace of its own, where ``/dev`` and ``/sys/class`` show GPUs. Nothing in
it was read from hardware.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from gpusnap.criu import find_criu
from gpusnap.target import alive, identity
from tests.amd.invented import Machine
from tests.e2e.jobs import await_true, becomes_true
from tests.pids import kill

SOURCES = Path(__file__).parent / "simkfd"
PLUGIN_VARIABLE = "GPUSNAP_AMDGPU_PLUGIN"

_COMPILE = ["cc", "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror"]
_SETUP = """
set -e
# CRIU looks at every mount, also at one that another hides
umount --recursive --lazy /dev
mount -t tmpfs simkfd /dev
for node in null:3 zero:5 full:7 random:8 urandom:9; do
    mknod -m 666 /dev/${node%:*} c 1 ${node#*:}
done
mkdir /dev/shm /dev/dri /dev/net /dev/pts
mknod -m 666 /dev/net/tun c 10 200
mount -t devpts devpts /dev/pts
ln -s pts/ptmx /dev/ptmx
ln -s /proc/self/fd /dev/fd
mknod -m 666 /dev/kfd c 1 5
mknod -m 666 /dev/dri/renderD128 c 1 5
mount -t tmpfs simkfd /sys/class
mkdir /sys/class/kfd
mount --bind "$1" /sys/class/kfd
echo ready
exec sleep infinity
"""

PROCESS_INFO, CHECKPOINT, UNPAUSE, RESTORE, RESUME = range(5)
"""What the driver is asked for, for ``SIMKFD_FAIL`` and ``SIMKFD_HANG``; see simkfd/kfd.c."""

BUFFERS = {0x7E0000000000: bytes(range(256)) * 256, 0x7E0000100000: b"\x00gpu" * 1024}
"""The memory of the program's buffers in VRAM and in GTT, by their addresses."""


def build(folder: Path) -> None:
    """Compile the simulated driver and the program."""
    library = [str(SOURCES / f"{name}.c") for name in ("state", "paths", "kfd", "drm")]
    shared = ["-fPIC", "-shared", "-pthread", "-o", str(folder / "libsimkfd.so")]
    subprocess.run([*_COMPILE, *shared, *library, "-ldl"], check=True)
    program = ["-o", str(folder / "program"), str(SOURCES / "program.c")]
    subprocess.run([*_COMPILE, *program], check=True)


class KfdMachine:
    """One such machine with one GPU; ``folder`` is visible in it at the same path."""

    def __init__(self, folder: Path, built: Path) -> None:
        self.folder = folder
        self.state = folder / "kfd"
        self.state.mkdir()
        self._temporary = folder / "temporary"
        self._temporary.mkdir()
        self.library = built / "libsimkfd.so"
        self._program = built / "program"
        self._files = Machine(folder)
        self.use_gpu(1001)
        self._criu = self._write_criu()
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _SETUP, "sh"]
        self._namespace = subprocess.Popen(
            [*command, str(self._files.sysfs / "class/kfd")],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._namespace.stdout is not None
        self.ready = self._namespace.stdout.readline() == "ready\n"
        self._started: list[KfdProgram] = []

    def use_gpu(self, gpu_id: int, **changes: int) -> None:
        """Have the machine show its GPU with this number and these properties."""
        self._files.add_cpu(0)
        self._files.add_gpu(1, **changes)
        self._files.write(f"{self._files.node(1)}/gpu_id", f"{gpu_id}\n")
        for node in (0, 1):  # the plugin wants these folders, empty ones too
            for name in ("io_links", "mem_banks"):
                (self._files.sysfs / self._files.node(node) / name).mkdir(exist_ok=True)
        (self.state / "gpus").write_text(f"{gpu_id}\n")

    def hide_gpu(self) -> None:
        """Have the topology show no GPU, while the driver works."""
        self._files.write(f"{self._files.node(1)}/gpu_id", "0\n")

    def _write_criu(self) -> Path:
        """CRIU with the driver preloaded: gpusnap preloads nothing."""
        script = self.folder / "criu"
        command = " ".join(find_criu().command)
        script.write_text(
            f"#!/bin/sh\nexport SIMKFD='{self.state}' LD_PRELOAD='{self.library}'\n"
            f'exec {command} "$@"\n'
        )
        script.chmod(0o755)
        return script

    @property
    def environment(self) -> dict[str, str]:
        """What gpusnap runs with."""
        return {
            **os.environ,
            "SIMKFD": str(self.state),
            "LD_PRELOAD": str(self.library),
            "GPUSNAP_CRIU": str(self._criu),
            "GPUSNAP_REPO": str(self.folder / "repository"),
            "GPUSNAP_STATE_DIR": str(self.folder / "state"),
            "TMPDIR": str(self._temporary),
        }

    def inside(self, command: list[str]) -> list[str]:
        """The command that runs another on this machine."""
        return ["nsenter", f"--mount=/proc/{self._namespace.pid}/ns/mnt", *command]

    def gpusnap(self, *arguments: object, **variables: str) -> "subprocess.CompletedProcess[str]":
        """Run the command line on this machine."""
        return subprocess.run(
            self.inside([sys.executable, "-m", "gpusnap", *map(str, arguments)]),
            env={**self.environment, **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

    @property
    def leftovers(self) -> list[str]:
        """What lies in the folder for temporary files."""
        return os.listdir(self._temporary)

    def start_program(self, *, mapped: bool = True) -> "KfdProgram":
        """Start a program with state in the GPU, as a child of init."""
        folder = self.folder / f"program-{len(self._started)}"
        folder.mkdir()
        program = KfdProgram(folder)
        arguments = ["/dev/dri/renderD128", str(program.log), *(() if mapped else ("unmapped",))]
        script = f'echo $$ > "{program.pid_file}"; exec "$@" </dev/null >/dev/null 2>&1'
        subprocess.run(
            self.inside(["setsid", "-f", "sh", "-c", script, "sh", str(self._program), *arguments]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        self.write_memory(BUFFERS)
        program.wait()
        (self.state / "process").write_text(f"{program.pid}\n")
        self._started.append(program)
        return program

    def write_memory(self, buffers: Mapping[int, bytes]) -> None:
        """Give the program buffers: the first in VRAM, the others in GTT."""
        gpu = (self.state / "gpus").read_text().strip()
        lines = []
        for number, (address, data) in enumerate(buffers.items()):
            offset = 0x10000 * (number + 1)
            lines.append(f"{gpu} {address:x} {len(data):x} {min(number + 1, 2):x} {offset:x}\n")
            (self.state / f"memory-{address:x}").write_bytes(data)
        (self.state / "buffers").write_text("".join(lines))

    def read_memory(self) -> dict[int, bytes]:
        """The memory of all buffers."""
        files = self.state.glob("memory-*")
        return {int(file.name.partition("-")[2], 16): file.read_bytes() for file in files}

    def free_memory(self) -> None:
        """What the driver does when a process has ended."""
        (self.state / "buffers").unlink(missing_ok=True)
        for file in self.state.glob("memory-*"):
            file.unlink()

    @property
    def events(self) -> list[str]:
        """What the driver was asked for since the last time."""
        file = self.state / "events"
        events = file.read_text().split() if file.exists() else []
        self.forget_events()
        return events

    def forget_events(self) -> None:
        """Count events from here on."""
        (self.state / "events").unlink(missing_ok=True)

    def close(self) -> None:
        """End the programs and the machine."""
        for program in self._started:
            program.kill()
        self._namespace.kill()
        self._namespace.communicate()


class KfdProgram:
    """The program, which counts in its log."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "log"
        self.pid_file = folder / "pid"

    @property
    def pid(self) -> int:
        return int(self.pid_file.read_text())

    @property
    def alive(self) -> bool:
        found = identity(self.pid)
        return found is not None and alive(found)

    @property
    def steps(self) -> int:
        return int(self.log.read_text())

    def wait(self) -> None:
        """Wait until it counts."""
        await_true(lambda: self.log.exists() and self.log.read_text() != "", "it counts")

    def kill(self) -> None:
        """End it, if it is still there."""
        if self.alive:
            kill(self.pid)
        await_true(lambda: not self.alive, "it is gone")

    def counts(self) -> bool:
        """Whether it goes on."""
        before = self.steps
        return becomes_true(lambda: self.steps > before, 60)
