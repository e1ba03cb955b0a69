"""The scrape port of a gpusnap that lives long: it serves the figures of all processes.

The devices are read by another process, at most twice a minute and not while an operation is
under way: a driver that hangs keeps neither a scrape nor a checkpoint waiting.
"""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from gpusnap.errors import GpusnapError, UsageError
from gpusnap.events import Event, Found
from gpusnap.metrics.figures import Figures, figures_of_devices
from gpusnap.metrics.plugin import metrics, require_client
from gpusnap.metrics.textfile import PORT, read, textfile
from gpusnap.types import Device, Finding, Severity

_LOOPBACK = "127.0.0.1"
_FRESH_S = 30.0
"""How old the devices' figures may be."""
_READING_S = 10.0
"""How long reading the devices may take."""


_reader = threading.Lock()
"""Held until the process that read the devices has ended, so that no second one hangs as well."""


class _Listing(msgspec.Struct):
    """What ``gpusnap devices --json`` answers."""

    devices: tuple[Device, ...]


class _Devices:
    """The devices' figures, read anew when they are old."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._figures = Figures()
        self._tried = float("-inf")

    def figures(self) -> Figures:
        with self._lock:
            if time.monotonic() - self._tried > _FRESH_S and not metrics.ear.busy:
                self._tried = time.monotonic()
                self._figures = _read_devices()
            return self._figures


def _read_devices() -> Figures:
    if not _reader.acquire(blocking=False):
        return Figures()
    release = _reader.release
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "gpusnap", "devices", "--json"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        release = partial(_end, process)
        answer, _ = process.communicate(timeout=_READING_S)
        listing = msgspec.json.decode(answer, type=_Listing)
    except (OSError, subprocess.SubprocessError, msgspec.MsgspecError):
        return Figures()  # old figures would hide that the driver does not answer
    finally:
        # Not waited for: what a driver holds ends only when the driver lets go of it.
        threading.Thread(target=release, daemon=True).start()
    return figures_of_devices(listing.devices, time.time())


def _end(process: "subprocess.Popen[bytes]") -> None:
    with process:
        process.kill()
    _reader.release()


def parse_address(text: str) -> tuple[str, int]:
    """``PORT`` or ``HOST:PORT``; the host is the loopback one by default.

    Raises:
        UsageError: It is neither.
    """
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) <= 65535:  # noqa: PLR2004 - the highest port
        msg = f"{text!r} is no port to serve metrics on"
        raise UsageError(msg, cure=f"Set {PORT} to PORT or HOST:PORT")
    return host.strip("[]") or _LOOPBACK, int(port)


@contextlib.contextmanager
def serving(emit: Callable[[Event], None], address: str | None = None) -> Iterator[None]:
    """Serve the metrics while the block runs; where that cannot be done, say so and go on.

    Args:
        emit: Tells the plugins, so that a warning is heard.
        address: ``PORT`` or ``HOST:PORT``; None for what ``GPUSNAP_METRICS_PORT`` says, and
            nothing is served where it is not set. It is set for processes started in the block.
    """
    with contextlib.ExitStack() as stack:
        address = address or os.environ.get(PORT)
        if address:
            os.environ[PORT] = address
            try:
                stack.enter_context(_server(*parse_address(address)))
            except GpusnapError as error:
                emit(Found(finding=_warning(error)))
        yield


def _warning(error: GpusnapError) -> Finding:
    return Finding(code="metrics-port", severity=Severity.WARNING, text=error.text, cure=error.cure)


@contextlib.contextmanager
def _server(host: str, port: int) -> Iterator[None]:
    require_client()
    from prometheus_client import CollectorRegistry, start_http_server  # noqa: PLC0415 - optional

    from gpusnap.metrics.exposition import Gathered  # noqa: PLC0415 - same

    registry = CollectorRegistry()
    registry.register(Gathered(_gathering(_Devices())))
    try:
        server, thread = start_http_server(port, host, registry)
    except (OSError, UnicodeError) as error:  # the latter where it cannot be a name of a host
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        msg = f"Metrics cannot be served on {host}:{port}: {reason}"
        raise GpusnapError(msg, cure=f"Set {PORT} to a free port") from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _gathering(devices: _Devices) -> Callable[[], Figures]:
    def gather() -> Figures:
        try:
            figures = read(textfile())
        except GpusnapError:
            figures = Figures()  # Prometheus sees that the series are gone
        figures.merge(devices.figures())
        return figures

    return gather
