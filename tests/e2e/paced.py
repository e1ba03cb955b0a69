"""The ready-made program, which hurries to its end once a file ``LOG.hurry`` exists.

So a test has as much time as it needs before the end, and does not wait for the end.
"""

import sys
import time
from pathlib import Path
from types import SimpleNamespace

from gpusnap.testing import program


def main() -> None:
    """Run it; the command line is the program's."""
    hurry = Path(sys.argv[1]).with_suffix(".hurry")

    def sleep(seconds: float) -> None:
        if not hurry.exists():
            time.sleep(seconds)

    vars(program)["time"] = SimpleNamespace(monotonic=time.monotonic, sleep=sleep)
    program.main()


if __name__ == "__main__":
    main()
