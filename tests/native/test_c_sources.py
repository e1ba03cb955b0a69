"""The C sources by themselves: other compilers, other processors, sanitizers."""

import functools
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "cffi_build" / "src"
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wshadow", "-Wconversion", "-Wstrict-prototypes")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-pie", "-no-pie")
"""Not position-independent: some kernels may put such a program where the sanitizer's heap goes."""


CHECKED = {"crc32": "portable", "memory": "memory"}
"""Driver to what it certainly checks."""

each = pytest.mark.parametrize("driver", CHECKED)


Build: TypeAlias = Callable[..., Path]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Compiles a driver, and all sources once for each compiler with its options."""

    @functools.cache
    def objects(compiler: str, *options: str) -> Path:
        folder = tmp_path_factory.mktemp("objects")
        emit = ROOT / "cffi_build" / "cmake" / "emit_crc32_tables.py"
        subprocess.run([sys.executable, emit, folder / "crc32_tables.h"], check=True)
        compile_in(folder, compiler, *options, "-c", *sorted(SOURCES.glob("*.c")))
        return folder

    def build(driver: str, compiler: str, *options: str) -> Path:
        if shutil.which(compiler) is None:
            pytest.skip(f"No {compiler} here")
        folder = objects(compiler, *options)
        source = ROOT / "tests" / "native" / f"{driver}_driver.c"
        compile_in(folder, compiler, *options, source, *folder.glob("*.o"), "-o", driver)
        return folder / driver

    return build


def compile_in(folder: Path, compiler: str, *arguments: str | Path) -> None:
    language = ("-std=gnu11", "-g", *WARNINGS, f"-I{folder}", f"-I{SOURCES}")
    subprocess.run([compiler, *language, *arguments], cwd=folder, check=True)


def run(*command: str | Path) -> list[str]:
    """Run a driver: it prints what it has checked."""
    result = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout.split()


def require(compiler: str, folder: Path, *options: str) -> None:
    """Skip where the compiler cannot make a program with the options."""
    empty = folder / "empty.c"
    empty.write_text("int main(void) { return 0; }\n")
    command = [compiler, *options, str(empty), "-o", str(folder / "empty")]
    if shutil.which(compiler) and subprocess.run(command, check=False).returncode != 0:
        pytest.skip(f"{compiler} has no {' '.join(options)}")


@pytest.mark.parametrize("level", ["-O0", "-O3"])
@each
def test_under_address_and_undefined_behaviour_sanitizers(
    build: Build, driver: str, tmp_path: Path, level: str
) -> None:
    require("gcc", tmp_path, *SANITIZERS)
    assert CHECKED[driver] in run(build(driver, "gcc", level, *SANITIZERS))


@each
def test_with_clang(build: Build, driver: str) -> None:
    assert CHECKED[driver] in run(build(driver, "clang", "-O2"))


def test_arm_in_emulation(build: Build) -> None:
    emulator = shutil.which("qemu-aarch64")
    if emulator is None:
        pytest.skip("No qemu-aarch64 here")
    program = build("crc32", "aarch64-linux-gnu-gcc", "-O2", "-static")
    assert run(emulator, program) == ["portable", "arm"]
