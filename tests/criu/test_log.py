"""The log classifier, on lines as CRIU 3.17.1 to 4.2.1 wrote them."""

import tomllib
from pathlib import Path

import pytest

from gpusnap.criu.log import classify, explain_failure
from gpusnap.criu.meanings import MEANINGS

HARMLESS = (
    "(00.036519) Error (criu/util.c:1533): rlimit: Can't setup RLIMIT_NOFILE for self: "
    "Operation not permitted"
)
ECHOES = (
    "(00.061336) Error (criu/cr-dump.c:1570): Collect mappings (pid: 4451) failed with -1",
    "(00.061519) Error (criu/cr-dump.c:2111): Dumping FAILED.",
)

TABLE = tomllib.loads((Path(__file__).parent / "lines.toml").read_text(encoding="utf-8"))
LINES = [(each["name"], each["line"], each["text"]) for each in TABLE["seen"] + TABLE["written"]]


@pytest.mark.parametrize(("name", "line", "text"), LINES)
def test_the_decisive_line_is_found_between_the_others(name: str, line: str, text: str) -> None:
    verdict = classify([HARMLESS, "(00.0) Warn  (criu/x.c:1): nothing", line, *ECHOES])
    assert (verdict.name, verdict.line, verdict.text) == (name, line.strip(), text)
    assert verdict.cure is None or "{" not in verdict.cure


def test_every_meaning_has_a_line_here_or_a_process_to_look_at() -> None:
    asked_of_the_kernel = {"pid-taken", "not-seized"}
    here = {name for name, _, _ in LINES}
    assert here | asked_of_the_kernel == {meaning.name for meaning in MEANINGS}


def test_names_are_unique_and_sentences_are_sentences() -> None:
    names = [meaning.name for meaning in MEANINGS]
    assert len(set(names)) == len(names)
    for meaning in MEANINGS:
        assert meaning.text[0].isupper() or meaning.text.startswith("{")
        assert not meaning.text.endswith(".")
        assert meaning.cure is None or not meaning.cure.endswith(".")


def test_the_first_known_error_decides() -> None:
    second = "(00.2) Error (criu/bfd.c:131): bfd: Error flushing image: No space left on device"
    first = "(00.1) Error (criu/file-lock.c:110): Some file locks are hold by dumping tasks!"
    assert classify([HARMLESS, first, second]).name == "file-locks"


def test_a_warning_decides_only_where_no_error_is_known() -> None:
    warning = "(00.1) Warn  (compel/src/lib/infect.c:133): Unable to interrupt task: 1 (No such)"
    error = "(00.2) Error (criu/file-lock.c:110): Some file locks are hold by dumping tasks!"
    assert classify([warning, error]).name == "file-locks"
    assert classify([warning, *ECHOES]).name == "not-seized"


def test_an_unknown_error_is_quoted_rather_than_guessed() -> None:
    line = "(00.2) Error (criu/new.c:7): The moon is in the wrong phase"
    verdict = classify([HARMLESS, line, *ECHOES])
    assert verdict.text == "CRIU failed: The moon is in the wrong phase"
    assert (verdict.line, verdict.name, verdict.cure) == (line, None, None)


def test_words_in_other_lines_do_not_decide() -> None:
    debug = "(00.1) No space left on device is what this debug line speaks of"
    assert classify([debug, HARMLESS, *ECHOES]).text == "CRIU failed without saying why"


def test_the_error_names_the_line_and_no_log_which_moves(tmp_path: Path) -> None:
    log = tmp_path / "dump.log"
    name, line, text = LINES[0]
    log.write_bytes(b"\xff\xfe not text\n" + line.encode())
    error = explain_failure(log, "")
    assert (error.text, error.details) == (text, (line,))
    assert error.cure is not None
    assert name == "io-uring"


def test_without_a_log_the_output_is_read(tmp_path: Path) -> None:
    error = explain_failure(tmp_path / "none.log", "Error (criu/x.c:1): No room\n")
    assert error.text == "CRIU failed: No room"
    assert error.exit_code == 18
