"""A switch for huge pages that is a plain file; quick to import, for programs of tests."""

import contextlib
import fcntl
from collections.abc import Callable, Iterator

from gpusnap.thp import SWITCH, Switch

VALUES = ("always", "madvise", "never")


@contextlib.contextmanager
def real_switch(lock: int) -> Iterator[None]:
    """Have the machine's switch among tests that run beside.

    Args:
        lock: ``fcntl.LOCK_EX`` to set it; ``fcntl.LOCK_SH`` to count pages, which depend on it.
    """
    with contextlib.ExitStack() as stack:
        if SWITCH.path.exists():
            fcntl.flock(stack.enter_context(SWITCH.path.open()), lock)
        yield


class FakeSwitch(Switch):
    """Shows what is written into it as the kernel's does."""

    before_write: Callable[[str], None] | None = None

    def write(self, value: str) -> None:
        if self.before_write is not None:
            self.before_write(value)
        shown = (f"[{each}]" if each == value else each for each in VALUES)
        super().write(" ".join(shown) + "\n")
