"""The pages on plugins show what is really there, and their examples run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpusnap.testing import FailureKind
from gpusnap.testing.failures import SENSIBLE, DriverCall
from gpusnap.types import Capability
from tests.testing.plugin_pages import PAGES, ROOT, render, shown_files

SIMULATED = (ROOT / "docs/plugins/simulated-accelerator.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_shown_files_are_up_to_date(page: Path) -> None:
    assert shown_files(page)
    assert page.read_text() == render(page), "python -m tests.testing.plugin_pages"


def test_the_backend_is_shown_whole() -> None:
    shown = {path for page in PAGES for path in shown_files(page)}
    toy = ROOT / "tests/conformance/toy_backend"
    files = {path for path in toy.rglob("*") if path.suffix in {".py", ".toml"}}
    assert files - shown == {toy / "gpusnap_toy/program.py"}


def example(name: str) -> str:
    found = re.search(rf"<!-- run: {name} -->\n```python\n(.*?)```", SIMULATED, re.DOTALL)
    assert found is not None
    return found[1]


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("machine", "['Simulated 1', 'Simulated 1']\n"),
        ("program", "[1, 2, 3, 0]\n"),
        ("failures", ""),
    ],
)
def test_examples_run(tmp_path: Path, name: str, printed: str) -> None:
    needed = "" if name == "machine" else example("machine").replace("print", "str")
    done = subprocess.run(
        [sys.executable, "-c", needed + example(name)],
        cwd=tmp_path,
        env={**os.environ, "GPUSNAP_SIM_DIR": "machine"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == printed


def test_failures_stand_in_the_table() -> None:
    for kind in FailureKind:
        calls = SENSIBLE[kind]
        listed = "all" if calls == set(DriverCall) else ", ".join(sorted(calls))
        assert f"| `{kind}` | {listed} |" in SIMULATED


def test_capabilities_stand_in_the_table() -> None:
    page = PAGES[0].read_text()
    for capability in Capability:
        assert f"| `{capability.name}` |" in page
