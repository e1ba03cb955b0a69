"""Computes on a simulated device until a file appears: ``python program.py STOP [DEVICE]``.

Standard output is that of ``gpusnap.testing.program`` with as many steps as it came to.
"""

import functools
import hashlib
import os
import sys
import time

from gpusnap.testing.device import SimulatedDevice
from gpusnap.testing.program import HostState, initial_bytes, mix

MEMORY = 16 * 4096
STEP_S = 0.005


def main(stop: str, index: int) -> None:
    device = SimulatedDevice.open(index)
    buffer = device.allocate(MEMORY)
    for offset, piece in initial_bytes("device", MEMORY):
        buffer.copy_in(piece, offset)
    host = HostState(MEMORY)
    step = 0
    while not os.path.exists(stop):  # noqa: PTH110 - it opens nothing
        checksum = device.launch(functools.partial(mix, step=step, seed=host.seed), buffer)
        print(f"{step} {host.absorb(step, checksum):08x}", flush=True)
        step += 1
        time.sleep(STEP_S)
    digest = hashlib.sha256()
    device.launch(digest.update, buffer)
    digest.update(host.memory)
    print(f"done {digest.hexdigest()}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0)
