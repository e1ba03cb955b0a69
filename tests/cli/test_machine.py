"""check, devices, ps and backends on a simulated machine, and on one without devices."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpusnap.cli.devices import health_words
from gpusnap.journal import Entry, Journal, Task
from gpusnap.plugins import BrokenPlugin, default_plugins
from gpusnap.repository import Repository
from gpusnap.target import identity
from gpusnap.testing import Machine
from gpusnap.types import EccCounts, Health, ProcessId
from tests.cli.conftest import Command
from tests.repository.samples import FILES, take

NOBODY = "65534"


def test_devices(command: Command, machine: Machine) -> None:
    answer = command("devices", "--backend=simulated")
    heading, *rows = answer.out.splitlines()
    note = "simulated: A simulated accelerator for trying and testing, not hardware\n"
    assert (answer.code, answer.err) == (0, note)
    assert heading.split()[:3] == ["INDEX", "VENDOR", "MODEL"]
    assert [row.split()[0] for row in rows] == ["0", "1"]


def test_devices_as_json(command: Command, machine: Machine) -> None:
    uuids = [device.uuid for device in machine.description.devices]
    found = command("devices", "--backend=simulated", "--json").document
    assert [device["uuid"] for device in found["devices"]] == uuids
    assert isinstance(found["devices"][0]["memory_total"], int)
    found = command("devices", "--backend=simulated", "--json", uuids[1], "1").document
    assert [device["index"] for device in found["devices"]] == [1]


@pytest.mark.parametrize(
    ("health", "words"),
    [
        (Health(), "-"),
        (Health(bad_pages=0), "ok"),
        (Health(ecc=EccCounts(volatile_uncorrected=2)), "2 uncorrected memory errors since boot"),
        (
            Health(remap_pending=True, remap_failed=False, bad_pages=3),
            "remap pending, 3 bad pages",
        ),
    ],
)
def test_health_in_words(health: Health, words: str) -> None:
    assert health_words(health) == words


def test_ps_of_an_idle_machine(command: Command, machine: Machine) -> None:
    answer = command("ps", "--backend=simulated")
    assert (answer.code, answer.out) == (0, "")
    assert answer.err == "No process uses a device of a usable backend\n"
    document = command("ps", "--backend=simulated", "--json").document
    assert document == {"processes": [], "suspended": [], "interrupted": []}


def test_ps_lists_what_a_killed_gpusnap_left(command: Command, sleeper: int) -> None:
    process = identity(sleeper)
    assert process is not None
    entry = Entry(
        task=Task.CHECKPOINT,
        owner=ProcessId(process.pid, 1),
        processes=(process,),
        claimed=(),
        backend=None,
    )
    journal = Journal.begin(entry)
    assert command("ps", "--json").document["interrupted"] == []  # it is under way
    journal.leave()
    answer = command("ps")
    assert answer.code == 0
    assert [line.split()[:3] for line in answer.out.splitlines()[1:]] == [
        [str(sleeper), "sleep", "interrupted"]
    ]
    assert answer.err == (f"A checkpoint of {sleeper} was interrupted: run gpusnap recover\n")
    found = command("ps", "--json").document
    assert found["suspended"] == []
    assert found["interrupted"] == [
        {"task": "checkpoint", "pids": [sleeper], "names": ["sleep"], "backend": None}
    ]


def test_backends(command: Command) -> None:
    answer = command("backends")
    assert answer.code == 0
    rows = {line.split()[0]: line for line in answer.out.splitlines()}
    assert {"NAME", "amd", "nvidia", "simulated"} <= rows.keys()
    assert "simulated: A simulated accelerator for trying and testing, not hardware" in answer.out
    found = command("backends", "--json", "--backend", "simulated").document
    [row] = found["backends"]
    assert row["info"]["capabilities"] == ["checkpoint", "remap", "suspend"]
    assert row["probe"]["usable"] is False


def test_broken_plugins_are_lines(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = [BrokenPlugin("toy", "toy:backend cannot be imported")]
    monkeypatch.setattr(default_plugins(), "broken", broken)
    answer = command("backends")
    assert answer.code == 0
    assert "toy is broken: toy:backend cannot be imported\n" in answer.out
    answer = command("devices", "--backend=toy")
    answer.refused(13, "Backend toy is broken: toy:backend cannot be imported")


def test_check_of_this_machine(command: Command, root: None, machine: Machine) -> None:
    answer = command("check")
    assert answer.code == 0
    assert "criu-used" in answer.out
    assert "Backend simulated is usable, driver 1.0\n" in answer.out


def test_check_says_if_no_device_can_be_used(command: Command) -> None:
    answer = command("check", "--backend=simulated")
    assert answer.out.splitlines()[-1] == (
        "No backend is usable: only processes without device state can be saved"
    )


def test_check_of_a_process(command: Command, root: None, machine: Machine, sleeper: int) -> None:
    answer = command("check", sleeper, "--json")
    assert answer.code == 0
    assert answer.document["pid"] == sleeper
    assert {each["severity"] for each in answer.document["findings"]} == {"info"}


def test_check_exits_as_a_checkpoint_would(
    command: Command, root: None, traced: int, tmp_path: Path
) -> None:
    answer = command("check", traced)
    assert answer.code == 16
    assert "target-traced" in answer.out
    answer = command("checkpoint", traced, "one", "--repo", tmp_path / "repo")
    assert answer.code == 16
    assert answer.err.startswith(f"gpusnap: Process {traced} is being traced by process ")
    answer = command("checkpoint", traced, "one", "--repo", tmp_path / "repo", "--dry-run")
    assert answer.code == 16
    assert "error: " in answer.out
    assert not (tmp_path / "repo").exists()


def test_a_dry_run_shows_the_plan(
    command: Command, root: None, sleeper: int, tmp_path: Path
) -> None:
    line = ("checkpoint", sleeper, "one", "--repo", tmp_path / "repo", "--dry-run", "--kill")
    answer = command(*line)
    facts = dict(line.split(None, 1) for line in answer.out.splitlines())
    assert answer.code == 0
    assert facts["snapshot"] == str(tmp_path / "repo/one")
    assert facts["backend"] == "none is needed"
    assert f" dump --tree {sleeper} " in facts["criu"]
    assert "--leave-running" not in facts["criu"]
    plan = command(*line[:-1], "-R", "--json").document
    assert "--leave-running" in plan["criu_command"]
    assert not (tmp_path / "repo").exists()


@pytest.mark.parametrize("verb", ["checkpoint", "check"])
def test_no_criu(
    command: Command,
    root: None,
    monkeypatch: pytest.MonkeyPatch,
    sleeper: int,
    tmp_path: Path,
    verb: str,
) -> None:
    monkeypatch.setenv("GPUSNAP_CRIU", str(tmp_path / "none"))
    answer = command(verb, sleeper)
    assert answer.code == 18
    assert "No CRIU that works was found" in answer.out + answer.err
    assert "gpusnap setup-criu" in answer.out + answer.err


def test_a_missing_criu_is_told_before_all_is_read(
    command: Command,
    root: None,
    monkeypatch: pytest.MonkeyPatch,
    repository: Repository,
    tmp_path: Path,
) -> None:
    snapshot = take(repository, "one")
    (snapshot.path / next(iter(FILES))).write_bytes(b"damaged")
    monkeypatch.setenv("GPUSNAP_CRIU", str(tmp_path / "none"))
    answer = command("restore", "one", "--repo", repository.path)
    assert answer.code == 18
    assert answer.err.startswith("gpusnap: The CRIU that GPUSNAP_CRIU names cannot be used: ")


def test_a_broken_criu_is_named(
    command: Command, root: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "criu"
    broken.write_text("#!/bin/sh\necho 'Looks bad.'; exit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("GPUSNAP_CRIU", str(broken))
    answer = command("check")
    assert answer.code == 18
    assert f"The CRIU at {broken} is not used: " in answer.out
    assert "Looks bad." in answer.out


def _run_with_less(*prefix: str, pid: int, verb: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["setpriv", *prefix, sys.executable, "-m", "gpusnap", verb, str(pid)],
        env={**os.environ, "GPUSNAP_DATA_DIR": "/nonexistent"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("verb", ["checkpoint", "suspend", "check"])
def test_without_a_capability_it_is_named(root: None, sleeper: int, verb: str) -> None:
    ended = _run_with_less("--bounding-set=-sys_ptrace", pid=sleeper, verb=verb)
    assert ended.returncode == 15
    assert "gpusnap lacks CAP_SYS_PTRACE to freeze" in ended.stdout + ended.stderr
    assert "Run it as root, or give it these capabilities" in ended.stdout + ended.stderr


def test_not_root(root: None, sleeper: int) -> None:
    drop = ("--reuid", NOBODY, "--regid", NOBODY, "--clear-groups")
    readable = ["setpriv", *drop, sys.executable, "-c", "import gpusnap, rich"]
    if subprocess.run(readable, capture_output=True, check=False).returncode:
        pytest.skip("This environment may be read by root alone")
    ended = _run_with_less(*drop, pid=sleeper, verb="checkpoint")
    assert ended.returncode == 15
    assert ended.stderr.startswith(
        "gpusnap: gpusnap lacks CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_CHECKPOINT_RESTORE to freeze"
    )
    assert ended.stdout == ""
    assert identity(sleeper) is not None
