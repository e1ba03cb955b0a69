"""What a test leaves open, whatever other threads of its process open and close meanwhile."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress


def descriptors() -> set[tuple[int, str]]:
    """Each open descriptor of this process with what it is of; the one for looking is left out."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the look's own, or another thread's, closed since
            found.add((int(name), os.readlink(f"/proc/self/fd/{name}")))
    return found


@contextmanager
def none_left_open() -> Iterator[None]:
    """What is opened inside is closed at the end, or by others soon after.

    The simulated libcuda, once a test has loaded it, has a thread that opens
    a folder again and again: a descriptor seen once says nothing.
    """
    before = descriptors()
    yield
    left = descriptors() - before
    until = time.monotonic() + 5
    while left and time.monotonic() < until:
        time.sleep(0.01)
        left &= descriptors()
    assert not left
