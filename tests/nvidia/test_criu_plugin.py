import stat
from pathlib import Path

import pytest

from gpusnap.errors import NoBackendError
from gpusnap.types import CriuOptions, CriuPhase, Engine
from gpusnap_nvidia import NvidiaBackend, criu_plugin

PHASES = list(CriuPhase)


@pytest.fixture
def nvidia(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> NvidiaBackend:
    """A backend on a machine with neither plugin nor tool."""
    monkeypatch.delenv("GPUSNAP_CUDA_PLUGIN", raising=False)
    monkeypatch.delenv("GPUSNAP_CUDA_CHECKPOINT", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(criu_plugin, "_FOLDERS", (str(tmp_path / "none"), str(tmp_path / "criu")))
    (tmp_path / "bin").mkdir()
    (tmp_path / "criu").mkdir()
    return NvidiaBackend()


def install_plugin(folder: Path, name: str = "cuda_plugin.so") -> Path:
    plugin = folder / "criu" / name
    plugin.write_bytes(b"ELF")
    (folder / "criu" / "amdgpu_plugin.so").write_bytes(b"ELF")
    return plugin


def install_tool(folder: Path, name: str = "cuda-checkpoint") -> Path:
    tool = folder / "bin" / name
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    return tool


def options(nvidia: NvidiaBackend, phase: CriuPhase = CriuPhase.DUMP) -> CriuOptions:
    return nvidia.gpusnap_criu_options(phase, Engine.CRIU_PLUGIN)


@pytest.mark.parametrize("phase", PHASES)
def test_the_driver_engine_needs_nothing(nvidia: NvidiaBackend, phase: CriuPhase) -> None:
    assert nvidia.gpusnap_criu_options(phase, Engine.DRIVER) == CriuOptions()


@pytest.mark.parametrize("phase", PHASES)
def test_the_plugin_lies_alone(nvidia: NvidiaBackend, tmp_path: Path, phase: CriuPhase) -> None:
    plugin, tool = install_plugin(tmp_path), install_tool(tmp_path)
    given = options(nvidia, phase)
    assert given.plugin_directory is not None
    folder = Path(given.plugin_directory)
    assert [file.name for file in folder.iterdir()] == ["cuda_plugin.so"]
    assert (folder / "cuda_plugin.so").resolve() == plugin
    assert (Path(given.environment["PATH"]) / "cuda-checkpoint").resolve() == tool
    assert given.inventory_plugin == "cuda_plugin"
    assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700


def test_named_files_of_any_name(
    nvidia: NvidiaBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin, tool = install_plugin(tmp_path, "mine.so"), install_tool(tmp_path, "mine")
    monkeypatch.setenv("GPUSNAP_CUDA_PLUGIN", str(plugin))
    monkeypatch.setenv("GPUSNAP_CUDA_CHECKPOINT", str(tool))
    given = options(nvidia)
    assert given.plugin_directory is not None
    assert (Path(given.plugin_directory) / "cuda_plugin.so").resolve() == plugin
    assert (Path(given.environment["PATH"]) / "cuda-checkpoint").resolve() == tool


def test_without_the_plugin(nvidia: NvidiaBackend, tmp_path: Path) -> None:
    install_tool(tmp_path)
    with pytest.raises(NoBackendError, match="cuda plugin is not installed") as caught:
        options(nvidia)
    assert str(tmp_path / "criu" / "cuda_plugin.so") in caught.value.text
    assert "GPUSNAP_CUDA_PLUGIN" in str(caught.value.cure)


def test_without_the_tool(nvidia: NvidiaBackend, tmp_path: Path) -> None:
    install_plugin(tmp_path)
    with pytest.raises(NoBackendError, match="needs cuda-checkpoint, which is not there") as caught:
        options(nvidia)
    assert "GPUSNAP_CUDA_CHECKPOINT" in str(caught.value.cure)


def test_a_named_plugin_is_a_decision(
    nvidia: NvidiaBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_plugin(tmp_path)
    install_tool(tmp_path)
    monkeypatch.setenv("GPUSNAP_CUDA_PLUGIN", "/nowhere/cuda_plugin.so")
    with pytest.raises(NoBackendError, match=r"there is no /nowhere/cuda_plugin\.so"):
        options(nvidia)
