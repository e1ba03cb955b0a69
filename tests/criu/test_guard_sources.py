"""The guard's C sources by themselves: sanitizers, other compilers, another processor."""

import shutil
import subprocess
from pathlib import Path

import pytest

from gpusnap.criu.guard import guard_file

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "cffi_build" / "guard"
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wshadow", "-Wconversion", "-Wstrict-prototypes")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-pie", "-no-pie")
"""Not position-independent: some kernels may put such a program where the sanitizer's heap goes."""

SEALED = ("-Wl,-z,relro,-z,now",)
LAZY = ("-Wl,-z,norelro,-z,lazy",)


def build(folder: Path, compiler: str, *options: str) -> Path:
    """Compile the driver with the guard's parts, or skip where there is no such compiler."""
    if shutil.which(compiler) is None:
        pytest.skip(f"No {compiler} here")
    parts = [SOURCES / f"{name}.c" for name in ("imports", "pagemap", "ranges")]
    driver = ROOT / "tests" / "criu" / "guard_driver.c"
    command = [compiler, "-std=gnu11", "-g", *WARNINGS, f"-I{SOURCES}", *options]
    program = folder / "driver"
    made = subprocess.run(
        [*command, driver, *parts, "-o", program], capture_output=True, text=True, check=False
    )
    if "cannot find -lasan" in made.stderr or "cannot find libasan" in made.stderr:
        pytest.skip(f"{compiler} has no sanitizers here")
    assert made.returncode == 0, made.stderr
    return program


def run(*command: str | Path) -> str:
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout.strip()


@pytest.mark.parametrize("link", [SEALED, LAZY], ids=["sealed", "lazy"])
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_the_parts(tmp_path: Path, compiler: str, link: tuple[str, ...]) -> None:
    assert run(build(tmp_path, compiler, "-O2", *link)) in {"scanned", "unscanned"}


@pytest.mark.parametrize("level", ["-O0", "-O3"])
def test_under_address_and_undefined_behaviour_sanitizers(tmp_path: Path, level: str) -> None:
    assert run(build(tmp_path, "gcc", level, *SANITIZERS)) in {"scanned", "unscanned"}


def test_arm_in_emulation(tmp_path: Path) -> None:
    """The program must be a dynamic one: a static one has no table of imports."""
    emulator = shutil.which("qemu-aarch64")
    libraries = Path("/usr/aarch64-linux-gnu")
    if emulator is None or not libraries.is_dir():
        pytest.skip("No qemu-aarch64 with libraries here")
    program = build(tmp_path, "aarch64-linux-gnu-gcc", "-O2", *SEALED)
    assert run(emulator, "-L", libraries, program) in {"scanned", "unscanned"}


def test_the_guard_needs_no_new_library_and_offers_one_name() -> None:
    """CRIU brings its own C library, which may be older than the one of the build."""
    if shutil.which("nm") is None:
        pytest.skip("No nm here")
    symbols = [line.split() for line in run("nm", "-D", guard_file()).splitlines()]
    assert [words[-1] for words in symbols if words[-2] in "BDRTV"] == ["CR_PLUGIN_DESC"]
    versions = {words[-1].partition("@")[2] for words in symbols if words[-2] == "U"}
    numbers = [text.removeprefix("GLIBC_").split(".") for text in versions if text]
    assert max(tuple(map(int, number)) for number in numbers) < (2, 33)
