"""``gpusnap evidence``: what this machine is, and whether a checkpoint works on it, in one file."""

import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar, cast

import click
import msgspec
from msgspec.structs import replace

from gpusnap.checks import preflight
from gpusnap.cli import _parameters
from gpusnap.cli._demo_program import BACKENDS, Kind, choose_kind
from gpusnap.cli._failures import refused_path
from gpusnap.cli._messages import BackendRow
from gpusnap.cli._options import json_option
from gpusnap.cli._output import Output, encode
from gpusnap.cli.backends import read_backends
from gpusnap.criu import search_criu
from gpusnap.errors import EXIT_OK, GpusnapError
from gpusnap.phases import now_us
from gpusnap.plugins import Plugins, default_plugins
from gpusnap.repository import timestamp
from gpusnap.types import Capability, CriuPhase, Device, Engine, Finding

_FORMAT = 1
_STEPS = 300
_TRIAL_S = 600
_VERSION_S = 30
_COMPILERS = ("hipcc", "nvcc")
_Value = TypeVar("_Value")
_VARIABLES = re.compile(r"^(?:GPUSNAP_|KFD_|HIP_|ROCR_|HSA_|CUDA_|NVIDIA_)")


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A program that was saved, killed and brought back, its result compared.

    Attributes:
        backend: On whose device it computed.
        simulated: Whether that device is none.
        exit_code: Of ``gpusnap demo``; None where it did not end in time.
        identical: Whether the result was that of a run that nothing interrupted.
        microseconds: How long all of it took.
        lines: What it printed, line by line, the last one the result or the error.
    """

    backend: str
    simulated: bool
    exit_code: int | None
    identical: bool
    microseconds: int
    lines: tuple[object, ...]


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """The file; identifying numbers of devices, and the machine's name, are left out.

    Attributes:
        variables: Names of environment variables that change what GPUs do; their values are not
            told.
        failures: What could not be found out, in sentences.
    """

    format: int = _FORMAT
    created: str
    gpusnap: str
    python: str
    kernel: str
    machine: str
    libc: str
    criu: str | None
    compilers: dict[str, str]
    variables: tuple[str, ...]
    backends: tuple[BackendRow, ...]
    devices: tuple[Device, ...]
    findings: tuple[Finding, ...]
    trials: tuple[Trial, ...]
    failures: tuple[str, ...]


@click.command()
@click.option(
    "--output",
    "evidence_file",
    metavar="FILE",
    callback=_parameters.folder,
    envvar="GPUSNAP_EVIDENCE_FILE",
    show_envvar=True,
    help="Where to write it; without, and with --json too, it goes to standard output.",
)
@json_option
def evidence(evidence_file: Path | None, output: Output) -> int:
    """Try a checkpoint here and write down all that matters.

    Collects versions, devices, their topology and all checks, saves, kills and restores a small
    program on each usable kind of GPU, and on the simulated device where there is none, and writes
    one JSON file to send to gpusnap's authors. The machine's name, the user's home folder and the
    serial numbers of devices are replaced in it.
    """
    if evidence_file is not None:
        # What cannot be written is known before minutes go by, and what is there stays till then.
        _write(evidence_file, b"", "ab")
    found = _anonymous(_collect(default_plugins()))
    if evidence_file is None or output.json:
        output.document(found)
    if evidence_file is not None:
        _write(evidence_file, f"{msgspec.json.format(encode(found))}\n".encode(), "wb")
        output.note(f"Written to {evidence_file}")
    for trial in found.trials:
        output.note(_verdict(trial))
    return EXIT_OK if all(each.identical for each in found.trials) else GpusnapError.exit_code


def _write(file: Path, data: bytes, mode: str) -> None:
    try:
        with file.open(mode) as opened:
            opened.write(data)
    except OSError as error:
        text = f"{file} cannot be written"
        raise refused_path(text, error, "Name a file that you may write") from error


def _verdict(trial: Trial) -> str:
    where = "the simulated device: this machine has no GPU to try" if trial.simulated else "a GPU"
    result = "IDENTICAL" if trial.identical else "FAILED"
    return f"{result}: checkpoint, kill and restore on {where} (backend {trial.backend})"


def _collect(plugins: Plugins) -> Evidence:
    failures = list(_missing_plugins(plugins))
    criu = search_criu().criu
    return Evidence(
        created=timestamp(),
        gpusnap=version("gpusnap"),
        python=platform.python_version(),
        kernel=platform.release(),
        machine=platform.machine(),
        libc=" ".join(part for part in platform.libc_ver() if part),
        criu=criu.version_text if criu is not None else None,
        compilers=dict(_compilers()),
        variables=tuple(sorted(filter(_VARIABLES.match, os.environ))),
        backends=read_backends(plugins),
        devices=tuple(_devices(plugins, failures)),
        findings=preflight(plugins=plugins),
        trials=tuple(map(_try, _kinds(plugins, failures))),
        failures=tuple(failures),
    )


def _missing_plugins(plugins: Plugins) -> Iterator[str]:
    """Why CRIU could not drive the devices of a backend that may have it do so."""
    for backend in plugins.usable():
        if backend.offers(Capability.CRIU_PLUGIN):
            try:
                backend.criu_options(CriuPhase.DUMP, Engine.CRIU_PLUGIN)
            except GpusnapError as error:
                yield error.text


def _devices(plugins: Plugins, failures: list[str]) -> Iterator[Device]:
    for backend in plugins.usable():
        try:
            yield from backend.devices()
        except GpusnapError as error:
            failures.append(f"The devices of {backend.name} cannot be listed: {error.text}")


def _compilers() -> Iterator[tuple[str, str]]:
    """The compilers that start, with the line that holds their version."""
    for name in _COMPILERS:
        try:
            ended = subprocess.run(
                [name, "--version"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_VERSION_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        lines = [line.strip() for line in ended.stdout.splitlines()]
        yield name, next((line for line in lines if re.search(r"\d+\.\d+", line)), "unknown")


def _kinds(plugins: Plugins, failures: list[str]) -> Iterator[Kind]:
    """The programs to try: those of real devices, or the simulated one."""
    real = []
    for name in (each.name for each in plugins.usable() if each.name in BACKENDS):
        try:
            kind = choose_kind(plugins, name)
        except GpusnapError as error:
            failures.append(error.text)
            continue
        if not _is_simulated(kind):
            real.append(kind)
    yield from real or [choose_kind(plugins, BACKENDS[-1])]


def _is_simulated(kind: Kind) -> bool:
    return kind.backend == BACKENDS[-1]


def _try(kind: Kind) -> Trial:
    """The demonstration, in a process of its own: whatever it does, the file gets written."""
    command = [sys.executable, "-P", "-m", "gpusnap", "demo", "--json"]
    command += ["--backend", kind.backend, "--steps", str(_STEPS)]
    begin = now_us()
    try:
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TRIAL_S, check=False
        )
        code, said = ended.returncode, ended.stdout + ended.stderr
    except subprocess.TimeoutExpired as error:
        code, said = None, error.stdout or b""
    return Trial(
        backend=kind.backend,
        simulated=_is_simulated(kind),
        exit_code=code,
        identical=code == EXIT_OK,
        microseconds=now_us() - begin,
        lines=tuple(map(_read_line, said.splitlines())),
    )


def _read_line(line: bytes) -> object:
    """What a line of JSON says, or the line itself."""
    try:
        return msgspec.json.decode(line)
    except msgspec.DecodeError:
        return line.decode(errors="replace")


def _anonymous(found: Evidence) -> Evidence:
    """The same without the names of the machine and its devices, and the user's home.

    They are taken out of what was written for people. Codes and names of backends stay whatever
    the machine is called.
    """
    clean = _cleaner(_replacements(found.devices))
    return replace(
        found,
        kernel=clean(found.kernel),
        compilers=clean(found.compilers),
        backends=tuple(
            replace(each, probe=replace(each.probe, reasons=clean(each.probe.reasons)))
            for each in found.backends
        ),
        devices=tuple(
            replace(device, uuid=_alias(number)) for number, device in enumerate(found.devices)
        ),
        findings=tuple(
            replace(each, text=clean(each.text), cure=clean(each.cure)) for each in found.findings
        ),
        trials=tuple(replace(each, lines=clean(each.lines)) for each in found.trials),
        failures=clean(found.failures),
    )


def _alias(number: int) -> str:
    return f"DEVICE-{number}"


def _replacements(devices: Sequence[Device]) -> dict[str, str]:
    """What is told in place of each name; the domain of the machine's may be left out."""
    node = platform.node()
    words = {node: "HOST", node.partition(".")[0]: "HOST"}
    with suppress(RuntimeError):  # a user without a home folder
        words[str(Path.home())] = "~"
    for number, device in enumerate(devices):
        bare = device.uuid.removeprefix("GPU-")
        words |= {device.uuid: _alias(number), bare: _alias(number)}
    return {word: told for word, told in words.items() if word not in {"", "/"}}


def _cleaner(words: dict[str, str]) -> Callable[[_Value], _Value]:
    """A function that replaces whole words, in all of the text that a value holds."""
    longest_first = sorted(words, key=len, reverse=True)
    some = "|".join(map(re.escape, longest_first)) or "(?!)"  # which is nowhere
    pattern = re.compile(rf"(?<!\w)(?:{some})(?!\w)")

    def clean(value: object) -> object:
        if isinstance(value, str):
            return pattern.sub(lambda match: words[match[0]], value)
        if isinstance(value, dict):
            return {key: clean(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(map(clean, value))
        return value

    return cast("Callable[[_Value], _Value]", clean)
