"""Memory with many holes: few chunks, the same bytes, and an index that is never too long."""

import os
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusnap.datapath import Compression, Filler, Saved, Saving, filler, records, source
from gpusnap.errors import GpusnapError
from gpusnap.native import nonzero_pages, write_process
from tests.datapath.memory import MIB, Memory
from tests.datapath.targets import check, save, silent

PAGE = 4096
PLAIN = Saving(compression=Compression.NONE, workers=1)


@given(st.lists(st.booleans(), min_size=1, max_size=256))
def test_few_runs_hold_all_and_leave_the_widest_gaps(pages: list[bool]) -> None:
    memory = b"".join(bytes([page]) * PAGE for page in pages)
    runs = nonzero_pages(memory)
    joined = source._joined(runs)
    assert len(joined) == min(len(runs), source.MOST_RUNS)
    assert all(begin + length < after for (begin, length), (after, _) in pairwise(joined))
    kept = [memory[begin : begin + length] for begin, length in joined]
    assert sum(data.count(1) for data in kept) == memory.count(1)
    assert all(data[0] and data[-1] for data in kept)
    gaps = sorted(after - begin - length for (begin, length), (after, _) in pairwise(runs))
    left = sorted(after - begin - length for (begin, length), (after, _) in pairwise(joined))
    assert left == gaps[len(gaps) - len(left) :]


def test_zeros_in_a_chunk_are_not_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What holds nothing shall take no room afterwards, and may be a guard page."""
    content = b"".join(os.urandom(PAGE) + bytes(PAGE) for _ in range(2 * MIB // PAGE // 2))
    memory = Memory(content)
    save((memory.span,), tmp_path / "a", PLAIN)
    check(tmp_path / "a")
    assert len(Saved(tmp_path / "a").places) <= 3 * source.MOST_RUNS
    written = []

    def write(pid: int, address: int, data: memoryview) -> None:
        written.append(len(data))
        write_process(pid, address, data)

    monkeypatch.setattr(filler, "write_process", write)
    memory.lose()
    Filler(tmp_path / "a").fill(silent, verify=True)
    assert memory.content == content
    assert sum(written) == MIB


def test_an_index_that_would_be_too_long(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing that could not be read again is ever published."""
    memory = Memory(os.urandom(PAGE))
    save((memory.span,), tmp_path / "a", PLAIN)
    length = (tmp_path / "a/index").stat().st_size
    monkeypatch.setattr(records, "INDEX_LIMIT", length)
    save((memory.span,), tmp_path / "b", PLAIN)
    monkeypatch.setattr(records, "INDEX_LIMIT", length - 1)
    with pytest.raises(GpusnapError, match=f"would have {length} bytes, more than") as caught:
        save((memory.span,), tmp_path / "c", PLAIN)
    assert "--no-regions" in (caught.value.cure or "")
    assert not (tmp_path / "c/index").exists()
