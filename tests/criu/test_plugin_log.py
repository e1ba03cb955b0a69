"""A backend's words for what its plugin writes into CRIU's log."""

from pathlib import Path

import msgspec
import pytest

from gpusnap.criu import Criu, Session
from gpusnap.criu.plugin_log import asides, plugin_failure
from gpusnap.errors import CriuError
from gpusnap.types import CriuOptions, LogMeaning
from tests.criu.conftest import agree, dump_request, restore_request
from tests.criu.counters import Counter

FIRST = LogMeaning(words="the queues failed", text="The queues failed", cure="Restart them")
SECOND = LogMeaning(words="start of", text="It was started", fatal=True)
PAUSED = LogMeaning(words="paused", unless="resumed", text="It stays paused", aside=True)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    log = tmp_path / "dump.log"
    log.write_text("(0.1) start of it\n(0.2) paused\n(0.3) Error (x.c:1): the queues failed\n")
    return log


def test_the_most_telling_line_counts(log: Path) -> None:
    error = plugin_failure(log, (FIRST, SECOND, PAUSED))
    assert error is not None
    assert (error.text, error.cure) == ("The queues failed", "Restart them")
    assert error.details == ("(0.3) Error (x.c:1): the queues failed",)


def test_success_is_voided_by_a_fatal_line_alone(log: Path) -> None:
    assert plugin_failure(log, (FIRST, PAUSED), fatal=True) is None
    error = plugin_failure(log, (FIRST, SECOND), fatal=True)
    assert error is not None
    assert error.text == "It was started"


def test_an_aside_is_void_where_its_end_is_told(log: Path) -> None:
    assert asides(log, (FIRST, PAUSED)) == ("It stays paused",)
    log.write_text(log.read_text() + "resumed\n")
    assert asides(log, (FIRST, PAUSED)) == ()


def test_without_a_log(tmp_path: Path) -> None:
    assert plugin_failure(tmp_path / "none", (FIRST,)) is None
    assert asides(tmp_path / "none", (PAUSED,)) == ()


def test_a_restore_that_says_success_and_is_none(root: None, criu: Criu, saved: Counter) -> None:
    """CRIU's own last line stands for a plugin's."""
    fatal = LogMeaning(words="Restore finished successfully", text="Nothing works", fatal=True)
    request = msgspec.structs.replace(
        restore_request(saved), options=CriuOptions(log_meanings=(fatal,))
    )
    with pytest.raises(CriuError, match="Nothing works"):
        Session(criu).restore(request, agree)
    assert not saved.exists()


def test_an_aside_goes_with_any_failure(root: None, criu: Criu, counter: Counter) -> None:
    started = LogMeaning(words="Dumping processes", text="It had begun", aside=True)
    request = dump_request(counter, options=CriuOptions(log_meanings=(started,)))
    with pytest.raises(CriuError) as caught:
        Session(criu).dump(request, lambda script, _pid: script != "post-dump")
    assert caught.value.details == ("It had begun",)
    assert counter.computes()
