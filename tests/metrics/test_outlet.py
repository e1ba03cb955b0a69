import threading
from collections.abc import Callable

import pytest

from gpusnap.errors import DeadlineError, GpusnapError
from gpusnap.events import Event, Found, Phase, PhaseFinished, PhaseProgress, PhaseStarted
from gpusnap.hookspecs import hookimpl
from gpusnap.metrics import outlet
from gpusnap.metrics.outlet import Batch, Ear, Outlet
from gpusnap.phases import operation
from gpusnap.plugins import Plugins
from gpusnap.types import Finding, Operation, Severity
from tests.metrics.conftest import END, FAILED, SAVED, START

WARNING = Found(finding=Finding(code="x", severity=Severity.WARNING, text="x"))


class Told(Outlet):
    variables = ("GPUSNAP_TOLD",)

    def __init__(self, work: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.batches: list[Batch] = []
        self._tell = work

    def tell(self, batch: Batch) -> None:
        self.batches.append(batch)
        self.bounded(self._tell, "The file")


def hanging(release: threading.Event) -> Callable[[], None]:
    def work() -> None:
        release.wait(60)

    return work


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSNAP_TOLD", "yes")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlet, "_DEADLINE_S", 0.05)


def tell_all(told: Outlet, *events: Event) -> None:
    for event in events:
        told.gpusnap_event(event=event)


def test_nothing_is_kept_without_its_variable() -> None:
    told = Told()
    tell_all(told, *SAVED)
    assert told.batches == []
    assert not told.ear.busy


def test_told_when_the_operation_is_over(on: None) -> None:
    told = Told()
    tell_all(told, *SAVED[:-1])
    assert told.batches == []
    assert told.ear.busy
    tell_all(told, END)
    (batch,) = told.batches
    assert tuple(each.event for each in batch.heard) == SAVED
    assert batch.start == START
    assert not told.ear.busy


def test_progress_is_left_out(on: None) -> None:
    told = Told()
    tell_all(told, START, PhaseProgress(phase=Phase.COPY, done=1, total=2), FAILED)
    assert [each.event for each in told.batches[0].heard] == [START, FAILED]


def test_what_belongs_to_no_operation_is_told_at_once(on: None) -> None:
    told = Told()
    tell_all(told, WARNING)
    assert [each.event for each in told.batches[0].heard] == [WARNING]
    assert told.batches[0].start is None


def test_operations_in_threads_are_kept_apart() -> None:
    ear = Ear()
    other = START.__class__(id="b2", operation=Operation.RESTORE, snapshot="one")
    found: list[Batch | None] = []

    def restore() -> None:
        ear.hear(other)
        found.append(ear.hear(END.__class__(id="b2", operation=Operation.RESTORE, microseconds=1)))

    ear.hear(START)
    thread = threading.Thread(target=restore)
    thread.start()
    thread.join()
    mine = ear.hear(END)
    assert [batch.start for batch in (*found, mine) if batch] == [other, START]
    assert [len(batch.heard) for batch in (*found, mine) if batch] == [2, 2]


def test_a_thread_without_an_operation_works_for_the_one_under_way() -> None:
    ear = Ear()
    ear.hear(START)
    answers: list[Batch | None] = []
    thread = threading.Thread(target=lambda: answers.append(ear.hear(WARNING)))
    thread.start()
    thread.join()
    batch = ear.hear(END)
    assert answers == [None]
    assert batch is not None
    assert [each.event for each in batch.heard] == [START, WARNING, END]


def test_work_that_hangs_is_left_behind(
    on: None, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = threading.active_count()
    release = threading.Event()
    told = Told(hanging(release))
    try:
        for _ in range(2):  # the second is not even tried
            with pytest.raises(DeadlineError, match=r"The file was not written within 0\.05 s"):
                tell_all(told, *SAVED)
        assert threading.active_count() <= threads + 1
    finally:
        release.set()
    assert told._work is not None
    told._work.result(60)
    monkeypatch.setattr(outlet, "_DEADLINE_S", 60.0)
    told.bounded(lambda: None, "The file")  # once it is through, the next is tried again


def test_work_that_fails_says_why(on: None) -> None:
    def full() -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(GpusnapError, match="The file cannot be written: No space left"):
        tell_all(Told(full), *SAVED)


def test_a_plugin_in_trouble_warns_in_its_own_words_and_the_operation_succeeds(
    on: None, impatient: None
) -> None:
    heard: list[Event] = []

    class Listener:
        @hookimpl
        def gpusnap_event(self, event: Event) -> None:
            heard.append(event)

    release = threading.Event()
    plugins = Plugins()
    plugins.register(Told(hanging(release)), "slow")
    plugins.register(Listener(), "listener")
    for _ in range(3):
        with operation(plugins.emit, Operation.CHECKPOINT, pid=1):
            plugins.emit(PhaseStarted(phase=Phase.LOCK))
            plugins.emit(PhaseFinished(phase=Phase.LOCK, microseconds=1))
    release.set()
    (finding,) = [each.finding for each in heard if isinstance(each, Found)]
    assert finding.code == "plugin-event"
    assert finding.severity is Severity.WARNING
    assert finding.text == "Plugin slow: The file was not written within 0.05 s"
    assert finding.cure == "Look at the file system that it is on"


def test_who_registers_last_hears_first() -> None:
    order: list[str] = []

    class Listener:
        def __init__(self, name: str) -> None:
            self.name = name

        @hookimpl
        def gpusnap_event(self, event: Event) -> None:
            order.append(self.name)

    plugins = Plugins()
    plugins.register(Listener("plugin"), "plugin")
    plugins.register(Listener("command line"), "cli")
    plugins.emit(START)
    assert order == ["command line", "plugin"]


def test_the_end_of_an_operation_is_told_with_its_error() -> None:
    heard: list[Event] = []
    with (
        pytest.raises(DeadlineError),
        operation(heard.append, Operation.RESTORE, snapshot="one"),
    ):
        raise DeadlineError("It took too long", cure="Wait", details=["a line"])
    begun, failed = heard
    assert isinstance(begun, START.__class__)
    assert isinstance(failed, FAILED.__class__)
    assert begun.id == failed.id
    assert (failed.code, failed.error, failed.text) == (17, "DeadlineError", "It took too long")
    assert (failed.cure, failed.details, failed.snapshot) == ("Wait", ("a line",), "one")


@pytest.mark.parametrize(
    ("error", "code"), [(KeyboardInterrupt(), 130), (ValueError("x"), 1), (MemoryError(), 1)]
)
def test_exit_codes_of_other_errors(error: BaseException, code: int) -> None:
    heard: list[Event] = []
    with pytest.raises(type(error)), operation(heard.append, Operation.SUSPEND, pid=1):
        raise error
    failed = heard[-1]
    assert isinstance(failed, FAILED.__class__)
    assert (failed.code, failed.error) == (code, type(error).__name__)
    assert failed.text
