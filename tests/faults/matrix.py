"""All points of all commands with all who can be struck there."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from gpusnap.testing.failures import SENSIBLE, DriverCall
from tests.e2e.faults import VICTIMS
from tests.e2e.test_forked_children import Family
from tests.faults.commands import Commands
from tests.faults.scenes import SCENES, Scene, check_words, journals, make_site, opened

_STOPPED_AT = ("finished:preflight", "started:checkpoint", "criu:pre-dump", "criu:post-dump")
"""A stopped target keeps every driver call waiting for its deadline: some points are enough."""

_IN_A_CALL = ("started:checkpoint", "started:restore")
_CALLERS = ("gpusnap", "worker")
"""They are struck a little later too, while the driver moves memory."""

_FORKED = "checkpoint, forked child"
COMMANDS = (*SCENES, _FORKED)
_SCRUB = ("started:scrub", "finished:scrub")


class Case(NamedTuple):
    point: str
    victim: str


class Row(NamedTuple):
    """A case and what became of it; an outcome in capitals is a failure."""

    scene: str
    point: str
    victim: str
    outcome: str

    @property
    def survived(self) -> bool:
        return not self.outcome.startswith("LOST")


def cases_of(scene: str, census: dict[str, list[str]]) -> Iterator[Case]:
    """Whom to strike where, as far as anybody is there: else a fault shows nothing."""
    for point, present in census.items():
        for victim in VICTIMS:
            if victim not in present or (victim == "journal" and scene != "checkpoint"):
                continue
            yield Case(point, victim)
            if victim in _CALLERS and point in _IN_A_CALL:
                yield Case(f"{point}+0.003", victim)
        yield Case(point, "gpusnap:INT")
        if scene == "checkpoint":
            yield from (Case(point, "gpusnap:TERM"), Case(point, "gpusnap:HUP"))
            if point in _STOPPED_AT:
                yield Case(point, "target:STOP")
    for call in DriverCall:
        if f"started:{call}" in census:
            yield from (Case(f"call:{call}", kind) for kind in SENSIBLE if call in SENSIBLE[kind])


def run_matrix(folder: Path, names: Sequence[str] = COMMANDS) -> Iterator[Row]:
    """Strike at every point of the named commands."""
    for number, name in enumerate(names):
        here = folder / str(number)
        yield from _run_forked(here) if name == _FORKED else _run_scene(here, name)


def _run_scene(folder: Path, name: str) -> Iterator[Row]:
    census = None
    for attempt in range(1000):
        with opened(folder / str(attempt), name) as scene:
            if census is None:
                census = scene.census()
                left = list(cases_of(name, census))
            while left:
                row = _strike(scene, name, left.pop(0))
                yield row
                if not row.survived:
                    break  # with another target
            else:
                scene.end()
                return


def _strike(scene: Scene, name: str, case: Case) -> Row:
    try:
        struck = scene.strike(*case)
        met = case.point.startswith("call:") or struck.hit.isdigit()
        assert met or "+" in case.point, f"nobody was there: {struck.hit}"
        outcome = scene.outcome(struck)
        if not met:
            outcome = "too late"
    except AssertionError as error:
        outcome = f"LOST: {error}"
    return Row(name, *case, outcome)


def _run_forked(folder: Path) -> Iterator[Row]:
    """The step that exists only where a child inherited the device; each strike takes a family."""
    victims = ("gpusnap", *(f"gpusnap:{name}" for name in ("INT", "TERM", "HUP")), "worker")
    cases = [Case(point, victim) for point in _SCRUB for victim in victims]
    for number, case in enumerate(cases):
        family = Family(make_site(folder / str(number)))
        try:
            outcome = _strike_family(family, case)
        except AssertionError as error:
            outcome = f"LOST: {error}"
        finally:
            family.end()
        yield Row(_FORKED, *case, outcome)


def _strike_family(family: Family, case: Case) -> str:
    commands = Commands(family.site)
    struck = commands.strike(*case, "checkpoint", family.pid, "one")
    check_words(struck)
    assert struck.hit.isdigit(), struck.hit
    commands.succeed("recover")
    assert family.goes_on(), "the family stands still"
    assert journals(family.site) == []
    if not (family.site.repository / "one").exists():
        return "runs"
    commands.succeed("verify", "one")
    return "runs, snapshot"


def tables(rows: Sequence[Row]) -> Iterator[str]:
    """The matrix as Markdown, a table for each command and one for the driver's failures."""
    by_point = [row for row in rows if not row.point.startswith("call:")]
    for name in dict.fromkeys(row.scene for row in by_point):
        mine = [Row(name, *row[1:]) for row in by_point if row.scene == name]
        yield from _table(f"gpusnap {name}", mine)
    calls = [
        Row(*row[:1], f"{row.point.removeprefix('call:')}: {row.victim}", row.scene, row.outcome)
        for row in rows
        if row.point.startswith("call:")
    ]
    if calls:
        yield from _table("A driver call that fails", calls)


def _rank(victim: str) -> int:
    """The place of a victim's column, signals beside the process they go to."""
    return VICTIMS.index(name) if (name := victim.partition(":")[0]) in VICTIMS else 0


def _table(title: str, rows: Sequence[Row]) -> Iterator[str]:
    points = list(dict.fromkeys(row.point for row in rows))
    victims = sorted(dict.fromkeys(row.victim for row in rows), key=_rank)
    outcomes = {(row.point, row.victim): row.outcome for row in rows}
    cells = [["point", *victims]]
    cells += [[point, *(outcomes.get((point, each), "-") for each in victims)] for point in points]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in cells]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    yield from (f"### {title}", "", *lines, "")
