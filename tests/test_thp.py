"""The machine's switch for huge pages is put back, whoever ends first and however."""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpusnap import thp
from gpusnap.errors import GpusnapError
from gpusnap.events import Event, Found
from gpusnap.recovery import recover
from gpusnap.thp import check_switch, huge_pages, put_back
from tests.switches import VALUES, FakeSwitch, real_switch

HOLDER = """
import sys, time
from pathlib import Path
from gpusnap import thp
from tests.switches import FakeSwitch
thp.SWITCH = FakeSwitch(Path(sys.argv[1]))
with thp.huge_pages(print, wanted=True):
    print("holding", flush=True)
    time.sleep(60)
"""


class Told:
    """What was emitted: the codes of findings."""

    def __init__(self) -> None:
        self.codes: list[str] = []

    def __call__(self, event: Event) -> None:
        assert isinstance(event, Found)
        self.codes.append(event.finding.code)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUSNAP_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def switch(tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSwitch:
    switch = FakeSwitch(tmp_path / "enabled")
    switch.write("madvise")
    monkeypatch.setattr(thp, "SWITCH", switch)
    return switch


@pytest.fixture
def told() -> Told:
    return Told()


def start_holder(switch: FakeSwitch) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", HOLDER, str(switch.path)]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "holding\n"
    return holder


def leave_behind(switch: FakeSwitch, state: Path) -> None:
    """What there is after a holder was killed."""
    with huge_pages(lambda _: None, wanted=True):
        record = (state / "huge-pages").read_bytes()
    (state / "huge-pages").write_bytes(record)
    switch.write("always")


@pytest.mark.parametrize("value", VALUES)
def test_set_meanwhile(switch: FakeSwitch, state: Path, told: Told, value: str) -> None:
    switch.write(value)
    with huge_pages(told, wanted=True):
        assert switch.read() == "always"
        assert (state / "huge-pages").exists() == (value != "always")
    assert switch.read() == value
    assert not (state / "huge-pages").exists()
    assert told.codes == []


def test_not_wanted(switch: FakeSwitch, state: Path, told: Told) -> None:
    with huge_pages(told, wanted=False):
        assert switch.read() == "madvise"
    assert not state.exists()


def test_the_earlier_value_is_on_disk_before_the_switch_is_set(
    switch: FakeSwitch, state: Path, told: Told
) -> None:
    seen = []
    switch.before_write = lambda value: seen.append((value, (state / "huge-pages").exists()))
    with huge_pages(told, wanted=True):
        pass
    assert seen == [("always", True), ("madvise", True)]


@pytest.mark.parametrize("error", [GpusnapError("no"), KeyboardInterrupt(), ValueError()])
def test_put_back_after_a_failure(switch: FakeSwitch, told: Told, error: BaseException) -> None:
    with pytest.raises(type(error)), huge_pages(told, wanted=True):
        raise error
    assert switch.read() == "madvise"


@pytest.mark.parametrize("at", ["always", "madvise"])
def test_an_interrupt_at_the_worst_moment(switch: FakeSwitch, told: Told, at: str) -> None:
    def interrupt(value: str) -> None:
        if value == at:
            switch.before_write = None
            raise KeyboardInterrupt

    switch.before_write = interrupt
    with pytest.raises(KeyboardInterrupt), huge_pages(told, wanted=True):
        pass
    assert switch.read() == "madvise"
    assert put_back() is None


def test_the_last_one_puts_it_back(switch: FakeSwitch, told: Told) -> None:
    first, second = huge_pages(told, wanted=True), huge_pages(told, wanted=True)
    with first:
        second.__enter__()
    assert switch.read() == "always"
    assert put_back() is None
    second.__exit__(None, None, None)
    assert switch.read() == "madvise"


def test_with_another_process(switch: FakeSwitch, told: Told) -> None:
    holder = start_holder(switch)
    with huge_pages(told, wanted=True):
        holder.send_signal(signal.SIGINT)
        holder.communicate()
        assert switch.read() == "always"
    assert switch.read() == "madvise"


def test_recover_after_a_kill(switch: FakeSwitch, state: Path) -> None:
    holder = start_holder(switch)
    assert recover() == ()
    assert switch.read() == "always"
    holder.kill()
    holder.communicate()
    assert switch.read() == "always"
    (recovered,) = recover()
    assert recovered.outcome == "huge pages are switched to madvise"
    assert not recovered.failed
    assert switch.read() == "madvise"
    assert recover() == ()


def test_the_next_one_after_a_kill(switch: FakeSwitch, state: Path, told: Told) -> None:
    leave_behind(switch, state)
    with huge_pages(told, wanted=True):
        assert switch.read() == "always"
    assert switch.read() == "madvise"


def test_what_somebody_else_sets_meanwhile_stays(switch: FakeSwitch, told: Told) -> None:
    with huge_pages(told, wanted=True):
        switch.write("never")
        with huge_pages(told, wanted=True):
            assert switch.read() == "never"
    assert switch.read() == "never"
    assert put_back() is None


def test_another_boot(
    switch: FakeSwitch, state: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    leave_behind(switch, state)
    monkeypatch.setattr(thp, "_BOOT", tmp_path / "boot_id")
    (tmp_path / "boot_id").write_text("another\n")
    assert put_back() == "always"
    assert put_back() is None


@pytest.mark.parametrize("content", [b"", b"{", b'{"value": "rm", "boot_id": ""}'])
def test_a_damaged_record(switch: FakeSwitch, state: Path, told: Told, content: bytes) -> None:
    leave_behind(switch, state)
    (state / "huge-pages").write_bytes(content)
    (recovered,) = recover()
    assert recovered.failed
    assert str(state / "huge-pages") in recovered.outcome
    with huge_pages(told, wanted=True):
        pass
    assert told.codes == ["huge-pages-unavailable", "huge-pages-left"]


def test_a_kernel_without(switch: FakeSwitch, state: Path, told: Told) -> None:
    switch.path.unlink()
    assert [each.code for each in check_switch()] == ["huge-pages-unavailable"]
    with huge_pages(told, wanted=True):
        assert not switch.path.exists()
    assert told.codes == []


def test_a_switch_that_is_read_only(
    root: None, tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    folder = tmp_path / "sysfs"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=True)
    try:
        switch = FakeSwitch(folder / "enabled")
        switch.write("madvise")
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
        monkeypatch.setattr(thp, "SWITCH", switch)
        assert [each.code for each in check_switch()] == ["huge-pages-unavailable"]
        with huge_pages(told, wanted=True):
            assert switch.read() == "madvise"
    finally:
        subprocess.run(["umount", folder], check=True)
    assert told.codes == []


@pytest.mark.parametrize(
    ("at", "code", "value"),
    [("always", "huge-pages-unavailable", "madvise"), ("madvise", "huge-pages-left", "always")],
)
def test_the_kernel_refuses(switch: FakeSwitch, told: Told, at: str, code: str, value: str) -> None:
    def refuse(wanted: str) -> None:
        if wanted == at:
            raise GpusnapError(f"{switch.path} cannot be written to")

    switch.before_write = refuse
    with huge_pages(told, wanted=True):
        pass
    assert told.codes == [code]
    assert switch.read() == value
    switch.before_write = None
    assert put_back() == (None if value == "madvise" else "madvise")


def test_a_record_that_cannot_be_written(switch: FakeSwitch, state: Path, told: Told) -> None:
    state.mkdir()
    (state / "huge-pages.new").mkdir()
    with huge_pages(told, wanted=True):
        assert switch.read() == "madvise"
    assert told.codes == ["huge-pages-unavailable"]


def test_the_real_switch(state: Path, told: Told) -> None:
    real = thp.SWITCH
    if not os.access(real.path, os.W_OK):
        pytest.skip(f"{real.path} cannot be written to here")
    with real_switch(fcntl.LOCK_EX):
        before = real.read()
        try:
            real.write("madvise")
            with huge_pages(told, wanted=True):
                assert real.read() == "always"
            assert real.read() == "madvise"
        finally:
            real.write(before)
    assert told.codes == []
