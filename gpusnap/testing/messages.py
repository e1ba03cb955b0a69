"""The two messages between the driver's caller and the driver thread in the target.

They are files in the folder of the process. The thread only asks whether a request is there,
which opens no descriptor: it may be frozen and dumped at any instant between two requests.
"""

import contextlib
from pathlib import Path

import msgspec

from gpusnap.testing.failures import DriverCall
from gpusnap.testing.machine import read_struct, write_struct


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One driver call.

    Attributes:
        id: Names the file of the answer.
        call: What to do.
        timeout_us: How long a lock may wait for work under way.
        pairs: For a restore, device UUID to the one that replaces it.
    """

    id: str
    call: DriverCall
    timeout_us: int = 0
    pairs: tuple[tuple[str, str], ...] = ()


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """How a call ended: ``error`` names a class of :mod:`gpusnap.testing.errors`, or is None."""

    error: str | None = None
    text: str = ""


def put_request(folder: Path, request: Request) -> None:
    """Place a request; the caller holds the folder's only slot."""
    write_struct(folder / "request.json", request)


def has_request(folder: Path) -> bool:
    """True while a request waits to be taken."""
    return (folder / "request.json").exists()


def withdraw_request(folder: Path) -> bool:
    """Take a request back; False where the process took it first."""
    try:
        (folder / "request.json").unlink()
    except FileNotFoundError:
        return False
    return True


def take_request(folder: Path) -> Request | None:
    """Take the waiting request, if there is one: from now on it cannot be withdrawn."""
    if not has_request(folder):
        return None
    taken = folder / "taken.json"
    with contextlib.suppress(FileNotFoundError):
        (folder / "request.json").replace(taken)
        return read_struct(taken, Request)
    return None


def put_answer(folder: Path, request: Request, answer: Answer) -> None:
    """Answer a request."""
    write_struct(folder / f"answer-{request.id}.json", answer)


def take_answer(folder: Path, request: Request) -> Answer | None:
    """The answer to a request, once; None while there is none."""
    path = folder / f"answer-{request.id}.json"
    answer = read_struct(path, Answer)
    if answer is not None:
        path.unlink(missing_ok=True)
    return answer
