"""The private copy of CRIU, made from Debian's packages without touching the system."""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

from gpusnap.criu.apt import OTHER_WAY, Mirror, PrivateApt, debian_mirrors, machine_sources
from gpusnap.criu.find import Criu, Unusable, examine, private_candidate
from gpusnap.criu.private import Package, Receipt, private_criu_directory, write_receipt
from gpusnap.errors import (
    BusyError,
    CriuError,
    GpusnapError,
    IntegrityError,
    NotFoundError,
    PrivilegeError,
    UsageError,
)

SUITE = "trixie"
"""Debian 13: the first release whose CRIU works on kernels from 6.13 on."""
PROGRAM = "usr/sbin/criu"

Progress = Callable[[str], None]


def install_private_criu(progress: Progress, *, suite: str = SUITE) -> Criu:
    """Make the private copy of CRIU, in place of one that may be there already.

    Packages come from the Debian mirror of the machine's own apt configuration and are
    accepted only as Debian signed them. The copy is put together aside, tried, and only then
    moved into place.

    Args:
        progress: Is told what is going on, a sentence at a time.
        suite: The Debian suite to take it from. A newer one than the default has a newer CRIU,
            such as 4.2, which saves network sockets on kernels from 6.16 on.

    Raises:
        UsageError: No suite can have that name.
        NotFoundError: No apt, or no Debian mirror in its configuration.
        IntegrityError: The signature or a checksum is wrong.
        BusyError: Another gpusnap is making the copy.
        CriuError: The copy does not work on this machine.
        GpusnapError: The mirror cannot be reached, or there is no space.
    """
    if not re.fullmatch(r"[a-z][a-z0-9-]*", suite):
        raise UsageError(f"{suite!r} is not the name of a Debian release", cure="Try trixie")
    place = private_criu_directory()
    with _plain_errors(), _locked(place.parent), _folder_beside(place) as assembled:
        with tempfile.TemporaryDirectory(prefix="gpusnap-criu-") as temporary:
            packages = _download(Path(temporary), suite, progress)
            _assemble(packages, Path(temporary) / "unpacked", assembled, progress)
            write_receipt(assembled, _receipt(suite, packages))
        progress("Trying the copy")
        _check_libraries(assembled)
        _try(assembled)
        _move_into_place(assembled, place)
    return _try(place)


@contextmanager
def _plain_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        kind = PrivilegeError if isinstance(error, PermissionError) else GpusnapError
        named = f"{error.filename}: " if error.filename else ""
        raise kind(
            f"The private copy of CRIU could not be written: {named}{error.strerror or error}",
            cure="Make sure the folder is writable and has 50 MB free, or set GPUSNAP_DATA_DIR",
        ) from error


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".criu.lock").open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BusyError(
                "Another gpusnap is making the private copy of CRIU right now",
                cure="Wait until it has ended",
            ) from error
        yield


@contextmanager
def _folder_beside(place: Path) -> Iterator[Path]:
    """A folder on the same file system as ``place``; leftovers of killed runs are removed."""
    for leftover in place.parent.glob(f".{place.name}-*"):
        shutil.rmtree(leftover)
    folder = Path(tempfile.mkdtemp(prefix=f".{place.name}-new-", dir=place.parent))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _receipt(suite: str, packages: tuple[Path, ...]) -> Receipt:
    return Receipt(suite=suite, packages=tuple(map(_describe, packages)))


def _download(temporary: Path, suite: str, progress: Progress) -> tuple[Path, ...]:
    # apt fetches as a user of its own, which must be able to walk into the folder
    temporary.chmod(0o755)
    failures = []
    for number, mirror in enumerate(_mirrors()):
        try:
            apt = PrivateApt(temporary / f"apt-{number}", mirror, suite)
            return _download_from(apt, mirror.uri, progress)
        except GpusnapError as error:
            failures.append(error)
    raise failures[0]


def _mirrors() -> tuple[Mirror, ...]:
    mirrors = debian_mirrors(*machine_sources())
    if not mirrors:
        raise NotFoundError(
            "No Debian mirror stands in this machine's apt configuration", cure=OTHER_WAY
        )
    return mirrors


def _download_from(apt: PrivateApt, uri: str, progress: Progress) -> tuple[Path, ...]:
    progress(f"Reading the package list of Debian {apt.suite} from {uri}")
    apt.update()
    if (origin := apt.origin()) != "Debian":
        raise NotFoundError(f"{uri} is not a mirror of Debian but of {origin!r}", cure=OTHER_WAY)
    progress("Downloading CRIU and its libraries")
    return apt.download("criu")


def _assemble(packages: tuple[Path, ...], unpacked: Path, place: Path, progress: Progress) -> None:
    progress(f"Unpacking {len(packages)} packages")
    for package in packages:
        _unpack(package, unpacked)
    (place / "sbin").mkdir()
    (place / "lib").mkdir()
    shutil.copy2(unpacked / PROGRAM, place / "sbin" / "criu")
    for library in _libraries(unpacked):
        shutil.copy2(library, place / "lib" / library.name, follow_symlinks=False)


def _unpack(package: Path, folder: Path) -> None:
    ended = subprocess.run(
        ["dpkg-deb", "--extract", str(package), str(folder)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if ended.returncode != 0:
        reason = ended.stderr.decode(errors="replace").strip()
        raise GpusnapError(f"{package.name} could not be unpacked", details=reason.splitlines()[:3])


def _libraries(unpacked: Path) -> Iterator[Path]:
    """Every library of the packages: plugins of vendors may need more than CRIU itself."""
    for pattern in ("usr/lib/*-linux-gnu*/*.so*", "lib/*-linux-gnu*/*.so*"):
        for path in sorted(unpacked.glob(pattern)):
            if path.is_symlink() and os.sep in os.readlink(path):
                continue  # points out of the folder, which the copy must not
            if path.is_file():
                yield path


def _describe(package: Path) -> Package:
    name, version, architecture = unquote(package.stem).split("_")
    with package.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Package(name=name, version=version, architecture=architecture, sha256=digest)


def _check_libraries(place: Path) -> None:
    """Ask the copy's own loader whether every library comes from the copy."""
    candidate = private_candidate(place)
    if candidate is None:
        raise CriuError("Debian's packages hold no CRIU where it is expected")
    *loader, program = candidate.command
    ended = subprocess.run(
        [*loader, "--list", program],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    lines = ended.stdout.decode(errors="replace").splitlines()
    strays = [line.strip() for line in lines if "=>" in line and f"=> {place}/" not in line]
    if ended.returncode != 0 or strays:
        raise IntegrityError("A library of the private copy is missing", details=strays)


def _try(place: Path) -> Criu:
    candidate = private_candidate(place)
    if candidate is None:
        raise CriuError(f"The private copy vanished from {place}")
    try:
        return examine(candidate)
    except Unusable as reason:
        raise CriuError(
            f"The private copy of CRIU does not work on this machine: {reason}", cure=OTHER_WAY
        ) from reason


def _move_into_place(assembled: Path, place: Path) -> None:
    # A folder cannot replace one that is not empty; a crash between the two renames leaves
    # no copy in place, which the next run makes anew
    if place.exists():
        place.rename(place.parent / f".{place.name}-old-{os.getpid()}")
    assembled.rename(place)
    for old in place.parent.glob(f".{place.name}-old-*"):
        shutil.rmtree(old)
