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

    def ask(self) -> Mailbox:
        """Have a new place for one answer; what comes for an earlier request is refused."""
        nonce = os.urandom(16)
        self._memory[: HEADER.size] = HEADER.pack(MAGIC, nonce, 0, MailboxState.ASKING)
        return Mailbox(
            pid=os.getpid(),
            address=ctypes.addressof(self._first),
            length=MAILBOX_LENGTH,
            nonce=nonce.hex(),
        )

    def wait(self) -> None:
        """Let the helper begin, which the program now can end."""
        self._change(MailboxState.WAITING)

    def close(self) -> None:
        """Wait no longer; a snapshot in which this program waited can be restored all the same."""
        self._change(MailboxState.IDLE)

    def _change(self, state: MailboxState) -> None:
        magic, nonce, _, _ = HEADER.unpack(self._memory[: HEADER.size])
        self._memory[: HEADER.size] = HEADER.pack(magic, nonce, 0, state)

    def read(self) -> Answer | None:
        """The answer, once there is one."""
        # The rest is looked at after the state, which is written last
        for _ in range(2):
            _, _, length, state = HEADER.unpack(self._memory[: HEADER.size])
            if state != MailboxState.ANSWERED:
                return None
        return decode_answer(self._memory[HEADER.size : HEADER.size + length])
