"""Images with device memory: what a backend says of them is checked, and so is room for them."""

import tempfile
from pathlib import Path

import pytest

from gpusnap import bulk_images
from gpusnap.bulk_images import check_room, find_bulk_images
from gpusnap.datapath import ImageFile
from gpusnap.errors import PluginError
from gpusnap.hookspecs import hookimpl
from gpusnap.journal import Entry, Journal, Task
from gpusnap.plugins import Backend, Plugins
from gpusnap.recovery import recover
from gpusnap.repository import Repository
from gpusnap.target import myself
from gpusnap.testing.backend import SimulatedBackend
from gpusnap.types import BulkImage, ProcessId, Severity


class BulkBackend(SimulatedBackend):
    """Tells of images what it is given."""

    def __init__(self, *images: BulkImage) -> None:
        super().__init__()
        self._images = images

    @hookimpl
    def gpusnap_bulk_images(self, directory: str) -> tuple[BulkImage, ...]:
        return self._images


def backend(plugin: SimulatedBackend) -> Backend:
    plugins = Plugins()
    plugins.register(plugin, "bulk", is_backend=True)
    return plugins.backend("bulk")


def test_what_a_backend_tells_of(tmp_path: Path) -> None:
    (tmp_path / "pages.img").write_bytes(bytes(12))
    told = backend(BulkBackend(BulkImage(name="pages.img", parts=(8, 0, 4))))
    assert told.has_bulk_images
    found = find_bulk_images(told, tmp_path)
    assert found == (ImageFile(path=tmp_path / "pages.img", parts=(8, 0, 4)),)


def test_a_backend_without_the_hook(tmp_path: Path) -> None:
    silent = backend(SimulatedBackend())
    assert not silent.has_bulk_images
    assert find_bulk_images(silent, tmp_path) == find_bulk_images(None, tmp_path) == ()


@pytest.mark.parametrize(
    ("name", "parts", "said"),
    [
        ("pages.img", (8, 5), "with 13 bytes of 'pages.img', which has 12 bytes"),
        ("pages.img", (20, -8), "which has 12 bytes"),
        ("absent.img", (8,), "which is no file of the dump"),
        ("link.img", (12,), "which is no file of the dump"),
        ("../pages.img", (12,), "which is no file of the dump"),
        ("a\0b", (12,), "which is no file of the dump"),
        ("..", (12,), "which is no file of the dump"),
    ],
)
def test_what_cannot_be(tmp_path: Path, name: str, parts: tuple[int, ...], said: str) -> None:
    for folder in (tmp_path, tmp_path / "images"):
        folder.mkdir(exist_ok=True)
        (folder / "pages.img").write_bytes(bytes(12))
    (tmp_path / "images/link.img").symlink_to("pages.img")
    told = backend(BulkBackend(BulkImage(name=name, parts=parts)))
    with pytest.raises(PluginError, match="Backend bulk answered bulk_images with") as caught:
        find_bulk_images(told, tmp_path / "images")
    assert said in caught.value.text


def test_too_little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_images, "room", lambda _folder: 5)
    assert list(check_room(5)) == []
    (finding,) = check_room(6)
    assert (finding.code, finding.severity) == ("restore-space", Severity.ERROR)
    assert tempfile.gettempdir() in finding.text
    assert "TMPDIR" in str(finding.cure)


@pytest.mark.parametrize("made", [True, False])
def test_what_a_killed_restore_left_is_removed_but_for_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: bool
) -> None:
    if made:
        Repository.create(tmp_path / "repository")
    monkeypatch.setenv("GPUSNAP_STATE_DIR", str(tmp_path / "state"))
    work = tmp_path / "gpusnap-restore-1"
    (work / "images").mkdir(parents=True)
    (work / "images/pages.img").write_bytes(bytes(12))
    (work / "restore.log").write_text("why")
    nobody = ProcessId(1 << 30, 1)
    entry = Entry(
        task=Task.RESTORE,
        owner=myself(),
        processes=(nobody,),
        claimed=(),
        backend=None,
        path=str(tmp_path / "repository" / "one"),
        work=str(work),
    )
    Journal.begin(entry).leave()
    (told,) = recover(plugins=Plugins())
    assert told.outcome == "nothing was left"
    kept = tmp_path / "repository/logs/one-restore.log" if made else work / "restore.log"
    assert kept.read_text() == "why"
    assert list(tmp_path.glob("gpusnap-restore-*/*")) == ([] if made else [kept])
