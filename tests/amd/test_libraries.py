"""What amdsmi and pyrsmi add, and the ways in which they fail to load.

The packages are stand-ins, each with a failure that was seen with the real ones.
"""

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import msgspec
import pytest

from gpusnap.types import Device, EccCounts, Health, Operation, Severity
from gpusnap_amd import AmdBackend
from gpusnap_amd.libraries import Libraries, complete
from gpusnap_amd.readings import Reading, Readings
from tests.amd.invented import VRAM, Machine, make_target

AMDSMI = """
import enum, os
print("on stdout")
os.write(1, b"below Python")
class AmdSmiMemoryType(enum.IntEnum):
    VRAM = 0
class AmdSmiTemperatureType(enum.IntEnum):
    EDGE = 0
    JUNCTION = 1
class AmdSmiTemperatureMetric(enum.IntEnum):
    CURRENT = 0
class AmdSmiLibraryException(Exception):
    pass
def amdsmi_init():
    pass
def amdsmi_get_processor_handles():
    return [0, 1]
def amdsmi_get_gpu_device_bdf(handle):
    return ["0000:C1:00.0", "0000:c2:00.0"][handle]
def amdsmi_get_gpu_total_ecc_count(handle):
    return {"correctable_count": 7, "uncorrectable_count": 1, "deferred_count": 0}
def amdsmi_get_gpu_bad_page_info(handle):
    return [{"value": 0}, {"value": 1}]
def amdsmi_get_gpu_memory_usage(handle, kind):
    return 4096 * (kind is AmdSmiMemoryType.VRAM)
def amdsmi_get_temp_metric(handle, sensor, metric):
    if sensor is AmdSmiTemperatureType.EDGE:
        raise AmdSmiLibraryException(2)
    return 41
"""
PYRSMI = """
try:
    import amdsmi
except ImportError:
    pass
def smi_initialize():
    pass
def smi_get_device_count():
    return 3
def smi_get_device_pci_id(number):
    return [0xC100, 1 << 16 | 0xC200, -1][number]
def smi_get_device_memory_used(number):
    return [8192, -1, 1][number]
"""
ABSENT = "raise ModuleNotFoundError('No module', name=__name__.partition('.')[0])"
TOLD = Reading(
    pci="0000:c1:00.0",
    memory_used=4096,
    corrected=7,
    uncorrected=1,
    bad_pages=2,
    temperature_celsius=41,
)
KEY_ERROR = """
print("/opt/rocm/lib/libamd_smi.so: cannot open shared object file")
print("Unable to find libamd_smi.so library")
{}["libamd_smi.so"]
"""
FAILURES = {
    "no library": (KEY_ERROR, "KeyError: 'libamd_smi.so'"),
    "another library": ("raise AttributeError('undefined symbol: amdsmi_x')", "undefined symbol"),
    "broken library": ("raise OSError('invalid ELF header')", "OSError: invalid ELF header"),
    "a part is missing": ("import amdsmi.wrapper", "ModuleNotFoundError"),
    "import error": ("raise ImportError('numpy is too old')", "ImportError: numpy is too old"),
    "ends the process": ("raise SystemExit(1)", "SystemExit: 1"),
    "no driver": (AMDSMI + "def amdsmi_init(): raise AmdSmiLibraryException(34)", "Exception: 34"),
    "calls fail": (AMDSMI + "def amdsmi_init(): raise OSError('no library')", "OSError"),
}


Add: TypeAlias = Callable[[str, str], None]


@pytest.fixture
def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Add:
    """Writes a package into a folder that comes first here and in worker processes."""
    folder = tmp_path / "site"
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))

    def write(name: str, source: str) -> None:
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
        importlib.invalidate_caches()

    write("amdsmi", ABSENT)
    write("pyrsmi/__init__", "")
    write("pyrsmi/rocml", ABSENT)
    return write


@pytest.fixture
def libraries() -> Iterator[Libraries]:
    libraries = Libraries(deadline_us=60_000_000)
    yield libraries
    libraries.close()


def test_amdsmi_comes_first(
    add: Add, libraries: Libraries, capfd: pytest.CaptureFixture[str]
) -> None:
    add("amdsmi", AMDSMI)
    add("pyrsmi/rocml", PYRSMI)
    readings = libraries.read()
    assert (readings.library, readings.failures) == ("amdsmi", ())
    assert readings.gpus[0] == TOLD
    assert [gpu.pci for gpu in readings.gpus] == ["0000:c1:00.0", "0000:c2:00.0"]
    assert tuple(capfd.readouterr()) == ("", "")


@pytest.mark.parametrize("failure", FAILURES)
def test_pyrsmi_where_amdsmi_does_not_load(
    add: Add, libraries: Libraries, failure: str, capfd: pytest.CaptureFixture[str]
) -> None:
    source, told = FAILURES[failure]
    add("amdsmi", source)
    add("pyrsmi/rocml", PYRSMI)
    readings = libraries.read()
    assert readings.library == "pyrsmi"
    assert readings.gpus == (Reading(pci="c1:00.0", memory_used=8192), Reading(pci="c2:00.0"))
    (said,) = readings.failures
    assert said.startswith("amdsmi is installed but does not work (")
    assert told in said
    assert tuple(capfd.readouterr()) == ("", "")


def test_neither_loads(add: Add, libraries: Libraries) -> None:
    add("amdsmi", KEY_ERROR)
    add("pyrsmi/rocml", "def smi_initialize(): raise RuntimeError('driver not initialized')")
    readings = libraries.read()
    assert (readings.library, readings.gpus) == (None, ())
    assert [said.partition(" ")[0] for said in readings.failures] == ["amdsmi", "pyrsmi"]


def test_neither_is_found(add: Add, libraries: Libraries) -> None:
    assert libraries.read() == Readings()


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("import os; os.kill(os.getpid(), 11)", "ended (signal 11)"),
        ("import os; os._exit(3)", "ended (exit code 3)"),
        (AMDSMI + "def amdsmi_get_processor_handles(): raise OSError('gone')", "gone"),
    ],
)
def test_what_takes_the_worker_down_is_asked_once(
    add: Add, libraries: Libraries, source: str, told: str
) -> None:
    add("amdsmi", source)
    (said,) = libraries.read().failures
    assert told in said
    add("amdsmi", AMDSMI)
    assert libraries.read().failures == (said,)


def test_an_import_that_hangs(add: Add) -> None:
    add("amdsmi", "import time; time.sleep(3)")
    libraries = Libraries(deadline_us=100_000)
    (said,) = libraries.read().failures
    assert "did not answer a read call within 0.1 s" in said
    assert libraries.read().failures == (said,)


def test_answers_that_are_none(add: Add, libraries: Libraries) -> None:
    lines = (
        "ODD = ['N/A', None, -1, True, 1.5, 1 << 70]",
        "def amdsmi_get_processor_handles(): return [*range(len(ODD))]",
        "def amdsmi_get_gpu_device_bdf(handle): return f'0000:c1:00.{handle}'",
        "def amdsmi_get_gpu_memory_usage(handle, _): return ODD[handle]",
        "def amdsmi_get_temp_metric(handle, *_): return ODD[handle]",
        "def amdsmi_get_gpu_bad_page_info(handle): return ODD[handle]",
        "def amdsmi_get_gpu_total_ecc_count(handle): return {'correctable_count': ODD[handle]}",
    )
    add("amdsmi", "\n".join((AMDSMI, *lines)))
    assert libraries.read().gpus == tuple(
        Reading(pci=f"0000:c1:00.{number}") for number in range(6)
    )


def test_names_of_another_version(add: Add, libraries: Libraries) -> None:
    lines = (
        "del amdsmi_get_gpu_total_ecc_count, AmdSmiMemoryType, amdsmi_get_gpu_bad_page_info",
        "def amdsmi_get_temp_metric(*_): return 41500",
        "def amdsmi_get_gpu_device_bdf(handle): return '0000:c1:00.0' if handle else {}",
    )
    add("amdsmi", "\n".join((AMDSMI, *lines)))
    assert libraries.read().gpus == (Reading(pci="0000:c1:00.0", temperature_celsius=42),)


class Answering(Libraries):
    """Libraries with one answer, which must not be asked for in vain."""

    def __init__(self, *gpus: Reading) -> None:
        super().__init__()
        self._answer = Readings(library="amdsmi", gpus=gpus)
        self.asked = 0

    def read(self) -> Readings:
        self.asked += 1
        return self._answer


def device(**changes: object) -> Device:
    gpu = Device(
        index=0,
        uuid="GPU-1",
        vendor="AMD",
        model="AMD 0x74a1",
        pci="0000:c1:00.0",
        memory_total=VRAM,
        health=Health(ecc_enabled=True),
    )
    return msgspec.structs.replace(gpu, **changes)


def test_gaps_are_filled() -> None:
    answer = complete((device(),), Answering(TOLD))
    assert answer == (
        device(
            memory_free=VRAM - 4096,
            health=Health(
                ecc_enabled=True,
                ecc=EccCounts(volatile_corrected=7, volatile_uncorrected=1),
                bad_pages=2,
                temperature_celsius=41,
            ),
        ),
    )


def test_what_sysfs_told_stays() -> None:
    ecc = EccCounts(volatile_corrected=0, volatile_uncorrected=0)
    told = device(memory_free=0, health=Health(ecc_enabled=True, ecc=ecc, bad_pages=0))
    (answer,) = complete((told,), Answering(TOLD))
    assert answer == msgspec.structs.replace(
        told, health=msgspec.structs.replace(told.health, temperature_celsius=41)
    )


def test_without_gaps_no_library_is_asked() -> None:
    libraries = Answering(TOLD)
    whole = device(memory_free=0, health=Health(ecc_enabled=False, temperature_celsius=0))
    assert complete((whole,), libraries) == (whole,)
    assert libraries.asked == 0


def test_memory_of_a_board_is_not_that_of_a_partition() -> None:
    (answer,) = complete((device(partitioned=True),), Answering(TOLD))
    assert (answer.memory_free, answer.health.temperature_celsius) == (None, 41)


@pytest.mark.parametrize("used", [None, VRAM + 1])
def test_use_that_cannot_be(used: int | None) -> None:
    gpu = Reading(pci="0000:c1:00.0", memory_used=used)
    assert complete((device(),), Answering(gpu)) == (device(),)


def test_address_without_domain() -> None:
    """It names a board only where no other domain has one at the same place."""
    gpu = Reading(pci="c1:00.0", memory_used=4096)
    one, other = device(), device(index=1, uuid="GPU-2", pci="0001:c1:00.0")
    assert complete((one,), Answering(gpu)) == (device(memory_free=VRAM - 4096),)
    assert complete((one, other), Answering(gpu)) == (one, other)


def test_the_backend_asks(machine: Machine, add: Add, libraries: Libraries) -> None:
    add("amdsmi", AMDSMI)
    machine.add_gpu(1)
    backend = AmdBackend(machine.sysfs, machine.proc, libraries)
    (completed,) = backend.gpusnap_devices()
    assert completed.health.temperature_celsius == 41
    assert AmdBackend(machine.sysfs, machine.proc).gpusnap_devices() == (
        msgspec.structs.replace(completed, memory_free=None, health=Health(ecc_enabled=True)),
    )


def test_the_backend_tells_a_broken_library(
    machine: Machine, add: Add, libraries: Libraries
) -> None:
    add("amdsmi", KEY_ERROR)
    machine.add_gpu(1)
    backend = AmdBackend(machine.sysfs, machine.proc, libraries)
    findings = backend.gpusnap_preflight(make_target(70), (70,), Operation.CHECKPOINT)
    (told,) = [finding for finding in findings if finding.code == "amd-library"]
    assert told.severity is Severity.INFO
    assert "KeyError: 'libamd_smi.so'" in told.text
