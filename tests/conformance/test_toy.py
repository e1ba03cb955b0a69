"""A third party's backend: installed as its own distribution, found, and run on the suite."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(300)

TOY = Path(__file__).parent / "toy_backend"
LISTING = """
import json
from gpusnap.plugins import default_plugins
plugins = default_plugins()
print(json.dumps({
    "backends": {each.name: each.info.vendor for each in plugins.backends()},
    "broken": [each.name for each in plugins.broken],
}))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the toy's distribution; built from a copy, for a build leaves traces."""
    folder = tmp_path_factory.mktemp("toy")
    shutil.copytree(TOY, folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
    options = ["--no-build-isolation", "--no-deps", "--no-index", "--quiet"]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, "--target", "site", "./source"],
        cwd=folder,
        check=True,
        timeout=150,
    )
    return folder / "site"


def run(installed: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=installed.parent,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_is_found_by_its_entry_point(installed: Path) -> None:
    listing = json.loads(run(installed, "-c", LISTING))
    assert listing["backends"]["toy"] == "Toys"
    assert not listing["broken"]


def test_is_unknown_where_it_is_not_installed(tmp_path: Path) -> None:
    listing = json.loads(run(tmp_path / "empty", "-c", LISTING))
    assert "toy" not in listing["backends"]
    assert "simulated" in listing["backends"]


def test_passes_the_suite(installed: Path) -> None:
    suite = str(installed.parent / "source/check_conformance.py")
    # A folder of its own: pytest's common one is tidied by all who run at once, and warns of that.
    own = f"--basetemp={installed.parent / 'tests'}"
    options = ["-p", "no:cacheprovider", "-W", "error", "--import-mode=importlib", own]
    output = run(installed, "-m", "pytest", *options, "--rootdir", str(installed.parent), suite)
    summary = re.search(r"=+ (\d+) passed in ", output)
    assert summary is not None, output
    assert int(summary[1]) > 25
