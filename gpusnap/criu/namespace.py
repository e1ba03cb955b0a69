"""A PID and mount namespace to restore into, so that a snapshot can run several times at once.

Inside, every process has the PID that it had when it was saved; outside it has another one. The
namespace begins with a small program of gpusnap's, which reaps, passes signals on to the root
and ends with the root's exit code once nothing else is left. As long as somebody holds its leash,
that program, and with it all that is inside, ends when the holder does.
"""

import os
import select
import signal
import socket
import subprocess
import tempfile
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import msgspec

from gpusnap.criu.built import built_file
from gpusnap.errors import GpusnapError, NotFoundError, PrivilegeError
from gpusnap.target import identity
from gpusnap.types import ProcessId

NAMESPACE_INIT = "gpusnap_init"
"""The name of the first process."""
_GO, _STAY = b"g", b"s"
"""What is told to the first process of a complete tree: that it is free, or stays on its leash."""
END_SECONDS = 30
"""How long the kernel may take to end all that is inside."""
_SPARE = 256
"""PIDs that CRIU and its helpers may take inside."""
_RESERVED = 300
"""The kernel gives away no lower PID once it has begun anew."""


def _program() -> str:
    return str(built_file("init", NAMESPACE_INIT, "The first process of a PID namespace"))


def spare_pids(pids: Collection[int]) -> int:
    """Where the PIDs of CRIU and its helpers may begin without meeting one of a snapshot."""
    begin = _RESERVED
    for pid in sorted(pids):
        if pid > begin + _SPARE:
            break
        begin = max(begin, pid)
    return begin


class Overlay(msgspec.Struct, frozen=True, kw_only=True):
    """A folder that can be written to inside a namespace without changing what others see.

    Attributes:
        folder: The folder, as it is seen everywhere.
        changes: Existing folder that gets what is written inside.
        work: Existing empty folder beside it, for the kernel.
    """

    folder: Path
    changes: Path
    work: Path


class Entrance:
    """A way into the PID and mount namespaces of a process."""

    def __init__(self, pid: int) -> None:
        """Hold it open, whatever becomes of the process.

        Raises:
            NotFoundError: No process has that PID.
        """
        try:
            self._pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            raise NotFoundError(f"No process has PID {pid}") from None

    @property
    def descriptor(self) -> int:
        """What :meth:`joining` needs to be passed."""
        return self._pidfd

    def joining(self, command: Sequence[str]) -> list[str]:
        """The command that runs a command inside and ends as that does."""
        return [_program(), "join", str(self._pidfd), *command]

    def close(self) -> None:
        """Hold it open no longer."""
        os.close(self._pidfd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Leash:
    """Ties what is inside a namespace to this process.

    When it is closed, or the process ends in whatever way, the kernel ends all of it.
    """

    def __init__(self) -> None:
        self._held, self._theirs = socket.socketpair()

    def lend(self) -> socket.socket:
        """The end for the first process of the namespace, to be closed here."""
        return self._theirs

    def ready(self) -> bool:
        """Wait until the first process has begun; False if it ended before."""
        return bool(self._held.recv(1))

    def tell(self, word: bytes) -> None:
        """Tell the first process something."""
        with suppress(BrokenPipeError):
            self._held.send(word, socket.MSG_NOSIGNAL)

    def close(self) -> None:
        """End what is inside, unless it was let go."""
        self._theirs.close()
        self._held.close()


class Namespace(Entrance):
    """A namespace of its own; what is inside ends with the context unless it was let go.

    Attributes:
        init: Its first process, as it is seen from outside: its end is the end of all inside.
    """

    init: ProcessId

    def __init__(self, pids: Sequence[int], leash: Leash | None = None) -> None:
        """Make one.

        Args:
            pids: The PIDs that are wanted inside, those of threads, process groups and sessions
                among them; that of the root first.
            leash: What is inside stays on this one, its owner's, also when it was let go; None
                for one that ends there.

        Raises:
            PrivilegeError: The kernel does not allow it.
            GpusnapError: It cannot be made.
            NotFoundError: Its first process was not built with this installation.
        """
        self._stays, self._complete = leash is not None, False
        self._leash = leash or Leash()
        try:
            self.init = self._begin(pids)
            super().__init__(self.init.pid)
        except BaseException:
            self._leash.close()
            raise

    def _begin(self, pids: Sequence[int]) -> ProcessId:
        """Start the first process; returns who it is once only the leash can end it."""
        with tempfile.TemporaryFile() as errors:
            with self._leash.lend() as theirs:
                started = _start(theirs.fileno(), pids, errors)
            # What it says counts only where it failed: a loader has its say too
            ready = not started.returncode and self._leash.ready()
            init = identity(int(started.stdout)) if ready else None
            if init is None:
                errors.seek(0)
                raise _refused(errors.read().decode(errors="replace").strip())
            return init

    def lay(self, overlay: Overlay) -> None:
        """Put an overlay over a folder inside.

        Raises:
            GpusnapError: The kernel does not do that there.
        """
        options = f"lowerdir={overlay.folder},upperdir={overlay.changes},workdir={overlay.work}"
        command = ["mount", "-t", "overlay", "-o", options, "gpusnap", str(overlay.folder)]
        done = subprocess.run(
            self.joining(command),
            pass_fds=[self.descriptor],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode != 0:
            msg = f"{overlay.folder} cannot be made private: {done.stderr.strip()}"
            raise GpusnapError(msg, cure="Choose a folder on an ordinary filesystem")

    def let_go(self) -> None:
        """From now on it lives as long as anything inside, and its owner's leash if it has one."""
        self._complete = True
        self._leash.tell(_STAY if self._stays else _GO)

    def end(self) -> None:
        """End all that is inside, and wait until it is gone."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        poll.poll(END_SECONDS * 1000)

    def close(self) -> None:
        """Hold it no longer: without :meth:`let_go`, all inside ends."""
        if not (self._stays and self._complete):
            self._leash.close()
        super().close()


def _start(
    leash: int, pids: Sequence[int], errors: IO[bytes]
) -> subprocess.CompletedProcess[bytes]:
    """Start the first process; its PID outside is what this prints."""
    numbers = (str(each) for each in (leash, spare_pids(pids), pids[0]))
    # Its output ends once it has what it needs, or has failed
    return subprocess.run(
        [_program(), "new", *numbers],
        pass_fds=[leash],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=errors,
        check=False,
        # A library that is preloaded into gpusnap has no place in what outlives it
        env={name: value for name, value in os.environ.items() if name != "LD_PRELOAD"},
    )


def _refused(words: str) -> GpusnapError:
    text = f"The kernel does not give gpusnap a PID namespace: {words or 'its init ended'}"
    if words.endswith((os.strerror(1), os.strerror(13))):
        return PrivilegeError(text, cure="Run as root on the machine itself, not in a container")
    return GpusnapError(text, cure="Raise user.max_pid_namespaces, or restore without --new-pids")
