"""Targets that come back on another device than they were on, with the real CRIU."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import gpusnap
from gpusnap.errors import GpusnapError, IncompatibleError, NotFoundError, UsageError
from gpusnap.events import Event, Found
from gpusnap.hookspecs import hookimpl
from gpusnap.journal import Journal, Task, entries
from gpusnap.plugins import default_plugins
from gpusnap.testing import SIM_VARIABLE
from gpusnap.testing.machine import MachineDescription, read_struct, write_struct
from gpusnap.types import DeviceMap, ProcessId
from tests.e2e.jobs import SMALL, Job, Site


class Warned:
    """Remembers the codes of findings."""

    def __init__(self) -> None:
        self.codes: list[str] = []

    @hookimpl
    def gpusnap_event(self, event: Event) -> None:
        if isinstance(event, Found):
            self.codes.append(event.finding.code)


@pytest.fixture
def warned() -> Iterator[Warned]:
    listener = Warned()
    default_plugins().register(listener, "warned")
    yield listener
    default_plugins().unregister(listener)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    site = Site.make(tmp_path, devices=3)
    for name in (SIM_VARIABLE, "GPUSNAP_REPO", "GPUSNAP_STATE_DIR"):
        monkeypatch.setenv(name, site.environment[name])
    return site


def save(job: Job, name: str) -> None:
    gpusnap.create_checkpoint(job.pid, name, leave_running=False)


def is_intact(job: Job) -> bool:
    """Whether it computes on with the memory that it had; ends it."""
    intact = job.is_intact()
    job.kill()
    return intact


def used(site: Site) -> list[int]:
    """Bytes in use on each device."""
    present = gpusnap.devices(backend="simulated")
    return [(each.memory_total or 0) - (each.memory_free or 0) for each in present]


def test_from_one_device_to_another(site: Site, warned: Warned) -> None:
    job = Job.start(site, memory=SMALL)
    memory = used(site)[0]
    assert used(site) == [memory, 0, 0]
    save(job, "one")
    target = gpusnap.restore_checkpoint("one", device_map={0: 1})
    job.adopt()
    assert used(site) == [0, memory, 0]
    first, second, third = (each.uuid for each in gpusnap.devices(backend="simulated"))
    assert target.device_map.pairs == ((first, second), (second, first), (third, third))
    assert warned.codes == ["device-map-stale"]
    assert is_intact(job)


def test_two_jobs_change_places(site: Site) -> None:
    jobs = [Job.start(site, f"job{at}", memory=SMALL, device=at) for at in (0, 1)]
    uuids = [each.uuid for each in gpusnap.devices(backend="simulated")]
    for at, job in enumerate(jobs):
        save(job, f"job{at}")
    gpusnap.restore_checkpoint("job0", device_map={0: 1})
    gpusnap.restore_checkpoint("job1", devices=[0])
    places = {each.pid: each.device_uuid for each in gpusnap.processes(backend="simulated")}
    assert places == {jobs[0].pid: uuids[1], jobs[1].pid: uuids[0]}
    for job in jobs:
        job.adopt()
        assert is_intact(job)


def test_resume_on_another_device(site: Site, warned: Warned) -> None:
    job = Job.start(site, memory=SMALL)
    memory = used(site)[0]
    gpusnap.suspend(job.pid)
    with pytest.raises(NotFoundError, match="There is no device '9' on this machine"):
        gpusnap.resume(job.pid, device_map={0: 9})
    assert used(site) == [0, 0, 0]
    resumed = gpusnap.resume(job.pid, device_map={0: 2})
    first, second, third = (each.uuid for each in gpusnap.devices(backend="simulated"))
    assert resumed.device_map.pairs == ((first, third), (second, second), (third, first))
    assert warned.codes == ["device-map-stale"]
    assert used(site) == [0, 0, memory]
    assert is_intact(job)


def test_recover_goes_on_to_the_device_that_was_chosen(site: Site) -> None:
    """A resume that died half way must not leave a tree on the devices of both."""
    job = Job.start(site, memory=SMALL)
    memory = used(site)[0]
    gpusnap.suspend(job.pid)
    first, second, third = (each.uuid for each in gpusnap.devices(backend="simulated"))
    ((entry, _),) = entries()
    journal = Journal.take_over(entry)
    assert journal is not None
    moved = DeviceMap(pairs=((first, second), (second, first), (third, third)))
    dead = ProcessId(4_100_000, 1)  # above what the kernel gives away
    journal.update(task=Task.RESUME, owner=dead, suspended=False, device_map=moved)
    journal.leave()
    (outcome,) = gpusnap.recover()
    assert outcome.outcome == "the target runs on"
    assert used(site) == [0, memory, 0]
    assert is_intact(job)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A job that was saved on device 0 of three, and is gone."""
    site = Site.make(tmp_path_factory.mktemp("site"), devices=3)
    job = Job.start(site)
    ran = site.gpusnap("checkpoint", job.pid, "one", "--kill")
    assert not job.alive, ran.stderr
    return job


@pytest.fixture
def described(saved: Job, monkeypatch: pytest.MonkeyPatch) -> Iterator[MachineDescription]:
    """What the machine is; put back afterwards."""
    for name in (SIM_VARIABLE, "GPUSNAP_REPO", "GPUSNAP_STATE_DIR"):
        monkeypatch.setenv(name, saved.site.environment[name])
    path = saved.site.machine / "devices.json"
    description = read_struct(path, MachineDescription)
    assert description is not None
    yield description
    write_struct(path, description)


Refused = type[GpusnapError]


@pytest.mark.parametrize(
    ("pairs", "error", "words"),
    [
        ({0: 7}, NotFoundError, "There is no device '7' on this machine"),
        ({"SIM-x": 0}, NotFoundError, "There is no device 'SIM-x' among those saved"),
        ({"SIM-": 0}, UsageError, "'SIM-' is the beginning of several devices among those saved"),
        ({0: 1, 1: 1}, UsageError, "names device 1 twice"),
    ],
)
def test_choices_that_cannot_be(
    saved: Job, described: MachineDescription, pairs: dict[int, int], error: Refused, words: str
) -> None:
    with pytest.raises(error, match=words) as caught:
        gpusnap.restore_checkpoint("one", device_map=pairs)
    nothing_started(saved, caught.value)


@pytest.mark.parametrize(
    ("change", "code"),
    [({"model": "Another Model"}, "device-model"), ({"memory": 1 << 20}, "device-memory")],
)
def test_devices_that_do_not_fit(
    saved: Job, described: MachineDescription, change: dict[str, object], code: str
) -> None:
    first, second, third = described.devices
    describe(saved, described, (first, msgspec.structs.replace(second, **change), third))
    with pytest.raises(IncompatibleError) as caught:
        gpusnap.restore_checkpoint("one", device_map={0: 1})
    assert f"[{code}]" in caught.value.text
    nothing_started(saved, caught.value)


@pytest.mark.parametrize("force", [(), ("device-count",)])
def test_fewer_devices(saved: Job, described: MachineDescription, force: tuple[str, ...]) -> None:
    """What was chosen is never put aside, not by force either."""
    describe(saved, described, described.devices[:2])
    with pytest.raises(IncompatibleError, match="device-count") as caught:
        gpusnap.restore_checkpoint("one", device_map={0: 1}, force=force)
    nothing_started(saved, caught.value)


def test_a_device_that_is_full_and_the_one_that_is_offered(
    saved: Job, described: MachineDescription
) -> None:
    """What the refusal offers works."""
    memory = described.devices[1].memory - (1 << 19)
    hog = Job.start(saved.site, "hog", device=1, memory=memory)
    with pytest.raises(IncompatibleError, match="device-memory-free") as caught:
        gpusnap.restore_checkpoint("one", device_map={0: 1})
    hog.kill()
    nothing_started(saved, caught.value)
    option, offered = str(caught.value.cure).split()[-2:]
    assert option == "--device-map"
    ran = saved.site.gpusnap("restore", "one", option, offered)
    assert ran.returncode == 0, ran.stderr
    saved.adopt()
    assert saved.computes()
    saved.kill()


def describe(saved: Job, description: MachineDescription, devices: tuple[object, ...]) -> None:
    changed = msgspec.structs.replace(description, devices=devices)
    write_struct(saved.site.machine / "devices.json", changed)


def nothing_started(saved: Job, error: GpusnapError) -> None:
    assert error.cure
    assert not saved.alive
    assert gpusnap.processes(backend="simulated") == ()
