"""docs/reference/criu.md says what the classifier says."""

from pathlib import Path

import pytest

from gpusnap.criu.meanings import MEANINGS, Meaning

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "criu.md"


def _row(meaning: Meaning) -> str:
    return f"| `{meaning.name}` | {meaning.text} | {meaning.cure or ''} |"


@pytest.mark.parametrize("meaning", MEANINGS, ids=[meaning.name for meaning in MEANINGS])
def test_each_meaning_stands_in_the_page(meaning: Meaning) -> None:
    assert _row(meaning) in PAGE.read_text(encoding="utf-8").splitlines()


def test_the_page_has_no_other() -> None:
    table = PAGE.read_text(encoding="utf-8").split("## What its log means")[1]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    assert rows == [_row(meaning) for meaning in MEANINGS]
