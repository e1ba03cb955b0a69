"""Processes to look at, and the real CRIU to prove what is said of them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpusnap.criu import Criu, DumpRequest, Session, find_criu
from gpusnap.errors import CriuError
from gpusnap.findings import Inspected, Wishes, inspect_tree
from gpusnap.types import Finding, Severity
from tests.findings.programs import Program

SECONDS = 1_000_000

Start = Callable[..., Program]


@pytest.fixture(scope="session")
def criu() -> Criu:
    return find_criu()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts programs; one that the kernel does not let do its setup skips the test."""
    programs: list[Program] = []

    def run(setup: str = "", **options: object) -> Program:
        program = Program(tmp_path / f"program-{len(programs)}", setup, **options)
        programs.append(program)
        if program.refusal:
            pytest.skip(f"The kernel does not allow it here: {program.refusal}")
        return program

    yield run
    for program in programs:
        program.end()


def inspect(program: Program, criu: Criu | None, **wishes: bool) -> Inspected:
    return inspect_tree(program.target, None, criu, Wishes(**wishes))


def found(program: Program, criu: Criu | None, **wishes: bool) -> dict[str, Finding]:
    """The findings of a program by code."""
    return {each.code: each for each in inspect(program, criu, **wishes).findings}


def errors(program: Program, criu: Criu | None, **wishes: bool) -> set[str]:
    return {
        code
        for code, finding in found(program, criu, **wishes).items()
        if finding.severity is Severity.ERROR
    }


def dump(program: Program, criu: Criu, **wishes: bool) -> CriuError | None:
    """Have CRIU dump a program with the options chosen for it; what it says where it fails."""
    images, work = program.folder / "images", program.folder / "work"
    for folder in (images, work):
        folder.mkdir(exist_ok=True)
    needs = inspect(program, criu, **wishes).needs
    request = DumpRequest(
        pid=program.pid,
        images=images,
        work=work,
        leave_running=True,
        timeout_us=60 * SECONDS,
        shell_job=needs.options.shell_job,
        tcp_established=needs.options.tcp_established,
        file_locks=needs.options.file_locks,
        link_remap=needs.options.link_remap,
        ext_unix_sockets=needs.options.ext_unix_sockets,
        own_network=needs.own_network,
        ghost_limit=needs.options.ghost_limit,
    )
    try:
        Session(criu).dump(request, lambda _script, _pid: True)
    except CriuError as error:
        return error
    return None
