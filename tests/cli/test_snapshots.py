"""list, inspect, verify and rm on snapshots that need no CRIU to make."""

import os
from pathlib import Path

import pytest

from gpusnap.errors import IntegrityError
from gpusnap.repository import Repository
from tests.cli.conftest import Command
from tests.repository.samples import FILES, alter, hidden, take

SIZE = sum(map(len, FILES.values()))


def test_list(command: Command, repository: Repository) -> None:
    take(repository, "second", created="2026-01-02T00:00:00.000000Z")
    take(repository, "first", created="2026-01-01T12:30:00.000000Z")
    answer = command("list", "--repo", repository.path)
    heading, *rows = answer.out.splitlines()
    assert (answer.code, answer.err) == (0, "")
    columns = ["NAME", "CREATED", "PID", "COMMAND", "BACKEND", "SIZE", "NEW", "FROZEN", "TAGS"]
    assert heading.split() == columns
    assert [row.split()[:3] for row in rows] == [
        ["first", "2026-01-01T12:30:00Z", "7"],
        ["second", "2026-01-02T00:00:00Z", "7"],
    ]


def test_list_as_json(command: Command, repository: Repository) -> None:
    snapshot = take(repository, "one")
    found = command("list", "--repo", repository.path, "--json").document
    assert found["repository"] == str(repository.path)
    assert found["damaged"] == []
    [row] = found["snapshots"]
    assert row["path"] == str(snapshot.path)
    assert row["bytes"] == row["stored_bytes"] == SIZE
    assert row["command"] == ["train", "--epochs=3"]
    assert row["created"].endswith("Z")


def test_list_names_damaged_snapshots(command: Command, repository: Repository) -> None:
    take(repository, "good")
    (take(repository, "bad").path / "manifest.json").write_text("{}")
    answer = command("list", "--repo", repository.path)
    assert answer.code == 3
    assert [line.split()[0] for line in answer.out.splitlines()] == ["NAME", "good"]
    assert answer.err.startswith("gpusnap: warning: bad is damaged: ")
    answer = command("list", "--repo", repository.path, "--json")
    assert (answer.code, answer.err) == (3, "")
    assert [each["name"] for each in answer.document["damaged"]] == ["bad"]


def test_list_before_the_first_snapshot(command: Command) -> None:
    answer = command("list")
    assert (answer.code, answer.out) == (0, "")
    assert answer.err.startswith("No snapshots in ")
    assert command("list", "--json").document["snapshots"] == []


def test_list_of_a_tag_that_no_snapshot_has(command: Command, repository: Repository) -> None:
    take(repository, "one")
    answer = command("list", "--repo", repository.path, "--tag=best", "--tag=last")
    assert (answer.code, answer.out) == (0, "")
    assert answer.err == f"No snapshots with the tag best or last in {repository.path}\n"


@pytest.mark.parametrize(
    "line",
    ["inspect", "verify", "diff {one}", "check --restore", "rm", "restore --dry-run", "replay"],
)
def test_a_snapshot_in_the_home_folder(
    command: Command, repository: Repository, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setenv("HOME", str(repository.path))
    one = take(repository, "one").path
    answer = command(*line.format(one=one).split(), "~/other")
    assert f"gpusnap: There is no snapshot at {repository.path}/other" in answer.err


def test_the_repository_may_come_from_the_variable(
    command: Command, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(repository, "one")
    monkeypatch.setenv("GPUSNAP_REPO", str(repository.path))
    assert "one" in command("list").out
    assert command("inspect", "latest").code == 0


def test_inspect(command: Command, repository: Repository) -> None:
    snapshot = take(repository, "one")
    answer = command("inspect", "on", "--repo", repository.path)
    assert answer.code == 0
    facts = dict(line.split("  ", 1) for line in answer.out.splitlines() if line[0] != " ")
    facts = {name: value.strip() for name, value in facts.items()}
    assert facts["snapshot"] == str(snapshot.path)
    assert facts["target"] == "7, 1 process; it ran on"
    assert facts["backend"] == "none: the target held no device state"
    assert facts["files"] == f"{len(FILES)} files, {SIZE / 1000:.3g} kB"
    assert "train --epochs=3" in answer.out


def test_inspect_as_json(command: Command, repository: Repository) -> None:
    take(repository, "one")
    found = command("inspect", "one", "--repo", repository.path, "--json").document
    assert found["bytes"] == SIZE
    assert found["manifest"]["host"]["kernel"] == "6.1.0"
    assert {file["path"] for file in found["manifest"]["files"]} == FILES.keys()


def test_foreign_text_cannot_steer_the_terminal(command: Command, repository: Repository) -> None:
    snapshot = take(repository, "one")
    host = {"kernel": "6\x1b[2J", "machine": "x", "hostname": "h\nsnapshot  /etc", "boot_id": "b"}
    alter(snapshot, host=host)
    answer = command("inspect", "one", "--repo", repository.path)
    assert answer.code == 0
    assert "\x1b" not in answer.out
    assert "\nsnapshot  /etc" not in answer.out
    assert "6\\x1b[2J" in answer.out


def test_verify(command: Command, repository: Repository) -> None:
    snapshot = take(repository, "one")
    answer = command("verify", f"{snapshot.path}/")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith(f"{snapshot.path} is intact (4 files, ")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda path: path.write_bytes(b"registerS"), "File criu/core-7.img has another SHA-256"),
        (lambda path: path.write_bytes(b"reg"), "File criu/core-7.img has 3 bytes instead of 9"),
        (Path.unlink, "File criu/core-7.img is missing"),
        (lambda path: path.with_name("new").touch(), "A regular file, criu/new, was not part of"),
    ],
)
def test_verify_finds_damage(
    command: Command, repository: Repository, change: object, words: str
) -> None:
    snapshot = take(repository, "one")
    assert callable(change)
    change(snapshot.path / "criu/core-7.img")
    answer = command("verify", "one", "--repo", repository.path)
    assert answer.code == IntegrityError.exit_code
    assert answer.out.startswith(f"error: {words}")
    assert answer.out.splitlines()[-1].startswith(f"{snapshot.path} is damaged: 1 fault")


def test_verify_in_json_lines(command: Command, repository: Repository) -> None:
    snapshot = take(repository, "one")
    (snapshot.path / "criu/core-7.img").write_bytes(b"reg")
    answer = command("verify", "one", "--repo", repository.path, "--json")
    assert (answer.code, answer.err) == (12, "")
    first, *_, summary = answer.lines
    assert first == {
        "message_type": "phase",
        "phase": "verify",
        "state": "started",
        "microseconds": None,
    }
    assert summary["message_type"] == "summary"
    assert summary["result"]["intact"] is False
    [finding] = summary["result"]["findings"]
    assert finding["code"] == "snapshot-file-truncated"
    assert {line["message_type"] for line in answer.lines} == {"phase", "progress", "summary"}


def test_rm(command: Command, repository: Repository) -> None:
    one, two = take(repository, "one"), take(repository, "two")
    answer = command("rm", "one", "one", two.path, "--repo", repository.path, "--json")
    assert answer.code == 0
    assert [each["path"] for each in answer.document["removed"]] == [str(one.path), str(two.path)]
    assert all(each["bytes_freed"] >= SIZE for each in answer.document["removed"])
    assert repository.snapshots() == ()


def test_rm_removes_what_crashes_left(command: Command, repository: Repository) -> None:
    take(repository, "one")
    for left in (".removed-a-1234", ".draft-b", ".draft-c/lock"):
        (repository.path / left).mkdir(parents=True)
    assert command("rm", "one", "--repo", repository.path).code == 0
    assert hidden(repository.path) == [".draft-c"]  # which is none of gpusnap's


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_repository_whose_path_is_no_utf_8(command: Command, tmp_path: Path, form: str) -> None:
    repository = Repository.create(tmp_path / os.fsdecode(b"d\xe9x") / "repo")
    take(repository, "one")
    options = ("--repo", repository.path, *(["--json"] if form == "json" else []))
    for line in ("list", "inspect one", "verify one", "rm one"):
        answer = command(*line.split(), *options)
        assert (answer.code, answer.err) == (0, "")
        assert line == "list" or "d\\" in answer.out
    for verb in ("restore", "inspect", "rm"):
        answer = command(verb, "one", *options)
        assert answer.code in {10, 15}
        assert "failed unexpectedly" not in answer.err


def test_rm_removes_nothing_if_one_is_missing(command: Command, repository: Repository) -> None:
    take(repository, "one")
    answer = command("rm", "one", "two", "three", "--repo", repository.path)
    sentence = f"There is no snapshot 'two' in {repository.path}; nothing was removed"
    answer.refused(10, sentence)
    assert answer.err.splitlines()[-1] == f"  There is no snapshot 'three' in {repository.path}"
    assert [each.name for each in repository.snapshots()] == ["one"]


def test_rm_of_a_snapshot_in_use(command: Command, repository: Repository) -> None:
    with take(repository, "one").hold():
        answer = command("rm", "one", "--repo", repository.path)
    answer.refused(11, "Snapshot one is in use")
    assert len(repository.snapshots()) == 1


def test_restore_refuses_a_damaged_snapshot(
    command: Command, root: None, repository: Repository
) -> None:
    snapshot = take(repository, "one")
    (snapshot.path / "criu/core-7.img").write_bytes(b"reg")
    answer = command("restore", "one", "--repo", repository.path)
    code = "snapshot-file-truncated"
    answer.refused(12, f"File criu/core-7.img has 3 bytes instead of 9 [{code}]")
