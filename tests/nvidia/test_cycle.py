"""Lock, checkpoint, criu dump, kill, criu restore, restore, unlock: with the real CRIU."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusnap.criu import DumpRequest, RestoreRequest, Session, search_criu
from gpusnap.errors import CriuError
from gpusnap.types import DeviceMap, DeviceState
from gpusnap_nvidia import NvidiaBackend
from tests.nvidia.machine import Program, SimulatedMachine, await_true

LOCK_US = 5_000_000
CRIU_US = 60_000_000


@pytest.fixture
def criu(root: None, tmp_path: Path) -> Iterator["Criu"]:
    found = search_criu().criu
    if found is None:
        pytest.fail("No CRIU that works: run gpusnap setup-criu")
    return Criu(Session(found), tmp_path)


class Criu:
    """Dumps into a folder and restores from it."""

    def __init__(self, session: Session, folder: Path) -> None:
        self._session = session
        self._images, self._work = folder / "images", folder / "work"
        self._images.mkdir()
        self._work.mkdir()

    def dump(self, pid: int) -> None:
        request = DumpRequest(
            pid=pid,
            images=self._images,
            work=self._work,
            leave_running=False,
            timeout_us=CRIU_US,
        )
        self._session.dump(request, lambda _stage, _pid: True)

    def restore(self) -> int:
        request = RestoreRequest(images=self._images, work=self._work, timeout_us=CRIU_US)
        return self._session.restore(request, lambda _stage, _pid: True)


def ignore(_done: int, _total: int) -> None:
    """For calls whose progress is not under test."""


def resume(backend: NvidiaBackend, pid: int, devices: DeviceMap) -> None:
    assert backend.gpusnap_restore((pid,), devices, ignore) == {pid: DeviceState.LOCKED}
    assert backend.gpusnap_unlock((pid,)) == {pid: DeviceState.RUNNING}
