"""Packages of one Debian suite through apt, in a state of its own.

The machine tells the mirror, its keys and how to reach it (proxies, timeouts); nothing of the
machine's own package state is read or written, and none of its hooks run. Signatures are
always checked, also where the machine's configuration is lax.
"""

import os
import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from gpusnap.errors import DeadlineError, GpusnapError, IntegrityError, NotFoundError

APT_SECONDS = 900
KEY_FOLDER = Path("/usr/share/keyrings")
DEBIAN_NAMES = frozenset(
    {
        "bookworm",
        "bullseye",
        "buster",
        "forky",
        "oldstable",
        "sid",
        "stable",
        "testing",
        "trixie",
        "unstable",
    }
)
"""Suites of Debian's own archive; other vendors' suites bear other names or components."""


class Mirror(msgspec.Struct, frozen=True, kw_only=True):
    """A mirror of Debian's archive.

    Attributes:
        uri: Its address, as the machine's configuration has it.
        signed_by: What follows ``Signed-By:``: key files, fingerprints or a key itself;
            empty where the machine relies on apt's trusted keys.
    """

    uri: str
    signed_by: str = ""


def debian_mirrors(list_file: Path, list_folder: Path) -> tuple[Mirror, ...]:
    """The Debian mirrors that apt's configuration names, the likeliest first.

    Args:
        list_file: ``/etc/apt/sources.list`` or its like.
        list_folder: ``/etc/apt/sources.list.d`` or its like.
    """
    entries = [*_entries_of(list_file)]
    for path in sorted(list_folder.glob("*")):
        entries.extend(_entries_of(path))
    mirrors = dict.fromkeys(entry.mirror for entry in entries if entry.of_debian)
    return tuple(sorted(mirrors, key=lambda mirror: not mirror.uri.rstrip("/").endswith("/debian")))


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One address of one source, however it was written."""

    mirror: Mirror
    suites: tuple[str, ...]
    components: tuple[str, ...]

    @property
    def of_debian(self) -> bool:
        bases = {suite.split("-")[0] for suite in self.suites if "security" not in suite}
        usable = not self.mirror.uri.startswith("cdrom:")
        return usable and "main" in self.components and not bases.isdisjoint(DEBIAN_NAMES)


def _entries_of(path: Path) -> Iterator[_Entry]:
    readers = {".list": _one_line_entries, ".sources": _stanza_entries}
    reader = readers.get(path.suffix)
    if reader is None or not path.is_file():
        return
    yield from reader(path.read_text(encoding="utf-8", errors="replace"))


def _one_line_entries(text: str) -> Iterator[_Entry]:
    """Entries such as ``deb [signed-by=/key.gpg] URI suite component...``."""
    for line in text.splitlines():
        match = re.match(r"\s*deb\s+(?:\[([^]]*)\]\s+)?(\S+)\s+(\S+)\s*([^#]*)", line)
        if match is None:
            continue
        options, uri, suite, components = match.groups(default="")
        signed = re.search(r"(?:^|\s)signed-by=(\S+)", options, re.IGNORECASE)
        keys = signed[1].replace(",", " ") if signed else ""
        mirror = Mirror(uri=uri, signed_by=keys)
        yield _Entry(mirror=mirror, suites=(suite,), components=tuple(components.split()))


def _stanza_entries(text: str) -> Iterator[_Entry]:
    """Entries in the format of deb822: ``Field: value`` lines, blank lines between."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for stanza in re.split(r"\n[ \t]*\n", "\n".join(lines)):
        fields = dict(_fields(stanza))
        if "deb" not in fields.get("types", "").split() or _is_no(fields.get("enabled", "yes")):
            continue
        for uri in fields.get("uris", "").split():
            yield _Entry(
                mirror=Mirror(uri=uri, signed_by=fields.get("signed-by", "").rstrip()),
                suites=tuple(fields.get("suites", "").split()),
                components=tuple(fields.get("components", "").split()),
            )


def _fields(stanza: str) -> Iterator[tuple[str, str]]:
    for match in re.finditer(r"^([^\s:]+):(.*(?:\n[ \t].*)*)", stanza, re.MULTILINE):
        value = match[2]
        # A key written into the entry keeps its lines; everything else is one list of words
        yield match[1].lower(), value if "\n" in value else value.strip()


def _is_no(value: str) -> bool:
    return value.strip().lower() in {"no", "false", "without", "off", "disable"}


class PrivateApt:
    """apt with one source and a state folder of its own.

    Args:
        folder: An empty folder; everything apt writes goes there.
        mirror: Where packages come from.
        suite: The only suite apt sees.
    """

    def __init__(self, folder: Path, mirror: Mirror, suite: str) -> None:
        self.suite = suite
        self._folder = folder
        self._lists = folder / "state" / "lists"
        self._archives = folder / "cache" / "archives"
        for each in (self._lists, self._archives):
            (each / "partial").mkdir(parents=True)
        # apt puts its locks beside this file, so it must not be one of the system's
        (folder / "state" / "status").touch()
        (folder / "only.sources").write_text(_source(mirror, suite), encoding="utf-8")
        (folder / "apt.conf").write_text(_configuration(folder), encoding="utf-8")

    def update(self) -> None:
        """Read the suite's package list and check its signature.

        Raises:
            IntegrityError: The list is not signed by a key this machine trusts for it.
            NotFoundError: The mirror does not carry the suite.
            GpusnapError: The mirror cannot be reached, or there is no space.
        """
        self._run("apt-get", "update")

    def origin(self) -> str:
        """Who signed the suite's list: the ``Origin`` of its release file."""
        for path in self._lists.glob("*Release"):
            text = path.read_text(encoding="utf-8", errors="replace")
            if match := re.search(r"^Origin:\s*(.+)$", text, re.MULTILINE):
                return match[1].strip()
        return ""

    def download(self, package: str) -> tuple[Path, ...]:
        """Fetch a package and everything it depends on, as on a machine with nothing.

        Raises:
            GpusnapError: As :meth:`update`.
        """
        self._run("apt-get", "install", "--yes", "--download-only", package)
        return tuple(sorted(self._archives.glob("*.deb")))

    def _run(self, *command: str) -> None:
        configuration = str(self._folder / "apt.conf")
        environment = {**os.environ, "APT_CONFIG": configuration, "LC_ALL": "C"}
        _run_tool(command, environment)


def machine_sources() -> tuple[Path, Path]:
    """Where the machine's apt keeps its sources: the file and the folder."""
    text = _run_tool(
        ("apt-config", "shell", "F", "Dir::Etc::sourcelist/f", "D", "Dir::Etc::sourceparts/d"),
        {**os.environ, "LC_ALL": "C"},
    )
    found = dict(word.split("=", 1) for word in shlex.split(text) if "=" in word)
    return Path(found.get("F", "/etc/apt/sources.list")), Path(
        found.get("D", "/etc/apt/sources.list.d")
    )


def _source(mirror: Mirror, suite: str) -> str:
    fields = {
        "Types": "deb",
        "URIs": mirror.uri,
        "Suites": suite,
        "Components": "main",
        "Architectures": _run_tool(("dpkg", "--print-architecture"), None).strip(),
        "Signed-By": _keys(mirror.signed_by),
    }
    return "".join(f"{name}: {value}\n" for name, value in fields.items() if value)


def _keys(signed_by: str) -> str:
    """The entry's own keys, with the archive keys that lie on this machine beside them.

    A machine whose entry names only the keys of its own release may still have those of the
    next one, in files of their own.
    """
    named = signed_by.split()
    if named and not all(word.startswith("/") for word in named):
        return signed_by
    lying = sorted(KEY_FOLDER.glob("debian-archive-*.gpg"))
    kept = [str(path) for path in lying if "removed" not in path.name]
    return " ".join(dict.fromkeys([*named, *kept]))


def _configuration(folder: Path) -> str:
    lines = [
        *_machine_acquire_settings(_run_tool(("apt-config", "dump"), None).splitlines()),
        f'Dir::State "{folder}/state";',
        f'Dir::State::status "{folder}/state/status";',
        f'Dir::Cache "{folder}/cache";',
        f'Dir::Etc::sourcelist "{folder}/only.sources";',
        'Dir::Etc::sourceparts "/dev/null";',
        'Dir::Etc::preferences "/dev/null";',
        'Dir::Etc::preferencesparts "/dev/null";',
        # Hooks of the machine live in these; what is needed of them stands above
        'Dir::Etc::main "/dev/null";',
        'Dir::Etc::parts "/dev/null";',
        # Without root there is no dpkg lock to take, and with root there is no need
        'Debug::NoLocking "1";',
        'APT::Install-Recommends "0";',
        'APT::Update::Error-Mode "any";',
        'APT::Get::AllowUnauthenticated "0";',
        'Acquire::AllowInsecureRepositories "0";',
        'Acquire::AllowWeakRepositories "0";',
        'Acquire::AllowDowngradeToInsecureRepositories "0";',
        'Acquire::Languages "none";',
        # The default of three, each later than the one before, is long to a person who waits
        'Acquire::Retries "1";',
    ]
    return "\n".join(lines) + "\n"


def _machine_acquire_settings(dump: Iterable[str]) -> Iterator[str]:
    """How the machine reaches its mirrors: proxies, timeouts, certificates."""
    skipped = ("Acquire::IndexTargets", "Acquire::Languages", "Acquire::Allow")
    for line in dump:
        if line.startswith("Acquire::") and not line.startswith(skipped):
            yield line


def _run_tool(command: tuple[str, ...], environment: dict[str, str] | None) -> str:
    try:
        ended = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=APT_SECONDS,
            check=False,
        )
    except FileNotFoundError as error:
        raise NotFoundError(
            f"{command[0]} is not on this machine, so Debian's packages cannot be fetched",
            cure=OTHER_WAY,
        ) from error
    except subprocess.TimeoutExpired as error:
        raise DeadlineError(
            f"{' '.join(command[:2])} did not end within {APT_SECONDS} s", cure=OFFLINE_CURE
        ) from error
    if ended.returncode != 0:
        raise _explain(ended.stderr.decode(errors="replace"))
    return ended.stdout.decode(errors="replace")


OTHER_WAY = (
    "Install CRIU 4.1 or newer and name it in GPUSNAP_CRIU, or copy the private folder of "
    "another machine (it runs anywhere on the same architecture) and name that"
)
OFFLINE_CURE = f"Try again with a network connection. {OTHER_WAY}"


class _Meaning(msgspec.Struct, frozen=True, kw_only=True):
    """What some words in apt's errors say."""

    words: str
    error: type[GpusnapError]
    text: str
    cure: str


_MEANINGS = (
    _Meaning(
        words=r"No space left|enough free space",
        error=GpusnapError,
        text="There is no space left for Debian's package lists and packages",
        cure="Free some 100 MB in the temporary folder, or set TMPDIR to one with space",
    ),
    _Meaning(
        words=r"Hash Sum mismatch|unexpected size",
        error=IntegrityError,
        text="What the mirror sent does not match Debian's signed list",
        cure="Try again later, or use another mirror: this one is broken or being updated",
    ),
    _Meaning(
        words=r"Could not resolve|[Cc]ould not connect|Unable to connect|Connection (failed|timed)"
        r"|[Nn]etwork is unreachable|Temporary failure|Connection refused|timed out",
        error=GpusnapError,
        text="The Debian mirror of this machine's apt configuration cannot be reached",
        cure=OFFLINE_CURE,
    ),
    _Meaning(
        words=r"NO_PUBKEY|BADSIG|EXPKEYSIG|REVKEYSIG|not signed|isn't signed|verify|gpgv|sqv"
        r"|NOSPLIT|signature",
        error=IntegrityError,
        text="The signature of Debian's package list could not be checked, so nothing was taken",
        cure="Update the package debian-archive-keyring, then run `gpusnap setup-criu` again",
    ),
    _Meaning(
        words=r"not live until|not valid yet|expired",
        error=IntegrityError,
        text="The mirror's package list is out of date, or this machine's clock is wrong",
        cure="Set the clock, or use another mirror",
    ),
    _Meaning(
        words=r"does not have a Release file|404|File not found|does not exist|Unable to locate",
        error=NotFoundError,
        text="The mirror of this machine's apt configuration does not carry the Debian suite",
        cure=OTHER_WAY,
    ),
    _Meaning(
        words=r"",
        error=GpusnapError,
        text="apt could not fetch CRIU",
        cure=OTHER_WAY,
    ),
)


def _explain(errors: str) -> GpusnapError:
    """The error that apt's own lines mean."""
    lines = tuple(line.strip() for line in errors.splitlines() if re.match(r"[EW]:|  ", line))
    meaning = next(each for each in _MEANINGS if re.search(each.words, errors))
    return meaning.error(meaning.text, cure=meaning.cure, details=lines[:5])
