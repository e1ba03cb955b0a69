"""The C sources by themselves: other compilers, other processors, sanitizers."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "cffi_build" / "src"
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wshadow", "-Wconversion", "-Wstrict-prototypes")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


CHECKED = {"crc32": "portable", "memory": "memory"}
"""Driver to what it certainly checks."""

each = pytest.mark.parametrize("driver", CHECKED)


def build(driver: str, folder: Path, compiler: str, *options: str) -> Path:
    """Compile a driver with all sources, or skip where there is no such compiler."""
    if shutil.which(compiler) is None:
        pytest.skip(f"No {compiler} here")
    emit = ROOT / "cffi_build" / "cmake" / "emit_crc32_tables.py"
    subprocess.run([sys.executable, emit, folder / "crc32_tables.h"], check=True)
    program = folder / "driver"
    includes = (f"-I{folder}", f"-I{SOURCES}")
    sources = (ROOT / "tests" / "native" / f"{driver}_driver.c", *sorted(SOURCES.glob("*.c")))
    language = ("-std=gnu11", "-g", *WARNINGS, *includes)
    subprocess.run([compiler, *language, *options, *sources, "-o", program], check=True)
    return program


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
    driver: str, tmp_path: Path, level: str
) -> None:
    require("gcc", tmp_path, *SANITIZERS)
    assert CHECKED[driver] in run(build(driver, tmp_path, "gcc", level, *SANITIZERS))


@each
def test_with_clang(driver: str, tmp_path: Path) -> None:
    assert CHECKED[driver] in run(build(driver, tmp_path, "clang", "-O2"))


def test_arm_in_emulation(tmp_path: Path) -> None:
    emulator = shutil.which("qemu-aarch64")
    if emulator is None:
        pytest.skip("No qemu-aarch64 here")
    program = build("crc32", tmp_path, "aarch64-linux-gnu-gcc", "-O2", "-static")
    assert run(emulator, program) == ["portable", "arm"]
