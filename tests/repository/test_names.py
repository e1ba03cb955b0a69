from datetime import UTC, datetime
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusnap.errors import UsageError
from gpusnap.repository.names import check, generated, problem


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "is empty"),
        (".", "starts with a dot"),
        ("..", "starts with a dot"),
        (".hidden", "starts with a dot"),
        ("a/b", "holds a slash"),
        ("/", "holds a slash"),
        ("a\nb", "cannot be printed"),
        ("a\0b", "cannot be printed"),
        ("\x1b[31m", "cannot be printed"),
        ("a\u202eb", "cannot be printed"),
        ("\udcff", "cannot be printed"),
        (" a", "space"),
        ("a ", "space"),
        ("latest", "is reserved"),
        ("draft", "is reserved"),
        ("packs", "is reserved"),
        ("logs", "is reserved"),
        ("gpusnap.json", "is reserved"),
        ("x" * 201, "exceeds 200 bytes"),
        ("é" * 101, "exceeds 200 bytes"),
    ],
)
def test_refused(name: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        check(name)
    assert caught.value.text.isprintable()
    assert caught.value.cure


@pytest.mark.parametrize("name", ["epoch_10.ckpt", "a b", "é" * 100, "x" * 200, "-x", "a.."])
def test_accepted(name: str) -> None:
    assert check(name) == name


def test_generated_name() -> None:
    now = datetime(2026, 1, 31, 12, 5, 9, tzinfo=UTC)
    names = list(islice(generated("train", now), 3))
    assert names == [
        "train-20260131T120509Z",
        "train-20260131T120509Z-2",
        "train-20260131T120509Z-3",
    ]


@given(st.text(max_size=300))
def test_generated_names_are_accepted(process_name: str) -> None:
    assert problem(next(generated(process_name))) is None
