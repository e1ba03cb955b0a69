"""How a program that asks for its own checkpoint hears what came of it.

The mailbox is private memory of that program. Nothing else may join it to the gpusnap that saves
it: a pipe, a socket or a file would have to be saved too. The program writes down that it waits,
and looks until somebody has written the answer into its memory: the gpusnap that saved it, or the
one that restores it, since the snapshot holds the program as it waits.

Layout, little-endian: magic (8 bytes), nonce (16 bytes), length of the answer and state (4 bytes
each), then the answer as JSON.
"""

import struct
from contextlib import suppress
from enum import IntEnum
from pkgutil import resolve_name
from typing import Annotated, Literal, Self

import msgspec
from msgspec import Meta

from gpusnap.errors import DeviceError, GpusnapError, IntegrityError
from gpusnap.native import MemoryFault, read_process, write_process
from gpusnap.types import DeviceState

MAGIC = b"gpusnap\x01"
HEADER = struct.Struct("<8s16sII")
MAILBOX_LENGTH = 1 << 16
"""Bytes of a mailbox."""

_LENGTH_AT = 24
_STATE_AT = 28
_WORD = struct.Struct("<I")
_LONGEST = 1 << 20
_SHORT = 4096
"""Characters of a failure's text that fit into any mailbox, whatever they are."""
_ADDRESSES = 1 << 57
"""No processor gives a process more."""


class MailboxState(IntEnum):
    """What a mailbox is doing."""

    IDLE = 0
    WAITING = 1
    ANSWERED = 2
    ASKING = 3
    """The program does not yet know who helps it, and could not end that helper."""


class Mailbox(msgspec.Struct, frozen=True, kw_only=True):
    """Where a program waits for an answer.

    Attributes:
        pid: The program, by the PID that it sees itself.
        address: Where in its memory the mailbox begins.
        length: Bytes of the mailbox.
        nonce: 32 hexadecimal digits that stand in it for this one answer.
    """

    pid: Annotated[int, Meta(ge=1)]
    address: Annotated[int, Meta(ge=0, lt=_ADDRESSES)]
    length: Annotated[int, Meta(gt=HEADER.size, le=_LONGEST)]
    nonce: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]

    @property
    def room(self) -> int:
        """Bytes that an answer may have."""
        return self.length - HEADER.size


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """An error on its way to the program.

    Attributes:
        kinds: Its class and those above it up to GpusnapError, each as ``module:name``.
        pid: For an error of the device, the process it is about.
        state: Likewise, that process's state in the driver.
    """

    kinds: tuple[str, ...]
    text: str
    cure: str | None = None
    details: tuple[str, ...] = ()
    pid: int | None = None
    state: DeviceState | None = None

    @classmethod
    def of(cls, error: GpusnapError) -> Self:
        """Describe an error."""
        kinds = (kind for kind in type(error).__mro__ if issubclass(kind, GpusnapError))
        return cls(
            kinds=tuple(f"{kind.__module__}:{kind.__qualname__}" for kind in kinds),
            text=_plain(error.text),
            cure=None if error.cure is None else _plain(error.cure),
            details=tuple(map(_plain, error.details)),
            pid=error.pid if isinstance(error, DeviceError) else None,
            state=error.state if isinstance(error, DeviceError) else None,
        )

    def error(self) -> GpusnapError:
        """The error again, of its class or the nearest one above that can be made of this."""
        more = {} if self.pid is None else {"pid": self.pid, "state": self.state}
        for kind in self.kinds:
            with suppress(ImportError, AttributeError, TypeError):
                made = resolve_name(kind)(self.text, cure=self.cure, details=self.details, **more)
                if isinstance(made, GpusnapError):
                    return made
        return GpusnapError(self.text, cure=self.cure, details=self.details)


def _plain(text: str) -> str:
    """A text fit for UTF-8: names of files and programs may hold any bytes."""
    return text.encode(errors="backslashreplace").decode()


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a program is told.

    Attributes:
        path: The snapshot's folder.
        devices: UUIDs of the devices that the program now uses.
        overrides: Values that whoever restores hands over.
        failure: Why there is no snapshot.
    """

    outcome: Literal["saved", "restored", "failed"]
    path: str = ""
    devices: tuple[str, ...] = ()
    overrides: dict[str, str] = {}
    failure: Failure | None = None


def decode_answer(data: bytes) -> Answer:
    """Read an answer; raises msgspec.DecodeError for what is none."""
    return msgspec.json.decode(data, type=Answer)


def encode_answer(answer: Answer, room: int = MAILBOX_LENGTH - HEADER.size) -> bytes:
    """An answer as JSON.

    Args:
        answer: The answer.
        room: Bytes that it may have; a failure is told in fewer words where it is longer.

    Raises:
        IntegrityError: It does not fit.
    """
    data = msgspec.json.encode(answer)
    if len(data) > room and answer.failure is not None:
        text, cure = answer.failure.text[:_SHORT], (answer.failure.cure or "")[:_SHORT] or None
        short = msgspec.structs.replace(answer.failure, text=text, cure=cure, details=())
        data = msgspec.json.encode(msgspec.structs.replace(answer, failure=short))
    if len(data) > room:
        raise IntegrityError(f"An answer of {len(data)} bytes does not fit into a mailbox")
    return data


def read_state(pid: int, mailbox: Mailbox) -> MailboxState | None:
    """What a program's mailbox is doing; None for something that no gpusnap writes.

    Args:
        pid: The program's PID here.
        mailbox: The mailbox.

    Raises:
        IntegrityError: There is no such mailbox.
    """
    header = bytearray(HEADER.size)
    try:
        read_process(pid, mailbox.address, header, checksum=False)
    except MemoryFault as error:
        raise _no_mailbox(pid, mailbox, error.reason) from error
    magic, nonce, _, state = HEADER.unpack(header)
    if (magic, nonce.hex()) != (MAGIC, mailbox.nonce):
        raise _no_mailbox(pid, mailbox, "something else is there")
    return MailboxState(state) if state in set(MailboxState) else None


def _no_mailbox(pid: int, mailbox: Mailbox, reason: str) -> IntegrityError:
    return IntegrityError(f"Process {pid} has no mailbox at {mailbox.address:#x}: {reason}")


def write_answer(pid: int, mailbox: Mailbox, answer: Answer) -> None:
    """Tell a program what came of its checkpoint.

    Args:
        pid: The program's PID here.
        mailbox: Where it waits.
        answer: What it is told.

    Raises:
        IntegrityError: There is no such mailbox, or the answer does not fit into it.
    """
    data = encode_answer(answer, mailbox.room)
    read_state(pid, mailbox)
    try:
        write_process(pid, mailbox.address + HEADER.size, data)
        write_process(pid, mailbox.address + _LENGTH_AT, _WORD.pack(len(data)))
        # Last: whoever sees this state finds the rest in place
        write_process(pid, mailbox.address + _STATE_AT, _WORD.pack(MailboxState.ANSWERED))
    except MemoryFault as error:
        raise _no_mailbox(pid, mailbox, error.reason) from error
