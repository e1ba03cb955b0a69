"""Keywords of the public calls that say the same as others."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gpusnap
from gpusnap import checkpoint, restore
from gpusnap.datapath import Compression
from gpusnap.errors import UsageError
from gpusnap.plan import choose_saving
from gpusnap.repository import Snapshot
from gpusnap.restore import RestoreOptions
from tests.repository.samples import manifest


@pytest.mark.parametrize(
    ("call", "keywords"),
    [
        (
            gpusnap.create_checkpoint,
            "pid output_path gpu_sync compress incremental parallel_workers",
        ),
        (gpusnap.restore_checkpoint, "checkpoint_path restore_to_original_pid parallel_workers"),
    ],
)
def test_keywords_of_scripts(call: Callable[..., object], keywords: str) -> None:
    assert set(keywords.split()) <= set(inspect.signature(call).parameters)


@pytest.mark.parametrize(
    ("said", "meant"),
    [(True, Compression.AUTO), (False, Compression.NONE), ("zstd", Compression.ZSTD)],
)
def test_compression(said: str | bool, meant: Compression) -> None:
    assert choose_saving(said).compression is meant


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch) -> list[RestoreOptions]:
    """What restores were asked for."""
    options: list[RestoreOptions] = []
    monkeypatch.setattr(restore, "run_restore", lambda *_, **more: options.append(more["options"]))
    return options


@pytest.mark.parametrize(
    ("keywords", "new"),
    [
        ({}, False),
        ({"restore_to_original_pid": True}, False),
        ({"restore_to_original_pid": False}, True),
        ({"new_pids": True}, True),
        ({"new_pids": True, "restore_to_original_pid": False}, True),
    ],
)
def test_original_pids(options: list[RestoreOptions], keywords: Any, new: bool) -> None:
    gpusnap.restore_checkpoint("one", parallel_workers=3, **keywords)
    (asked,) = options
    assert (asked.new_pids, asked.workers) == (new, 3)


def test_a_contradiction(options: list[RestoreOptions]) -> None:
    with pytest.raises(UsageError, match="contradict each other"):
        gpusnap.restore_checkpoint("one", new_pids=True, restore_to_original_pid=True)
    with pytest.raises(UsageError, match="0 workers"):
        gpusnap.restore_checkpoint("one", parallel_workers=0)
    assert not options


@pytest.mark.parametrize("wanted", [True, False])
def test_what_was_saved_is_read_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wanted: bool
) -> None:
    read = []
    made = Snapshot(tmp_path, manifest("one"))
    monkeypatch.setattr(checkpoint, "run_checkpoint", lambda *_, **__: made)
    monkeypatch.setattr(checkpoint, "require_intact", lambda snapshot, _: read.append(snapshot))
    assert gpusnap.create_checkpoint(1, gpu_sync=wanted) is made
    assert read == ([made] if wanted else [])
