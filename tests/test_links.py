"""Deleted files that come back under the names that CRIU looks for."""

import os
import shutil
import threading
from pathlib import Path

import msgspec
import pytest

from gpusnap.errors import GpusnapError, IncompatibleError
from gpusnap.links import links_in_place
from gpusnap.repository import SavedLink

SAVED = bytes(range(256)) * 5000
"""More than is compared at once."""


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    monkeypatch.setenv("GPUSNAP_STATE_DIR", str(folder))


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    (folder / "gpusnap-link-0").write_bytes(SAVED)
    return folder


@pytest.fixture
def link(tmp_path: Path) -> SavedLink:
    folder = tmp_path / "shm"
    folder.mkdir()
    return SavedLink(
        file="gpusnap-link-0",
        made=(str(folder / "link_remap.7"),),
        names=(str(folder / "sem.a"),),
        mode=0o640,
        user=os.geteuid(),
        group=os.getegid(),
    )


def present(link: SavedLink) -> list[str]:
    return sorted(os.listdir(Path(link.made[0]).parent))


def test_a_file_that_is_gone_is_made(link: SavedLink, images: Path) -> None:
    made, name = Path(link.made[0]), Path(link.names[0])
    with links_in_place([link], images):
        assert made.read_bytes() == SAVED
        assert made.samefile(name)
        assert made.stat().st_mode & 0o7777 == link.mode
    assert present(link) == [name.name]


@pytest.mark.parametrize("there", [0, 1], ids=["made", "name"])
def test_a_file_that_is_as_it_was_is_taken(link: SavedLink, images: Path, there: int) -> None:
    file = Path((*link.made, *link.names)[there])
    file.write_bytes(SAVED)
    number = file.stat().st_ino
    with links_in_place([link], images):
        for path in (*link.made, *link.names):
            assert Path(path).stat().st_ino == number
    assert present(link) == ["sem.a"]


@pytest.mark.parametrize("there", [0, 1], ids=["made", "name"])
@pytest.mark.parametrize(
    "content",
    [SAVED[:-1] + b"x", SAVED[:-1], SAVED + b"x", b""],
    ids=["altered", "shorter", "longer", "empty"],
)
def test_a_file_that_changed_is_refused(
    link: SavedLink, images: Path, there: int, content: bytes
) -> None:
    file = Path((*link.made, *link.names)[there])
    file.write_bytes(content)
    with (
        pytest.raises(IncompatibleError, match="no longer as it was") as refusal,
        links_in_place([link], images),
    ):
        pytest.fail("It was taken")
    assert str(refusal.value.cure).endswith(f": rm {file}")
    assert file.read_bytes() == content
    assert present(link) == [file.name]


def test_a_file_of_another_user_is_refused(link: SavedLink, images: Path) -> None:
    Path(link.made[0]).write_bytes(SAVED)
    stranger = msgspec.structs.replace(link, user=link.user + 1)
    with pytest.raises(IncompatibleError), links_in_place([stranger], images):
        pytest.fail("It was taken")


def test_a_refusal_takes_away_what_was_made_before(link: SavedLink, images: Path) -> None:
    folder = Path(link.made[0]).parent
    second = msgspec.structs.replace(link, made=(str(folder / "link_remap.8"),), names=())
    Path(second.made[0]).write_bytes(b"other")
    with pytest.raises(IncompatibleError), links_in_place([link, second], images):
        pytest.fail("It was taken")
    assert present(link) == ["link_remap.8"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_file_that_cannot_be_made_whole_is_not_left(
    link: SavedLink, images: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fill_up(copy: object, file: object) -> None:
        file.write(copy.read(7))  # type: ignore[attr-defined]
        file.flush()  # type: ignore[attr-defined]
        assert present(link) == ["link_remap.7"]
        raise error

    monkeypatch.setattr(shutil, "copyfileobj", fill_up)
    with (
        pytest.raises((GpusnapError, KeyboardInterrupt)),
        links_in_place([link], images),
    ):
        pytest.fail("It was made")
    assert present(link) == []


def test_a_name_that_cannot_be_taken_away_fails_nothing(link: SavedLink, images: Path) -> None:
    with links_in_place([link], images):
        Path(link.made[0]).unlink()
        Path(link.made[0]).mkdir()
    assert present(link) == ["link_remap.7", "sem.a"]


def test_two_restores_do_not_take_each_others_names(link: SavedLink, images: Path) -> None:
    entered, left = threading.Event(), threading.Event()
    seen: list[list[str]] = []

    def restore() -> None:
        with links_in_place([link], images):
            entered.set()
            left.wait()
            seen.append(present(link))

    second = threading.Thread(target=restore)
    with links_in_place([link], images):
        second.start()
        assert not entered.wait(0.2)
    left.set()
    second.join()
    assert seen == [["link_remap.7", "sem.a"]]


def test_a_lock_that_cannot_be_taken(
    link: SavedLink, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUSNAP_STATE_DIR", str(tmp_path / "gone"))
    with pytest.raises(GpusnapError, match=r"links\.lock cannot be taken"):
        links_in_place([link], images).__enter__()
    with links_in_place([], images):
        pass  # nothing to wait for
