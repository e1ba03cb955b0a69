"""What CRIU is asked to do, as structs, as RPC options and as a command line."""

import math
import shutil
from pathlib import Path
from typing import TypeAlias

import msgspec

from gpusnap.criu import rpc_pb2
from gpusnap.criu.find import Criu
from gpusnap.types import CriuOptions

LOG_LEVEL = 4
DUMP_LOG = "dump.log"
RESTORE_LOG = "restore.log"
NO_PLUGINS = "no-plugins"
"""Empty folder in the work folder: CRIU would otherwise load what lies in the system's."""


class DumpRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A dump of a process tree.

    Attributes:
        pid: Its root.
        images: Existing folder for the images.
        work: Existing folder for the log and statistics.
        leave_running: Whether the target runs on after the dump.
        own_network: Whether the tree has a network namespace of its own.
        ghost_limit: Largest deleted file that is saved, in bytes; None for CRIU's 1 MiB.
        timeout_us: How long CRIU may take, without the time that notifications take.
    """

    pid: int
    images: Path
    work: Path
    leave_running: bool
    timeout_us: int
    shell_job: bool = False
    tcp_established: bool = False
    file_locks: bool = False
    link_remap: bool = False
    ext_unix_sockets: bool = False
    own_network: bool = False
    ghost_limit: int | None = None
    options: CriuOptions = CriuOptions()

    @property
    def locks_network(self) -> bool:
        """Whether CRIU holds packets back meanwhile, for which it has to be told how."""
        return self.tcp_established or self.own_network


class RestoreRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A restore of a process tree; the fields are those of the dump."""

    images: Path
    work: Path
    timeout_us: int
    shell_job: bool = False
    tcp_established: bool = False
    file_locks: bool = False
    ext_unix_sockets: bool = False
    options: CriuOptions = CriuOptions()


CriuRequest: TypeAlias = DumpRequest | RestoreRequest


def log_path(request: CriuRequest) -> Path:
    """Where CRIU's log of this request lies."""
    return request.work / (DUMP_LOG if isinstance(request, DumpRequest) else RESTORE_LOG)


def plugin_directory(request: CriuRequest) -> Path:
    """The folder that CRIU loads plugins from: the backend's, else one without any."""
    named = request.options.plugin_directory
    folder = Path(named) if named is not None else request.work / NO_PLUGINS
    # CRIU reads the name when it is in its work folder already
    return folder.absolute()


def global_arguments(request: CriuRequest) -> tuple[str, ...]:
    """What RPC has no field for: no settings of the machine, the plugin folder, a ghost limit.

    The field that RPC has for the last ends at 4 GiB.
    """
    arguments = ("--no-default-config", "--libdir", str(plugin_directory(request)))
    if isinstance(request, DumpRequest) and request.ghost_limit is not None:
        return (*arguments, f"--ghost-limit={request.ghost_limit}")
    return arguments


def inside_arguments(work: int) -> tuple[str, ...]:
    """What a CRIU in another PID namespace is told beside :func:`global_arguments`."""
    return ("--work-dir", f"/proc/self/fd/{work}")


def rpc_options(
    request: CriuRequest, images: int, work: int, *, inside: bool = False
) -> rpc_pb2.Options:
    """The request in CRIU's own terms.

    Args:
        request: What is asked for.
        images: Open descriptor of the images folder.
        work: Open descriptor of the work folder.
        inside: Whether CRIU runs in a PID namespace where gpusnap has no PID. It then inherits
            the descriptors, because it cannot look them up among gpusnap's.
    """
    options = rpc_pb2.Options(
        log_file=log_path(request).name,
        log_level=LOG_LEVEL,
        notify_scripts=True,
        shell_job=request.shell_job,
        tcp_established=request.tcp_established,
        file_locks=request.file_locks,
        ext_unix_sk=request.ext_unix_sockets,
        # The restored tree belongs where gpusnap runs: the cgroups of a finished job are gone
        manage_cgroups_mode=rpc_pb2.IGNORE,
        timeout=_freeze_seconds(request.timeout_us),
    )
    if inside:
        options.images_dir_fd, options.images_dir = -1, f"/proc/self/fd/{images}"
    else:
        options.images_dir_fd, options.work_dir_fd = images, work
    if isinstance(request, DumpRequest):
        _add_dump_options(options, request)
    return options


def _add_dump_options(options: rpc_pb2.Options, request: DumpRequest) -> None:
    options.pid = request.pid
    options.leave_running = request.leave_running
    options.link_remap = request.link_remap
    if request.locks_network:
        options.network_lock = _network_lock()


def _network_lock() -> rpc_pb2.NetworkLock:
    """How packets are kept away from frozen connections: CRIU calls iptables, or links nft."""
    return rpc_pb2.IPTABLES if shutil.which("iptables-restore") else rpc_pb2.NFTABLES


def _freeze_seconds(timeout_us: int) -> int:
    """CRIU's own limit for freezing the tree (10 s if not told); ours ends everything."""
    return min(max(10, math.ceil(timeout_us / 1_000_000)), 0x7FFFFFFF)


def equivalent_command(criu: Criu, request: CriuRequest) -> tuple[str, ...]:
    """The command line that a person would type for the same request."""
    command = [*criu.command]
    if isinstance(request, DumpRequest):
        command += ["dump", "--tree", str(request.pid)]
    else:
        command += ["restore", "--restore-detached"]
    command += ["--images-dir", str(request.images), "--work-dir", str(request.work)]
    command += [f"--log-file={log_path(request).name}", f"-v{LOG_LEVEL}"]
    command += [*global_arguments(request), "--manage-cgroups=ignore"]
    command += [f"--timeout={_freeze_seconds(request.timeout_us)}", *_flags(request)]
    return tuple(command)


def _flags(request: CriuRequest) -> list[str]:
    wanted = {
        "--shell-job": request.shell_job,
        "--tcp-established": request.tcp_established,
        "--file-locks": request.file_locks,
        "--ext-unix-sk": request.ext_unix_sockets,
    }
    if isinstance(request, DumpRequest):
        wanted |= {"--leave-running": request.leave_running, "--link-remap": request.link_remap}
    flags = [flag for flag, given in wanted.items() if given]
    if isinstance(request, DumpRequest) and request.locks_network:
        flags.append(f"--network-lock={rpc_pb2.NetworkLock.Name(_network_lock()).lower()}")
    return flags
