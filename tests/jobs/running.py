"""``gpusnap run`` as a user would start it, on a simulated machine and folders of its own."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from gpusnap.criu import private_criu_directory
from gpusnap.jobs.record import Run, read_run
from gpusnap.jobs.snapshots import read_ledger
from gpusnap.target import alive, identity
from gpusnap.testing.program import reference_log
from tests.e2e.jobs import Site, await_true, becomes_true

PROGRAM = Path(__file__).with_name("program.py")
MEMORY = 16 * 4096
"""Device memory of the program, in bytes."""


@dataclass
class Place:
    """Where runs take place, and the gpusnaps that were started there."""

    site: Site
    started: list["subprocess.Popen[str]"] = field(default_factory=list)

    @classmethod
    def make(cls, folder: Path, devices: int = 1) -> "Place":
        place = cls(Site.make(folder, devices))
        place.data.mkdir()
        (place.data / "criu").symlink_to(private_criu_directory())
        return place

    @property
    def data(self) -> Path:
        return self.site.folder / "data"

    @property
    def environment(self) -> dict[str, str]:
        return {**self.site.environment, "GPUSNAP_DATA_DIR": str(self.data)}

    @property
    def stop(self) -> Path:
        """The file at which the program comes to its end."""
        return self.site.folder / "stop"

    @property
    def computing(self) -> list[object]:
        """A command with a checkable result on its standard output."""
        return [sys.executable, PROGRAM, self.stop]

    def start(self, *arguments: object, **changes: str) -> "subprocess.Popen[str]":
        """Start the command line, with its output in pipes."""
        process = subprocess.Popen(
            [sys.executable, "-m", "gpusnap", *map(str, arguments)],
            env={**self.environment, **changes},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def run(self, *arguments: object, **changes: str) -> "subprocess.CompletedProcess[str]":
        """The same, to its end."""
        process = self.start(*arguments, **changes)
        out, err = process.communicate(timeout=90)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def end(self) -> None:
        """Leave nothing running."""
        for process in self.started:
            process.kill()
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
        for folder in (self.data / "runs").glob("*"):
            with suppress(Exception):
                root = read_run(folder).root
                if root is not None and alive(root):
                    os.kill(root.pid, signal.SIGKILL)
                    await_true(lambda root=root: identity(root.pid) is None, "its PID is free")


@dataclass
class Followed:
    """One run, by its name."""

    place: Place
    name: str

    @property
    def folder(self) -> Path:
        return self.place.data / "runs" / self.name

    @property
    def run(self) -> Run:
        return read_run(self.folder)

    @property
    def pid(self) -> int:
        root = self.run.root
        assert root is not None
        return root.pid

    @property
    def stdout(self) -> str:
        return (self.folder / "stdout").read_text()

    @property
    def steps(self) -> int:
        return self.stdout.count("\n")

    def snapshots(self) -> list[str]:
        """Names of its snapshots that are complete."""
        names = [taken.name for taken in read_ledger(self.folder).taken]
        return [name for name in names if (self.place.site.repository / name).exists()]

    def await_(self, condition: Callable[["Followed"], bool], what: str) -> None:
        """Wait until something holds of it."""

        def holds() -> bool:
            try:
                if condition(self):
                    return True
            except Exception:  # noqa: BLE001 - its files may just come
                return False
            gpusnap = self.place.started[-1]
            assert gpusnap.poll() is None, f"{what}: {gpusnap.communicate()}"
            return False

        if not becomes_true(holds, 120.0):
            gpusnap = self.place.started[-1]
            gpusnap.kill()
            raise AssertionError(f"{what}: {self.run} {gpusnap.communicate()[1]}")

    def await_running(self, restarts: int = 0) -> None:
        """Wait until its job runs, for the so manieth time again."""

        def runs(_: "Followed") -> bool:
            run = self.run
            return run.restarts == restarts and run.root is not None and alive(run.root)

        self.await_(runs, "its job runs")

    def kill(self) -> None:
        """Kill the job."""
        os.kill(self.pid, signal.SIGKILL)


def is_result(text: str) -> bool:
    """Whether a text is that of the program, with all its steps and its end."""
    steps = text.count("\n") - 1
    return steps > 0 and text == reference_log(steps, MEMORY)
