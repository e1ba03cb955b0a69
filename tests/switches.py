"""A switch for huge pages that is a plain file; quick to import, for programs of tests."""

from collections.abc import Callable

from gpusnap.thp import Switch

VALUES = ("always", "madvise", "never")


class FakeSwitch(Switch):
    """Shows what is written into it as the kernel's does."""

    before_write: Callable[[str], None] | None = None

    def write(self, value: str) -> None:
        if self.before_write is not None:
            self.before_write(value)
        shown = (f"[{each}]" if each == value else each for each in VALUES)
        super().write(" ".join(shown) + "\n")
