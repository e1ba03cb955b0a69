"""What is said of the machine, of a restore, and to a user without rights."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import gpusnap
from gpusnap.criu import Criu, Search
from gpusnap.criu.find import Passed
from gpusnap.events import CriuNotified, Event, Found
from gpusnap.findings import check_criu, check_privileges, host
from gpusnap.hookspecs import hookimpl
from gpusnap.plan import CheckpointOptions
from gpusnap.plugins import Plugins
from gpusnap.repository import Repository
from gpusnap.repository.judgement import judge
from gpusnap.repository.tree import scan
from gpusnap.types import Finding, Severity
from tests.findings.conftest import Start
from tests.repository.samples import NOBODY, alter, take


def by_code(findings: object) -> dict[str, Finding]:
    assert isinstance(findings, tuple)
    return {each.code: each for each in findings}


def test_nobody_may_trace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    scope = tmp_path / "ptrace_scope"
    monkeypatch.setattr(host, "_PTRACE_SCOPE", scope)
    for value, refused in (("1\n", False), ("2\n", False), ("3\n", True)):
        scope.write_text(value)
        assert ("ptrace-scope" in by_code(tuple(check_privileges()))) == refused


def test_which_criu_is_used() -> None:
    passed = Passed(path="/usr/sbin/criu", reason="too old")
    criu = Criu(command=("criu",), version=(4, 2, 0), source="path", path="/opt/criu")
    used = by_code(tuple(check_criu(Search(criu=criu, passed=(passed,)))))
    assert {code: each.severity for code, each in used.items()} == {
        "criu-passed-over": Severity.INFO,
        "criu-used": Severity.INFO,
    }
    assert used["criu-passed-over"].text == "The CRIU at /usr/sbin/criu is not used: too old"
    none = by_code(tuple(check_criu(Search(criu=None, passed=(passed,)))))
    assert {code: each.severity for code, each in none.items()} == {
        "criu-passed-over": Severity.WARNING,
        "criu-missing": Severity.ERROR,
    }


def test_a_guard_that_cannot_be_loaded(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    program = start()
    monkeypatch.setattr("gpusnap.plan.guard_works", lambda _criu: "it is corrupted")
    finding = by_code(gpusnap.plan_checkpoint(program.pid).findings)["guard-unusable"]
    assert finding.text.endswith("it is corrupted")
    assert finding.severity is Severity.WARNING
    without = CheckpointOptions(regions=False)
    assert "guard-unusable" not in by_code(
        gpusnap.plan_checkpoint(program.pid, options=without).findings
    )


class Listener:
    """A plugin that fails on every event but findings, which it keeps."""

    def __init__(self) -> None:
        self.heard: list[Finding] = []

    @hookimpl
    def gpusnap_event(self, event: Event) -> None:
        if not isinstance(event, Found):
            raise RuntimeError("no")  # noqa: TRY004 - anything that a plugin may raise
        self.heard.append(event.finding)


def test_a_plugin_that_fails_on_an_event() -> None:
    plugins, listener = Plugins(), Listener()
    plugins.register(listener, "listener")
    plugins.emit(CriuNotified(script="pre-dump"))
    assert [each.code for each in listener.heard] == ["plugin-event"]


def test_a_snapshot_of_another_machine(tmp_path: Path, criu: Criu) -> None:
    snapshot = take(Repository.create(tmp_path / "repository"), "one")
    target = msgspec.to_builtins(snapshot.manifest.target)
    target["processes"][0]["executable"] = str(tmp_path / "gone")
    saved = msgspec.to_builtins(snapshot.manifest.host) | {"machine": "sparc64"}
    alter(snapshot, host=saved, target=target)
    found = by_code(gpusnap.plan_restore(snapshot.path).findings)
    assert {found[code].severity for code in ("host-machine", "program-missing")} == {
        Severity.ERROR
    }
    assert "made on a sparc64 machine" in found["host-machine"].text
    assert str(tmp_path / "gone") in found["program-missing"].text


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    snapshot = take(Repository.create(tmp_path / "repository"), "one")
    saved = snapshot.manifest.files[0]
    entry = next(each for each in scan(snapshot.path) if each.path == saved.path)
    finding = judge(saved, entry, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
    assert finding is not None
    assert finding.code == "snapshot-file-unreadable"
    assert finding.text.endswith("cannot be read: permission denied")


SEEN = """
import json, os, sys
from gpusnap.findings import Wishes, check_privileges, inspect_tree
from gpusnap.target import find_target
from gpusnap.types import Claim
os.setgid({nobody}); os.setuid({nobody})
claim = Claim(pids=({pid},), reason="it uses a device", device_files=("/dev",))
found = inspect_tree(find_target({pid}), claim, None, Wishes())
print(json.dumps([[each.code for each in found.findings], [x.code for x in check_privileges()]]))
"""


@pytest.mark.usefixtures("root")
def test_a_user_who_may_not_look(start: Start) -> None:
    """Nothing is seen of a stranger's process, and nothing breaks; the lack has its own finding."""
    program = start(
        "call(425, 8, ctypes.create_string_buffer(240)); socket.socketpair()\n"
        "os.fork() or time.sleep(1000)"
    )
    code = SEEN.format(nobody=NOBODY, pid=program.pid)
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert json.loads(ran.stdout) == [[], ["privilege"]]
