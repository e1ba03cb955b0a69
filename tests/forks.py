"""A program that does what it is told to its memory, and forks children that stand still."""

import json
import os
import signal
import subprocess
import sys
from types import TracebackType
from typing import Self

PROGRAM = '''
import json, os, signal, sys
from tests.native.mapping import PAGE, Mapping

def fill(mapping, first=0):
    """Page by page: what is as large as all of it would leave a large heap behind."""
    for page in range(first, mapping.pages):
        mapping.write(page * PAGE, bytes([1]) * PAGE)

def fork(action=lambda: None):
    ready, done = os.pipe()
    pid = os.fork()
    if pid == 0:
        action()
        os.write(done, b".")
        signal.pause()
    os.read(ready, 1)
    return pid

print("{}", flush=True)
for line in sys.stdin:
    result = None
    exec(line, globals())
    print(json.dumps(result), flush=True)
'''


class Forks:
    """The program; its children are of its session and end with it."""

    def __init__(self) -> None:
        self._program = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        self.pid = self._program.pid
        self._answer()

    def do(self, line: str) -> int:
        """Have it run a line of Python; returns what that left in ``result``."""
        assert self._program.stdin is not None
        self._program.stdin.write(line + "\n")
        self._program.stdin.flush()
        return self._answer()

    def _answer(self) -> int:
        assert self._program.stdout is not None
        answer: int = json.loads(self._program.stdout.readline())
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.killpg(self.pid, signal.SIGKILL)
        self._program.communicate()
