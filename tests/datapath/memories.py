"""Processes that exist only in a test, to be saved like others."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from gpusnap.datapath import Kind, Saver, Saving, Span
from gpusnap.native import Copied, Part, Sent, crc32, nonzero_pages
from tests.datapath.targets import silent

MIB = 1 << 20

Content = Mapping[int, Mapping[int, bytes]]
"""For each process the bytes at each address."""


class Memory:
    """Processes that exist only here, to be saved like others."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self._folder = folder
        self._content: Content = {}
        source = "gpusnap.datapath.source"
        monkeypatch.setattr(f"{source}.populated_runs", lambda _pid, start, n: [(start, n)])
        monkeypatch.setattr(f"{source}.read_parts", self._read)
        monkeypatch.setattr(f"{source}.copy_straight", lambda *_: Sent())

    def _read(self, parts: Sequence[Part], view: memoryview) -> list[Copied]:
        found, at = list[Copied](), 0
        for pid, address, length in parts:
            piece = view[at : at + length]
            for start, data in self._content[pid].items():
                if start <= address < start + len(data):
                    piece[:] = data[address - start : address - start + length]
            found.append(Copied(crc32(piece), nonzero_pages(piece)))
            at += length
        return found

    def save(self, name: str, content: Content, saving: Saving | None = None) -> Path:
        self._content = content
        spans = [
            Span(pid, start, len(data), Kind.HOST)
            for pid, parts in content.items()
            for start, data in parts.items()
        ]
        saver = Saver(self._folder / name, saving or Saving(workers=2, budget=8 * MIB))
        saver.copy(spans, silent)
        saver.finish(silent)
        return self._folder / name
