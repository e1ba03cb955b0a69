"""What is typed wrong ends with one sentence and the documented code, never a traceback."""

import errno
import os
import pwd
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest

from gpusnap.cli._failures import refused_path
from gpusnap.errors import GpusnapError, PrivilegeError, UsageError
from gpusnap.repository import Repository
from tests.cli.conftest import Command
from tests.repository.samples import alter, powerless, take

GONE = 2**22 + 1
"""Above the kernel's largest PID."""


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("frob", "No such command 'frob'"),
        ("checkpoint", "Missing argument 'PID'"),
        ("checkpoint one", "Invalid value for 'PID': 'one' is not a PID, which is a whole number"),
        ("checkpoint ²", "Invalid value for 'PID': '²' is not a PID, which is a whole number"),
        (
            f"suspend {2**31}",
            f"Invalid value for 'PID': '{2**31}' is not a PID, which is a whole number",
        ),
        (
            f"check {'9' * 5000}",
            f"Invalid value for '[PID]': '{'9' * 60}...' is not a PID, which is a whole number",
        ),
        ("resume -- -5", "Invalid value for 'PID': '-5' is not a PID, which is a whole number"),
        ("check 1 2", "Got unexpected extra argument (2)"),
        ("rm", "Missing argument 'SNAPSHOT...'"),
    ],
)
def test_unknown_words(command: Command, line: str, sentence: str) -> None:
    answer = command(*line.split())
    answer.refused(2, sentence)
    assert answer.err.splitlines()[1].startswith("  cure: See gpusnap")


@pytest.mark.parametrize(
    ("line", "help_of"), [("setup-criu --suite", "gpusnap setup-criu"), ("--frob", "gpusnap")]
)
def test_the_help_that_is_named(command: Command, line: str, help_of: str) -> None:
    assert command(*line.split()).err.splitlines()[1] == f"  cure: See {help_of} --help"


def test_unknown_option(command: Command) -> None:
    answer = command("list", "--frob")
    assert answer.code == 2
    assert answer.err.startswith("gpusnap: No such option")
    assert "--frob" in answer.err.splitlines()[0]


@pytest.mark.parametrize(
    ("option", "value", "ending"),
    [
        ("timeout", "5parsecs", "'5parsecs' has the unknown unit 'parsecs' (known: us, ms,"),
        ("timeout", "1 S", "'1 S' has the unknown unit 'S' (known: us,"),
        ("lock-timeout", "soon", "'soon' is not a duration such as 10s, 500ms or 2m"),
        ("lock-timeout", "-1", "'-1' is not a duration such as 10s, 500ms or 2m"),
        ("timeout", "", "'' is not a duration such as 10s, 500ms or 2m"),
        ("timeout", "0", "'0' is not between one microsecond and 30 days"),
        ("timeout", "999999h", "'999999h' is not between one microsecond and 30 days"),
        ("engine", "steam", "'steam' is not one of 'driver', 'criu-plugin'"),
        ("repo", "", "'' is not a path"),
        ("repo", "~nobody-known/x", "'~nobody-known/x' names the home folder of nobody known"),
    ],
)
def test_unknown_values(command: Command, option: str, value: str, ending: str) -> None:
    answer = command("checkpoint", GONE, f"--{option}={value}")
    assert answer.code == 2
    assert answer.err.startswith("gpusnap: Invalid value for '")
    assert f": {ending}" in answer.err


def test_a_bad_value_of_a_variable_names_the_variable(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUSNAP_TIMEOUT", "soon")
    answer = command("restore", "one")
    assert answer.code == 2
    assert "GPUSNAP_TIMEOUT" in answer.err.splitlines()[0]


def test_two_names(command: Command) -> None:
    command("checkpoint", GONE, "one", "--name=two").refused(2, "The snapshot is named twice")


@pytest.mark.parametrize("verb", ["checkpoint", "suspend", "resume", "check"])
class TestTargets:
    def test_nobody(self, command: Command, root: None, verb: str) -> None:
        command(verb, GONE).refused(10, f"No process has PID {GONE}")
        command(verb, 0).refused(10, "0 is not a PID")

    def test_itself(self, command: Command, root: None, verb: str) -> None:
        own = os.getpid()
        command(verb, own).refused(16, f"Process {own} is gpusnap itself")

    def test_ancestor(self, command: Command, root: None, verb: str) -> None:
        parent = os.getppid()
        sentence = f"Process {parent} is an ancestor of gpusnap, which would freeze with it"
        command(verb, parent).refused(16, sentence)

    def test_zombie(self, command: Command, root: None, zombie: int, verb: str) -> None:
        sentence = f"Process {zombie} is a zombie: it has ended and waits to be reaped"
        answer = command(verb, zombie)
        assert answer.code == 16
        assert answer.err.startswith(f"gpusnap: {sentence}")


def test_kernel_thread(command: Command, root: None) -> None:
    thread = 2
    name = Path(f"/proc/{thread}/comm")
    if name.exists() and name.read_text() == "kthreadd\n":
        answer = command("checkpoint", thread)
        answer.refused(16, f"Process {thread} (kthreadd) is a kernel thread")
    else:
        pytest.skip("No kernel threads are seen from here")


@pytest.mark.parametrize("verb", ["devices", "ps", "check", "backends"])
def test_unknown_backend(command: Command, verb: str) -> None:
    answer = command(verb, "--backend=tpu")
    assert answer.code == 13
    assert answer.err.startswith("gpusnap: No backend is named tpu (installed: ")


def test_backend_that_cannot_work(command: Command) -> None:
    answer = command("devices", "--backend=simulated")
    assert answer.code == 13
    assert answer.err.startswith("gpusnap: Backend simulated cannot work here: ")


@pytest.mark.usefixtures("machine")
def test_unknown_device(command: Command) -> None:
    answer = command("devices", "--backend=simulated", 1, 7, "SIM-8")
    answer.refused(10, "There is no device 7, SIM-8 among 2 devices")


@pytest.mark.parametrize("verb", ["restore", "inspect", "verify", "rm"])
class TestSnapshots:
    def test_no_repository(self, command: Command, root: None, tmp_path: Path, verb: str) -> None:
        answer = command(verb, "one", "--repo", tmp_path / "none")
        assert answer.code == 10
        assert str(tmp_path / "none") in answer.err

    def test_repository_is_a_file(
        self, command: Command, root: None, tmp_path: Path, verb: str
    ) -> None:
        (tmp_path / "file").touch()
        answer = command(verb, "one", "--repo", tmp_path / "file")
        assert answer.code == 2
        assert str(tmp_path / "file") in answer.err

    def test_repository_of_a_newer_format(
        self, command: Command, root: None, repository: Repository, verb: str
    ) -> None:
        configuration = repository.path / "gpusnap.json"
        content = msgspec.json.decode(configuration.read_bytes(), type=dict[str, object])
        configuration.write_bytes(msgspec.json.encode(content | {"format_version": 999}))
        answer = command(verb, "one", "--repo", repository.path)
        sentence = f"{configuration} has format version 999, newer than 1"
        answer.refused(14, sentence)

    def test_snapshot_of_a_newer_format(
        self, command: Command, root: None, repository: Repository, verb: str
    ) -> None:
        snapshot = take(repository, "one")
        alter(snapshot, format_version=999)
        answer = command(verb, "one", "--repo", repository.path)
        sentence = f"{snapshot.path}/manifest.json has format version 999, newer than 2"
        answer.refused(14, sentence)

    def test_no_snapshot(
        self, command: Command, root: None, repository: Repository, verb: str
    ) -> None:
        answer = command(verb, "one", "--repo", repository.path)
        assert answer.code == 10
        assert answer.err.startswith(f"gpusnap: There is no snapshot 'one' in {repository.path}")

    def test_path_that_is_no_snapshot(
        self, command: Command, root: None, tmp_path: Path, verb: str
    ) -> None:
        answer = command(verb, f"{tmp_path}/")
        assert answer.code == 10
        assert answer.err.startswith(f"gpusnap: There is no snapshot at {tmp_path}")

    def test_latest_of_none(
        self, command: Command, root: None, repository: Repository, verb: str
    ) -> None:
        answer = command(verb, "latest", "--repo", repository.path)
        assert answer.code == 10
        assert "holds no snapshot" in answer.err

    def test_beginning_of_two(
        self, command: Command, root: None, repository: Repository, verb: str
    ) -> None:
        take(repository, "epoch_1")
        take(repository, "epoch_2")
        answer = command(verb, "epoch", "--repo", repository.path)
        answer.refused(2, "'epoch' is the beginning of 2 names")

    @pytest.mark.parametrize("name", ["..", ".", "", "a\x1b[2J", "packs"])
    def test_bad_names(
        self, command: Command, root: None, repository: Repository, verb: str, name: str
    ) -> None:
        answer = command(verb, name, "--repo", repository.path)
        assert answer.code == 2
        assert answer.err.startswith("gpusnap: The snapshot name '")
        assert "\x1b" not in answer.err

    def test_missing_manifest(
        self, command: Command, root: None, repository: Repository, verb: str
    ) -> None:
        snapshot = take(repository, "one")
        (snapshot.path / "manifest.json").unlink()
        answer = command(verb, "one", "--repo", repository.path)
        if verb == "rm":
            assert (answer.code, snapshot.path.exists()) == (0, False)
        else:
            assert answer.code == 12
            assert f"{snapshot.path}/manifest.json is missing" in answer.err + answer.out


@pytest.mark.parametrize(
    "variables", [{}, {"COMP_WORDS": "gpusnap li"}, {"COMP_WORDS": "x", "COMP_CWORD": "soon"}]
)
def test_completion_that_no_shell_asked_for(
    command: Command, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    monkeypatch.setenv("_GPUSNAP_COMPLETE", "bash_complete")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    sentence = "_GPUSNAP_COMPLETE is set, but not by a shell that completes a command"
    command("list").refused(2, sentence)


@pytest.mark.parametrize("verb", ["list", "check"])
def test_nobody_at_home(
    command: Command, root: None, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    def nobody(_user: int) -> NoReturn:
        raise KeyError

    for name in ("HOME", "XDG_DATA_HOME", "GPUSNAP_DATA_DIR", "GPUSNAP_CRIU"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    monkeypatch.setenv("PATH", "/nonexistent")
    answer = command(verb)
    answer.refused(2, "The home folder in '~/.local/share' is not known")
    assert answer.err.splitlines()[1] == "  cure: Set HOME, GPUSNAP_REPO or GPUSNAP_DATA_DIR"


def test_list_says_which_repository_is_missing(command: Command, tmp_path: Path) -> None:
    answer = command("list", "--repo", tmp_path / "none")
    assert (answer.code, answer.out) == (10, "")


def test_repository_that_may_not_be_read(
    command: Command, root: None, repository: Repository
) -> None:
    with powerless(repository.path):
        answer = command("list", "--repo", repository.path)
    assert answer.code == 15
    assert "permission denied" in answer.err


def test_errors_are_json_even_where_the_line_is_not_understood(command: Command) -> None:
    answer = command("--json", "frob")
    assert answer.failure["message_type"] == "exit_error"
    answer = command("checkpoint", "--timeout=soon", "--json", GONE)
    assert (answer.code, answer.out) == (2, "")
    assert answer.failure["code"] == 2
    assert answer.failure["cure"] == "See gpusnap checkpoint --help"


def test_json_may_come_from_the_variable(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSNAP_JSON", "1")
    assert command("frob").failure["text"] == "No such command 'frob'"


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EACCES, PrivilegeError),
        (errno.EPERM, PrivilegeError),
        (errno.EISDIR, UsageError),
        (errno.ENOENT, UsageError),
        (errno.ENOSPC, GpusnapError),
    ],
)
def test_the_kinds_of_paths_that_cannot_be_used(number: int, kind: type[GpusnapError]) -> None:
    error = refused_path(
        "It cannot be written", OSError(number, os.strerror(number)), "Name another"
    )
    assert type(error) is kind
    assert error.text == f"It cannot be written: {os.strerror(number)}"
    assert error.cure == "Name another"
