"""The real CRIU, and a backend whose plugin left device memory in an image of its own."""

import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpusnap
from gpusnap.checkpoint import run_checkpoint
from gpusnap.errors import IntegrityError
from gpusnap.events import CriuNotified, Event
from gpusnap.hookspecs import hookimpl
from gpusnap.plan import CheckpointOptions, plan_checkpoint
from gpusnap.plugins import Plugins
from gpusnap.target import alive, identity
from gpusnap.types import BulkImage, CriuOptions, Finding
from tests.e2e.jobs import start_detached
from tests.e2e.test_engine import PluginBackend

PAGES = "vendor-pages.img"
HEADER, BUFFER = b"headline", random.Random(1).randbytes(3 << 20)


class BulkBackend(PluginBackend):
    """Writes the image at a dump, in place of a plugin, and looks for it at a restore."""

    def __init__(self) -> None:
        super().__init__(CriuOptions())
        self.parts: tuple[bytes, ...] = (HEADER, BUFFER)
        self.seen: list[bytes] = []

    @hookimpl
    def gpusnap_verify_images(self, directory: str) -> tuple[Finding, ...]:
        Path(directory, PAGES).write_bytes(b"".join(self.parts))
        return ()

    @hookimpl
    def gpusnap_bulk_images(self, directory: str) -> tuple[BulkImage, ...]:
        return (BulkImage(name=PAGES, parts=tuple(map(len, self.parts))),)

    @hookimpl
    def gpusnap_event(self, event: Event) -> None:
        if isinstance(event, CriuNotified) and event.script == "post-restore":
            found = Path(tempfile.gettempdir()).glob(f"gpusnap-restore-*/images/{PAGES}")
            self.seen += [path.read_bytes() for path in found]


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("GPUSNAP_STATE_DIR", str(tmp_path / "state"))
    return folder


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[int]:
    start_detached(["sleep", "600"], tmp_path / "pid", dict(os.environ))
    pid = int((tmp_path / "pid").read_text())
    yield pid
    if runs(pid):
        os.kill(pid, 9)


def runs(pid: int) -> bool:
    found = identity(pid)
    return found is not None and alive(found)


def test_a_whole_life(sleeper: int, tmp_path: Path, temporary: Path) -> None:
    backend = BulkBackend()
    plugins = Plugins()
    plugins.register(backend, "bulk", is_backend=True)
    repository = tmp_path / "repository"
    left = CheckpointOptions(regions=False)
    plain = run_checkpoint(sleeper, repository / "plain", options=left, plugins=plugins)
    assert (plain.images / PAGES).read_bytes() == HEADER + BUFFER
    assert plain.manifest.memory is None
    packed = plan_checkpoint(sleeper, repository / "x", plugins=plugins).estimated_bytes
    unpacked = plan_checkpoint(sleeper, repository / "x", options=left, plugins=plugins)
    assert packed >= unpacked.estimated_bytes

    def save(name: str, *, leave_running: bool) -> gpusnap.Snapshot:
        made = gpusnap.create_checkpoint(
            sleeper,
            repository / name,
            incremental=True,
            leave_running=leave_running,
            plugins=plugins,
        )
        assert isinstance(made, gpusnap.Snapshot)
        return made

    one = save("one", leave_running=True)
    assert one.manifest.memory is not None
    assert one.manifest.memory.images == len(HEADER + BUFFER)
    assert not (one.images / PAGES).exists()
    backend.parts = (HEADER, b"in front", BUFFER)
    two = save("two", leave_running=False)
    assert two.manifest.memory is not None
    assert two.manifest.memory.reused == len(BUFFER) + 4096  # and the header
    assert two.manifest.parent == one.manifest.id

    pack = two.regions / "000.pack"
    whole = pack.read_bytes()
    pack.write_bytes(whole[:4100] + bytes([whole[4100] ^ 1]) + whole[4101:])
    with pytest.raises(IntegrityError, match=PAGES):
        gpusnap.restore_checkpoint(two.path, plugins=plugins)
    pack.write_bytes(whole)
    assert not runs(sleeper)

    gpusnap.restore_checkpoint(two.path, plugins=plugins)
    assert runs(sleeper)
    assert backend.seen == [b"".join(backend.parts)]
    assert list(temporary.iterdir()) == []
