"""How the driver's library is called: layouts, look-up of functions, errors."""

import subprocess
from pathlib import Path

import pytest

from gpusnap_nvidia.calls import Deadlines
from gpusnap_nvidia.driver import uuid_bytes
from gpusnap_nvidia.libcuda import CudaError, FunctionMissing, Libcuda, LibcudaMissing, ffi
from gpusnap_nvidia.results import explain
from tests.nvidia.machine import SimulatedMachine

LAYOUTS = {
    "CUcheckpointLockArgs": {"timeoutMs": 0, "reserved0": 4, "reserved1": 8},
    "CUcheckpointCheckpointArgs": {"reserved": 0},
    "CUcheckpointRestoreArgs": {"gpuPairs": 0, "gpuPairsCount": 8, "reserved1": 56},
    "CUcheckpointUnlockArgs": {"reserved": 0},
}
HEADERS = Path("/usr/local/cuda/include")


@pytest.mark.parametrize("name", LAYOUTS)
def test_layout_of_arguments(name: str) -> None:
    assert ffi.sizeof(name) == 64
    assert {field: ffi.offsetof(name, field) for field in LAYOUTS[name]} == LAYOUTS[name]


def test_layout_of_pairs() -> None:
    assert ffi.sizeof("CUcheckpointGpuPair") == 32
    assert ffi.offsetof("CUcheckpointGpuPair", "newUuid") == 16


def test_layouts_are_those_of_cudas_header(tmp_path: Path) -> None:
    if not (HEADERS / "cuda.h").exists():
        pytest.skip("Needs CUDA's headers")
    lines = ["#include <stddef.h>", "#include <cuda.h>"]
    for name, fields in LAYOUTS.items():
        lines.append(f'_Static_assert(sizeof({name}) == 64, "size");')
        for field, offset in fields.items():
            if not field.startswith("reserved") or name == "CUcheckpointLockArgs":
                lines.append(f'_Static_assert(offsetof({name}, {field}) == {offset}, "{field}");')
    lines.append('_Static_assert(sizeof(CUcheckpointGpuPair) == 32, "pair");')
    (tmp_path / "layout.c").write_text("\n".join(lines))
    command = ["gcc", "-std=gnu11", "-fsyntax-only", "-I", str(HEADERS), "layout.c"]
    subprocess.run(command, cwd=tmp_path, check=True)


def test_functions_are_asked_for_by_the_version_of_their_abi(machine: SimulatedMachine) -> None:
    cuda = Libcuda()
    cuda.call("cuInit", 0)
    address = ffi.new("CUdeviceptr *")
    # The plain symbol is an older function that is not supported; the right one wants a context.
    with pytest.raises(CudaError) as caught:
        cuda.call("cuMemAlloc", address, 4096)
    assert caught.value.code == 201
    assert caught.value.args == (201, "CUDA_ERROR_INVALID_CONTEXT", "cuMemAlloc")
    assert str(caught.value) == "cuMemAlloc failed: CUDA_ERROR_INVALID_CONTEXT (201)"


def test_without_a_look_up_function_the_exported_name_is_used(
    machine: SimulatedMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = Libcuda()
    monkeypatch.setattr(cuda, "_look_up", None, raising=False)
    cuda.call("cuInit", 0)
    with pytest.raises(CudaError) as caught:
        cuda.call("cuMemAlloc", ffi.new("CUdeviceptr *"), 4096)
    assert caught.value.code == 201


def test_missing_functions(
    machine: SimulatedMachine, libraries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Libcuda().missing() == []
    monkeypatch.setenv("GPUSNAP_LIBCUDA", str(libraries / "old" / "libcuda.so.1"))
    old = Libcuda()
    assert len(old.missing()) == 6
    with pytest.raises(FunctionMissing, match="cuCheckpointProcessLock"):
        old.call("cuCheckpointProcessLock", 1, ffi.NULL)


def test_missing_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPUSNAP_LIBCUDA", str(tmp_path / "libcuda.so.1"))
    with pytest.raises(LibcudaMissing, match="No such file"):
        Libcuda()


def test_an_unknown_error_code(machine: SimulatedMachine) -> None:
    machine.set(init_error=12345)
    with pytest.raises(CudaError) as caught:
        Libcuda().call("cuInit", 0)
    assert caught.value.args == (12345, "unknown error", "cuInit")


def test_uuid_bytes() -> None:
    uuid = "GPU-01112233-4455-6677-8899-aabbccddeeff"
    assert uuid_bytes(uuid) == bytes.fromhex("0111223344556677 8899aabbccddeeff")


@pytest.mark.parametrize(
    ("method", "code", "words"),
    [
        ("lock", 600, "still had device work under way"),
        ("checkpoint", 801, "managed memory"),
        ("restore", 801, "NCCL"),
        ("restore", 999, "NCCL"),
        ("restore", 304, "refuse every later try"),
        ("restore", 1, "CUDA IPC"),
        ("state", 1, "knows no device state"),
        ("unlock", 401, "does not allow this call"),
        ("unlock", 77, "refused the unlock"),
    ],
)
def test_meaning_of_codes(method: str, code: int, words: str) -> None:
    meaning = explain(method, code, "CUDA_ERROR_X", 4711)
    assert words in meaning.text
    assert "4711" in meaning.text
    assert meaning.text.endswith(f"(CUDA_ERROR_X, {code})")
    assert "{" not in f"{meaning.text}{meaning.cure}"


def test_deadlines_grow_with_the_bytes() -> None:
    deadlines = Deadlines(move_us=7, bytes_per_second=1000)
    assert deadlines.moving(0) == 7
    assert deadlines.moving(2500) == 2_500_007
