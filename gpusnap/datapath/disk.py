"""How fast the disk is that memory is saved on."""

import os
import secrets
import time
from pathlib import Path

_SAMPLE = 8 << 20
"""Bytes of the trial: enough to outweigh a disk's latency, few enough for a slow one."""


def durable_cost(folder: Path) -> float:
    """Seconds that it takes to make one written byte durable, tried in a folder.

    Writing into the page cache is not counted; in memory (tmpfs) what is left is next to nothing.
    A folder that cannot be written to costs nothing: whoever writes to it learns why.
    """
    path = folder / f".trial-{secrets.token_hex(8)}"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError:
        return 0.0
    try:
        # Random, so that no file system compresses it.
        written = os.write(descriptor, os.urandom(_SAMPLE))
        begin = time.perf_counter()
        os.fdatasync(descriptor)
        return (time.perf_counter() - begin) / max(written, 1)
    except OSError:
        return 0.0
    finally:
        os.close(descriptor)
        path.unlink(missing_ok=True)
