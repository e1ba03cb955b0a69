"""The program's own end of the mailbox."""

import ctypes
import functools
import mmap
import os

from gpusnap.mailbox import (
    HEADER,
    MAGIC,
    MAILBOX_LENGTH,
    Answer,
    Mailbox,
    MailboxState,
    decode_answer,
)


@functools.cache
def own_box() -> "Box":
    """The one of this program."""
    return Box()


class Box:
    """Private memory of this program in which an answer may appear at any time.

    Looking into it opens no file: the program may be frozen and saved at any instant.
    """

    def __init__(self) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._memory = mmap.mmap(-1, MAILBOX_LENGTH, flags=flags)
        self._first = ctypes.c_char.from_buffer(self._memory)

    def wait(self) -> Mailbox:
        """Be ready for one answer; what comes for an earlier request is refused from now on."""
        nonce = os.urandom(16)
        self._memory[: HEADER.size] = HEADER.pack(MAGIC, nonce, 0, MailboxState.WAITING)
        return Mailbox(
            pid=os.getpid(),
            address=ctypes.addressof(self._first),
            length=MAILBOX_LENGTH,
            nonce=nonce.hex(),
        )

    def read(self) -> Answer | None:
        """The answer, once there is one."""
        _, _, length, state = HEADER.unpack(self._memory[: HEADER.size])
        if state != MailboxState.ANSWERED:
            return None
        return decode_answer(self._memory[HEADER.size : HEADER.size + length])

    def close(self) -> None:
        """Wait no longer; a snapshot in which this program waited can be restored all the same."""
        magic, nonce, _, _ = HEADER.unpack(self._memory[: HEADER.size])
        self._memory[: HEADER.size] = HEADER.pack(magic, nonce, 0, MailboxState.IDLE)
