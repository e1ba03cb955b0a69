"""Dependencies point one way: the command line, the engine, what it works with, plain words."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BACKENDS = {"gpusnap_amd", "gpusnap_nvidia"}
PUBLIC_FOR_BACKENDS = {"errors", "events", "hookspecs", "target", "types", "worker"}

WORDS, MACHINE, PARTS, SNAPSHOTS, ENGINE, SURFACE = range(6)
LAYERS = {
    "errors": WORDS,
    "events": WORDS,
    "hookspecs": WORDS,
    "types": WORDS,
    "ending": MACHINE,
    "folders": MACHINE,
    "journal": MACHINE,
    "mailbox": MACHINE,
    "native": MACHINE,
    "target": MACHINE,
    "worker": MACHINE,
    "criu": PARTS,
    "datapath": PARTS,
    "plugins": PARTS,
    "repository": SNAPSHOTS,
    "": SURFACE,
    "cli": SURFACE,
    "testing": SURFACE,
}
"""Part of gpusnap to its layer; every other module belongs to the engine."""


def imported(source: str) -> Iterator[str]:
    """Name the modules that a source imports, wherever in it; ``from a import b`` is ``a.b``."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def part_of(module: str) -> str | None:
    """Give the part of gpusnap that a module is in, "" for the package itself."""
    package, _, rest = module.partition(".")
    if package != "gpusnap":
        return None
    part = rest.partition(".")[0]
    found = ROOT / "gpusnap" / part
    files = (found.with_suffix(suffix) for suffix in (".py", ".pyi"))
    return part if found.is_dir() or any(file.is_file() for file in files) else ""


def faults(part: str, source: str) -> Iterator[str]:
    """Say what a module in a part of gpusnap imports against the rules."""
    for module in imported(source):
        package = module.partition(".")[0]
        other = part_of(module)
        if package in BACKENDS:
            yield f"{module}: the host imports no backend"
        elif package in {"click", "rich"} and part != "cli":
            yield f"{module}: only the command line prints"
        elif other == "_native" and part != "native":
            yield f"{module}: only gpusnap.native imports the extension"
        elif other not in {None, part, "_native"} and not below(part, str(other)):
            yield f"{module}: not below {part or 'gpusnap'}"


def below(part: str, other: str) -> bool:
    """Whether a part may import another: one of a lower layer, or both are of the engine."""
    mine, its = LAYERS.get(part, ENGINE), LAYERS.get(other, ENGINE)
    if part == "testing":  # it registers and works as a third party's backend does
        return other in PUBLIC_FOR_BACKENDS | {"plugins"}
    if part in {"__main__", "cli"}:
        return True
    return its < mine or (mine == its and mine in {WORDS, MACHINE, ENGINE})


def backend_faults(source: str) -> Iterator[str]:
    """Say what a backend imports that is not public."""
    for module in imported(source):
        part = part_of(module)
        private = any(name.startswith("_") for name in module.split("."))
        if part is not None and (part not in PUBLIC_FOR_BACKENDS or private):
            yield f"{module}: not public"


def host_modules() -> Iterator[tuple[str, Path]]:
    for path in sorted((ROOT / "gpusnap").rglob("*.py")):
        name = path.relative_to(ROOT / "gpusnap").parts[0].removesuffix(".py")
        yield "" if name == "__init__" else name, path


def test_the_host() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {fault}"
        for part, path in host_modules()
        for fault in faults(part, path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize("package", sorted(BACKENDS))
def test_backends_import_public_names(package: str) -> None:
    found = [
        f"{path.name}: {fault}"
        for path in sorted((ROOT / "backends" / package).rglob("*.py"))
        for fault in backend_faults(path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    ("part", "source"),
    [
        ("types", "import gpusnap.target"),
        ("target", "from gpusnap import repository"),
        ("criu", "from gpusnap.plugins import Plugins"),
        ("checkpoint", "from gpusnap.cli import main"),
        ("checkpoint", "import rich"),
        ("plugins", "def load():\n    import gpusnap_nvidia"),
        ("repository", "from gpusnap._native import lib"),
        ("testing", "from gpusnap.repository import Repository"),
        ("restore", "import gpusnap"),
    ],
)
def test_a_fault_is_found(part: str, source: str) -> None:
    assert list(faults(part, source))


@pytest.mark.parametrize(
    "source",
    ["import gpusnap", "from gpusnap.repository import Repository", "from gpusnap.types import _x"],
)
def test_a_fault_of_a_backend_is_found(source: str) -> None:
    assert list(backend_faults(source))
