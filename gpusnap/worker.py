"""A long-lived process that makes a backend's driver calls.

A driver call may never return and may take the process that made it down with it. So backends
make theirs here, in a process of its own, each under a deadline. A worker that misses a
deadline is left alone, not killed: killing a caller in the middle of a driver call can
desynchronise the target for good. It ends by itself when its calls have returned.
"""

import contextlib
import importlib
import itertools
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import cast

import msgspec
import psutil

from gpusnap.errors import DeadlineError, GpusnapError
from gpusnap.target import myself
from gpusnap.types import ProcessId

_MODULE = "gpusnap.worker"


class WorkerError(GpusnapError):
    """A method of the worker raised.

    Attributes:
        kind: Name of the exception's class.
        value: The exception's arguments.
    """

    exit_code = 19

    def __init__(self, text: str, *, kind: str, value: list[object]) -> None:
        super().__init__(text)
        self.kind = kind
        self.value = value


class WorkerDied(GpusnapError):
    """The worker process ended before it answered; the outcome of its calls is unknown."""

    exit_code = 19


class _Request(msgspec.Struct):
    id: int
    method: str
    arguments: dict[str, object]


class _Failure(msgspec.Struct):
    text: str
    kind: str
    value: list[object]


class _Response(msgspec.Struct):
    id: int
    result: object = None
    failure: _Failure | None = None


_CONNECTIONS: "weakref.WeakSet[_Connection]" = weakref.WeakSet()


class _Connection:
    """One worker process and the answers still owed by it."""

    def __init__(self, entry: str, environment: Mapping[str, str]) -> None:
        ours, theirs = socket.socketpair()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the worker has ended
        owner = owner_mark(myself())
        with theirs:
            self._process = subprocess.Popen(
                # -P: what lies in the current folder must not be imported, least of all by root.
                [sys.executable, "-P", "-m", _MODULE, entry, str(theirs.fileno()), owner],
                pass_fds=[theirs.fileno()],
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                # Not ours: a worker that outlives gpusnap must not keep a pipe of its open.
                stderr=self._errors,
                # Its own session: an interrupt typed at a terminal must not reach a driver call.
                start_new_session=True,
            )
        self._socket = ours
        self._lock = threading.Lock()
        self._owed: dict[int, Future[_Response]] = {}
        self._abandoned = False
        self.open = True
        _CONNECTIONS.add(self)
        threading.Thread(target=self._receive, daemon=True, name="gpusnap-worker").start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _receive(self) -> None:
        with self._socket, self._socket.makefile("rb") as lines, contextlib.suppress(OSError):
            for line in lines:
                try:
                    response = msgspec.json.decode(line, type=_Response)
                except msgspec.DecodeError:  # cut off by its end
                    break
                with self._lock:
                    future = self._owed.pop(response.id, None)
                if future is not None:
                    future.set_result(response)
        with self._lock:
            self.open = False
            owed, self._owed = self._owed, {}
        code = self._process.wait()
        for future in owed.values():
            text = f"The driver worker ended ({_ending(code)})"
            future.set_exception(WorkerDied(text, details=self._last_words()))
        self._errors.close()

    def _last_words(self) -> list[str]:
        """The last line the worker printed as an error: of a traceback, what was raised."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").splitlines()[-1:]

    def send(self, request: _Request) -> "Future[_Response]":
        future: Future[_Response] = Future()
        with self._lock:
            if not self.open:
                msg = "The driver worker has ended"
                raise WorkerDied(msg)
            self._owed[request.id] = future
            with contextlib.suppress(OSError):
                self._socket.sendall(msgspec.json.encode(request) + b"\n")
        return future

    @property
    def busy(self) -> bool:
        """True while an answer is owed that may still be waited for."""
        return bool(self._owed) and not self._abandoned

    def abandon(self) -> None:
        """Close our end: the worker ends once its calls have returned."""
        self._abandoned = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.abandon()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)


def await_answers(timeout_s: float = 120.0) -> bool:
    """Wait for calls whose caller was interrupted, as by Ctrl-C, and no longer waits itself.

    A rollback that read states before such a call took effect would be undone by it. Calls
    that missed their deadline are not waited for again.

    Returns:
        Whether all have been answered.
    """
    deadline = time.monotonic() + timeout_s
    while any(connection.busy for connection in list(_CONNECTIONS)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def owner_mark(owner: ProcessId) -> str:
    """What a worker's command line ends with, so that a recovery finds those of a dead gpusnap."""
    return f"{owner.pid}-{owner.start_ticks}"


def workers_of(owner: ProcessId) -> tuple[int, ...]:
    """PIDs of the worker processes that a gpusnap process started and that still run."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if _MODULE in command and command[-1] == owner_mark(owner):
            found.append(process.pid)
    return tuple(found)


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


class Worker:
    """Calls the methods of an object that lives in a process of its own.

    Several threads may call at once; each request runs in a thread of the worker.
    """

    def __init__(self, entry: str, *, environment: Mapping[str, str] | None = None) -> None:
        """Name the object; the process starts with the first call.

        Args:
            entry: ``package.module:factory``; the factory is called in the worker.
            environment: Variables added to the worker's environment.
        """
        self._entry = entry
        self._environment = dict(environment or {})
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._connection: _Connection | None = None

    @property
    def pid(self) -> int | None:
        """PID of the worker process, None before the first call."""
        connection = self._connection
        return connection.pid if connection is not None and connection.open else None

    def _connect(self) -> _Connection:
        with self._lock:
            if self._connection is None or not self._connection.open:
                self._connection = _Connection(self._entry, self._environment)
            return self._connection

    def call(self, method: str, /, *, deadline_us: int, **arguments: object) -> object:
        """Call a method in the worker.

        Args:
            method: Its name.
            deadline_us: How long to wait for the answer, in microseconds.
            **arguments: Its arguments: whatever JSON can hold.

        Returns:
            What the method returned.

        Raises:
            WorkerError: The method raised.
            DeadlineError: No answer in time. The call may still be under way.
            WorkerDied: The process ended first. The outcome is unknown.
        """
        connection = self._connect()
        request = _Request(next(self._numbers), method, arguments)
        future = connection.send(request)
        try:
            response = future.result(deadline_us / 1e6)
        except FutureTimeout:
            self._forget(connection)
            msg = f"The driver did not answer a {method} call within {deadline_us / 1e6:g} s"
            raise DeadlineError(msg) from None
        if response.failure is not None:
            failure = response.failure
            raise WorkerError(failure.text, kind=failure.kind, value=failure.value)
        return response.result

    def _forget(self, connection: _Connection) -> None:
        with self._lock:
            if self._connection is connection:
                self._connection = None
        connection.abandon()

    def close(self) -> None:
        """End the worker once its calls have returned; a later call starts a new one."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _answer(target: object, request: _Request) -> _Response:
    try:
        result = getattr(target, request.method)(**request.arguments)
        return _Response(request.id, result=msgspec.to_builtins(result))
    except Exception as error:  # noqa: BLE001 - carried to the caller, whatever it is
        value = [msgspec.to_builtins(part, enc_hook=str) for part in error.args]
        failure = _Failure(str(error) or type(error).__name__, type(error).__name__, value)
        return _Response(request.id, failure=failure)


def _requests(connection: socket.socket) -> Iterator[_Request]:
    with connection.makefile("rb") as lines:
        for line in lines:
            yield msgspec.json.decode(line, type=_Request)


def _serve(entry: str, connection: socket.socket) -> None:
    module, _, factory = entry.partition(":")
    target = cast("object", getattr(importlib.import_module(module), factory)())
    lock = threading.Lock()

    def run(request: _Request) -> None:
        line = msgspec.json.encode(_answer(target, request)) + b"\n"
        with lock, contextlib.suppress(OSError):
            connection.sendall(line)

    threads = []
    for request in _requests(connection):
        thread = threading.Thread(target=run, args=(request,))
        thread.start()
        threads.append(thread)
    # The other end is gone: calls under way are finished, never cut short.
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    _serve(sys.argv[1], socket.socket(fileno=int(sys.argv[2])))
