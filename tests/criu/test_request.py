"""What CRIU is asked for, as RPC options and as the command a person would type."""

from pathlib import Path

import pytest

from gpusnap.criu import Criu, DumpRequest, RestoreRequest, equivalent_command, rpc_pb2
from gpusnap.criu.request import global_arguments, inside_arguments, rpc_options
from gpusnap.types import CriuOptions

CRIU = Criu(command=("ld.so", "criu"), version=(4, 1, 1), source="private", path="/data/criu")
DUMP = DumpRequest(
    pid=7, images=Path("/i"), work=Path("/w"), leave_running=True, timeout_us=90_500_000
)
ALL = {
    "shell_job": True,
    "tcp_established": True,
    "file_locks": True,
    "ext_unix_sockets": True,
    "options": CriuOptions(plugin_directory="/plugins"),
}
RESTORE = RestoreRequest(images=Path("/i"), work=Path("/w"), timeout_us=1, **ALL)  # type: ignore[arg-type]


def test_a_plain_dump() -> None:
    options = rpc_options(DUMP, 3, 4)
    assert (options.images_dir_fd, options.work_dir_fd, options.pid) == (3, 4, 7)
    assert (options.log_file, options.log_level) == ("dump.log", 4)
    assert options.leave_running
    assert options.notify_scripts
    assert not options.HasField("network_lock")
    assert options.timeout == 91
    assert options.manage_cgroups_mode == rpc_pb2.IGNORE


def test_a_restore_with_everything() -> None:
    options = rpc_options(RESTORE, 3, 4)
    assert options.log_file == "restore.log"
    assert options.timeout == 10, "Never below CRIU's own limit"
    given = (options.shell_job, options.tcp_established, options.file_locks, options.ext_unix_sk)
    assert given == (True,) * 4
    assert not options.HasField("pid")
    assert not options.HasField("leave_running")


def test_in_a_namespace_criu_finds_the_folders_among_its_own_descriptors() -> None:
    options = rpc_options(RESTORE, 3, 4, inside=True)
    assert (options.images_dir_fd, options.images_dir) == (-1, "/proc/self/fd/3")
    assert not options.HasField("work_dir_fd")
    assert inside_arguments(4) == ("--work-dir", "/proc/self/fd/4")


def test_field_numbers_are_criu_s() -> None:
    """As images/rpc.proto of CRIU has them: a wrong number would set another option."""
    assert {field.name: field.number for field in rpc_pb2.Options.DESCRIPTOR.fields} == {
        "images_dir_fd": 1,
        "pid": 2,
        "leave_running": 3,
        "ext_unix_sk": 4,
        "tcp_established": 5,
        "shell_job": 7,
        "file_locks": 8,
        "log_level": 9,
        "log_file": 10,
        "notify_scripts": 12,
        "work_dir_fd": 17,
        "link_remap": 18,
        "manage_cgroups_mode": 34,
        "timeout": 45,
        "network_lock": 64,
        "images_dir": 68,
    }


def test_the_command_of_a_dump() -> None:
    assert equivalent_command(CRIU, DUMP) == (
        *("ld.so", "criu", "dump", "--tree", "7", "--images-dir", "/i", "--work-dir", "/w"),
        *("--log-file=dump.log", "-v4", "--no-default-config", "--libdir", "/w/no-plugins"),
        *("--manage-cgroups=ignore", "--timeout=91", "--leave-running"),
    )


def test_the_command_of_a_restore_with_everything() -> None:
    assert equivalent_command(CRIU, RESTORE) == (
        *("ld.so", "criu", "restore", "--restore-detached", "--images-dir", "/i"),
        *("--work-dir", "/w", "--log-file=restore.log", "-v4", "--no-default-config"),
        *("--libdir", "/plugins", "--manage-cgroups=ignore", "--timeout=10"),
        *("--shell-job", "--tcp-established", "--file-locks", "--ext-unix-sk"),
    )


@pytest.mark.parametrize(("installed", "method"), [(True, "iptables"), (False, "nftables")])
def test_packets_are_held_back_by_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: bool, method: str
) -> None:
    if installed:
        (tmp_path / "iptables-restore").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    request = DumpRequest(
        pid=7,
        images=Path("/i"),
        work=Path("/w"),
        leave_running=False,
        timeout_us=1,
        tcp_established=True,
        link_remap=True,
        ghost_limit=5,
    )
    command = equivalent_command(CRIU, request)
    assert command[-3:] == ("--tcp-established", "--link-remap", f"--network-lock={method}")
    assert "--ghost-limit=5" in command
    assert "--ghost-limit=5" in global_arguments(request)
