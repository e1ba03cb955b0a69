"""What the program tells its helper, and what that answers before it goes its own way."""

import msgspec

from gpusnap.mailbox import Failure, Mailbox
from gpusnap.plan import CheckpointOptions


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What the helper reads from its standard input.

    Attributes:
        mailbox: Where the program waits, and which program it is.
        output_path: As in :func:`gpusnap.create_checkpoint`, as the next one.
        run: Folder of the ``gpusnap run`` whose job this is, which then says where to save and
            most of the options.
        read_back: Whether the snapshot is read and compared before the answer.
    """

    mailbox: Mailbox
    options: CheckpointOptions
    output_path: str | None = None
    repository: str | None = None
    run: str | None = None
    read_back: bool = False


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What the helper says while it is still the program's child.

    Attributes:
        helper: PID of the process that goes on.
        text: For a recovery, what became of it.
        failure: Why it does not do what was asked.
    """

    helper: int = 0
    text: str = ""
    failure: Failure | None = None
