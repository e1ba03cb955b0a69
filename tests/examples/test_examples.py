"""Each example of the documentation, run as its text says."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpusnap.criu import private_criu_directory
from gpusnap.repository import Repository

EXAMPLES = Path(__file__).resolve().parents[2] / "docs/examples"

Run = Callable[..., list[str]]
"""Runs Python on arguments; gives the lines that this adds to standard output."""


@pytest.fixture
def run(root: None, tmp_path: Path) -> Run:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/criu").symlink_to(private_criu_directory())
    settings = {name: str(tmp_path / name.lower()) for name in ("GPUSNAP_REPO", "HOME")}
    environment = {
        **os.environ,
        **settings,
        "GPUSNAP_DATA_DIR": str(tmp_path / "data"),
        "GPUSNAP_STATE_DIR": str(tmp_path / "state"),
    }

    def run(*arguments: str) -> list[str]:
        output, errors = tmp_path / "example.log", tmp_path / "example.err"
        with output.open("ab") as out, errors.open("ab") as err:
            before = out.tell()
            done = subprocess.run(
                [sys.executable, *arguments],
                cwd=tmp_path,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                check=False,
                timeout=200,
            )
        assert done.returncode == 0, errors.read_text()
        return output.read_bytes()[before:].decode().splitlines()

    return run


def names(repository: Path) -> list[str]:
    return [each.name for each in Repository.open(repository).snapshots()]


@pytest.mark.timeout(420)  # PyTorch takes its time to be loaded
def test_training_with_the_wrapper(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed", exc_type=ImportError)
    script = str(EXAMPLES / "train.py")
    first, second = run(script)
    assert first.startswith("epoch 0: loss ")
    assert second.startswith("epoch 1: loss ")
    assert names(tmp_path / "snapshots") == ["epoch_0.ckpt", "epoch_1.ckpt"]
    assert run(script, "0") == [second]
    assert names(tmp_path / "snapshots") == ["epoch_0.ckpt", "epoch_1.ckpt"]


def test_a_program_that_saves_itself(run: Run) -> None:
    saved, result = run(str(EXAMPLES / "save_itself.py"))
    assert saved == "saved before dart 100000"
    again = run("-m", "gpusnap", "restore", "./snapshots/half", "--wait")
    assert again == ["restored before dart 100000", result]


def test_steps_under_run(run: Run, tmp_path: Path) -> None:
    script = str(EXAMPLES / "steps.py")
    options = ("--name", "darts", "--every-steps", "20", "--restart", "3")
    lines = run("-m", "gpusnap", "run", *options, "--", sys.executable, script)
    assert lines == run(script)
    assert names(tmp_path / "gpusnap_repo") == ["darts-000001", "darts-000002"]
