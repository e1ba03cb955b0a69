"""The demonstration, with the real CRIU on the simulated device."""

from pathlib import Path

import msgspec
import pytest

from gpusnap.cli import _demo_program, demo
from gpusnap.cli._demo_program import Program
from gpusnap.cli.demo import _first_difference
from tests.cli.conftest import Command

ROOT = Path(__file__).parents[2]


@pytest.fixture
def slow_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the program must not end before it is checkpointed; then it hurries."""
    follow = Program.adopt

    def adopt(program: Program) -> None:
        program.log.with_suffix(".hurry").touch()
        follow(program)

    paced = msgspec.structs.replace(_demo_program._SIMULATED, module="tests.e2e.paced")
    monkeypatch.setattr(_demo_program, "_SIMULATED", paced)
    monkeypatch.setattr(Program, "adopt", adopt)
    monkeypatch.setattr(demo, "_STEP_US", 300_000)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.mark.slow
def test_demo(command: Command, real_criu: None, slow_steps: None, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    answer = command("demo", "--backend=simulated", "--steps=60", "--keep", kept)
    assert answer.code == 0, answer.err
    *steps, verdict = answer.out.splitlines()
    assert verdict == "IDENTICAL: 61 lines of both logs agree, digit for digit"
    assert len(steps) == 6
    logs = [(kept / f"{name}.log").read_bytes() for name in ("reference", "interrupted")]
    assert logs[0] == logs[1]
    assert logs[0].count(b"\n") == 61
    assert "demo" in command("list", "--repo", kept / "repository").out
    again = command("demo", "--keep", kept)
    again.refused(2, f"The folder {kept} is not empty")


@pytest.mark.slow
def test_demo_as_json(command: Command, real_criu: None, slow_steps: None) -> None:
    answer = command("demo", "--backend=simulated", "--steps=60", "--json")
    assert (answer.code, answer.err) == (0, "")
    *lines, summary = answer.lines
    assert summary["message_type"] == "summary"
    result = summary["result"]
    assert result["identical"] is True
    assert result["first_difference"] is None
    assert 20 <= result["interrupted_at"] < 60
    assert result["snapshot"]["left_running"] is False
    assert not Path(result["snapshot"]["path"]).exists()
    assert [line["message_type"] for line in lines].count("step") == 6


def test_no_criu(
    command: Command, root: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GPUSNAP_CRIU", str(tmp_path / "none"))
    answer = command("demo")
    assert answer.code == 18
    assert answer.err.startswith("gpusnap: The CRIU that GPUSNAP_CRIU names cannot be used: ")


def test_no_gpu(command: Command, root: None, monkeypatch: pytest.MonkeyPatch) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("This machine has one")
    answer = command("demo", "--backend=nvidia")
    assert answer.code == 13
    assert answer.err.startswith("gpusnap: Backend nvidia cannot work here: ")
    assert answer.err.splitlines()[1] == "  cure: Use --backend simulated"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--backend=tpu"], "'tpu' is not one of 'nvidia', 'amd', 'simulated'"),
        (["--steps=1"], "1 is not in the range"),
        (["--keep="], "'' is not a path"),
    ],
)
def test_bad_arguments(command: Command, arguments: list[str], text: str) -> None:
    answer = command("demo", *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert text in answer.err


def test_differences_are_named() -> None:
    assert _first_difference(b"1 a\n2 b\n", b"1 a\n2 b\n") is None
    assert _first_difference(b"1 a\n2 b\n", b"1 a\n2 c\x1b\n") == (
        "line 2 is '2 c\\x1b' instead of '2 b'"
    )
    assert _first_difference(b"1 a\n2 b\n", b"1 a\n") == (
        "the restored run logged 1 lines instead of 2"
    )
