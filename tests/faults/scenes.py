"""Targets with a command that is struck, and what must be true of them afterwards."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from gpusnap.target import identity
from gpusnap.testing import fail
from gpusnap.testing.machine import MachineDescription, read_struct, write_struct
from gpusnap.testing.program import reference_log
from tests.e2e.jobs import Job, Site, await_true
from tests.faults.commands import Commands, Struck

SNAPSHOT = "one"
_STEPS = 1_000_000
_STEP_US = 20_000
_CALL_TIMEOUT_US = 3_000_000
_LATE = ("started:restore+0.003", "finished:restore", "started:unlock", "finished:unlock")
"""Points of a restore at which the target may be whole already."""


def make_site(folder: Path) -> Site:
    """A machine whose driver gives up calls soon."""
    site = Site.make(folder)
    path = site.machine / "devices.json"
    description = read_struct(path, MachineDescription)
    assert description is not None
    write_struct(path, msgspec.structs.replace(description, call_timeout_us=_CALL_TIMEOUT_US))
    return site


def computed_right(job: Job) -> bool:
    """Whether all that a job has logged is what an undisturbed run logs."""
    done = job.log.read_text().rpartition("\n")[0].splitlines()
    return done == reference_log(len(done)).splitlines()[:-1]


def journals(site: Site) -> list[Path]:
    return list((site.folder / "state").glob("*.json"))


def missed(struck: Struck) -> bool:
    """Whether the command had ended before someone was to be struck, some time after a point."""
    # gpusnap can end by itself between its noting whom it strikes, itself, and the strike
    itself = struck.victim == "gpusnap" and struck.code == 0
    return "+" in struck.point and (struck.hit == "never" or itself)


def check_words(struck: Struck) -> None:
    """gpusnap ends with a sentence, unless it was killed itself."""
    victim, _, name = struck.victim.partition(":")
    if missed(struck):
        assert struck.code == 0, struck.errors
    elif victim == "gpusnap" and not name:
        assert struck.code == -signal.SIGKILL
    elif victim == "gpusnap" and struck.code != 0:
        assert struck.code == 128 + signal.Signals[f"SIG{name}"], struck.errors
        assert struck.errors.startswith(f"gpusnap: Interrupted by SIG{name}"), struck.errors
    elif struck.code != 0:
        assert struck.errors.startswith("gpusnap: "), struck.errors


@dataclass
class Scene:
    """A target that survives fault after fault, and the command that is struck.

    Attributes:
        options: Of the command.
        before: A command that succeeds on the target before each strike.
    """

    job: Job
    verb: str
    options: tuple[str, ...] = ()
    before: str | None = None
    commands: Commands = field(init=False)

    def __post_init__(self) -> None:
        self.commands = Commands(self.job.site)
        if "--incremental" in self.options:
            self.commands.succeed("checkpoint", self.job.pid, "parent", "--incremental")

    @property
    def site(self) -> Site:
        return self.job.site

    @property
    def command(self) -> tuple[object, ...]:
        name = (SNAPSHOT,) if self.verb == "checkpoint" else ()
        return (self.verb, self.job.pid, *name, *self.options)

    def prepare(self) -> None:
        if self.before is not None:
            self.commands.succeed(self.before, self.job.pid)

    def census(self) -> dict[str, list[str]]:
        self.prepare()
        found = self.commands.census(*self.command, target=self.job.pid)
        self._put_back()
        return found

    def strike(self, point: str, victim: str) -> Struck:
        """Run the command and have someone struck at a point of it.

        The point may be ``call:CALL`` and the victim a kind of failure of the simulated driver.
        """
        self.prepare()
        kind, _, call = point.partition(":")
        if kind == "call":
            fail(self.site.machine, call, victim)
        struck = self.commands.strike(point, victim, *self.command, target=self.job.pid)
        check_words(struck)
        assert list((self.site.machine / "failures").glob("*.json")) == [], "it never failed"
        return struck

    def outcome(self, struck: Struck) -> str:
        """Check that nothing is lost; returns what became of target and snapshot."""
        if struck.victim == "target:STOP":
            os.kill(self.job.pid, signal.SIGCONT)
        assert self.commands.run("recover").code == 0
        if struck.victim == "target" and struck.hit.isdigit():
            return self._replace()
        return self._put_back()

    def _put_back(self) -> str:
        """Have the target compute, whatever was completed."""
        if not self.job.alive:
            assert "--kill" in self.options, "the target is gone"
            self.commands.succeed("restore", SNAPSHOT)
            self.job.adopt()
            words = "restored"
        elif journals(self.site):
            self.commands.succeed("resume", self.job.pid)
            words = "suspended"
        else:
            words = "runs"
        assert self.job.computes(), "the target stands still"
        return words + self._take_snapshot()

    def _replace(self) -> str:
        """Start another target for the one that was struck itself."""
        assert not self.job.alive
        await_true(lambda: identity(self.job.pid) is None, "the PID is free")
        assert computed_right(self.job)
        words = "ended" + self._take_snapshot()
        self.job = Job.start(self.site, steps=_STEPS, step_us=_STEP_US)
        return words

    def _take_snapshot(self) -> str:
        """Check what lies in the repository and in the state folder, and clear it."""
        assert journals(self.site) == []
        assert list(self.site.repository.glob(".draft*")) == []
        if not (self.site.repository / SNAPSHOT).exists():
            return ""
        self.commands.succeed("verify", SNAPSHOT)
        self.commands.succeed("rm", SNAPSHOT)
        return ", snapshot"

    def end(self) -> None:
        """Check all that was computed meanwhile, and end the target."""
        assert computed_right(self.job)
        self.job.kill()


@dataclass
class RestoreScene(Scene):
    """A target that exists as a snapshot only, and comes back for a moment at best."""

    _log: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.commands.succeed("checkpoint", self.job.pid, SNAPSHOT, "--kill")
        await_true(lambda: identity(self.job.pid) is None, "the PID is free")
        self._log = self.job.log.read_text()

    @property
    def command(self) -> tuple[object, ...]:
        return ("restore", SNAPSHOT, *self.options)

    def outcome(self, struck: Struck) -> str:
        recovered = self.commands.succeed("recover")
        whole = struck.code == 0 or "the target runs on" in recovered
        if whole and struck.victim != "target":
            # Nobody essential was hit, or not before it was whole.
            assert struck.code == 0 or struck.point in _LATE
            words = self._put_back()
        else:
            await_true(lambda: identity(self.job.pid) is None, "no half-restored process remains")
            words = "nothing"
            self.job.log.write_text(self._log)
        assert journals(self.site) == []
        self.commands.succeed("verify", SNAPSHOT)
        return words

    def _put_back(self) -> str:
        self.job.adopt()
        assert self.job.computes()
        self.job.kill()
        self.job.log.write_text(self._log)
        return "runs"

    def end(self) -> None:
        self.commands.succeed("restore", SNAPSHOT)
        self.job.adopt()
        assert self.job.computes()
        super().end()


@contextmanager
def opened(folder: Path, name: str) -> Iterator[Scene]:
    """One of :data:`SCENES` with a target of its own."""
    make, verb, options, before = SCENES[name]
    job = Job.start(make_site(folder), steps=_STEPS, step_us=_STEP_US)
    scene = make(job, verb, options, before)
    try:
        yield scene
    finally:
        current = identity(scene.job.pid)
        if current is not None:
            scene.job.adopt()
            scene.job.kill()


_PATIENT = ("--lock-timeout", "3s")
SCENES: dict[str, tuple[type[Scene], str, tuple[str, ...], str | None]] = {
    "checkpoint": (Scene, "checkpoint", _PATIENT, None),
    "checkpoint --kill": (Scene, "checkpoint", (*_PATIENT, "--kill"), None),
    "checkpoint --incremental": (Scene, "checkpoint", (*_PATIENT, "--incremental"), None),
    "suspend": (Scene, "suspend", _PATIENT, None),
    "resume": (Scene, "resume", (), "suspend"),
    "restore": (RestoreScene, "restore", (), None),
}
