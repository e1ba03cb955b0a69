"""How CRIU's amdgpu plugin is found and set up, and what its lines in CRIU's log mean."""

import re
import stat
from pathlib import Path

import pytest

from gpusnap.errors import NoBackendError
from gpusnap.types import CriuOptions, CriuPhase, Engine
from gpusnap_amd import AmdBackend, criu_plugin, kfd
from gpusnap_amd.kfd import Kfd, find_obstacle
from gpusnap_amd.plugin_log import DUMP_MEANINGS, RESTORE_MEANINGS

PHASES = list(CriuPhase)


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where the plugin would be installed, beside NVIDIA's."""
    monkeypatch.delenv("GPUSNAP_AMDGPU_PLUGIN", raising=False)
    folder = tmp_path / "criu"
    folder.mkdir()
    (folder / "cuda_plugin.so").write_bytes(b"ELF")
    monkeypatch.setattr(criu_plugin, "_FOLDERS", (str(tmp_path / "none"), str(folder)))
    return folder


def options(phase: CriuPhase = CriuPhase.DUMP) -> CriuOptions:
    return AmdBackend().gpusnap_criu_options(phase, Engine.CRIU_PLUGIN)


@pytest.mark.parametrize("phase", PHASES)
def test_the_plugin_lies_alone(folder: Path, phase: CriuPhase) -> None:
    plugin = folder / "amdgpu_plugin.so"
    plugin.write_bytes(b"ELF")
    given = options(phase)
    assert given.plugin_directory is not None
    private = Path(given.plugin_directory)
    assert [file.name for file in private.iterdir()] == ["amdgpu_plugin.so"]
    assert (private / "amdgpu_plugin.so").resolve() == plugin
    assert stat.S_IMODE(private.stat().st_mode) == 0o700


def test_a_dump_must_hold_what_the_plugin_writes(folder: Path) -> None:
    (folder / "amdgpu_plugin.so").write_bytes(b"ELF")
    given = options(CriuPhase.DUMP)
    assert given.inventory_plugin == "amdgpu_plugin"
    assert given.expected_images == ("amdgpu-kfd-*.img",)


def test_a_restore_makes_the_checks_that_gpusnap_makes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "amdgpu_plugin.so").write_bytes(b"ELF")
    monkeypatch.setenv("KFD_FW_VER_CHECK", "no")
    monkeypatch.setenv("KFD_NUMA_CHECK", "nonsense")
    assert options(CriuPhase.RESTORE).environment == {
        "KFD_FW_VER_CHECK": "0",
        "KFD_SDMA_FW_VER_CHECK": "1",
        "KFD_CACHES_COUNT_CHECK": "1",
        "KFD_NUM_GWS_CHECK": "1",
        "KFD_VRAM_SIZE_CHECK": "1",
        "KFD_CAPABILITY_CHECK": "1",
        "KFD_NUMA_CHECK": "1",
    }


def test_a_named_plugin_is_a_decision(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "amdgpu_plugin.so").write_bytes(b"ELF")
    mine = tmp_path / "mine.so"
    monkeypatch.setenv("GPUSNAP_AMDGPU_PLUGIN", str(mine))
    with pytest.raises(NoBackendError, match=re.escape(f"there is no {mine}")):
        options()
    mine.write_bytes(b"ELF")
    directory = options().plugin_directory
    assert directory is not None
    assert (Path(directory) / "amdgpu_plugin.so").resolve() == mine


def test_without_the_plugin(folder: Path) -> None:
    with pytest.raises(NoBackendError, match="amdgpu plugin is not installed") as caught:
        options()
    assert str(folder / "amdgpu_plugin.so") in caught.value.text
    assert "GPUSNAP_AMDGPU_PLUGIN" in str(caught.value.cure)


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ((1, 8), None),
        ((1, 17), None),
        ((1, 7), "version 1.7; a checkpoint needs 1.8"),
        ((2, 8), "version 2.8"),
    ],
)
def test_the_version_of_kfd(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, int], told: str | None
) -> None:
    monkeypatch.setattr("gpusnap.worker.Worker.call", lambda *_, **__: list(version))
    obstacle = find_obstacle()
    assert obstacle is None if told is None else told in str(obstacle)


def test_a_kfd_that_cannot_be_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kfd, "_NODE", str(tmp_path / "kfd"))
    with pytest.raises(FileNotFoundError):
        Kfd().version()
    (tmp_path / "kfd").touch()
    with pytest.raises(OSError, match="ioctl"):
        Kfd().version()


LINES = {
    # As the plugin of CRIU 4.1.1 wrote them over a simulated KFD, or as its sources have them
    "Failed to call process info ioctl: Operation not permitted": "refused to pause the process",
    "Failed to call dumper (process) ioctl: Invalid argument": "other GPUs than CRIU is shown",
    "Failed to call dumper (process) ioctl: Input/output error": "refused to save the process",
    "CR not supported on current kernel (current:01.07 min:01.08)": "too old",
    "Failed to open /dev/dri/renderD129: No such file or directory": "render node",
    "Failed to alloc aligned memory. Consider setting KFD_MAX_BUFFER_SIZE.": "too little memory",
    "Failed to drain the BO using sDMA: bo_buckets[3]": "copy engine",
    "Failed to fill the BO using sDMA: bo_buckets[3]": "copy engine",
    "restore late ioctl failed: Input/output error": "though CRIU says success",
    "Number of devices mismatch (checkpointed:2 local:1)": "another number of GPUs",
    "Number of xgmi groups mismatch (checkpointed:2 local:1)": "another number of GPUs",
    "Failed to match remaining nodes": "no GPUs that may replace",
    "Failed to match all GPU groups": "no GPUs that may replace",
    "amdgpu-pages-7-03e9.img size mismatch (current:0:expected:4096)": "another size",
    "Restore ioctl failed: Invalid argument": "refused the saved state",
    "devices:1 bos:2 objects:0 priv_data:256": "GPU queues of the process paused",
}


@pytest.mark.parametrize("line", LINES)
def test_a_line_of_the_plugin_has_its_meaning(line: str) -> None:
    written = f"(00.204540) Error (amdgpu_plugin.c:624): amdgpu_plugin: {line}"
    found = [each for each in (*DUMP_MEANINGS, *RESTORE_MEANINGS) if re.search(each.words, written)]
    assert LINES[line] in found[0].text


def test_every_meaning_has_a_line() -> None:
    for meaning in (*DUMP_MEANINGS, *RESTORE_MEANINGS):
        assert any(re.search(meaning.words, f"amdgpu_plugin: {line}") for line in LINES)


def test_queues_that_were_started_again_are_not_told() -> None:
    (aside,) = (each for each in DUMP_MEANINGS if each.aside)
    assert aside.unless is not None
    assert re.search(aside.unless, "(00.235819) amdgpu_plugin: Process unpaused Ok (ret:0)")
    assert not re.search(
        aside.unless, "(00.235819) amdgpu_plugin: Process unpaused Failed (ret:-1)"
    )
