import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpusnap.errors import DeadlineError
from gpusnap.target import identity, myself
from gpusnap.worker import (
    _CONNECTIONS,
    Worker,
    WorkerDied,
    WorkerError,
    await_answers,
    workers_of,
)

SECOND = 1_000_000
ENTRY = "tests.test_worker:Calls"
MEETING = threading.Barrier(4)


class Calls:
    """What the tests have called in the worker process."""

    def pid(self) -> int:
        return os.getpid()

    def add(self, left: int, right: int) -> int:
        return left + right

    def fail(self, code: int) -> None:
        raise KeyError(code, "no such thing")

    def meet(self) -> None:
        MEETING.wait(60)

    def wait(self, until: str, mark: str) -> None:
        end = time.monotonic() + 60
        while not Path(until).exists() and time.monotonic() < end:
            time.sleep(0.01)
        Path(mark).touch()

    def environment(self, name: str) -> str | None:
        return os.environ.get(name)

    def end(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def break_off(self) -> None:
        os.write(int(sys.argv[2]), b'{"id":')
        self.end()

    def session(self) -> int:
        return os.getsid(0)


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker(ENTRY, environment={"PYTHONPATH": str(Path.cwd()), "SOME_NAME": "value"})
    yield worker
    worker.close()


def test_a_call(worker: Worker) -> None:
    assert worker.call("add", deadline_us=60 * SECOND, left=2, right=3) == 5


def test_one_process_for_all_calls_in_its_own_session(worker: Worker) -> None:
    pid = worker.call("pid", deadline_us=60 * SECOND)
    assert pid != os.getpid()
    assert pid == worker.call("pid", deadline_us=60 * SECOND) == worker.pid
    assert worker.call("session", deadline_us=60 * SECOND) == pid


def test_its_environment(worker: Worker) -> None:
    assert worker.call("environment", deadline_us=60 * SECOND, name="SOME_NAME") == "value"


def test_what_a_method_raises(worker: Worker) -> None:
    with pytest.raises(WorkerError) as caught:
        worker.call("fail", deadline_us=60 * SECOND, code=801)
    assert caught.value.kind == "KeyError"
    assert caught.value.value == [801, "no such thing"]
    assert worker.call("add", deadline_us=60 * SECOND, left=1, right=1) == 2


def test_calls_run_at_once(worker: Worker) -> None:
    worker.call("pid", deadline_us=60 * SECOND)
    with ThreadPoolExecutor(4) as threads:
        calls = [threads.submit(worker.call, "meet", deadline_us=60 * SECOND) for _ in range(4)]
    for call in calls:
        call.result()  # raises where they did not meet


def test_a_deadline_leaves_the_call_to_end_by_itself(worker: Worker, tmp_path: Path) -> None:
    until, mark = tmp_path / "until", tmp_path / "mark"
    first = worker.call("pid", deadline_us=60 * SECOND)
    with pytest.raises(DeadlineError, match="wait call within"):
        worker.call("wait", deadline_us=SECOND // 10, until=str(until), mark=str(mark))
    second = worker.call("pid", deadline_us=60 * SECOND)
    assert second != first
    assert isinstance(first, int)
    assert identity(first) is not None, "a worker in the middle of a call must not be killed"
    until.touch()
    await_gone(first)
    assert mark.exists()


def await_gone(pid: int) -> None:
    deadline = time.monotonic() + 60
    while identity(pid) is not None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert identity(pid) is None


def test_death_is_told_and_the_next_call_starts_another(worker: Worker) -> None:
    first = worker.call("pid", deadline_us=60 * SECOND)
    with pytest.raises(WorkerDied, match="signal 9"):
        worker.call("end", deadline_us=60 * SECOND)
    assert worker.call("pid", deadline_us=60 * SECOND) != first


def test_death_in_the_middle_of_an_answer(worker: Worker) -> None:
    with pytest.raises(WorkerDied, match="signal 9"):
        worker.call("break_off", deadline_us=60 * SECOND)


def test_an_entry_that_does_not_exist() -> None:
    with pytest.raises(WorkerDied, match="exit code 1") as caught:
        Worker("no_such_module:Calls").call("pid", deadline_us=60 * SECOND)
    assert caught.value.details == ("ModuleNotFoundError: No module named 'no_such_module'",)


def test_an_unanswered_call_can_be_awaited(worker: Worker, tmp_path: Path) -> None:
    until, mark = tmp_path / "until", tmp_path / "mark"
    worker.call("pid", deadline_us=60 * SECOND)
    threading.Thread(
        target=worker.call,
        args=("wait",),
        kwargs={"deadline_us": 60 * SECOND, "until": str(until), "mark": str(mark)},
    ).start()
    while not any(connection.busy for connection in list(_CONNECTIONS)):
        time.sleep(0.001)
    assert not await_answers(0.05)
    assert not mark.exists()
    until.touch()
    assert await_answers(60)
    assert mark.exists()


def test_a_call_past_its_deadline_is_not_awaited_again(worker: Worker, tmp_path: Path) -> None:
    until, mark = tmp_path / "until", tmp_path / "mark"
    worker.call("pid", deadline_us=60 * SECOND)
    with pytest.raises(DeadlineError):
        worker.call("wait", deadline_us=SECOND // 10, until=str(until), mark=str(mark))
    assert await_answers(60), "it waits for a call that goes on"
    assert not mark.exists()
    until.touch()


def test_what_lies_in_the_current_folder_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = str(Path.cwd())
    for name in ("msgspec", "psutil", "queue", "socket"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('shadowed')")
    monkeypatch.chdir(tmp_path)
    worker = Worker(ENTRY, environment={"PYTHONPATH": here})
    assert worker.call("add", deadline_us=60 * SECOND, left=1, right=1) == 2
    worker.close()


def test_closing_ends_it(worker: Worker) -> None:
    pid = worker.call("pid", deadline_us=60 * SECOND)
    assert isinstance(pid, int)
    assert pid in workers_of(myself())
    worker.close()
    assert identity(pid) is None
    assert pid not in workers_of(myself())
