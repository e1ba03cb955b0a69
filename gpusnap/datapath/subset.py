"""A part of all chunks, for a check that shall not read everything."""

import random
import re
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from gpusnap.errors import UsageError

_PERCENT = re.compile(r"(\d{1,3}(?:\.\d{1,9})?)%", re.ASCII)
_PART = re.compile(r"(\d{1,9})/(\d{1,9})", re.ASCII)
_ALL = 100.0

_T = TypeVar("_T")


class Subset(msgspec.Struct, frozen=True, kw_only=True):
    """How much is read.

    Attributes:
        percent: So much of all, chosen anew at random each time; None for the part below.
        part: Which of ``of`` parts, from 1. The same part is the same chunks each time, and
            all parts together are everything.
        of: How many parts there are.
    """

    percent: float | None = None
    part: int = 1
    of: int = 1

    def choose(self, items: Sequence[_T]) -> list[_T]:
        """The items of the part, in their order."""
        if self.percent is None:
            return list(items[self.part - 1 :: self.of])
        count = min(len(items), -int(-len(items) * self.percent // _ALL))
        numbers = random.sample(range(len(items)), count)
        return [items[number] for number in sorted(numbers)]


def parse_subset(text: str) -> Subset:
    """Read ``10%`` or ``2/7``, the second of seven parts.

    Raises:
        UsageError: It is neither.
    """
    if (found := _PERCENT.fullmatch(text)) and 0 < (percent := float(found[1])) <= _ALL:
        return Subset(percent=percent)
    if (found := _PART.fullmatch(text)) and 0 < int(found[1]) <= int(found[2]):
        return Subset(part=int(found[1]), of=int(found[2]))
    raise UsageError(f"{text!r} is no part of the data", cure="Give a share, 10%, or a part, 2/7")
