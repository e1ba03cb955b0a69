"""Images of CRIU's amdgpu plugin: what they hold, and what of them is damaged."""

import os
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusnap.errors import IntegrityError
from gpusnap.types import BulkImage, SavedBuffers, Severity
from gpusnap_amd import images_files
from gpusnap_amd.images import Kind, read_images
from gpusnap_amd.images_pages import page_files
from gpusnap_amd.images_rules import describe_images, verify_images
from tests.amd import dumps
from tests.amd.dumps import GPU, GTT, VRAM, buffer, kfd, node, write

DUMPS = {"old": dumps.old_dump, "new": dumps.new_dump}
both = pytest.mark.parametrize("make", DUMPS.values(), ids=DUMPS)


def complaint(folder: Path) -> str:
    (finding,) = verify_images(folder)
    assert finding.severity is Severity.ERROR
    return finding.text


@both
def test_whole_dump(make: Callable[[], dict[str, bytes]], tmp_path: Path) -> None:
    assert verify_images(write(tmp_path, make())) == ()


def test_folder_without_such_images(tmp_path: Path) -> None:
    assert verify_images(write(tmp_path, {"inventory.img": b"x"})) == ()
    assert describe_images(tmp_path) == ()


def test_no_folder(tmp_path: Path) -> None:
    assert "cannot be read" in complaint(tmp_path / "gone")


def test_old_generation_is_decoded(tmp_path: Path) -> None:
    images = read_images(write(tmp_path, dumps.old_dump()))
    (process,) = images.kfd
    assert (process.id, process.pid) == (5, 4711)
    assert [(gpu.id, gpu.vram_size) for gpu in process.gpus] == [(GPU, 1 << 20), (0xBEEF, 1 << 20)]
    kinds = [Kind.VRAM, Kind.GTT, Kind.USER_POINTER, Kind.DOORBELL]
    assert [each.kind for each in process.buffers] == kinds
    assert [each.size for each in process.buffers] == [96, 32, 4096, 8192]
    (render,) = images.render_nodes
    assert (render.gpu, render.minor, render.buffers) == (GPU, None, ())
    assert images.pages == {(5, GPU): 128, (5, 0xBEEF): 0}


def test_new_generation_is_decoded(tmp_path: Path) -> None:
    images = read_images(write(tmp_path, dumps.new_dump()))
    (render,) = images.render_nodes
    assert (render.id, render.gpu, render.minor) == (6, GPU, 128)
    assert [(each.size, each.paged) for each in render.buffers] == [(16, True), (24, False)]
    assert images.drm_pages == {(6, 128, 0): 16, (6, 128, 1): 24}
    assert images.dmabufs == (9,)


def test_buffers_are_counted_by_gpu_and_kind(tmp_path: Path) -> None:
    assert describe_images(write(tmp_path, dumps.new_dump())) == (
        SavedBuffers(device="0x1a2b", kind="drm", count=2, bytes=40),
        SavedBuffers(device="0x1a2b", kind="vram", count=2, bytes=128),
    )


def test_page_files_are_cut_where_buffers_begin(tmp_path: Path) -> None:
    old = page_files(write(tmp_path / "old", dumps.old_dump()))
    assert old == (
        BulkImage(name="amdgpu-pages-5-1a2b.img", parts=(8, 96, 32)),
        BulkImage(name="amdgpu-pages-5-beef.img", parts=(8,)),
    )
    new = page_files(write(tmp_path / "new", dumps.new_dump()))
    assert new == (
        BulkImage(name="amdgpu-pages-5-1a2b.img", parts=(8, 64, 64)),
        BulkImage(name="amdgpu-drm-pages-6-128-0000.img", parts=(8, 16)),
        BulkImage(name="amdgpu-drm-pages-6-128-0001.img", parts=(8, 24)),
    )
    for folder, found in ((tmp_path / "old", old), (tmp_path / "new", new)):
        assert all((folder / each.name).stat().st_size == sum(each.parts) for each in found)


def test_buffers_are_counted_where_page_files_lie_in_packs(tmp_path: Path) -> None:
    write(tmp_path, dumps.new_dump())
    before = describe_images(tmp_path)
    for each in page_files(tmp_path):
        (tmp_path / each.name).unlink()
    assert describe_images(tmp_path) == before
    assert page_files(tmp_path) == ()


@both
def test_cut_at_every_byte(make: Callable[[], dict[str, bytes]], tmp_path: Path) -> None:
    files = {name: data for name, data in make().items() if name.startswith("amdgpu")}
    write(tmp_path, files)
    for name, data in files.items():
        for length in range(len(data)):
            write(tmp_path, {name: data[:length]})
            assert name in complaint(tmp_path)
        write(tmp_path, {name: data + b"\0"})
        assert name in complaint(tmp_path)
        write(tmp_path, {name: data})
    assert verify_images(tmp_path) == ()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("amdgpu-pages-5-1a2b.img", "is missing, the buffers of GPU 0x1a2b have 128"),
        ("amdgpu-kfd-5.img", "belongs to no GPU"),
        ("amdgpu-drm-pages-6-128-0000.img", "is missing, its buffer has 16"),
        ("amdgpu-renderD-6.img", "belongs to no buffer"),
    ],
)
def test_missing_file(name: str, said: str, tmp_path: Path) -> None:
    write(tmp_path, dumps.new_dump())
    (tmp_path / name).unlink()
    assert said in "; ".join(finding.text for finding in verify_images(tmp_path))


def test_file_that_restore_does_not_read_may_be_missing(tmp_path: Path) -> None:
    write(tmp_path, dumps.new_dump())
    (tmp_path / "amdgpu-drm-pages-6-128-0001.img").unlink()
    assert verify_images(tmp_path) == ()


def replaced(tmp_path: Path, **files: bytes) -> str:
    changed = {f"amdgpu-{name}.img".replace("_", "-"): data for name, data in files.items()}
    folder = write(tmp_path, {**dumps.new_dump(), **changed})
    return "; ".join(finding.text for finding in verify_images(folder))


NODES = (node(0, 0), node(GPU))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (kfd(NODES, [buffer(64, VRAM)]), "holds 128 bytes, the buffers of GPU 0x1a2b have 64"),
        (kfd(NODES, [buffer(128, VRAM), buffer(1, GTT)]), "have 129"),
        (kfd(NODES, [buffer(128, VRAM), buffer(8, VRAM, 0xD)]), "buffers of GPU 0xd, which it"),
        (kfd(NODES, [], bos=1 << 40), "for buffers it says 1099511627776, found 0"),
        (kfd(NODES, [], gpus=2), "for GPUs it says 2, found 1"),
        (kfd([node(GPU), node(GPU)], [buffer(128, VRAM)], cpus=0), "lists a GPU twice"),
        (kfd([node(GPU, 127)], [buffer(128, VRAM)], cpus=0), "128 bytes of buffers in the 127"),
        (kfd(NODES, [buffer((1 << 64) - 1, VRAM)] * 2), "36893488147419103230 bytes of buffers"),
        (kfd(NODES, [b"\xff"]), "an entry cannot be decoded"),
        (struct.pack("<Q", 1 << 63), "claims 9223372036854775808 bytes and holds 0"),
    ],
)
def test_claims_that_do_not_hold(data: bytes, said: str, tmp_path: Path) -> None:
    assert said in replaced(tmp_path, kfd_5=data)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (dumps.render(7, []), "for its number it says 7, found 6"),
        (dumps.render(6, [], gpu_id=0xD), "is of GPU 0xd, which no KFD image lists"),
        (dumps.render(6, [dumps.drm_buffer(15)] * 2), "holds 16 bytes, its buffer has 15"),
        (dumps.render(6, [dumps.drm_buffer(16)]), "0001.img belongs to no buffer"),
    ],
)
def test_render_nodes_that_do_not_hold(data: bytes, said: str, tmp_path: Path) -> None:
    assert said in replaced(tmp_path, renderD_6=data)


def test_second_dump_after_a_restore_onto_another_gpu(tmp_path: Path) -> None:
    """CRIU 4.2 names the page file after the other GPU, leaves it empty and says success."""
    files = dumps.new_dump()
    del files["amdgpu-pages-5-1a2b.img"]
    files["amdgpu-pages-5-beef.img"] = dumps.headed(b"")
    texts = [finding.text for finding in verify_images(write(tmp_path, files))]
    assert any("pages-5-1a2b.img is missing" in text for text in texts)
    assert any("pages-5-beef.img belongs to no GPU" in text for text in texts)


def test_longer_than_is_ever_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images_files, "LARGEST", 100)
    assert "is longer than 100 bytes" in complaint(write(tmp_path, dumps.new_dump()))


def test_more_entries_than_are_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpusnap_amd.images.MOST", 3)
    assert "lists 4 entries, more than 3" in complaint(write(tmp_path, dumps.old_dump()))


def test_faults_are_bounded(tmp_path: Path) -> None:
    pages = {f"amdgpu-pages-1-{gpu:04x}.img": dumps.headed(b"") for gpu in range(1, 300)}
    assert len(verify_images(write(tmp_path, pages))) == 100


def test_no_link_is_followed(tmp_path: Path) -> None:
    write(tmp_path, dumps.new_dump())
    (tmp_path / "amdgpu-kfd-5.img").rename(tmp_path / "elsewhere")
    (tmp_path / "amdgpu-kfd-5.img").symlink_to("elsewhere")
    assert "amdgpu-kfd-5.img cannot be read" in complaint(tmp_path)


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("x")])
def test_no_plain_file(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "amdgpu-kfd-1.img")
    assert "amdgpu-kfd-1.img" in complaint(tmp_path)


def outcome(files: dict[str, bytes]) -> None:
    """Read a folder, which ends with images or with the one error, and never otherwise."""
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), files)
        try:
            read_images(path)
        except IntegrityError as error:
            said = error.text
        else:
            return
        assert complaint(path) == said


NAMES = sorted(name for name in {**dumps.old_dump(), **dumps.new_dump()} if name[0] == "a")


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(NAMES), st.binary(max_size=80)))
def test_any_bytes(files: dict[str, bytes]) -> None:
    outcome({**dumps.new_dump(), **{name: dumps.headed(data) for name, data in files.items()}})


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(DUMPS)), st.sampled_from(NAMES), st.data())
def test_any_byte_changed(dump: str, name: str, data: st.DataObject) -> None:
    files = DUMPS[dump]()
    content = bytearray(files.get(name, b"\0"))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] = data.draw(st.integers(0, 255))
    outcome({**files, name: bytes(content)})
