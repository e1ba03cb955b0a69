"""Keeps the files shown in docs/plugins as they are: ``python -m tests.testing.plugin_pages``."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = tuple(
    ROOT / "docs/plugins" / f"{name}.md" for name in ("write-a-backend", "conformance-suite")
)
_SHOWN = re.compile(r"(<!-- file: (\S+) -->\n```\w+\n).*?(```\n)", re.DOTALL)


def shown_files(page: Path) -> list[Path]:
    return [ROOT / name for _, name, _ in _SHOWN.findall(page.read_text())]


def render(page: Path) -> str:
    """The page with every shown file as it is in the tree."""
    return _SHOWN.sub(
        lambda match: match[1] + (ROOT / match[2]).read_text() + match[3], page.read_text()
    )


if __name__ == "__main__":
    for each in PAGES:
        each.write_text(render(each))
