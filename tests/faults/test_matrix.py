"""The harness itself: what it strikes, and that it cannot pass over a loss."""

from tests.faults.__main__ import concluded
from tests.faults.matrix import Case, Row, cases_of, tables

CENSUS = {
    "started:lock": ["gpusnap", "target", "journal"],
    "started:restore": ["gpusnap", "worker", "target"],
}


def test_everybody_is_struck_where_they_are() -> None:
    cases = list(cases_of("checkpoint", CENSUS))
    assert len(set(cases)) == len(cases)
    assert Case("started:lock", "journal") in cases
    assert Case("started:lock", "worker") not in cases
    assert Case("started:restore", "worker") in cases
    assert Case("started:restore+0.003", "worker") in cases
    assert Case("started:restore", "gpusnap:HUP") in cases
    assert Case("call:restore", "out-of-memory") in cases
    assert Case("call:lock", "out-of-memory") not in cases
    assert not [case for case in cases if case.point == "call:unlock"]


def test_the_matrix_is_printed() -> None:
    rows = [
        Row("resume", "started:dump", "criu", "LOST: it is gone"),
        Row("resume", "started:lock", "gpusnap", "runs"),
        Row("resume", "call:lock", "busy", "runs"),
    ]
    assert list(tables(rows)) == [
        "### gpusnap resume",
        "",
        "| point        | gpusnap | criu             |",
        "|--------------|---------|------------------|",
        "| started:dump | -       | LOST: it is gone |",
        "| started:lock | runs    | -                |",
        "",
        "### A driver call that fails",
        "",
        "| point      | resume |",
        "|------------|--------|",
        "| lock: busy | runs   |",
        "",
    ]
    assert [row.survived for row in rows] == [False, True, True]


def test_a_loss_is_told() -> None:
    assert concluded(3, 3)
    assert not concluded(3, 2)
