"""Processes to save."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from gpusnap.datapath import Filler, Kind, Parent, Saved, Saver, Saving, Span, check_packs
from gpusnap.datapath.files import damaged
from gpusnap.types import SavedMemory
from tests.datapath import program

KINDS = tuple(program.KINDS)


def silent(_done: int, _total: int) -> None:
    pass


def save(
    spans: tuple[Span, ...], folder: Path, saving: Saving, parent: Path | None = None
) -> SavedMemory:
    saver = Saver(folder, saving, None if parent is None else Parent(Saved(parent)))
    try:
        saver.copy(spans, silent)
        return saver.finish(silent)
    finally:
        saver.abort()  # a thread may have a file open yet, on a disk that is to be unmounted


def check(folder: Path, workers: int = 2, *, placed: bool = True) -> None:
    """Read all of a folder, or all but the saved memory; the first damage is an error."""
    Filler(folder)
    saved = Saved(folder)
    numbers = range(len(saved.packs))
    checked = check_packs(saved, numbers, workers=workers, progress=silent, placed=placed)
    size = sum(path.stat().st_size for path in folder.glob("*.pack"))
    assert checked.bytes == size if placed else checked.bytes < size
    for damage in checked.damages:
        raise damaged(saved.path(damage.pack), damage.words)


class Process:
    """A child that stands still unless it is told to lose its memory."""

    def __init__(self, *kinds: str) -> None:
        self._child = subprocess.Popen(
            [sys.executable, program.__file__, *kinds],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        self.pid = self._child.pid
        self.places: list[tuple[int, int]] = [(int(a), int(n)) for a, n in json.loads(self._line())]

    def _line(self) -> str:
        assert self._child.stdout is not None
        return self._child.stdout.readline()

    def spans(self, priority: int = 0) -> tuple[Span, ...]:
        return tuple(
            Span(self.pid, start, length, Kind.HOST, priority) for start, length in self.places
        )

    def content(self) -> list[bytes]:
        return [self.read(start, length) for start, length in self.places]

    def read(self, start: int, length: int) -> bytes:
        """By the slow and certain way, page by page where guard pages refuse."""
        with Path(f"/proc/{self.pid}/mem").open("rb", buffering=0) as memory:
            return b"".join(
                _page(memory.fileno(), at) for at in range(start, start + length, program.PAGE)
            )

    def lose(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write("lose\n")
        self._child.stdin.flush()
        assert self._line() == "lost\n"

    def kill(self) -> None:
        self._child.kill()
        self._child.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        for pipe in (self._child.stdin, self._child.stdout):
            assert pipe is not None
            pipe.close()


def _page(memory: int, address: int) -> bytes:
    try:
        return os.pread(memory, program.PAGE, address)
    except OSError:
        return b"guard"
