import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpusnap.errors import GpusnapError
from gpusnap.events import Found
from gpusnap.jobs.reports import Happening, Report, announced
from gpusnap.metrics import catalogue as c
from gpusnap.metrics.exposition import parse, render
from gpusnap.metrics.figures import Figures, figures_of, figures_of_devices
from gpusnap.metrics.plugin import Metrics
from gpusnap.metrics.textfile import TEXTFILE, add, read, textfile
from gpusnap.types import Device, EccCounts, Finding, Health, Severity
from tests.metrics.conftest import FAILED, PUBLISHED, SAVED, START, batch_of

DEVICES = (
    Device(
        index=0,
        uuid="GPU-0",
        vendor="NVIDIA",
        model='H200 "x"\\',
        memory_total=141 << 30,
        memory_free=0,
        health=Health(
            ecc=EccCounts(volatile_uncorrected=2, aggregate_corrected=3),
            remap_pending=True,
            temperature_celsius=41,
        ),
    ),
    Device(index=1, uuid="GPU-1", vendor="NVIDIA", model="H200"),
)


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """An exposition as Prometheus' own parser for Python reads it."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(path: Path, name: str, **labels: str) -> float:
    return samples(path.read_text())[name, frozenset(labels.items())]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "textfile" / "gpusnap.prom"
    path.parent.mkdir()
    monkeypatch.setenv(TEXTFILE, str(path))
    return path


def test_a_checkpoint_is_counted(path: Path) -> None:
    for _ in range(2):
        add(path, figures_of(batch_of(*SAVED)))
    add(path, figures_of(batch_of(START, FAILED)))
    one = {"operation": "checkpoint"}
    assert value(path, "gpusnap_operations_total", **one, outcome="succeeded") == 2
    assert value(path, "gpusnap_operations_total", **one, outcome="failed") == 1
    assert value(path, "gpusnap_operations_total", operation="resume", outcome="failed") == 0
    assert value(path, "gpusnap_failures_total", **one, code="17", error="DeadlineError") == 1
    assert value(path, "gpusnap_phase_seconds_sum", **one, phase="dump") == 0.5
    assert value(path, "gpusnap_phase_seconds_count", **one, phase="dump") == 2
    assert value(path, "gpusnap_frozen_seconds_bucket", **one, le="0.25") == 0
    assert value(path, "gpusnap_frozen_seconds_bucket", **one, le="0.5") == 2
    assert value(path, "gpusnap_frozen_seconds_bucket", **one, le="+Inf") == 2
    assert value(path, "gpusnap_frozen_seconds_sum", **one) == 0.6
    assert value(path, "gpusnap_operation_seconds_sum", **one) == 3
    assert value(path, "gpusnap_snapshots_total", kind="full") == 2
    assert value(path, "gpusnap_snapshot_read_bytes_total") == 2000
    assert value(path, "gpusnap_snapshot_stored_bytes_total") == 800
    assert value(path, "gpusnap_last_snapshot_stored_bytes") == 400
    assert value(path, "gpusnap_build_info", version=_version()) == 1


def _version() -> str:
    import gpusnap

    return gpusnap.__version__


def test_a_finding_is_counted(path: Path) -> None:
    finding = Finding(code="host-memory", severity=Severity.WARNING, text="x")
    Metrics().gpusnap_event(event=Found(finding=finding))
    assert value(path, "gpusnap_findings_total", code="host-memory", severity="warning") == 1


def test_a_crash_is_counted(path: Path) -> None:
    heard: list[Report] = []
    tell = announced(heard.append, lambda event: Metrics().gpusnap_event(event=event))
    tell(Report(run="train", happening=Happening.CRASHED, text="It crashed"))
    assert [each.text for each in heard] == ["It crashed"]
    assert value(path, "gpusnap_run_events_total", event="crashed") == 1
    assert value(path, "gpusnap_run_events_total", event="fault") == 0


def test_what_a_driver_says_of_devices() -> None:
    text = render(figures_of_devices(DEVICES, 1000.0))
    found = samples(text)
    one = ("uuid", "GPU-0")
    assert found["gpusnap_device_memory_bytes", frozenset({one})] == 141 << 30
    assert found["gpusnap_device_memory_free_bytes", frozenset({one})] == 0
    assert found["gpusnap_device_temperature_celsius", frozenset({one})] == 41
    assert found["gpusnap_device_remap_pending", frozenset({one})] == 1
    errors = frozenset({one, ("kind", "uncorrected"), ("since", "driver_load")})
    assert found["gpusnap_device_ecc_errors_total", errors] == 2
    told = {name for name, labels in found if ("uuid", "GPU-1") in labels}
    assert told == {"gpusnap_device_info"}, "what is not reported has no series"


def test_devices_are_replaced_not_added_up(path: Path) -> None:
    for _ in range(2):
        add(path, figures_of_devices(DEVICES, 1000.0))
    add(path, figures_of(batch_of(*SAVED)))  # which knows nothing of devices
    errors = {"uuid": "GPU-0", "kind": "uncorrected", "since": "driver_load"}
    assert value(path, "gpusnap_device_ecc_errors_total", **errors) == 2
    add(path, figures_of_devices(DEVICES[1:], 2000.0))
    assert "GPU-0" not in path.read_text()
    assert value(path, "gpusnap_devices_read_timestamp_seconds") == 2000


def test_a_snapshot_brings_the_health_of_its_devices() -> None:
    event = type(PUBLISHED)(
        path="/repo/one", id="s", pids=(7,), read_bytes=1, bytes=1, stored_bytes=1, devices=DEVICES
    )
    names = {series.name for series in figures_of(batch_of(START, event, SAVED[-1])).numbers}
    assert "gpusnap_device_temperature_celsius" in names


def every_metric() -> Figures:
    figures = figures_of_devices(DEVICES, 1.0)
    for metric in c.METRICS:
        labels = tuple(f"{name} é" for name in metric.labels)
        if metric.kind in {"histogram", "summary"}:
            figures.observe(metric, 0.123456789, *labels)
        else:
            figures.add(metric, float(2**53 - 1), *labels)
    return figures


def test_what_is_written_is_read_back_exactly() -> None:
    figures = every_metric()
    assert parse(render(figures)).numbers == figures.numbers
    assert {series.metric for series in figures.numbers} == {*c.METRICS}


def test_series_of_another_version_are_left_out() -> None:
    text = "# TYPE gpusnap_later_total counter\ngpusnap_later_total 1\n"
    text += 'gpusnap_snapshots_total{sort="full"} 1\n'
    assert not parse(text)


def test_names_follow_the_conventions() -> None:
    for metric in c.METRICS:
        assert metric.name.startswith("gpusnap_")
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert metric.text.endswith(".")
        assert not metric.name.endswith(("_ms", "_us", "_microseconds", "_kilobytes"))
    assert len({metric.name for metric in c.METRICS}) == len(c.METRICS)


ADDS = """
from pathlib import Path
import sys
from gpusnap.metrics import catalogue as c
from gpusnap.metrics.figures import Figures
from gpusnap.metrics.textfile import add
for _ in range(25):
    figures = Figures()
    figures.add(c.READ_BYTES, 3.0)
    add(Path(sys.argv[1]), figures)
"""


def test_processes_add_up(path: Path) -> None:
    running = [subprocess.Popen([sys.executable, "-c", ADDS, str(path)]) for _ in range(3)]
    assert [each.wait(60) for each in running] == [0, 0, 0]
    assert value(path, "gpusnap_snapshot_read_bytes_total") == 3 * 25 * 3
    assert sorted(os.listdir(path.parent)) == ["gpusnap.prom", "gpusnap.prom.lock"]
    assert path.stat().st_mode & 0o777 == 0o644, "node_exporter is another user"


@pytest.mark.parametrize(
    "text", ["root:x:0:0\n", "# TYPE a counter\na 1\n", "# Written by gpusnap", "\0\0\0"]
)
def test_what_gpusnap_did_not_write_is_left_alone(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(GpusnapError, match="holds no metrics of gpusnap"):
        add(path, figures_of(batch_of(*SAVED)))
    assert path.read_text() == text


def test_damage_in_the_middle_is_no_silent_restart(path: Path) -> None:
    add(path, figures_of(batch_of(*SAVED)))
    path.write_text(path.read_text().replace('outcome="failed"} 0.0', 'outcome="fa', 1))
    with pytest.raises(GpusnapError, match="holds no metrics of gpusnap"):
        read(path)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("missing/gpusnap.prom", "No such file or directory"),
        ("file/gpusnap.prom", "Not a directory"),
        ("folder", "Is a directory"),
    ],
)
def test_a_bad_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, why: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    monkeypatch.setenv(TEXTFILE, str(tmp_path / name))
    metrics = Metrics()
    *before, last = SAVED
    for event in before:
        metrics.gpusnap_event(event=event)
    with pytest.raises(GpusnapError, match=why):
        metrics.gpusnap_event(event=last)


def test_a_full_disk_leaves_the_file_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(path, figures_of(batch_of(*SAVED)))
    before = path.read_text()

    def full(self: Path, _text: str) -> int:
        os.close(os.open(self, os.O_CREAT | os.O_WRONLY))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        add(path, figures_of(batch_of(*SAVED)))
    assert path.read_text() == before
    assert sorted(os.listdir(path.parent)) == ["gpusnap.prom", "gpusnap.prom.lock"]


def test_without_a_textfile_the_data_folder_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUSNAP_METRICS_PORT", "9470")
    metrics = Metrics()
    for event in SAVED:
        metrics.gpusnap_event(event=event)
    assert textfile() == tmp_path / "data/metrics.prom"
    assert value(textfile(), "gpusnap_snapshots_total", kind="full") == 1


def test_without_the_client_one_sentence(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(GpusnapError, match="Metrics need the Python package prometheus-client"):
        Metrics().gpusnap_event(
            event=Found(finding=Finding(code="x", severity=Severity.INFO, text="x"))
        )
    assert not path.exists()


def test_the_client_is_not_imported_before_it_is_needed() -> None:
    script = "import sys, gpusnap.plugins as p; p.default_plugins(); import gpusnap.cli._main;"
    script += "print('prometheus_client' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"
