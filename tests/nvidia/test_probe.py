"""What `gpusnap backends` says of machines on which the backend can or cannot work."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpusnap.errors import NoBackendError
from gpusnap.types import Capability
from gpusnap_nvidia import NvidiaBackend
from tests.nvidia.machine import SimulatedMachine


def test_usable(backend: NvidiaBackend, machine: SimulatedMachine) -> None:
    probe = backend.gpusnap_probe()
    assert probe.usable
    assert probe.reasons == ()
    assert probe.driver_version == "580.00.01"


def test_without_libcuda(
    backend: NvidiaBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUSNAP_LIBCUDA", str(tmp_path / "none.so"))
    probe = backend.gpusnap_probe()
    assert not probe.usable
    (reason,) = probe.reasons
    assert reason.startswith("The CUDA driver library cannot be opened")
    assert "none.so" in reason


def test_with_a_driver_older_than_checkpoints(
    backend: NvidiaBackend, libraries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUSNAP_LIBCUDA", str(libraries / "old" / "libcuda.so.1"))
    probe = backend.gpusnap_probe()
    assert not probe.usable
    (reason,) = probe.reasons
    assert reason == (
        "The CUDA driver cannot checkpoint processes: it has no cuCheckpointProcessCheckpoint"
    )


def test_without_nvml(
    backend: NvidiaBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    probe = backend.gpusnap_probe()
    assert not probe.usable
    assert probe.reasons == ("NVML cannot be used: NVML Shared Library Not Found",)
    with pytest.raises(NoBackendError):
        backend.gpusnap_devices()


@pytest.mark.parametrize(
    ("numbers", "reason"),
    [
        (
            {"init_error": 999},
            "The CUDA driver does not start: cuInit failed: CUDA_ERROR_UNKNOWN (999)",
        ),
        (
            {"devices": 0},
            "The CUDA driver does not start: cuInit failed: CUDA_ERROR_NO_DEVICE (100)",
        ),
        ({"nvml_error": 9}, "NVML cannot be used: Driver Not Loaded"),
    ],
)
def test_a_driver_that_does_not_start(
    backend: NvidiaBackend, machine: SimulatedMachine, numbers: dict[str, int], reason: str
) -> None:
    machine.set(**numbers)
    probe = backend.gpusnap_probe()
    assert not probe.usable
    assert probe.reasons == (reason,)


def test_a_driver_that_starts_later_is_used(
    backend: NvidiaBackend, machine: SimulatedMachine
) -> None:
    machine.set(init_error=999, nvml_error=9)
    assert len(backend.gpusnap_probe().reasons) == 2
    machine.clear("init_error", "nvml_error")
    assert backend.gpusnap_probe().usable


def test_devices_hidden_from_the_user_of_gpusnap(
    backend: NvidiaBackend, machine: SimulatedMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert backend.gpusnap_probe().usable


def test_importing_loads_no_driver(machine: SimulatedMachine) -> None:
    code = (
        "import sys, gpusnap_nvidia; gpusnap_nvidia.backend.gpusnap_backend_info();"
        "assert not {'cffi', '_cffi_backend', 'pynvml'} & set(sys.modules);"
        "assert 'libcuda' not in open('/proc/self/maps').read()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=dict(os.environ))


def test_info(backend: NvidiaBackend) -> None:
    info = backend.gpusnap_backend_info()
    assert (info.name, info.vendor) == ("nvidia", "NVIDIA")
    assert info.capabilities == frozenset(Capability)
