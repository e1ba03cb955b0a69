"""The bench, with the real CRIU on a little memory."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from gpusnap.bench import target
from gpusnap.bench.program import Answer
from gpusnap.bench.report import (
    Machine,
    Native,
    Rates,
    Ratios,
    Report,
    Round,
    Trip,
)
from gpusnap.cli._output import Output
from gpusnap.cli.bench import _show
from gpusnap.types import Finding, Severity
from tests.cli.conftest import Command

TINY = ("--size=32MiB", "--rounds=1")


def programs(folder: Path) -> list[int]:
    """Processes of benches that work in a folder."""
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if "gpusnap.bench.program" in (line := process.info["cmdline"] or [])
        and any(each.startswith(str(folder)) for each in line)
    ]


def figures(value: object, path: str = "") -> Iterator[tuple[str, float]]:
    """All numbers of a document with their keys."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from figures(each, f"{path}.{key}")
    elif isinstance(value, list):
        for each in value:
            yield from figures(each, f"{path}[]")
    elif isinstance(value, int | float):
        yield path, value


def test_as_json(command: Command, real_criu: None, tmp_path: Path) -> None:
    answer = command("bench", *TINY, "--folder", tmp_path, "--json")
    assert (answer.code, answer.err) == (0, "")
    report: Any = answer.document
    keys = ("machine", "size", "compress", "workers", "native", "rounds", "ratios")
    assert tuple(report) == keys
    found = dict(figures(report))
    assert all(value > 0 for value in found.values()), found
    assert report["size"] == 32 << 20
    rates = ["memcpy", "readv", "copy_crc", "zlib_crc32", "crc32"]
    for threads in ("single", "parallel"):
        assert {*rates, "threads", "copy_crc_over_readv"} == report["native"][threads].keys()
    parallel = report["native"]["parallel"]
    assert report["native"]["copy_crc_over_readv"] == parallel["copy_crc_over_readv"]
    assert parallel["threads"] == report["workers"] == len(os.sched_getaffinity(0))
    (round_,) = report["rounds"]
    for what in ("checkpoint", "restore"):
        ratio = round_["criu"][f"{what}_us"] / round_["gpusnap"][f"{what}_us"]
        names = ("minimum", "median", "maximum")
        assert report["ratios"][what] == dict.fromkeys(names, pytest.approx(ratio))
    phases = {each["phase"] for each in round_["gpusnap"]["phases"]}
    assert {"preflight", "copy", "publish", "verify", "fill"} <= phases
    assert round_["criu"]["stored"] > round_["gpusnap"]["stored"]
    assert not programs(tmp_path)
    assert not [each for each in tmp_path.iterdir() if each.name.startswith("gpusnap-bench-")]


RATES = Rates(
    threads=2,
    memcpy=10**10,
    readv=5 * 10**9,
    copy_crc=4 * 10**9,
    zlib_crc32=10**9,
    crc32=2 * 10**10,
    copy_crc_over_readv=0.8,
)


def trip(checkpoint_us: int, restore_us: int) -> Trip:
    return Trip(
        checkpoint_us=checkpoint_us,
        restore_us=restore_us,
        checkpoint_cpu_us=1,
        restore_cpu_us=1,
        stored=1,
    )


ROUNDS = (
    Round(gpusnap=trip(2_000_000, 1_000_000), criu=trip(4_000_000, 1_500_000)),
    Round(gpusnap=trip(2_000_000, 1_000_000), criu=trip(5_000_000, 3_000_000)),
)


def test_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(
        machine=Machine(
            processor="Example 9000",
            processors=2,
            memory=10**10,
            kernel="6.1",
            criu_version="4.2",
            gpusnap_version="1.0",
            file_system="ext4",
            crc32="vpclmul",
        ),
        size=1 << 30,
        compress="auto",
        workers=2,
        native=Native(
            copy_crc_over_readv=0.8, bytes=1 << 29, repeats=7, single=RATES, parallel=RATES
        ),
        rounds=ROUNDS,
        ratios=Ratios.of(ROUNDS),
    )
    _show(report, Output(json=False))
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "processor Example 9000, 2 CPUs",
        "memory 10 GB",
        "kernel 6.1",
        "versions gpusnap 1.0, CRIU 4.2",
        "process 1.07 GB, snapshots on ext4",
        "",
        "bytes a second 2 threads 2 threads",
        "memcpy 10 GB 10 GB",
        "process_vm_readv 5 GB 5 GB",
        "copy with CRC-32 4 GB 4 GB",
        "CRC-32 of zlib 1 GB 1 GB",
        "CRC-32 of gpusnap 20 GB 20 GB",
        "copy with CRC-32 / process_vm_readv 0.80 0.80",
        "",
        "round gpusnap CRIU alone CRIU / gpusnap",
        "1 checkpoint 2 s 4 s 2.00",
        "1 restore 1 s 1.5 s 1.50",
        "2 checkpoint 2 s 5 s 2.50",
        "2 restore 1 s 3 s 3.00",
        "",
        "CRIU / gpusnap minimum median maximum",
        "checkpoint 2.00 2.25 2.50",
        "restore 1.50 2.25 3.00",
    ]


def test_memory_that_differs(
    command: Command, real_criu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Answer(address=0, checksum="00000000")
    monkeypatch.setattr(target.Program, "ask", lambda _program: other)
    answer = command("bench", "--size=16MiB", "--folder", tmp_path)
    sentence = "gpusnap: After a restore by gpusnap the program's memory is not what it was"
    assert (answer.code, answer.out) == (12, "")
    assert sentence in answer.err.splitlines()
    assert not programs(tmp_path)
    assert not list(tmp_path.glob("gpusnap-bench-*"))


@pytest.mark.parametrize("moment", ["Measuring", "One round"])
def test_a_signal_leaves_nothing(root: None, tmp_path: Path, moment: str) -> None:
    command = [sys.executable, "-m", "gpusnap", "bench", "--size=64MiB", f"--folder={tmp_path}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while moment not in process.stderr.readline():
            assert process.poll() is None
        while not programs(tmp_path):
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        said = process.stderr.read()
    assert process.returncode == 128 + signal.SIGTERM
    assert "gpusnap: Interrupted by SIGTERM" in said
    assert not programs(tmp_path)
    assert not list(tmp_path.glob("gpusnap-bench-*"))


def test_a_child_that_nobody_has_reaped_yet_is_ended_all_the_same(tmp_path: Path) -> None:
    """An interrupt may come between the fork and the moment at which subprocess knows of it."""
    program = [sys.executable, "-c", "import time; time.sleep(600)", target._MODULE, str(tmp_path)]
    child = subprocess.Popen(program)
    while len(psutil.Process(child.pid).cmdline()) < len(program):  # it is our copy until the exec
        time.sleep(0.01)
    target.Program(tmp_path, 0).end()
    with pytest.raises(ChildProcessError):
        os.waitpid(child.pid, 0)
    child.returncode = -signal.SIGKILL  # else Popen says that it still runs


def test_the_program_ends_with_a_bench_that_is_killed(root: None, tmp_path: Path) -> None:
    source = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from gpusnap.bench.target import Program\n"
        "Program(Path(sys.argv[1]), 1 << 20).start()\n"
        "print('started', flush=True)\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-c", source, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"started\n"
        (program,) = programs(tmp_path)
        owner.kill()
    while psutil.pid_exists(program):
        time.sleep(0.01)


def test_too_little(command: Command, tmp_path: Path) -> None:
    answer = command("bench", "--size=1MiB", "--folder", tmp_path)
    answer.refused(2, "A bench of 1048576 bytes compares nothing")


def test_too_much_memory(command: Command, tmp_path: Path) -> None:
    answer = command("bench", "--size=1000TiB", "--folder", tmp_path)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith("gpusnap: The bench needs about ")
    assert "of memory" in answer.err
    assert answer.err.splitlines()[1] == ("  cure: Use a smaller --size, or a --folder on a disk")
    assert not list(tmp_path.glob("gpusnap-bench-*"))


def test_too_much_for_the_disk(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    none = SimpleNamespace(free=0)
    monkeypatch.setattr("gpusnap.bench.machine.shutil.disk_usage", lambda _folder: none)
    answer = command("bench", "--size=16MiB", "--folder", tmp_path)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith("gpusnap: The bench needs about 18454937 bytes in ")
    assert answer.err.splitlines()[1] == "  cure: Use a smaller --size, or another --folder"


def test_no_folder(command: Command, tmp_path: Path) -> None:
    answer = command("bench", "--folder", tmp_path / "none")
    answer.refused(10, f"Cannot make a folder in {tmp_path}/none: it does not exist")


def test_a_folder_that_is_a_file(command: Command, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    answer = command("bench", "--folder", tmp_path / "file")
    answer.refused(2, f"Cannot make a folder in {tmp_path}/file: a part of the path is a file")


def test_a_folder_that_cannot_be_written(command: Command) -> None:
    answer = command("bench", "--folder=/sys")
    assert (answer.code, answer.out) == (15, "")
    assert answer.err.startswith("gpusnap: Cannot make a folder in /sys: ")


def test_no_criu(
    command: Command, root: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUSNAP_CRIU", str(tmp_path / "none"))
    answer = command("bench", "--size=16MiB", "--folder", tmp_path)
    assert (answer.code, answer.out) == (18, "")
    assert answer.err.startswith("gpusnap: The CRIU that GPUSNAP_CRIU names cannot be used: ")


def test_no_privileges(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = Finding(code="privilege", severity=Severity.ERROR, text="gpusnap lacks CAP_X")
    monkeypatch.setattr("gpusnap.bench.measure.check_privileges", lambda: iter([lacking]))
    answer = command("bench", "--size=16MiB", "--folder", tmp_path)
    assert (answer.code, answer.out) == (15, "")
    assert "gpusnap lacks CAP_X" in answer.err


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ("--size=0", "'0' is not between one byte and an exbibyte"),
        ("--size=much", "'much' is not a size such as 8GiB"),
        ("--rounds=0", "0 is not in the range"),
        ("--rounds=x", "'x' is not a valid whole number"),
        ("--parallel-workers=0", "0 is not in the range"),
        ("--compress=gzip", "'gzip' is not one of"),
        ("--folder=", "'' is not a path"),
    ],
)
def test_bad_arguments(command: Command, argument: str, text: str) -> None:
    answer = command("bench", argument)
    assert (answer.code, answer.out) == (2, "")
    assert text in answer.err
