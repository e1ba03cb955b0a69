import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from gpusnap.errors import GpusnapError
from gpusnap.metrics.log import EventLog, LogLine, append, lines
from tests.metrics.conftest import PUBLISHED, SAVED, START, batch_of

VARIABLE = "GPUSNAP_EVENT_LOG"


def save() -> None:
    log = EventLog()
    for event in SAVED:
        log.gpusnap_event(event=event)


def test_each_event_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "events.jsonl"
    monkeypatch.setenv(VARIABLE, str(path))
    save()
    save()
    text = path.read_text().splitlines()
    read = [msgspec.json.decode(line, type=LogLine) for line in text]
    assert tuple(each.event for each in read) == SAVED * 2
    assert {each.operation for each in read} == {"a1"}
    assert {each.process for each in read} == {os.getpid()}
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", each.time) for each in read)
    assert json.loads(text[2])["event"] == {"type": "Thawed", "pids": [7], "microseconds": 300000}
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_path_of_any_bytes() -> None:
    event = type(PUBLISHED)(
        path="/repo/\udcff", id="s", pids=(7,), read_bytes=1, bytes=1, stored_bytes=1
    )
    written = lines(batch_of(START, event, SAVED[-1])).splitlines()
    assert json.loads(written[1])["event"]["path"] == "/repo/\\udcff"


APPENDS = """
import sys
from gpusnap.metrics.log import append
for number in range(200):
    append(sys.argv[1], (sys.argv[2] * 3000 + "\\n").encode() * 3)
"""


def test_processes_write_whole_pieces(tmp_path: Path) -> None:
    path = tmp_path / "log"
    running = [subprocess.Popen([sys.executable, "-c", APPENDS, str(path), each]) for each in "abc"]
    assert [each.wait(60) for each in running] == [0, 0, 0]
    text = path.read_text().splitlines()
    assert len(text) == 3 * 200 * 3
    assert {(line[0], len(line), len(set(line))) for line in text} == {
        (each, 3000, 1) for each in "abc"
    }


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    append(str(path), b"first\n")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, limits[1]))  # as a disk with room for 20 bytes
    try:
        with pytest.raises(OSError, match="No space left"):
            append(str(path), b"0123456789" * 3)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == b"first\n"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("missing/log", "No such file or directory"),
        (".", "Is a directory"),
        ("/dev/full", "No space left on device"),
        ("/sys/log", "denied|not permitted|Read-only"),
    ],
)
def test_a_bad_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, why: str) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / name))
    with pytest.raises(GpusnapError, match=rf"The event log .* cannot be written: .*({why})"):
        save()
