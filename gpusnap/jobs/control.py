"""The control socket of a run: here its job asks for a checkpoint that it cannot make itself.

A job in a PID namespace of its own sees neither the PIDs by which its run knows it nor whoever
saves it from outside. So the helper of a program there hands the request over to the gpusnap that
supervises the run, and waits for the answer. Both are JSON, each up to the end of what is sent.
"""

import contextlib
import os
import select
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from gpusnap.errors import GpusnapError
from gpusnap.inprocess.messages import Request
from gpusnap.inprocess.serving import answered, carry_out, failed
from gpusnap.jobs.record import read_run
from gpusnap.mailbox import Answer
from gpusnap.pids import map_of
from gpusnap.plugins import Plugins
from gpusnap.target import pid_namespace

_NAME = "control"
_SAY_S = 10.0
"""How long whoever asks may take to say what."""
_LOOK_S = 0.5
_PIECE = 1 << 16
_CREDENTIALS = struct.Struct("iII")
"""struct ucred: PID, user and group of the other end."""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """The reply; without an answer whoever asked is none of the run's job, but a copy of it."""

    answer: Answer | None = None


class Control:
    """The socket, in the run's folder; where the file system has no sockets nobody can ask.

    Args:
        folder: The run's, which this gpusnap supervises.
        plugins: The plugins to save with.
    """

    def __init__(self, folder: Path, plugins: Plugins) -> None:
        self._folder = folder
        self._plugins = plugins
        self._socket: socket.socket | None = None
        with contextlib.suppress(OSError):
            self._socket = self._listen()

    def _listen(self) -> socket.socket:
        (self._folder / _NAME).unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with _address(self._folder) as address:
                listening.bind(address)
            listening.listen()
            listening.settimeout(0)
        except OSError:
            listening.close()
            raise
        return listening

    def asked(self) -> Callable[[], None] | None:
        """What answers the next who asks, for a thread; None where nobody does."""
        if self._socket is None:
            return None
        try:
            connection, _ = self._socket.accept()
        except OSError:
            return None
        return lambda: self._serve(connection)

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, msgspec.DecodeError):
            connection.settimeout(_SAY_S)
            request = msgspec.json.decode(_read(connection), type=Request)
            connection.sendall(msgspec.json.encode(self._told(request, _peer(connection))))

    def _told(self, request: Request, peer: int) -> Told:
        try:
            root = read_run(self._folder).root
        except GpusnapError as error:
            return Told(answer=failed(error))
        if root is None or pid_namespace(peer) != pid_namespace(root.pid):
            return Told()
        if request.run is not None:
            request = msgspec.structs.replace(request, run=str(self._folder))
        inside = map_of(root.pid)
        return Told(
            answer=answered(
                lambda: carry_out(request, inside.translate(request.mailbox.pid), self._plugins)
            )
        )

    def close(self) -> None:
        """Listen no more."""
        if self._socket is not None:
            self._socket.close()
            with contextlib.suppress(OSError):
                (self._folder / _NAME).unlink()


def ask(folder: Path, request: Request, is_wanted: Callable[[], object]) -> Told | None:
    """Have the gpusnap that supervises a run carry out a request.

    Args:
        folder: The run's.
        request: What the program asks for.
        is_wanted: Called now and then while that lasts; what it raises ends the waiting.

    Returns:
        The reply; None where nobody supervises the run.

    Raises:
        GpusnapError: That gpusnap ended before it could reply.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            with _address(folder) as address:
                connection.connect(address)
        except OSError:
            return None
        try:
            connection.sendall(msgspec.json.encode(request))
            connection.shutdown(socket.SHUT_WR)
            _await(connection, is_wanted)
            return msgspec.json.decode(_read(connection), type=Told)
        except (OSError, msgspec.DecodeError):
            msg = f"The gpusnap that supervises the run {folder.name} ended while it saved it"
            cure = f"Run gpusnap run --name {folder.name}, which follows the job again"
            raise GpusnapError(msg, cure=cure) from None


def _await(connection: socket.socket, is_wanted: Callable[[], object]) -> None:
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    while not poll.poll(_LOOK_S * 1000):
        is_wanted()


@contextlib.contextmanager
def _address(folder: Path) -> Iterator[str]:
    """A name of the socket that is never too long for one."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{_NAME}"
    finally:
        os.close(descriptor)


def _read(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(_PIECE), b""))


def _peer(connection: socket.socket) -> int:
    """The PID here of whoever asks; 0 for one that has none."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, _user, _group = _CREDENTIALS.unpack(data)
    return int(pid)
