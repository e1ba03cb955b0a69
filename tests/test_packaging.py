"""What is built and installed, seen from outside the tree."""

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TypeAlias

import pytest

pytestmark = pytest.mark.timeout(600)  # it is built, and packages are fetched

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("gpusnap", "gpusnap_amd", "gpusnap_nvidia")

PROGRAM = """\
from gpusnap.native import crc32
from gpusnap.types import Device
from gpusnap_amd import backend as amd
from gpusnap_nvidia import backend as nvidia
from gpusnap_nvidia._libcuda import ffi

def index(device: Device) -> int:
    return device.index

reveal_type(crc32(b""))
reveal_type(index)
names: list[str] = [amd.gpusnap_backend_info().name, nvidia.gpusnap_backend_info().name]
wrong: str = crc32(b"")
print(ffi)
"""
WRONG_LINE = PROGRAM.splitlines().index('wrong: str = crc32(b"")') + 1


@dataclass(frozen=True)
class Complaint:
    line: int
    text: str


Check: TypeAlias = Callable[[Path, Path], list[Complaint]]
"""A type checker: the Python whose packages it looks at, and the program."""


@dataclass(frozen=True)
class Built:
    wheel: Path
    source: Path


def outside() -> dict[str, str]:
    """Give an environment in which nothing points into the tree."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def run(*command: str | Path, folder: Path, fails: bool = False) -> str:
    result = subprocess.run(
        command, cwd=folder, env=outside(), capture_output=True, text=True, check=False
    )
    assert fails or result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def requires_editable() -> None:
    origin = metadata.distribution("gpusnap").read_text("direct_url.json")
    if origin is None or not json.loads(origin).get("dir_info", {}).get("editable"):
        pytest.skip("The tests do not run in an editable install")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The source archive, and the wheel built from that archive."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "-o", folder, ROOT, folder=folder)
    return Built(wheel=next(folder.glob("*.whl")), source=next(folder.glob("*.tar.gz")))


@pytest.fixture(scope="module")
def plain(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python of a new environment with the wheel and what it depends on, nothing else."""
    folder = tmp_path_factory.mktemp("plain")
    venv.create(folder / "venv", symlinks=True)
    python = folder / "venv" / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", built.wheel, folder=folder)
    return python


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def mypy(python: Path, program: Path) -> list[Complaint]:
    options = ("--strict", "--python-executable", python, "--cache-dir", program.parent / "cache")
    output = run(sys.executable, "-m", "mypy", *options, program, folder=program.parent, fails=True)
    matches = re.finditer(r"^program\.py:(\d+): (.*)$", output, re.MULTILINE)
    return [Complaint(line=int(match[1]), text=match[2]) for match in matches]


def pyright(python: Path, program: Path) -> list[Complaint]:
    command = (sys.executable, "-m", "pyright")
    ready = subprocess.run([*command, "--version"], capture_output=True, check=False)
    if ready.returncode != 0:
        pytest.skip("pyright cannot be fetched here")
    options = ("--pythonpath", python, "--outputjson")
    output = run(*command, *options, program, folder=program.parent, fails=True)
    found = json.loads(output)["generalDiagnostics"]
    return [
        Complaint(line=item["range"]["start"]["line"] + 1, text=item["message"])
        for item in found
        if item["severity"] != "warning"
    ]


def expect_types_seen(complaints: list[Complaint]) -> None:
    """The one mistake is found and what was asked is answered: nothing reads as untyped."""
    answer = re.compile("note: Revealed type|Type of ")
    revealed = [item.text for item in complaints if answer.match(item.text)]
    others = [item for item in complaints if item.text not in revealed]
    assert [item.line for item in others] == [WRONG_LINE], others
    assert re.search(r"\bint\b", revealed[0]), revealed
    assert re.search(r"\bDevice\b.*\bint\b", revealed[1]), revealed


def test_the_wheel_holds_the_three_packages(built: Built) -> None:
    names = set(zipfile.ZipFile(built.wheel).namelist())
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    assert {f"{package}/__init__.py" for package in PACKAGES} <= names
    assert {"gpusnap/_native.abi3.so", "gpusnap/_native.pyi"} <= names
    assert {"gpusnap/guard/gpusnap_guard.so", "gpusnap/init/gpusnap_init"} <= names
    assert {"gpusnap_nvidia/_libcuda.py", "gpusnap_nvidia/_libcuda.pyi"} <= names
    tops = {name.partition("/")[0] for name in names}
    assert tops == {*PACKAGES, "gpusnap-0.1.0.dist-info"}
    assert "-cp311-abi3-linux_" in built.wheel.name


def test_the_source_archive_holds_what_is_tested(built: Built) -> None:
    with tarfile.open(built.source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "Makefile", "cffi_build/CMakeLists.txt", "tests/test_packaging.py"} <= names
    assert not [name for name in names if name.startswith((".venv", "build/", ".git/"))]


def test_a_plain_install_runs(plain: Path, tmp_path: Path) -> None:
    code = """
import os
from importlib.metadata import entry_points
from gpusnap import native
from gpusnap.criu.built import built_file
from gpusnap.criu.guard import guard_file
assert "portable" in native.implementations()
assert guard_file().parts[-3:] == ("gpusnap", "guard", "gpusnap_guard.so")
assert os.access(built_file("init", "gpusnap_init", "it"), os.X_OK)
backends = {point.name: point.load() for point in entry_points(group="gpusnap.backends")}
print(*sorted(backends))
"""
    assert run(plain, "-W", "error", "-c", code, folder=tmp_path).split() == [
        "amd",
        "nvidia",
        "simulated",
    ]
    assert "checkpoint" in run(plain.with_name("gpusnap"), "--help", folder=tmp_path)


@pytest.mark.parametrize("check", [mypy, pyright])
def test_types_of_a_plain_install(check: Check, plain: Path, program: Path) -> None:
    expect_types_seen(check(plain, program))


@pytest.mark.parametrize("check", [mypy, pyright])
def test_types_of_an_editable_install(check: Check, program: Path) -> None:
    requires_editable()
    expect_types_seen(check(Path(sys.executable), program))


def test_generated_messages_load_with_the_oldest_protobuf_allowed() -> None:
    """Generated code refuses a runtime that is older than its generator."""
    requirements = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    oldest = next(text for text in requirements if text.startswith("protobuf>="))
    allowed = tuple(int(number) for number in oldest.removeprefix("protobuf>=").split("."))
    generated = [*ROOT.glob("gpusnap/**/*_pb2.py"), *ROOT.glob("backends/**/*_pb2.py")]
    assert generated
    for path in generated:
        match = re.search(r"Protobuf Python Version: (\d+)\.(\d+)", path.read_text())
        assert match
        assert (int(match[1]), int(match[2])) <= allowed, path
