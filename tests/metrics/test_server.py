import contextlib
import http.client
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)

from gpusnap.errors import UsageError
from gpusnap.events import Event, Found
from gpusnap.metrics import server
from gpusnap.metrics.figures import Figures, figures_of, figures_of_devices
from gpusnap.metrics.plugin import metrics
from gpusnap.metrics.server import parse_address, serving
from gpusnap.metrics.textfile import PORT, add, textfile
from gpusnap.testing import SIM_VARIABLE, create_machine
from gpusnap.types import Device
from tests.metrics.conftest import SAVED, START, batch_of

DEVICE = Device(index=0, uuid="GPU-0", vendor="v", model="m", memory_total=5)


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    before = os.environ.get(PORT)
    yield
    if before is None:
        os.environ.pop(PORT, None)


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often the devices were read."""
    reads: list[int] = []

    def read() -> Figures:
        reads.append(1)
        return figures_of_devices((DEVICE,), 1.0)

    monkeypatch.setattr(server, "_read_devices", read)
    return reads


def scrape(port: int, accept: str = "*/*") -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics", headers={"Accept": accept})
        return connection.getresponse().read().decode()


def test_counts_and_devices_are_served(port: int, devices: list[int]) -> None:
    with serving(lambda _event: None, str(port)):
        assert os.environ[PORT] == str(port), "processes started meanwhile count as well"
        assert 'gpusnap_snapshots_total{kind="full"} 0.0' in scrape(port)
        add(textfile(), figures_of(batch_of(*SAVED)))
        text = scrape(port)
    assert 'gpusnap_snapshots_total{kind="full"} 1.0' in text
    assert 'gpusnap_device_memory_bytes{uuid="GPU-0"} 5.0' in text
    assert len(devices) == 1, "they are read at most twice a minute"
    with pytest.raises(OSError, match="refused"):
        scrape(port)


def test_openmetrics_is_served_too(port: int, devices: list[int]) -> None:
    with serving(lambda _event: None, str(port)):
        add(textfile(), figures_of(batch_of(*SAVED)))
        text = scrape(port, "application/openmetrics-text; version=1.0.0")
    families = {family.name: family for family in parse_openmetrics(text)}  # type: ignore[no-untyped-call]
    assert families["gpusnap_frozen_seconds"].type == "histogram"
    assert families["gpusnap_snapshots"].type == "counter"


def test_devices_are_not_read_during_an_operation(
    port: int, devices: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(lambda _event: None, str(port)):
        metrics.gpusnap_event(event=START)
        scrape(port)
        assert devices == []
        metrics.gpusnap_event(event=SAVED[-1])
        scrape(port)
    assert devices == [1]


def test_a_file_of_another_kind_takes_nothing_down(port: int, devices: list[int]) -> None:
    textfile().write_text("something else")
    with serving(lambda _event: None, str(port)):
        text = scrape(port)
    assert "gpusnap_device_memory_bytes" in text
    assert "gpusnap_snapshots_total" not in text


def test_the_devices_are_read_by_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = create_machine(tmp_path / "machine", devices=2)
    monkeypatch.setenv(SIM_VARIABLE, str(machine.path))
    monkeypatch.setattr(server, "_READING_S", 60.0)
    names = [series.name for series in server._read_devices().numbers]
    assert names.count("gpusnap_device_info") >= 2
    await_reader()


def await_reader() -> None:
    """Wait until the process that read the devices has ended."""
    assert server._reader.acquire(timeout=60), "the next one may"
    server._reader.release()


def test_a_driver_that_hangs_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_READING_S", 0.0)
    ends = threading.Event()
    end = server._end

    def held(process: "subprocess.Popen[bytes]") -> None:
        ends.wait(60)
        end(process)

    monkeypatch.setattr(server, "_end", held)
    assert not server._read_devices()
    monkeypatch.setattr(subprocess, "Popen", None)  # none is started beside one that hangs
    assert not server._read_devices()
    ends.set()
    await_reader()


def test_a_host_that_cannot_be_is_a_warning(port: int) -> None:
    heard: list[Event] = []
    with serving(heard.append, f"a..b:{port}"):
        heard.append(START)  # the job runs
    warning, _ = heard
    assert isinstance(warning, Found)
    assert warning.finding.text.startswith(f"Metrics cannot be served on a..b:{port}: ")


@pytest.mark.parametrize("listens", [True, False])
def test_a_port_in_use_is_a_warning(listens: bool) -> None:
    heard: list[Event] = []
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        if listens:
            taken.listen()
        with serving(heard.append, str(port)):
            heard.append(START)  # the job runs
    warning, _ = heard
    assert isinstance(warning, Found)
    assert warning.finding.code == "metrics-port"
    assert f"127.0.0.1:{port}: Address already in use" in warning.finding.text


def test_nothing_is_served_unless_asked() -> None:
    heard: list[Event] = []
    with serving(heard.append):
        assert PORT not in os.environ
    assert heard == []


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9470", ("127.0.0.1", 9470)),
        (":9470", ("127.0.0.1", 9470)),
        ("0.0.0.0:1", ("0.0.0.0", 1)),  # noqa: S104 - whoever names it means it
        ("[::1]:65535", ("::1", 65535)),
        ("host.example:80", ("host.example", 80)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "x", "host", "0", "65536", "-1", "1.5", "host:", "¹"])
def test_no_addresses(text: str) -> None:
    with pytest.raises(UsageError, match="is no port"):
        parse_address(text)


def test_a_bad_address_is_a_warning() -> None:
    heard: list[Event] = []
    with serving(heard.append, "nonsense"):
        pass
    (warning,) = heard
    assert isinstance(warning, Found)
    assert warning.finding.cure == "Set GPUSNAP_METRICS_PORT to PORT or HOST:PORT"
