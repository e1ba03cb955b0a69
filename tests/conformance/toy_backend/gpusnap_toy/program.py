"""A program for the toy accelerator: ``python -m gpusnap_toy.program LOG``.

It counts in device memory, and appends one byte to LOG for each step.
"""

import mmap
import os
import sys
import time
from pathlib import Path

from .accelerator import MEMORY, read, root, write


class Program:
    """Device memory, and where it is now."""

    def __init__(self) -> None:
        accelerator = root()
        assert accelerator is not None, "TOY_DIR names no folder"
        self.folder = accelerator / str(os.getpid())
        self.folder.mkdir()
        self.memory = self.folder / "memory"
        self.memory.write_bytes(bytes(MEMORY))
        self.saved: mmap.mmap | None = None
        self.state = "running"
        write(self.folder / "state", self.state)

    def compute(self) -> None:
        """Do one step of device work."""
        with self.memory.open("r+b") as device:
            count = int.from_bytes(device.read(8), "little") + 1
            device.seek(0)
            device.write(count.to_bytes(8, "little"))

    def obey(self) -> None:
        """Go into the state that the driver wants."""
        wanted = read(self.folder / "wanted")
        if wanted is None or wanted == self.state:
            return
        if wanted == "checkpointed":
            self._move_out()
        elif self.state == "checkpointed":
            self._move_in()
        self.state = wanted
        write(self.folder / "state", self.state)

    def _move_out(self) -> None:
        self.saved = mmap.mmap(-1, MEMORY, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.saved[:] = self.memory.read_bytes()
        self.memory.unlink()

    def _move_in(self) -> None:
        assert self.saved is not None
        self.memory.write_bytes(self.saved)
        self.saved.close()
        self.saved = None


def main(log: Path) -> None:
    """Compute for ever."""
    program = Program()
    with log.open("ab", buffering=0) as file:
        while True:
            program.obey()
            if program.state == "running":
                program.compute()
                file.write(b".")
            time.sleep(0.005)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
