"""What is printed, and what happens where it cannot be."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import gpusnap.cli
from gpusnap.cli._format import count, duration, instant, listed, plain, size
from gpusnap.cli._messages import DamagedRow
from gpusnap.cli._output import encode
from tests.cli.conftest import Command

CLI = Path(gpusnap.cli.__file__).parent


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (None, "-"),
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (999_600, "1 MB"),
        (17_179_869_184, "17.2 GB"),
        (10**20, "1e+05 PB"),
    ],
)
def test_size(number: int | None, text: str) -> None:
    assert size(number) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 us"),
        (999, "999 us"),
        (1500, "1.5 ms"),
        (999_400, "999 ms"),
        (999_600, "1 s"),
        (12_345_678, "12.3 s"),
        (99_960_000, "1 min 40 s"),
        (3_600_000_000, "60 min 0 s"),
    ],
)
def test_duration(number: int, text: str) -> None:
    assert duration(number) == text


def test_words() -> None:
    assert count(1, "process", "processes") == "1 process"
    assert count(0, "process", "processes") == "0 processes"
    assert listed([]) == "-"
    assert instant("2026-01-02T03:04:05.678901Z") == "2026-01-02T03:04:05Z"
    assert plain("größer \x1b[1m\n") == "größer \\x1b[1m\\n"


def test_json_holds_any_bytes() -> None:
    found = DamagedRow(name="a", path="/a\udc80b", reason="why")
    assert msgspec.json.decode(encode(found))["path"] == "/a\\udc80b"


def test_no_arguments_show_the_verbs(command: Command) -> None:
    answer = command()
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("Usage: gpusnap ")
    assert "checkpoint" in answer.err


@pytest.mark.parametrize("flag", ["--help", "-h", "--version"])
def test_help_and_version_are_answers(command: Command, flag: str) -> None:
    answer = command(flag)
    assert (answer.code, answer.err) == (0, "")
    assert "gpusnap" in answer.out


def _run(arguments: str, redirection: str) -> "subprocess.CompletedProcess[bytes]":
    script = f'exec "$0" -m gpusnap {arguments} {redirection}'
    return subprocess.run(
        ["sh", "-c", script, sys.executable], capture_output=True, check=False, timeout=60
    )


def test_a_reader_that_went_away() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        [sys.executable, "-m", "gpusnap", "backends"],
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
        timeout=100,
    )
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (141, b"")


def test_a_full_disk_behind_the_output() -> None:
    ended = _run("backends", ">/dev/full")
    assert ended.returncode == 1
    assert ended.stderr == (
        b"gpusnap: Standard output cannot be written: No space left on device\n"
    )


@pytest.mark.parametrize("redirection", [">&-", ">&- 2>&-"])
def test_closed_output(redirection: str) -> None:
    ended = _run("backends", redirection)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")


def test_closed_error_output() -> None:
    ended = _run("frob", "2>&-")
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, b"", b"")


def test_any_locale() -> None:
    script = 'LC_ALL=C PYTHONUTF8=0 PYTHONIOENCODING=ascii exec "$0" -m gpusnap inspect ./größer'
    ended = subprocess.run(
        ["sh", "-c", script, sys.executable], capture_output=True, check=False, timeout=60
    )
    assert ended.returncode == 10
    first, *_ = ended.stderr.splitlines()
    assert first.startswith(b"gpusnap: There is no snapshot at ")
    assert first.isascii()


def _printing(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Name(id="print")):
            return True
        case ast.Attribute(attr="stdout" | "stderr" | "echo" | "secho"):
            return not isinstance(node.value, ast.Name) or node.value.id in {"sys", "click"}
    return False


def test_one_place_prints() -> None:
    # _main lets the streams take any text, _progress asks whether there is a terminal.
    printing = {
        path.name
        for path in CLI.glob("*.py")
        if any(map(_printing, ast.walk(ast.parse(path.read_text()))))
    }
    assert printing == {"_output.py", "_main.py", "_progress.py"}


@pytest.mark.parametrize("debug", ["", "1"])
def test_the_unexpected_is_a_sentence(
    command: Command, monkeypatch: pytest.MonkeyPatch, debug: str
) -> None:
    def broken(**_: object) -> None:
        raise ZeroDivisionError("division by\nzero.")

    monkeypatch.setenv("GPUSNAP_DEBUG", debug)
    monkeypatch.setattr("gpusnap.cli.devices.read_devices", broken)
    answer = command("devices")
    assert answer.code == 1
    assert answer.out == ""
    assert answer.err.splitlines()[-1] == (
        "gpusnap: gpusnap failed unexpectedly: ZeroDivisionError: division by zero "
        "(run with GPUSNAP_DEBUG=1 for the traceback)"
    )
    assert ("Traceback" in answer.err) == bool(debug)


def test_completion(monkeypatch: pytest.MonkeyPatch, command: Command) -> None:
    monkeypatch.setenv("_GPUSNAP_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "gpusnap che")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert command().out.split() == ["plain,checkpoint", "plain,check"]
