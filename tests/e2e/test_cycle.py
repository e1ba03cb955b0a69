"""Checkpoint, kill, restore: the program's result is that of an uninterrupted run."""

import json

import pytest

from tests.e2e.jobs import SLOW_US, SMALL, STEPS, Job, Site, await_true


def test_killed_and_restored(site: Site) -> None:
    job = Job.start(site, steps=STEPS, step_us=SLOW_US)
    saved = site.typed("checkpoint", job.pid, "one", "--kill")
    assert saved.returncode == 0, saved.stderr
    assert "gone" in saved.stdout
    assert not job.alive
    steps = job.done
    restored = site.typed("restore", "one")
    assert restored.returncode == 0, restored.stderr
    job.adopt()
    assert steps < STEPS - 1, "the checkpoint came too late to show anything"
    assert job.finish() == job.expected()


def test_left_running_then_killed_and_restored(site: Site) -> None:
    job = Job.start(site, steps=STEPS, step_us=SLOW_US)
    saved = site.typed("checkpoint", job.pid, "one", "--json")
    assert saved.returncode == 0, saved.stderr
    assert job.alive
    assert job.computes()
    job.kill()
    restored = site.gpusnap("restore", "one")
    assert restored.returncode == 0, restored.stderr
    job.adopt()
    text = job.finish()
    # Steps between the checkpoint and the kill are in the log twice: once from each life.
    lines = text.splitlines()
    assert lines[-1] == job.expected().splitlines()[-1]
    assert set(lines) == set(job.expected().splitlines())


def test_one_snapshot_restores_twice(site: Site) -> None:
    job = Job.start(site)
    saved = site.gpusnap("checkpoint", job.pid, "one", "--kill")
    assert saved.returncode == 0, saved.stderr
    log = job.log.read_text()
    for _ in range(2):
        restored = site.gpusnap("restore", "one")
        assert restored.returncode == 0, restored.stderr
        job.adopt()
        assert job.computes()
        job.kill()
        job.log.write_text(log)


def test_suspend_and_resume(site: Site) -> None:
    job = Job.start(site, memory=SMALL)
    before = used_memory(site)
    assert before > 0
    suspended = site.typed("suspend", job.pid)
    assert suspended.returncode == 0, suspended.stderr
    assert used_memory(site) == 0
    assert job.alive
    assert not site.gpusnap("recover").stdout.count("runs on"), "recover woke a suspended target"
    assert used_memory(site) == 0
    resumed = site.typed("resume", job.pid)
    assert resumed.returncode == 0, resumed.stderr
    assert used_memory(site) == before
    assert job.is_intact()
    job.kill()


def used_memory(site: Site) -> int:
    devices = json.loads(site.gpusnap("devices", "--backend", "simulated", "--json").stdout)[
        "devices"
    ]
    return sum(device["memory_total"] - device["memory_free"] for device in devices)


def test_a_target_without_device_state(site: Site) -> None:
    program, hurry = site.folder / "count.py", site.folder / "hurry"
    program.write_text(
        "import pathlib, time\n"
        f"file = open({str(site.folder / 'count')!r}, 'ab', buffering=0)\n"
        f"hurry = pathlib.Path({str(hurry)!r})\n"
        "for number in range(500):\n"
        "    file.write(b'%d\\n' % number)\n"
        # Soon some numbers, then minutes till the end
        "    hurry.exists() or time.sleep(0.05 if number < 20 else 0.5)\n"
    )
    import sys

    from tests.e2e.jobs import start_detached

    pid_file = site.folder / "count.pid"
    start_detached([sys.executable, str(program)], pid_file, site.environment)
    pid = int(pid_file.read_text())
    count = site.folder / "count"
    await_true(lambda: count.exists() and count.stat().st_size > 20, "it counts")
    saved = site.gpusnap("checkpoint", pid, "host-only", "--kill")
    assert saved.returncode == 0, saved.stderr
    assert "no device state" in saved.stdout + saved.stderr
    assert site.gpusnap("restore", "host-only").returncode == 0
    hurry.touch()
    await_true(lambda: count.read_text().endswith("499\n"), "it counts to its end")
    assert count.read_text() == "".join(f"{number}\n" for number in range(500))


@pytest.mark.parametrize("device", [0, 1])
def test_any_device(tmp_path_factory: pytest.TempPathFactory, device: int) -> None:
    site = Site.make(tmp_path_factory.mktemp("site"), devices=2)
    job = Job.start(site, memory=SMALL, device=device)
    saved = site.gpusnap("checkpoint", job.pid, "one", "--kill")
    assert saved.returncode == 0, saved.stderr
    restored = site.gpusnap("restore", "one")
    assert restored.returncode == 0, restored.stderr
    job.adopt()
    assert job.is_intact()
    job.kill()


def test_from_python(site: Site) -> None:
    job = Job.start(site, memory=SMALL)
    script = site.folder / "script.py"
    script.write_text(
        "import sys, gpusnap\n"
        "snapshot = gpusnap.create_checkpoint(int(sys.argv[1]), sys.argv[2], leave_running=False)\n"
        "assert not gpusnap.Repository.open(snapshot.path.parent).damaged()\n"
        "target = gpusnap.restore_checkpoint(snapshot.path)\n"
        "print(target.root_pid, snapshot.manifest.frozen_us)\n"
    )
    ran = site.run(script, job.pid, site.folder / "elsewhere" / "epoch_10.ckpt")
    assert ran.returncode == 0, ran.stderr
    pid, frozen = map(int, ran.stdout.split())
    assert pid == job.pid
    assert frozen > 0
    job.adopt()
    assert job.is_intact()
    job.kill()
