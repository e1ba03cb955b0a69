"""Strikes at random moments of checkpoints of one target."""

import json
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from gpusnap.repository import verify
from gpusnap.target import identity
from tests.e2e.jobs import Job
from tests.faults.commands import Commands
from tests.faults.scenes import check_words, computed_right, journals, make_site

_STEPS = 10_000_000
_STEP_US = 20_000
_KEPT = 3
_MEASURED = 5
_BEGINS = {"gpusnap": "started:preflight", "worker": "started:lock", "criu": "started:dump"}
"""Where the life of each victim begins."""


class Moment(NamedTuple):
    """A strike, and what became of it; no problem is an empty text."""

    number: int
    victim: str
    point: str
    hit: bool
    problem: str


class Moments:
    """One target and its repository, and a series of strikes.

    Attributes:
        lives: How long each victim lives in a checkpoint that nobody disturbs, in seconds.
    """

    def __init__(self, folder: Path, seed: int, victims: Sequence[str]) -> None:
        self._site = make_site(folder)
        self._commands = Commands(self._site)
        self._random = random.Random(seed)
        self._victims = victims
        self._job = self._start()
        self.lives = self._measure()

    def _start(self) -> Job:
        return Job.start(self._site, steps=_STEPS, step_us=_STEP_US)

    def _measure(self) -> dict[str, float]:
        """Medians, but for the first checkpoint, which waits for gpusnap to be loaded."""
        measured = [self._lives(f"measured-{number}") for number in range(_MEASURED + 1)][1:]
        return {victim: statistics.median(each[victim] for each in measured) for victim in _BEGINS}

    def _lives(self, name: str) -> dict[str, float]:
        begin = time.monotonic()
        told = self._commands.succeed("checkpoint", self._job.pid, name, "--json")
        total = time.monotonic() - begin
        phases = json.loads(told.splitlines()[-1])["result"]["phases"]
        seconds = {each["phase"]: each["microseconds"] / 1e6 for each in phases}
        # CRIU lives until what it froze is copied; the worker as long as gpusnap.
        dump = seconds["dump"] + seconds["copy"]
        return {"gpusnap": total, "worker": total - seconds["preflight"], "criu": dump}

    def strikes(self, count: int) -> Iterator[Moment]:
        """Strike until so many strikes have hit somebody."""
        hits = number = 0
        while hits < count:
            moment = self._strike(number)
            hits += moment.hit
            number += 1
            yield moment

    def check_log(self) -> None:
        """Compare all that the target has computed with an undisturbed run."""
        assert computed_right(self._job)

    def end(self) -> None:
        self._job.kill()

    def _strike(self, number: int) -> Moment:
        victim = self._random.choice(self._victims)
        delay = self._random.uniform(0, self.lives[victim])
        options = self._random.choice(([], ["--incremental"]))
        point = f"{_BEGINS[victim]}+{delay:.4f}"
        command = ("checkpoint", self._job.pid, f"s{number}", *options)
        hit, problem = False, ""
        try:
            struck = self._commands.strike(point, victim, *command)
            hit = struck.hit.isdigit()
            if hit:
                check_words(struck)
            self._check()
        except AssertionError as error:
            problem = str(error)
            self._start_over()
        return Moment(number, victim, point, hit, problem)

    def _check(self) -> None:
        self._commands.succeed("recover")
        assert self._job.alive, "the target is gone"
        assert self._job.computes(), "the target stands still"
        assert journals(self._site) == [], "a journal is left"
        for path in self._snapshots():
            assert verify(path, lambda _done, _total: None).intact, f"{path.name} is damaged"
        self._commands.succeed("prune", "--keep-last", _KEPT)
        left = self._snapshots()
        assert len(left) <= _KEPT, "prune kept too much"
        folders = {each for each in self._site.repository.iterdir() if each.is_dir()}
        stray = folders - {*left, self._site.repository / "logs"}
        assert not stray, f"left over: {sorted(each.name for each in stray)}"

    def _snapshots(self) -> list[Path]:
        listing = json.loads(self._commands.succeed("list", "--json"))
        assert listing["damaged"] == [], listing["damaged"]
        return [self._site.repository / each["name"] for each in listing["snapshots"]]

    def _start_over(self) -> None:
        """Go on with another target."""
        if identity(self._job.pid) is not None:
            self._job.adopt()
            self._job.kill()
        self._commands.run("recover")
        self._job = self._start()
