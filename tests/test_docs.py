"""The documentation names everything that the sources define."""

import inspect
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

import gpusnap.errors
from gpusnap.errors import EXIT_OK, EXIT_WARNINGS, GpusnapError
from gpusnap.hookspecs import BackendSpec, PluginSpec
from tests import hooks_page
from tests.finding_codes import Module

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
CODE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def sources() -> Iterator[Path]:
    for folder in ("gpusnap", "backends"):
        yield from sorted((ROOT / folder).rglob("*.py"))


ALL_CODES = sorted({code for path in sources() for code in Module(path).codes()})


def rows(page: Path) -> dict[str, list[str]]:
    """The rows of a page's tables by their first cell."""
    found = {}
    for line in page.read_text().splitlines():
        if line.startswith("|"):
            first, *rest = (cell.strip() for cell in line.strip("|").split("|"))
            found[first] = rest
    return found


TROUBLESHOOTING = DOCS / "how-to/troubleshooting.md"
EXPLAINED = {cell[1:-1]: row for cell, row in rows(TROUBLESHOOTING).items() if cell[0] == "`"}


def test_codes_are_found() -> None:
    assert {"checkpoint-not-offered", "criu-missing", "snapshot-file-truncated"} <= {*ALL_CODES}


@pytest.mark.parametrize("code", ALL_CODES)
def test_finding_is_explained(code: str) -> None:
    explained = {told: row for told, row in EXPLAINED.items() if fnmatch(told, code)}
    assert explained
    for told, (meaning, cure) in explained.items():
        assert CODE.fullmatch(told)
        assert meaning
        assert cure


def test_no_finding_is_explained_that_does_not_exist() -> None:
    known = {told for told in EXPLAINED for code in ALL_CODES if fnmatch(told, code)}
    assert EXPLAINED.keys() == known


def test_hooks_page_is_up_to_date() -> None:
    assert hooks_page.PAGE.read_text() == hooks_page.render(), "python -m tests.hooks_page"


@pytest.mark.parametrize("spec", [BackendSpec, PluginSpec])
def test_every_hook_stands_with_its_signature(spec: type) -> None:
    page = " ".join(hooks_page.PAGE.read_text().split())
    hooks = inspect.getmembers(spec, inspect.isfunction)
    assert hooks
    for name, hook in hooks:
        signature = re.search(rf"def {name}\(.*?\) -> [^:]+", inspect.getsource(hook), re.DOTALL)
        assert signature is not None
        assert " ".join(signature[0].split()) in page


def error_classes() -> list[type[GpusnapError]]:
    members = inspect.getmembers(gpusnap.errors, inspect.isclass)
    return [member for _, member in members if issubclass(member, GpusnapError)]


def test_exit_codes_stand_with_their_class() -> None:
    table = rows(DOCS / "reference/exit-codes.md")
    for error in error_classes():
        names, meaning, _target = table[str(error.exit_code)]
        assert f"`{error.__name__}`" in names
        assert meaning
    codes = {str(error.exit_code) for error in error_classes()}
    numbers = {code for code in table if code.isdigit()}
    assert numbers == codes | {str(EXIT_OK), str(EXIT_WARNINGS)}


def test_exit_codes_are_unique() -> None:
    own = [error for error in error_classes() if "exit_code" in vars(error)]
    codes = [error.exit_code for error in own]
    assert len(codes) == len(set(codes))
    assert not {EXIT_OK, EXIT_WARNINGS} & set(codes)


def links() -> Iterator[tuple[Path, str]]:
    for page in (ROOT / "README.md", *sorted(DOCS.rglob("*.md"))):
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
            if "://" not in link and not link.startswith("mailto:"):
                yield page, link


def test_links_lead_somewhere() -> None:
    broken = [f"{page.name}: {link}" for page, link in links() if not (page.parent / link).exists()]
    assert not broken


def test_index_names_every_page() -> None:
    named = {(page.parent / link).resolve() for page, link in links() if page.name == "index.md"}
    pages = {page for page in DOCS.rglob("*.md") if page.parent.name != "changelog"}
    assert pages - named == {DOCS / "index.md"}
