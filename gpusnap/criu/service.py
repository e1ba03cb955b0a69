"""One `criu swrk` process and the socket that gpusnap speaks to it through."""

import os
import select
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from google.protobuf.message import DecodeError, EncodeError

from gpusnap.criu import rpc_pb2
from gpusnap.criu.find import Criu
from gpusnap.criu.namespace import Entrance
from gpusnap.criu.request import (
    NO_PLUGINS,
    CriuRequest,
    DumpRequest,
    global_arguments,
    inside_arguments,
)
from gpusnap.errors import CriuError

MESSAGE_BYTES = 1 << 16
"""CRIU's messages are a few hundred bytes."""
UNDO_SECONDS = 30
"""How long a dump may take to undo what it has begun before CRIU is killed."""
GRACE_SECONDS = 5
"""How long CRIU may take to end once it has answered, or was asked to."""


class Service:
    """A running `criu swrk`, ended and reaped when the context ends.

    The process runs in a session of its own, so that a Ctrl-C reaches gpusnap alone; a job of
    a shell is the exception, since CRIU then needs the terminal. It is not killed when gpusnap
    dies: it then fails at its next notification and undoes what it did.
    """

    def __init__(
        self,
        criu: Criu,
        request: CriuRequest,
        folders: tuple[int, int],
        namespace: Entrance | None = None,
    ) -> None:
        """Start it.

        Args:
            criu: The CRIU to run.
            request: What it will be asked for.
            folders: Open descriptors of the images and of the work folder.
            namespace: Where it runs; None for here.
        """
        self._dumps = isinstance(request, DumpRequest)
        self._leads_session = not request.shell_job
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the service
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                descriptors = [theirs.fileno()]
                command = [*criu.command, *global_arguments(request)]
                if namespace is not None:
                    descriptors += [*folders, namespace.descriptor]
                    command = namespace.joining([*command, *inside_arguments(folders[1])])
                command += ["swrk", str(theirs.fileno())]
                self._process = self._spawn(command, request, descriptors)
            except BaseException:
                self._close()
                raise
        # It cannot be gone already: it stays a zombie until it is waited for
        self._pidfd = os.pidfd_open(self._process.pid)
        if self._dumps:
            _spare_from_oom_killer(self._process.pid)

    def _spawn(
        self, command: list[str], request: CriuRequest, descriptors: list[int]
    ) -> subprocess.Popen[bytes]:
        try:
            (request.work / NO_PLUGINS).mkdir(exist_ok=True)
            return subprocess.Popen(
                command,
                pass_fds=descriptors,
                stdin=None if request.shell_job else subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                env=_environment(request),
                start_new_session=self._leads_session,
            )
        except OSError as error:
            raise CriuError(f"CRIU cannot be started: {error}") from error

    @property
    def leads_session(self) -> bool:
        """Whether the processes of its session are all its own."""
        return self._leads_session

    @property
    def pid(self) -> int:
        """The PID of the process."""
        return self._process.pid

    def send(self, request: rpc_pb2.Request) -> None:
        """Send one message; a dead CRIU is noticed when its answer is read."""
        try:
            data = request.SerializeToString()
        except EncodeError as error:
            raise CriuError(f"CRIU cannot be asked this: {error}") from error
        with suppress(BrokenPipeError, ConnectionResetError):
            self._socket.send(data, socket.MSG_NOSIGNAL)

    def receive(self, deadline: float) -> rpc_pb2.Response | None:
        """The next message; None once the process has ended without another one.

        Raises:
            TimeoutError: ``deadline`` (of ``time.monotonic``) has passed.
            CriuError: It is no message of the protocol.
        """
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._pidfd, select.POLLIN)
        ready = poll.poll(max(0, deadline - time.monotonic()) * 1000)
        if not ready:
            raise TimeoutError
        # Half-restored children of a dead CRIU may hold its end of the socket open, so
        # that the end of the process counts, not that of the connection
        with suppress(BlockingIOError, ConnectionResetError):
            data, ancillary, flags, _ = self._socket.recvmsg(
                MESSAGE_BYTES, socket.CMSG_SPACE(64), socket.MSG_DONTWAIT
            )
            _close_received(ancillary)
            if data:
                return _decode(data, flags)
        return None

    def wait(self, seconds: float) -> int | None:
        """The exit status (negative: a signal); None if it did not end within ``seconds``."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def output(self) -> str:
        """What it wrote to its standard output and error so far."""
        self._output.seek(0)
        return self._output.read().decode(errors="replace")

    def stop(self) -> None:
        """End it, if it still runs, with the target as it was.

        A dump fails at its next notification once nobody listens, and undoes what it did. It
        is given time for that, because a CRIU that is killed while it runs code inside the
        target can take the target with it.
        """
        self._socket.close()
        if self._dumps and self.wait(UNDO_SECONDS) is not None:
            return
        if self._process.poll() is None:
            # CRIU does no more at a SIGTERM
            self._process.kill()
            self.wait(GRACE_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        self._close()
        os.close(self._pidfd)

    def _close(self) -> None:
        self._socket.close()
        self._output.close()


def _spare_from_oom_killer(pid: int) -> None:
    """Have the kernel end others first where memory runs out.

    A CRIU that is killed while it runs code inside the target takes the target with it.
    """
    with suppress(OSError):  # needs CAP_SYS_RESOURCE; a dump is no worse than before without
        Path(f"/proc/{pid}/oom_score_adj").write_text("-1000")
        # Where CRIU runs in a namespace, it is the child of the one that waits for it here
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            Path(f"/proc/{child}/oom_score_adj").write_text("-1000")


def _environment(request: CriuRequest) -> dict[str, str]:
    # A library preloaded into gpusnap was built for another libc than a private CRIU's
    inherited = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    inherited.pop("CRIU_CONFIG_FILE", None)
    added = dict(request.options.environment)
    if "PATH" in added and "PATH" in inherited:
        added["PATH"] = f"{added['PATH']}{os.pathsep}{inherited['PATH']}"
    return inherited | added


def _close_received(ancillary: list[tuple[int, int, bytes]]) -> None:
    """Close descriptors that came with a message: gpusnap asks for none."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            for start in range(0, len(data) - len(data) % 4, 4):
                os.close(int.from_bytes(data[start : start + 4], "little"))


def _decode(data: bytes, flags: int) -> rpc_pb2.Response:
    if flags & socket.MSG_TRUNC:
        raise CriuError("CRIU sent a message that is too long")
    try:
        response = rpc_pb2.Response.FromString(data)
    except DecodeError as error:
        raise CriuError("CRIU sent a message that is not of its protocol") from error
    if not response.IsInitialized():
        raise CriuError("CRIU sent a message that lacks a part")
    return response


@contextmanager
def open_folder(path: os.PathLike[str]) -> Iterator[int]:
    """A descriptor of a folder, for CRIU to reach through gpusnap's own /proc entry."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise CriuError(f"{os.fspath(path)} cannot be opened: {error.strerror}") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)
