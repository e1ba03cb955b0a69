"""What CRIU is allowed and told for a tree: chosen from what was seen, unless the user says."""

from collections.abc import Iterator

import msgspec

from gpusnap.findings.files import DeletedFile, deleted_files, file_locks
from gpusnap.findings.process import own_namespace
from gpusnap.findings.sockets import Sockets, passes
from gpusnap.findings.terminals import needs_shell_job
from gpusnap.findings.view import View
from gpusnap.repository import SavedOptions
from gpusnap.types import Finding, Severity

GHOST_DEFAULT = 1 << 20
"""CRIU's own limit for a deleted file, in bytes."""


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """What the user says of CRIU's options; None leaves the choice to gpusnap."""

    tcp_established: bool = False  # the peer has to play along, which only the user can know
    file_locks: bool | None = None
    external_unix_sockets: bool | None = None
    link_remap: bool | None = None


class Choice(msgspec.Struct, frozen=True):
    """One option of CRIU that was chosen for the user, and what asked for it."""

    option: str
    reason: str


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """What a dump is asked with.

    Attributes:
        options: CRIU's options.
        own_network: Whether the tree has a network namespace of its own.
        choices: Those that the user did not name.
        deleted: The deleted files of the tree.
        findings: What is missing because the user forbade it.
    """

    options: SavedOptions = SavedOptions()
    own_network: bool = False
    choices: tuple[Choice, ...] = ()
    deleted: tuple[DeletedFile, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def deleted_bytes(self) -> int:
        """Bytes that the snapshot will hold of deleted files."""
        return sum(each.allocated for each in self.deleted)


class _Reasons(msgspec.Struct, frozen=True, kw_only=True):
    """Why the tree asks for each option; empty where it does not."""

    shell_job: str = ""
    tcp_established: str = ""
    own_network: str = ""
    file_locks: str = ""
    external_unix_sockets: str = ""
    link_remap: str = ""
    ghost_limit: str = ""


def choose(view: View, sockets: Sockets, wishes: Wishes) -> Needs:
    """Choose CRIU's options for a tree.

    Args:
        view: The tree.
        sockets: Its sockets.
        wishes: What the user said; it wins, and what is then missing is an error finding.
    """
    deleted = deleted_files(view)
    reasons = _reasons(view, sockets, deleted)
    options = SavedOptions(
        shell_job=bool(reasons.shell_job),
        tcp_established=wishes.tcp_established or bool(reasons.tcp_established),
        file_locks=_given(reasons.file_locks, wish=wishes.file_locks),
        link_remap=_given(reasons.link_remap, wish=wishes.link_remap),
        ext_unix_sockets=_given(reasons.external_unix_sockets, wish=wishes.external_unix_sockets),
        ghost_limit=_ghost_limit(deleted) if reasons.ghost_limit else None,
    )
    return Needs(
        options=options,
        own_network=bool(reasons.own_network),
        choices=tuple(_choices(wishes, reasons, options)),
        deleted=deleted,
        findings=tuple(_forbidden(wishes, reasons)),
    )


def _given(reason: str, *, wish: bool | None) -> bool:
    return bool(reason) if wish is None else wish


def _choices(wishes: Wishes, reasons: _Reasons, options: SavedOptions) -> Iterator[Choice]:
    if reasons.shell_job:
        yield Choice("--shell-job", reasons.shell_job)
    if reasons.tcp_established and not wishes.tcp_established:
        yield Choice("--tcp-established", reasons.tcp_established)
    if reasons.own_network:
        yield Choice("--network-lock", reasons.own_network)
    if reasons.file_locks and wishes.file_locks is None:
        yield Choice("--file-locks", reasons.file_locks)
    if reasons.external_unix_sockets and wishes.external_unix_sockets is None:
        yield Choice("--ext-unix-sk", reasons.external_unix_sockets)
    if reasons.link_remap and wishes.link_remap is None:
        yield Choice("--link-remap", reasons.link_remap)
    if reasons.ghost_limit:
        yield Choice(f"--ghost-limit={options.ghost_limit}", reasons.ghost_limit)


def _forbidden(wishes: Wishes, reasons: _Reasons) -> Iterator[Finding]:
    if reasons.file_locks and wishes.file_locks is False:
        yield Finding(
            code="file-locks",
            severity=Severity.ERROR,
            text=f"File locks are not to be saved, but {reasons.file_locks}",
            cure="Leave --no-file-locks out",
        )
    if reasons.link_remap and wishes.link_remap is False:
        yield Finding(
            code="link-remap",
            severity=Severity.ERROR,
            text=f"Deleted files are not to be linked, but {reasons.link_remap}",
            cure="Leave --no-link-remap out",
        )


def _reasons(view: View, sockets: Sockets, deleted: tuple[DeletedFile, ...]) -> _Reasons:
    ghosts = [each for each in deleted if not each.linked]
    largest = max(ghosts, key=lambda each: each.allocated, default=None)
    return _Reasons(
        shell_job=_session(view),
        tcp_established=_connection(sockets),
        own_network=_network(view),
        file_locks=_locks(view),
        external_unix_sockets=_peer(sockets),
        link_remap=next((_link(each) for each in deleted if each.linked), ""),
        ghost_limit=_ghost(largest) if largest is not None else "",
    )


def _session(view: View) -> str:
    if not needs_shell_job(view):
        return ""
    root = view.target.root
    return f"process {root.pid} belongs to the session of process {root.session_id}"


def _connection(sockets: Sockets) -> str:
    for seen, each, peer in sockets.connections:
        if peer is not None:
            return f"process {seen.pid} is connected to process {peer.pid} at {each.remote}"
    return ""


def _network(view: View) -> str:
    root = view.target.root
    if root.namespaces.get("net") == own_namespace("net"):
        return ""
    return f"process {root.pid} has a network namespace of its own"


def _locks(view: View) -> str:
    locks = file_locks(view)
    if not locks:
        return ""
    pid, count = next(iter(locks.items()))
    others = f" and {len(locks) - 1} more processes do" if len(locks) > 1 else ""
    return f"process {pid} holds {count} {'lock' if count == 1 else 'locks'}{others}"


def _peer(sockets: Sockets) -> str:
    for seen, _, peer in sockets.outside:
        if passes(peer):
            return f"process {seen.pid} sends to {peer.name}"
    return ""


def _link(deleted: DeletedFile) -> str:
    return f"process {deleted.pid} uses {deleted.name}, which lives on under another name alone"


def _ghost(largest: DeletedFile) -> str:
    if 2 * largest.allocated <= GHOST_DEFAULT:
        return ""
    return f"process {largest.pid} uses {largest.name}, {largest.allocated} bytes that are deleted"


def _ghost_limit(deleted: tuple[DeletedFile, ...]) -> int:
    """Twice the largest deleted file: it may grow until the tree stands still."""
    return 2 * max(each.allocated for each in deleted if not each.linked)
