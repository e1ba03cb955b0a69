"""What a user writes for a snapshot: a path to it, its name, a beginning of that, ``latest``."""

from contextlib import suppress
from pathlib import Path

from gpusnap.errors import NotFoundError
from gpusnap.folders import default_repository
from gpusnap.repository import names
from gpusnap.repository.draft import Draft
from gpusnap.repository.layout import MANIFEST
from gpusnap.repository.repository import Repository
from gpusnap.repository.snapshot import Snapshot, open_snapshot
from gpusnap.repository.storage import absolute, as_path


def _is_path(spec: str | Path, repo: str | Path | None) -> bool:
    as_path(spec)
    if isinstance(spec, Path) or "/" in spec:
        return True
    # A bare name may be a snapshot in the current folder, unless a repository was named.
    return repo is None and bool(spec) and (Path(spec) / MANIFEST).is_file()


def _repository(repo: str | Path | None) -> Path:
    return default_repository() if repo is None else as_path(repo)


def locate(spec: str | Path, repo: str | Path | None = None) -> Path:
    """The folder of a snapshot, also of one that is too damaged to open.

    Args:
        spec: A Path, or text with a slash, is the snapshot's folder itself; other text is
            what :meth:`Repository.find` takes.
        repo: Where names are looked up, by default :func:`default_repository`.

    Raises:
        NotFoundError: There is no such repository or snapshot.
        UsageError: Several snapshots match, or none ever could.
    """
    if _is_path(spec, repo):
        return absolute(spec)
    return Repository.open(_repository(repo)).locate(str(spec))


def resolve(spec: str | Path, repo: str | Path | None = None) -> Snapshot:
    """The snapshot a user means; arguments as :func:`locate`.

    Raises:
        NotFoundError: There is no such repository or snapshot.
        UsageError: Several snapshots match, or none ever could.
        IntegrityError: Its manifest is damaged.
        IncompatibleError: A newer gpusnap wrote it.
    """
    return open_snapshot(locate(spec, repo))


def _place(spec: str | Path | None, repo: str | Path | None) -> tuple[Path, str | None]:
    """The repository and name for a new snapshot."""
    if spec is None:
        return _repository(repo), None
    as_path(spec)
    # Nothing is normalised here: "a/.." must be refused, not turned into another name.
    parent, slash, name = str(spec).rstrip("/").rpartition("/")
    names.check(name)
    if slash:
        return Path(parent or "/"), name
    return Path() if isinstance(spec, Path) else _repository(repo), name


def planned_path(
    spec: str | Path | None, repo: str | Path | None = None, *, process_name: str = "process"
) -> Path:
    """Where :func:`resolve_new` would put a snapshot; changes nothing, arguments as there.

    Raises:
        UsageError: No snapshot may have the name, or one has it, or the repository is a file.
        GpusnapError: The repository is damaged, of a newer format, or may not be read.
    """
    folder, name = _place(spec, repo)
    with suppress(NotFoundError):
        Repository.open(folder)
    path = absolute(folder) / (name or next(names.generated(process_name)))
    names.check_free(path)
    return path


def resolve_new(
    spec: str | Path | None, repo: str | Path | None = None, *, process_name: str = "process"
) -> Draft:
    """Begin the snapshot a user means; the repository is made if need be.

    Args:
        spec: A Path, or text with a slash, is the snapshot's folder, whose parent is the
            repository; other text is a name; None has a name made.
        repo: Where names go, by default :func:`default_repository`.
        process_name: For a name that is made.

    Raises:
        UsageError: No snapshot may have the name, or one has it.
        BusyError: Another process is making it.
        GpusnapError: The repository cannot be made or written to.
    """
    folder, name = _place(spec, repo)
    return Repository.create(folder).prepare(name, process_name=process_name)
