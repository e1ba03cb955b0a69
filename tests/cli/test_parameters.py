from pathlib import Path

import click
import pytest

from gpusnap.cli._group import root
from gpusnap.cli._parameters import parse_duration, parse_folder, parse_name, parse_range
from gpusnap.plan import CheckpointOptions
from gpusnap.restore import RestoreOptions


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        ("10s", 10_000_000),
        ("500ms", 500_000),
        ("2m", 120_000_000),
        ("2min", 120_000_000),
        ("1.5h", 5_400_000_000),
        ("7us", 7),
        ("3", 3_000_000),
        ("0.25", 250_000),
        ("10 s", 10_000_000),
        ("720h", 2_592_000_000_000),
    ],
)
def test_durations(text: str, microseconds: int) -> None:
    assert parse_duration(text) == microseconds


@pytest.mark.parametrize(
    "text", ["1e9", "inf", "nan", "\u0661s", "1s2s", "0x10", "1_000", "720.1h"]
)
def test_no_durations(text: str) -> None:
    with pytest.raises(click.BadParameter):
        parse_duration(text)


@pytest.mark.parametrize("text", ["1000-2F00", "0x1000-0x2f00"])
def test_ranges_of_addresses(text: str) -> None:
    assert parse_range(text) == (0x1000, 0x1F00)


@pytest.mark.parametrize("text", ["1000", "2000-1000", "1000-1000", "1-g", "-1-2", "1" * 17 + "-2"])
def test_no_ranges_of_addresses(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is no range of addresses"):
        parse_range(text)


def test_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert parse_folder("~/snapshots") == Path("/home/me/snapshots")


def test_names_in_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    for name, meant in [("~/x", "/home/me/x"), ("~/x/..", "/home/me/x/.."), ("~x", "~x")]:
        assert parse_name(name) == meant
    with pytest.raises(click.BadParameter, match="home folder of nobody known"):
        parse_name("~nobody-known/x")


@pytest.mark.parametrize(
    ("verb", "parameter", "engine"),
    [
        ("checkpoint", "timeout_us", CheckpointOptions().timeout_us),
        ("checkpoint", "lock_timeout_us", CheckpointOptions().lock_timeout_us),
        ("restore", "timeout_us", RestoreOptions().timeout_us),
    ],
)
def test_defaults_are_those_of_the_engine(verb: str, parameter: str, engine: int) -> None:
    [default] = [each.default for each in root.commands[verb].params if each.name == parameter]
    assert parse_duration(str(default)) == engine
