"""The page about the command line, and rules that all verbs keep."""

from pathlib import Path

import click
import pytest

from gpusnap.cli._group import VERBS
from gpusnap.cli._reference import reference

PAGE = Path(__file__).parents[2] / "docs/reference/cli.md"
EXPECTED = [
    *("checkpoint", "restore", "suspend", "resume"),
    *("run", "watch", "preempt", "branch", "replay", "recover"),
    *("list", "inspect", "verify", "diff", "rm", "prune"),
    *("check", "devices", "ps", "backends", "metrics", "setup-criu", "demo", "bench", "evidence"),
]

OPTIONS = [
    pytest.param(option, id=f"{verb.name} {option.opts[-1]}")
    for verb in VERBS
    for option in verb.params
    if isinstance(option, click.Option)
]


def test_the_page_is_up_to_date() -> None:
    command = "python -m gpusnap.cli._reference docs/reference/cli.md"
    assert PAGE.read_text() == reference(), command


def test_verbs() -> None:
    assert [verb.name for verb in VERBS] == EXPECTED


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_every_verb_answers_in_json(verb: click.Command) -> None:
    assert "--json" in {name for parameter in verb.params for name in parameter.opts}


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_a_verb_fits_into_the_list_of_verbs(verb: click.Command) -> None:
    assert not verb.get_short_help_str(limit=62).endswith("...")


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_has_a_variable(option: click.Option) -> None:
    assert isinstance(option.envvar, str)
    name = option.name if option.name != "output" else "json"
    assert option.envvar == f"GPUSNAP_{(name or '').removesuffix('_us').upper()}"
    assert option.show_envvar
    assert f"`{option.envvar}`" in PAGE.read_text()
