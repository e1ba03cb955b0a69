"""The simulated machine: a folder with devices, their memory and their processes.

::

    devices.json                               what the machine is
    lock                                       held while device memory is handed out
    memory/<uuid>/<name>-<start ticks>/<n>     one allocation: its file is device memory
    processes/<name>/process.json              what the driver knows of a process
    processes/<name>/request.json, answer-*    driver calls under way
    failures/                                  failures on demand

A process goes by its PID, in another PID namespace than the machine was made in by
``<PID>@<namespace>``: as a real driver does, the simulated one tells such processes apart.

Device memory is bound to a process by PID *and* start time: after a kill and a restore the
process is another owner, and what it had not been restored onto the device is gone.
"""

import contextlib
import fcntl
import functools
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from gpusnap.errors import NoBackendError, UsageError
from gpusnap.target import alive, inside_pid, pid_namespace, pids_in
from gpusnap.testing.errors import OutOfMemoryError, SimulatedDeviceError
from gpusnap.types import DeviceState, EccCounts, Health, ProcessId

SIM_VARIABLE = "GPUSNAP_SIM_DIR"
"""Environment variable that names the folder of the simulated machine."""

DEFAULT_MEMORY = 64 << 20
"""Memory of a device unless told, in bytes."""

T = TypeVar("T")


SOUND = Health(
    ecc_enabled=True,
    ecc=EccCounts(
        volatile_corrected=0,
        volatile_uncorrected=0,
        aggregate_corrected=0,
        aggregate_uncorrected=0,
    ),
    temperature_celsius=40,
)
"""The health of a device unless told."""


class DeviceDescription(msgspec.Struct, frozen=True, kw_only=True):
    """One simulated device; memory in bytes."""

    uuid: str
    model: str = "Simulated 1"
    memory: int = DEFAULT_MEMORY
    health: Health = SOUND


class MachineDescription(msgspec.Struct, frozen=True, kw_only=True):
    """Content of devices.json.

    Attributes:
        devices: In the driver's order.
        driver_version: Version the simulated driver reports.
        call_timeout_us: How long the backend waits for a driver call, beside the time that
            moving the bytes may take.
        pid_namespace: Where the machine was made.
    """

    devices: tuple[DeviceDescription, ...]
    driver_version: str = "1.0"
    call_timeout_us: int = 10_000_000
    pid_namespace: str | None = None


class Allocation(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of device memory, in bytes."""

    number: int
    device_uuid: str
    size: int


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """What the driver knows of a process that opened a device.

    As the process writes it down, ``owner`` has its own PID; as it is read, the reader's.
    """

    owner: ProcessId
    name: str
    state: DeviceState
    device_uuids: tuple[str, ...]
    allocations: tuple[Allocation, ...]

    def memory_on(self, device_uuid: str) -> int:
        """Bytes the process has, or had when it was checkpointed, on a device."""
        return sum(each.size for each in self.allocations if each.device_uuid == device_uuid)

    @property
    def memory(self) -> int:
        """Bytes on all devices."""
        return sum(each.size for each in self.allocations)


def read_struct(path: Path, kind: type[T]) -> T | None:
    """Read a JSON file; None where it does not exist."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None


def write_struct(path: Path, value: object) -> None:
    """Write a JSON file so that a reader sees the old or the new content, nothing between."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    draft.write_bytes(msgspec.json.encode(value))
    draft.replace(path)


class Machine(msgspec.Struct, frozen=True):
    """A simulated machine, by its folder."""

    path: Path

    @property
    def description(self) -> MachineDescription:
        """What the machine is.

        Raises:
            NoBackendError: The folder holds no simulated machine, or a damaged one.
        """
        try:
            found = read_struct(self.path / "devices.json", MachineDescription)
        except (OSError, msgspec.DecodeError) as error:
            msg = f"The simulated machine in {self.path} cannot be read: {error}"
            raise NoBackendError(msg) from None
        if found is None:
            msg = f"There is no simulated machine in {self.path}"
            raise NoBackendError(msg, cure="Make one with gpusnap.testing.create_machine")
        return found

    @property
    def environment(self) -> dict[str, str]:
        """The variable that names this machine to a program."""
        return {SIM_VARIABLE: str(self.path)}

    def set_health(self, index: int, health: Health) -> None:
        """Have the driver report another health of a device from now on."""
        described = self.description
        devices = list(described.devices)
        devices[index] = msgspec.structs.replace(devices[index], health=health)
        changed = msgspec.structs.replace(described, devices=tuple(devices))
        write_struct(self.path / "devices.json", changed)

    def device(self, device_uuid: str) -> DeviceDescription:
        """One device.

        Raises:
            SimulatedDeviceError: The machine has no such device.
        """
        for device in self.description.devices:
            if device.uuid == device_uuid:
                return device
        msg = f"The simulated machine has no device {device_uuid}"
        raise SimulatedDeviceError(msg)

    def used(self, device_uuid: str) -> int:
        """Bytes in use on a device; memory of processes that ended is freed first."""
        self._free_dead(device_uuid)
        # os.walk, unlike glob, bears with folders that vanish: their owners may just end.
        folders = os.walk(self.path / "memory" / device_uuid)
        return sum(_size(Path(root, name)) for root, _, names in folders for name in names)

    def free(self, device_uuid: str) -> int:
        """Bytes left on a device."""
        return self.device(device_uuid).memory - self.used(device_uuid)

    def allocate(self, owner: ProcessId, allocation: Allocation) -> Path:
        """Hand out device memory.

        Returns:
            The file that is the memory.

        Raises:
            OutOfMemoryError: The device has less than that left.
        """
        with self._locked():
            left = self.free(allocation.device_uuid)
            if allocation.size > left:
                msg = (
                    f"Device {allocation.device_uuid} has {left} bytes free, "
                    f"{allocation.size} are needed"
                )
                raise OutOfMemoryError(msg)
            path = self.memory_file(owner, allocation)
            path.parent.mkdir(parents=True, exist_ok=True)
            _reserve(path, allocation.size)
            return path

    def memory_file(self, owner: ProcessId, allocation: Allocation) -> Path:
        """The file that is an allocation's memory while it is on the device."""
        return self._memory_of(owner, allocation.device_uuid) / str(allocation.number)

    def release(self, owner: ProcessId) -> None:
        """Free all memory of a process and forget it."""
        for folder in self.path.glob(f"memory/*/{self._name(owner.pid)}-{owner.start_ticks}"):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(self.process_folder(owner.pid), ignore_errors=True)

    def process_folder(self, pid: int) -> Path:
        """Folder of what concerns one process."""
        return self.path / "processes" / self._name(pid)

    def register(self, registration: Registration) -> None:
        """Let the driver know of a process, or of its new state."""
        write_struct(self.process_folder(registration.owner.pid) / "process.json", registration)

    def registration(self, pid: int) -> Registration | None:
        """What the driver knows of a living process; None where it knows nothing."""
        return self._registration(self._name(pid), pid)

    def _registration(self, name: str, pid: int | None) -> Registration | None:
        path = self.path / "processes" / name / "process.json"
        found = read_struct(path, Registration)
        if found is None:
            return None
        owner = ProcessId(pid or 0, found.owner.start_ticks)
        if alive(owner):
            return msgspec.structs.replace(found, owner=owner)
        # The owner died; a process restored with its PID notices that this is gone and
        # registers anew.
        path.unlink(missing_ok=True)
        return None

    def registrations(self) -> tuple[Registration, ...]:
        """All living processes the driver knows and this process can see, by PID."""
        folder = self.path / "processes"
        names = [each.name for each in folder.iterdir()] if folder.is_dir() else []
        known = (self._registration(name, _find(name)) for name in names if self._sees(name))
        found = (each for each in known if each is not None)
        return tuple(sorted(found, key=lambda each: each.owner))

    def _name(self, pid: int) -> str:
        """What the machine calls a process. It opens no file where that is this process."""
        own, home = pid_namespace(pid), _home(self)
        if own is None or home in {own, None}:
            return str(pid)
        inside = pid if pid == os.getpid() else inside_pid(pid)
        return f"{inside}@{own}"

    def _sees(self, name: str) -> bool:
        """Whether this process sees the one of that name, if it is alive."""
        own, home = pid_namespace(os.getpid()), _home(self)
        return home in {own, None} or name.endswith(f"@{own}")

    def _memory_of(self, owner: ProcessId, device_uuid: str) -> Path:
        return self.path / "memory" / device_uuid / f"{self._name(owner.pid)}-{owner.start_ticks}"

    def _free_dead(self, device_uuid: str) -> None:
        for folder in (self.path / "memory" / device_uuid).glob("*-*"):
            name, _, start_ticks = folder.name.rpartition("-")
            if self._sees(name) and not alive(ProcessId(_find(name) or 0, int(start_ticks))):
                shutil.rmtree(folder, ignore_errors=True)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.path / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


@functools.cache
def _home(machine: Machine) -> str | None:
    """The PID namespace that a machine was made in; read once, since no file may be open later."""
    return machine.description.pid_namespace


def _find(name: str) -> int | None:
    """The PID here of the process that a machine knows by a name; None where there is none."""
    pid, _, namespace = name.partition("@")
    return pids_in(namespace).get(int(pid)) if namespace else int(pid)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def _reserve(path: Path, size: int) -> None:
    """Make a file whose bytes are really there: a write through a mapping must not fail."""
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        path.unlink()
        msg = f"The disk behind the simulated device is full: {error.strerror}"
        raise OutOfMemoryError(msg) from None
    finally:
        os.close(descriptor)


def create_machine(
    path: Path | str,
    *,
    devices: int | Sequence[DeviceDescription] = 1,
    memory: int = DEFAULT_MEMORY,
    driver_version: str = "1.0",
    call_timeout_us: int = 10_000_000,
) -> Machine:
    """Make a simulated machine, or give an existing one other devices.

    Args:
        path: Its folder, created if absent; on tmpfs the devices are fastest.
        devices: How many devices of the default model with new UUIDs, or exactly which.
        memory: Bytes of each device, if only their number is given.
        driver_version: What the driver reports.
        call_timeout_us: How long the backend waits for a driver call, in microseconds.

    Raises:
        UsageError: Two devices have the same UUID, or memory is not positive.
    """
    if isinstance(devices, int):
        devices = [
            DeviceDescription(uuid=f"SIM-{uuid.uuid4()}", memory=memory) for _ in range(devices)
        ]
    _check_devices(devices)
    description = MachineDescription(
        devices=tuple(devices),
        driver_version=driver_version,
        call_timeout_us=call_timeout_us,
        pid_namespace=pid_namespace(os.getpid()),
    )
    write_struct(Path(path) / "devices.json", description)
    return Machine(Path(path))


def _check_devices(devices: Sequence[DeviceDescription]) -> None:
    if len({device.uuid for device in devices}) != len(devices):
        msg = "Two simulated devices have the same UUID"
        raise UsageError(msg)
    if any(device.memory <= 0 for device in devices):
        msg = "A simulated device needs memory"
        raise UsageError(msg)


def current_machine() -> Machine:
    """The machine named by the environment.

    Raises:
        NoBackendError: None is named, or the folder holds none.
    """
    folder = os.environ.get(SIM_VARIABLE)
    if not folder:
        msg = f"{SIM_VARIABLE} names no simulated machine"
        raise NoBackendError(msg, cure="Make one with gpusnap.testing.create_machine")
    machine = Machine(Path(folder).absolute())
    _ = machine.description
    return machine
