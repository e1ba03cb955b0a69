"""Makes docs/reference/cli.md from the commands: ``python -m gpusnap.cli._reference FILE``."""

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from gpusnap.cli._group import VERBS

_HEAD = """\
# The command line

<!-- Made from gpusnap/cli by `python -m gpusnap.cli._reference docs/reference/cli.md`. -->

`gpusnap VERB --help` shows the same. Every option can be set by its environment variable; what
is typed counts more. Durations are numbers with a unit (`500ms`, `10s`, `2m`, `1h`; `us` and
`min` are known too), bare numbers are seconds.

## Output

The answer goes to standard output, everything else to standard error. Progress is shown only
where standard error is a terminal.

With `--json`, most verbs print one JSON document. `checkpoint`, `restore`, `suspend`, `resume`,
`preempt`, `branch`, `replay`, `verify`, `diff` and `demo` print JSON lines as they go, told apart
by `message_type`, and new types may come:

| `message_type` | meaning |
|---|---|
| `phase` | a step `started` or `finished` (`state`), with its `microseconds` |
| `progress` | `bytes_done` of `bytes_total` in a step; a total of 0 means unknown |
| `frozen`, `thawed` | the target stopped; it runs again or is gone, after `frozen_us` |
| `finding` | a check found something that does not stop the operation |
| `step` | a step of `demo`, in words |
| `branch` | a branch has ended, or could not be restored |
| `run` | a run of `replay` has ended |
| `report` | something happened to the job of `run` or `watch`; on standard error, see there |
| `summary` | the last line: `verb`, `microseconds`, `frozen_us`, `warnings` and the `result` |

A failure ends with one line on standard error: text, or with `--json` an `exit_error` with
`code`, `text`, `cure` and `details`. Sizes are bytes, durations microseconds (names that end in
`_us`, and `microseconds`), both integers; instants are UTC as in RFC 3339; what is not known is
`null`. Process numbers are integers, snapshots are named by `path`.

What each exit code means stands in [exit codes](exit-codes.md); with warnings it is 3. The first
SIGINT, SIGTERM or SIGHUP ends an operation as a failure does: the target runs on, and nothing of
a half-made snapshot or a half-restored tree is left. A driver's call under way is waited for
first, a target whose devices are already being given back gets them, and from the publication of
a snapshot on a signal is too late to matter. Further signals are ignored meanwhile.
`GPUSNAP_DEBUG=1` shows where in the sources an error was raised.

## Variables without an option

| variable | meaning |
|---|---|
| `GPUSNAP_CRIU` | the CRIU to use, a program or a folder made by `setup-criu` |
| `GPUSNAP_DATA_DIR` | the user's data folder: `setup-criu`'s copy and the default repository |
| `GPUSNAP_STATE_DIR` | where running operations keep their journals, `/run/gpusnap` by default |
| `GPUSNAP_SIM_DIR` | the simulated machine for the `simulated` backend |
| `GPUSNAP_METRICS_TEXTFILE`, `GPUSNAP_METRICS_PORT` | where metrics go; see \
[how to watch it](../how-to/metrics.md) |
| `GPUSNAP_EVENT_LOG` | the file that every event is appended to, in JSON |
| `GPUSNAP_NOTIFY` | the command that is run for published snapshots and for failures |
| `GPUSNAP_DEBUG` | `1` for tracebacks |

## Verbs
"""


def reference() -> str:
    """The whole page."""
    return "\n".join([_HEAD, *(_section(verb) for verb in VERBS)])


def _section(verb: click.Command) -> str:
    context = click.Context(verb, info_name=f"gpusnap {verb.name}")
    pieces = " ".join(verb.collect_usage_pieces(context))
    text = _paragraphs(verb.help or "")
    options = "\n".join(_rows(verb, context))
    return (
        f"### gpusnap {verb.name}\n\n"
        f"```\n{context.command_path} {pieces}\n```\n\n{text}\n\n"
        f"| option | meaning | variable | default |\n|---|---|---|---|\n{options}\n"
    )


def _paragraphs(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def _rows(verb: click.Command, context: click.Context) -> Iterator[str]:
    for option in verb.params:
        if isinstance(option, click.Option):
            record = option.get_help_record(context)
            names = record[0] if record is not None else option.opts[0]
            yield (
                f"| `{_cell(names)}` | {_cell(option.help or '')} "
                f"| `{option.envvar}` | {_default(option)} |"
            )


def _cell(text: str) -> str:
    return text.partition("  [")[0].replace("|", "\\|")


def _default(option: click.Option) -> str:
    told = (option.help or "").partition("  [default: ")[2].removesuffix("]")
    if told:
        return told
    return f"`{option.default}`" if option.show_default else ""


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(reference())
