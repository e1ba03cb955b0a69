"""Real commands on the simulated accelerator with the real CRIU, all outlets switched on."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpusnap.criu import search_criu
from gpusnap.metrics import notify
from tests.e2e.jobs import Job, Site, await_true
from tests.e2e.loaded import Running


@pytest.fixture
def job(tmp_path: Path, root: None) -> Iterator[Job]:
    if search_criu().criu is None:
        pytest.fail("No CRIU that works: run gpusnap setup-criu")
    job = Job.start(Site.make(tmp_path, devices=2))
    yield job
    job.kill()


def counts(text: str) -> dict[str, float]:
    return {
        " ".join((sample.name, *map(":".join, sorted(sample.labels.items())))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_checkpoint_and_a_failure_are_told_everywhere(job: Job) -> None:
    site, folder = job.site, job.site.folder
    told = {
        "GPUSNAP_METRICS_TEXTFILE": str(folder / "gpusnap.prom"),
        "GPUSNAP_EVENT_LOG": str(folder / "events.jsonl"),
        "GPUSNAP_NOTIFY": f"sh -c 'cat >> {folder}/letters'",
    }
    saved = site.gpusnap("checkpoint", job.pid, "one", "--kill", "--json", **told)
    assert saved.returncode == 0, saved.stderr
    letters = folder / "letters"
    await_true(lambda: letters.exists() and letters.read_text().count("\n") == 1, "a letter")
    assert site.gpusnap("restore", "nowhere", **told).returncode == 10
    restored = site.gpusnap("restore", "one", **told)
    assert restored.returncode == 0, restored.stderr
    job.adopt()

    summary = json.loads(saved.stdout.splitlines()[-1])
    row = summary["result"]["snapshot"]
    found = counts((folder / "gpusnap.prom").read_text())
    assert found["gpusnap_operations_total operation:checkpoint outcome:succeeded"] == 1
    assert found["gpusnap_operations_total operation:restore outcome:succeeded"] == 1
    assert found["gpusnap_failures_total code:10 error:NotFoundError operation:restore"] == 1
    assert found["gpusnap_snapshot_stored_bytes_total"] == row["stored_bytes"]
    assert found["gpusnap_snapshot_read_bytes_total"] > 1 << 20
    assert found["gpusnap_restore_read_bytes_total"] == row["bytes"]
    frozen = found["gpusnap_frozen_seconds_sum operation:checkpoint"]
    assert frozen == pytest.approx(summary["frozen_us"] / 1e6)
    for phase in summary["result"]["phases"]:
        sum_of = f"gpusnap_phase_seconds_sum operation:checkpoint phase:{phase['phase']}"
        assert found[sum_of] >= phase["microseconds"] / 1e6
    assert sum(name.startswith("gpusnap_device_info ") for name in found) == 2

    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    types = [each["event"]["type"] for each in events]
    assert types.count("OperationStarted") == 3
    assert len({each["operation"] for each in events}) == 3
    assert types.index("Frozen") < types.index("SnapshotPublished") < types.index("Thawed")
    assert sorted(each["time"] for each in events) == [each["time"] for each in events]
    await_true(lambda: letters.read_text().count("\n") == 2, "the letters")
    written = [json.loads(line) for line in letters.read_text().splitlines()]
    assert [each["type"] for each in written] == ["SnapshotPublished", "OperationFailed"]
    assert written[0]["path"] == row["path"]

    shown = site.gpusnap("metrics", **told)
    assert shown.returncode == 0, shown.stderr
    now = counts(shown.stdout)
    assert now["gpusnap_snapshots_total kind:full"] == 1
    assert (
        now["gpusnap_devices_read_timestamp_seconds"]
        > found["gpusnap_devices_read_timestamp_seconds"]
    )


SCRAPES = """
import sys, time, urllib.request
while True:
    with urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/metrics") as answer:
        text = answer.read().decode()
    if 'gpusnap_run_events_total{event="started"} 1.0' in text and "gpusnap_device_info{" in text:
        break
    time.sleep(0.05)
print(text)
"""


def test_a_job_that_is_run_can_be_scraped(tmp_path: Path, root: None, port: int) -> None:
    site = Site.make(tmp_path, devices=2)
    ran = site.gpusnap(
        "run", "--", sys.executable, "-c", SCRAPES, port, GPUSNAP_METRICS_PORT=str(port)
    )
    assert ran.returncode == 0, ran.stderr
    found = counts(ran.stdout)
    assert found["gpusnap_run_events_total event:crashed"] == 0
    assert sum(name.startswith("gpusnap_device_info ") for name in found) == 2


def be_patient() -> None:
    """A busy machine may take longer than gpusnap waits."""
    notify._PATIENCE_S = 60.0


def test_outlets_in_trouble_cost_a_warning(job: Job, tmp_path: Path) -> None:
    told = {
        "GPUSNAP_METRICS_TEXTFILE": "/proc/gpusnap.prom",
        "GPUSNAP_EVENT_LOG": "/dev/full",
        "GPUSNAP_NOTIFY": "/nowhere/tell",
    }
    line = ("checkpoint", job.pid, "one")
    saved = Running({**job.site.environment, **told}, tmp_path, line, be_patient).wait()
    assert saved.code == 3, saved.errors
    assert "it runs on" in saved.output
    warnings = [line for line in saved.errors.splitlines() if line.startswith("warning: ")]
    assert sorted(line.split(":")[1] for line in warnings) == [
        " Plugin event-log",
        " Plugin metrics",
        " Plugin notify",
    ]
    assert "No space left on device" in saved.errors
    assert "The command of GPUSNAP_NOTIFY does not exist" in saved.errors
    assert "Traceback" not in saved.errors
    assert job.computes()
