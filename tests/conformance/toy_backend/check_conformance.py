"""The toy's own tests, as a third party would write them: ``pytest check_conformance.py``."""

import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from gpusnap.testing.conformance import BackendConformance, StartProcess


class ToyProgram:
    """A running gpusnap_toy.program."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gpusnap_toy.program", str(log)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def steps(self) -> int:
        return self._log.stat().st_size if self._log.exists() else 0

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class TestToyBackend(BackendConformance):
    @pytest.fixture(autouse=True)
    def accelerator(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "toy").mkdir()
        monkeypatch.setenv("TOY_DIR", str(tmp_path / "toy"))

    @pytest.fixture
    def backend(self) -> object:
        (point,) = entry_points(group="gpusnap.backends", name="toy")
        return point.load()

    @pytest.fixture
    def start_process(self, tmp_path: Path) -> Iterator[StartProcess]:
        programs: list[ToyProgram] = []

        def start() -> ToyProgram:
            programs.append(ToyProgram(tmp_path / f"log-{len(programs)}"))
            return programs[-1]

        yield start
        for program in programs:
            program.kill()
