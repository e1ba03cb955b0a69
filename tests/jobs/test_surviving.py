"""Jobs that are killed, moved, told to leave, and left alone by their gpusnap."""

import json
import os
import random
import signal
import time

import msgspec
import pytest

from gpusnap.jobs.record import RunState
from gpusnap.jobs.snapshots import read_ledger
from gpusnap.target import alive, identity
from gpusnap.testing import Machine
from gpusnap.testing.machine import SOUND
from gpusnap.types import EccCounts
from tests.e2e.jobs import await_true
from tests.jobs.running import Followed, Place, is_result
from tests.pids import Stranger

pytestmark = pytest.mark.usefixtures("real_criu")

KILLS = int(os.environ.get("GPUSNAP_TEST_KILLS", "2"))
OFTEN = ["--every", "300ms", "--restart", "20", "--restart-delay", "1ms", "--keep-last", "2"]


def test_killed_at_random_it_ends_as_if_nothing_had_been(place: Place) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    gpusnap = place.start("run", "--name", "job", *OFTEN, "--", *place.computing)
    job, reached = Followed(place, "job"), 0
    for kill in range(KILLS):
        job.await_running(restarts=kill)
        job.await_(lambda run: bool(run.snapshots()), "a snapshot")
        time.sleep(chance.uniform(0, 1))
        reached = max(reached, job.steps)
        job.kill()
    job.await_running(restarts=KILLS)
    job.await_(lambda run: run.steps > reached, "it is further than ever")
    job.await_(lambda run: len(run.snapshots()) >= 2, "retention has something to do")
    place.stop.touch()
    out, err = gpusnap.communicate(timeout=90)
    assert gpusnap.returncode == 0, f"seed {seed}: {err}"
    assert is_result(job.stdout), f"seed {seed}: {err}"
    assert out == job.stdout, "what is written again is not passed on again"
    assert (job.run.state, job.run.exit_code) == (RunState.ENDED, 0)
    # Beside those the newest that is known to be intact is kept: what it was restored from last
    intact = [taken.name for taken in read_ledger(job.folder).taken if taken.intact]
    assert len([name for name in job.snapshots() if name not in intact[-1:]]) <= 2


def test_a_fault_moves_it_to_the_other_device(place: Place) -> None:
    machine = Machine(place.site.machine)
    first, second = (device.uuid for device in machine.description.devices)
    gpusnap = place.start("run", "--name", "job", "--move-on-fault", "--", *place.computing)
    job = Followed(place, "job")
    job.await_(lambda run: run.steps > 10, "it computes")
    assert machine.used(first)
    ecc = EccCounts(volatile_uncorrected=1, aggregate_uncorrected=1)
    machine.set_health(0, msgspec.structs.replace(SOUND, ecc=ecc))
    job.await_running(restarts=1)
    assert (machine.used(first), machine.used(second) > 0) == (0, True)
    place.stop.touch()
    out, err = gpusnap.communicate(timeout=90)
    assert (gpusnap.returncode, is_result(out)) == (0, True), err
    assert f"Device 0 ({first}) has become worse: 1 new uncorrected memory errors" in err


def test_a_signal_saves_and_ends_it_and_the_same_command_goes_on(place: Place) -> None:
    command = ("run", "--name", "job", "--on-signal", "TERM", "--grace", "60s", "--")
    gpusnap = place.start(*command, *place.computing)
    job = Followed(place, "job")
    job.await_(lambda run: run.steps > 10, "it computes")
    root = job.run.root
    gpusnap.send_signal(signal.SIGTERM)
    begun, err = gpusnap.communicate(timeout=90)
    assert gpusnap.returncode == 75, err
    assert "it was read again and is intact" in err
    assert (job.run.state, job.snapshots()) == (RunState.SAVED, ["job-000001"])
    assert root is not None
    assert not alive(root)
    place.stop.touch()
    again = place.run(*command, *place.computing)
    assert (again.returncode, is_result(begun + again.stdout)) == (0, True), again.stderr


def test_gpusnap_is_killed_and_goes_on(place: Place) -> None:
    gpusnap = place.start("run", "--name", "job", *OFTEN, "--", *place.computing)
    job = Followed(place, "job")
    job.await_(lambda run: len(run.snapshots()) > 0, "a snapshot")
    gpusnap.kill()
    gpusnap.wait()
    gpusnap = place.start("run", "--name", "job", "--json")
    last = read_ledger(job.folder).last
    job.await_(lambda run: read_ledger(run.folder).last > last + 1, "the adopted job is saved")
    assert job.run.restarts == 0
    gpusnap.kill()
    _, err = gpusnap.communicate()
    assert json.loads(err.splitlines()[0])["report"]["happening"] == "adopted", err
    root = job.run.root
    assert root is not None
    job.kill()
    await_true(lambda: identity(root.pid) is None, "its PID is free")
    with Stranger(root.pid) as stranger:
        gpusnap = place.start("run", "--name", "job")
        job.await_running(restarts=1)
        assert job.pid != root.pid, "the PID is a stranger's: it has a namespace of its own"
        place.stop.touch()
        _, err = gpusnap.communicate(timeout=90)
        assert stranger.poll() is None
    assert gpusnap.returncode == 0, err
    assert is_result(job.stdout), err
