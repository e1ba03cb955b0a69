"""What `auto` tries, and what it finds, on a fast disk and on a slow one."""

import os
from pathlib import Path

import pytest

from gpusnap.datapath import Saver, Saving
from gpusnap.datapath.codecs import Choice, Encoder
from gpusnap.datapath.disk import Disk
from gpusnap.datapath.records import Codec
from gpusnap.datapath.spans import PAGE
from gpusnap.types import SavedMemory
from tests.datapath.memory import MIB, Memory
from tests.datapath.targets import silent

NOISE, TEXT = os.urandom(MIB), (b"checkpoint and restore %d\n" * (MIB // 24))[:MIB]
FAST, SLOW = Disk(cost=0.0), Disk(cost=1.0)
"""The slow one takes longer than any codec does, even one that the machine holds up meanwhile."""
ONE_MIB = Saving(workers=1, budget=MIB)
"""With one buffer of 1 MiB each MiB is tried or left out by itself."""


def save(memory: Memory, folder: Path, disk: Disk) -> SavedMemory:
    saver = Saver(folder, ONE_MIB, disk=disk)
    saver.copy((memory.span,), silent)
    return saver.finish(silent)


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each try whether it found text, which then costs no time to encode."""
    seen: list[bool] = []

    def choose(_encoder: Encoder, sample: memoryview) -> Choice:
        text = TEXT.startswith(sample[:PAGE])
        seen.append(text)
        return Choice(Codec.LZ4, 0.1, 0.0) if text else Choice(Codec.RAW)

    monkeypatch.setattr(Encoder, "choose", choose)
    return seen


def test_where_nothing_pays_few_samples_are_tried(tmp_path: Path, tried: list[bool]) -> None:
    save(Memory(NOISE * 128), tmp_path / "regions", FAST)
    assert 128 / 32 <= len(tried) <= 128 / 16


def test_behind_much_that_does_not_pay_is_found_what_does(
    tmp_path: Path, tried: list[bool]
) -> None:
    saved = save(Memory(NOISE * 70 + TEXT * 50), tmp_path / "regions", FAST)
    uses = {use.codec: use.raw for use in saved.codecs}
    assert uses["lz4"] > (50 - 32) * MIB
    assert tried.count(True) == uses["lz4"] // MIB


def test_a_slow_disk_gets_all_that_can_be_smaller(tmp_path: Path) -> None:
    mixed = (NOISE * 12 + TEXT) * 3 + NOISE * 12
    saved = save(Memory(mixed), tmp_path / "regions", SLOW)
    uses = {use.codec: use.raw for use in saved.codecs}
    assert uses == {"raw": 48 * MIB, "lz4": 3 * MIB}
