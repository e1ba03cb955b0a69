"""Tags, and prune on snapshots that need no CRIU to make."""

import subprocess
import sys
from pathlib import Path

import pytest

import gpusnap
from gpusnap.errors import BusyError, NotFoundError, PrivilegeError, UsageError
from gpusnap.repository import Repository, RetentionPolicy, Snapshot
from tests.cli.conftest import Command
from tests.repository.samples import alter, hidden, take

LAST = RetentionPolicy(keep_last=1)


@pytest.fixture
def days(repository: Repository) -> list[Snapshot]:
    """Four snapshots of a program, one a day."""
    return [
        take(repository, f"day{day}", created=f"2026-01-0{day}T12:00:00.000000Z")
        for day in (1, 2, 3, 4)
    ]


def names(repository: Repository) -> list[str]:
    return [each.name for each in repository.snapshots()]


def test_list_by_tag(command: Command, repository: Repository, days: list[Snapshot]) -> None:
    alter(days[0], tags=["best", "v1"])
    alter(days[1], tags=["best"])
    alter(days[2], tags=["v2"])
    found = command("list", "--repo", repository.path).out.splitlines()
    assert [line.split()[-1] for line in found] == ["TAGS", "best,v1", "best", "v2", "-"]
    found = command("list", "--repo", repository.path, "--tag=v1", "--tag=v2", "--json").document
    assert [row["tags"] for row in found["snapshots"]] == [["best", "v1"], ["v2"]]
    assert "best, v1" in command("inspect", days[0].path).out
    assert command("list", "--repo", repository.path, "--tag=none").out == ""


@pytest.mark.parametrize("tag", ["a b", "a,b", ""])
def test_a_bad_tag_is_refused(command: Command, tag: str) -> None:
    for line in (("checkpoint", 1), ("list",), ("prune",)):
        option = "--keep-tag" if line == ("prune",) else "--tag"
        answer = command(*line, f"{option}={tag}")
        assert answer.code == 2
        assert answer.err.startswith(f"gpusnap: The tag '{tag}' ")


def test_a_manifest_with_a_bad_tag_is_damaged(repository: Repository) -> None:
    alter(take(repository, "a"), tags=["a b"])
    assert [each.name for each in repository.damaged()] == ["a"]


def test_prune(command: Command, repository: Repository, days: list[Snapshot]) -> None:
    answer = command("prune", "--keep-last=2", "--keep-monthly=5", "--repo", repository.path)
    assert (answer.code, answer.err) == (0, "")
    heading, columns, *rows, verdict = answer.out.splitlines()
    assert heading == "4 snapshots of train --epochs=3 on node"
    assert columns.split() == ["NAME", "CREATED", "TAGS", "ACTION", "REASONS"]
    assert [[row.split()[0], *row.split()[3:]] for row in rows] == [
        ["day4", "keep", "last", "snapshot,", "monthly", "snapshot"],
        ["day3", "keep", "last", "snapshot"],
        ["day2", "remove", "-"],
        ["day1", "keep", "oldest", "monthly", "snapshot"],
    ]
    assert verdict.startswith("Kept 3, removed 1 snapshot: ")
    assert names(repository) == ["day1", "day3", "day4"]


def test_prune_as_json(command: Command, repository: Repository, days: list[Snapshot]) -> None:
    options = ("--keep-last=1", "--repo", repository.path, "--json")
    planned = command("prune", *options, "--dry-run")
    assert (planned.code, planned.err) == (0, "")
    assert planned.document["dry_run"] is True
    assert planned.document["bytes_freed"] == 0
    assert len(names(repository)) == 4
    done = command("prune", *options).document
    assert [each["snapshot"]["name"] for each in done["kept"]] == ["day4"]
    assert done["kept"][0]["reasons"] == ["last snapshot"]
    for each in (planned.document, done):
        removed = [row["snapshot"]["path"] for row in each["removed"]]
        assert removed == [str(repository.path / f"day{day}") for day in (3, 2, 1)]
    assert done["bytes_freed"] == sum(each["bytes_freed"] for each in done["removed"]) > 0
    assert names(repository) == ["day4"]


def test_prune_without_a_rule_removes_nothing(
    command: Command, repository: Repository, days: list[Snapshot]
) -> None:
    for options in ((), ("--keep-last=0",), ("--group-by=none", "--dry-run")):
        answer = command("prune", "--repo", repository.path, *options)
        sentence = "No rule says which snapshots to keep, so all of them would be removed"
        answer.refused(2, sentence)
        assert "  cure: Give one, such as --keep-last 3" in answer.err
    assert len(names(repository)) == 4


@pytest.mark.parametrize("option", ["last=-1", "daily=x", "within=2w"])
def test_bad_rules(command: Command, repository: Repository, option: str) -> None:
    answer = command("prune", f"--keep-{option}", "--repo", repository.path)
    assert (answer.code, answer.out) == (2, "")


def test_a_dry_run_says_what_it_would_do(
    command: Command, repository: Repository, days: list[Snapshot]
) -> None:
    answer = command("prune", "--keep-within=1d", "--dry-run", "--repo", repository.path)
    assert answer.out.splitlines()[-1] == "Would keep 2 and remove 2 snapshots"
    assert len(names(repository)) == 4


def test_what_is_in_use_stays_and_the_others_go(
    command: Command, repository: Repository, days: list[Snapshot]
) -> None:
    with days[1].hold(), days[2].hold():
        answer = command("prune", "--keep-last=1", "--repo", repository.path)
    assert answer.code == BusyError.exit_code
    assert answer.err.splitlines()[0] == "gpusnap: Snapshot day3 is in use"
    assert answer.err.splitlines()[-1] == "  Snapshot day2 is in use"
    actions = [line.split()[3] for line in answer.out.splitlines()[2:-1]]
    assert actions == ["keep", "refused", "refused", "remove"]
    assert names(repository) == ["day2", "day3", "day4"]
    with days[1].hold():
        answer = command("prune", "--keep-last=1", "--repo", repository.path, "--json")
    assert answer.failure["code"] == BusyError.exit_code
    assert [each["path"] for each in answer.document["refused"]] == [str(days[1].path)]


@pytest.mark.parametrize("more", [(), ("--dry-run",), ("--group-by=none",)])
def test_a_mistyped_tag_removes_nothing(
    command: Command, repository: Repository, days: list[Snapshot], more: tuple[str, ...]
) -> None:
    alter(days[0], tags=["best"])
    left = repository.path / ".removed-a-1234"
    left.mkdir()
    of = "in all" if "--group-by=none" in more else "of train --epochs=3 on node"
    answer = command("prune", "--keep-tag=bset", "--repo", repository.path, *more)
    answer.refused(2, f"Nothing would be kept of 4 snapshots {of}: none has the tag bset")
    assert (len(names(repository)), left.is_dir()) == (4, True)


def test_damaged_snapshots_stay(
    command: Command, repository: Repository, days: list[Snapshot]
) -> None:
    (days[0].path / "manifest.json").write_text("{}")
    answer = command("prune", "--keep-last=1", "--repo", repository.path)
    assert answer.code == 3
    assert answer.err.startswith("gpusnap: warning: day1 is damaged and was kept: ")
    assert days[0].path.is_dir()
    assert names(repository) == ["day4"]
    document = command("prune", "--keep-last=1", "--repo", repository.path, "--json").document
    assert [each["name"] for each in document["damaged"]] == ["day1"]


def test_what_interrupted_operations_left_goes(
    command: Command, repository: Repository, days: list[Snapshot]
) -> None:
    for left in (".removed-a-1234", ".draft-b"):
        (repository.path / left).mkdir()
        (repository.path / left / "pages-1.img").write_bytes(bytes(1 << 16))
    with repository.prepare("c"):
        command("prune", "--keep-last=9", "--dry-run", "--repo", repository.path)
        assert len(hidden(repository.path)) == 3
        answer = command("prune", "--keep-last=9", "--repo", repository.path, "--json")
        assert hidden(repository.path) == [".draft-c"]
    assert answer.document["bytes_freed"] >= 2 << 16
    assert len(names(repository)) == 4


def test_leftovers_that_cannot_be_deleted_are_told(
    command: Command, repository: Repository, days: list[Snapshot]
) -> None:
    (repository.path / ".draft-a/lock").mkdir(parents=True)
    answer = command("prune", "--keep-last=1", "--repo", repository.path)
    assert answer.code == 1
    assert answer.err.startswith("gpusnap: Cannot clean ")
    assert names(repository) == ["day4"]


def test_what_vanished_meanwhile_is_no_error(
    repository: Repository, days: list[Snapshot], monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = repository.contents()
    repository.remove(days[0])
    monkeypatch.setattr(Repository, "contents", lambda _self: contents)
    pruned = repository.prune(LAST)
    assert [each.snapshot.name for each in pruned.removed] == ["day3", "day2"]
    assert pruned.refused == ()


def test_a_new_snapshot_of_an_old_name_stays(
    repository: Repository, days: list[Snapshot], monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = repository.contents()
    repository.remove(days[0])
    take(repository, "day1")
    monkeypatch.setattr(Repository, "contents", lambda _self: contents)
    assert len(repository.prune(LAST).removed) == 2
    monkeypatch.undo()
    assert names(repository) == ["day4", "day1"]
    with pytest.raises(NotFoundError, match="Snapshot day1 is gone"):
        repository.remove(days[0])
    assert len(names(repository)) == 2


def test_what_another_is_removing_is_no_error(
    repository: Repository, days: list[Snapshot], monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpusnap.repository.locks import removing_lock

    with removing_lock(days[0].path / "manifest.json"):
        pruned = repository.prune(LAST)
    assert [each.snapshot.name for each in pruned.removed] == ["day3", "day2"]
    assert pruned.refused == ()


PRUNER = """
import sys
from gpusnap.repository import Repository, RetentionPolicy
repository = Repository.open(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
pruned = repository.prune(RetentionPolicy(keep_last=5))
print(len(pruned.removed), len(pruned.refused), flush=True)
"""


def test_two_at_once(repository: Repository) -> None:
    for number in range(24):
        take(repository, f"s{number}", {"criu/core-7.img": bytes(1000)})
    command = [sys.executable, "-c", PRUNER, str(repository.path)]
    pruners = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for pruner in pruners:
        assert pruner.stdout is not None
        assert pruner.stdout.readline() == "ready\n"
    found = [pruner.communicate("go\n", timeout=60)[0].split() for pruner in pruners]
    assert [refused for _, refused in found] == ["0", "0"]
    assert sum(int(removed) for removed, _ in found) == 19
    assert len(names(repository)) == 5
    assert hidden(repository.path) == []


def test_a_repository_that_cannot_be_written_to(
    command: Command, repository: Repository, days: list[Snapshot], tmp_path: Path, root: None
) -> None:
    from tests.repository.samples import powerless

    with powerless(repository.path):
        answer = command("prune", "--keep-last=1", "--repo", repository.path)
    assert answer.code == PrivilegeError.exit_code
    assert len(names(repository)) == 4


def test_a_bad_tag_is_refused_before_anything_is_done() -> None:
    with pytest.raises(UsageError, match="The tag 'a b' holds a space"):
        gpusnap.create_checkpoint(1, "x/y", tags=["a b"])
