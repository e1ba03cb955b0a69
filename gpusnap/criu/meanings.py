"""What CRIU's lines mean, as one table.

Texts are CRIU's own, read in its sources from 4.1 to 4.2 and, where a test names the line, in
logs of failures that were made on purpose.
"""

import re

import msgspec


class Meaning(msgspec.Struct, frozen=True, kw_only=True):
    """What one of CRIU's lines says, for a person.

    Attributes:
        name: Stable identifier, as docs/reference/criu.md lists it.
        words: Regular expression for the line; its named groups fill the text.
        text: The sentence.
        cure: What the user can do, or None.
        beside_errors: Whether the line carries no error mark, being a warning or a message.
    """

    name: str
    words: re.Pattern[str]
    text: str
    cure: str | None
    beside_errors: bool = False


def _meaning(
    name: str, words: str, text: str, cure: str | None, *, beside_errors: bool = False
) -> Meaning:
    return Meaning(
        name=name, words=re.compile(words), text=text, cure=cure, beside_errors=beside_errors
    )


_IO_URING_CURE = (
    "Set the kernel's `sysctl kernel.io_uring_disabled=2` before the target starts, so that it "
    "does without"
)
_REMAKE = "Restore from another snapshot; `gpusnap verify` names what is damaged"

MEANINGS = (
    # What a dump cannot save
    _meaning(
        "io-uring",
        r"anon_inode:\[io_uring\]|send_fds failed \(-22\)",
        "The target uses io_uring, which CRIU cannot save",
        _IO_URING_CURE,
    ),
    _meaning(
        "device-mapping",
        r"Can't handle non-regular mapping on (?P<pid>\d+)'s map (?P<start>[0-9a-f]+)",
        "Process {pid} maps a device at 0x{start}, which CRIU cannot save",
        "Let that process close the device before the checkpoint, or end it; a GPU's memory is "
        "saved by its backend, which must claim the process",
    ),
    _meaning(
        "unknown-mapping",
        r"Unknown shit \d+ \((?P<file>.*)\)",
        "The target maps {file}, a kind of file that CRIU cannot save",
        "Let it unmap that file before the checkpoint",
    ),
    _meaning(
        "unsupported-mapping",
        r"Unsupported mapping found (?P<start>[0-9a-f]+)-",
        "The target has a mapping at 0x{start} of a kind that CRIU cannot save",
        "Let it unmap that range before the checkpoint",
    ),
    _meaning(
        "unsupported-descriptor",
        r"Can't dump file (?P<fd>\d+) of that type \[\d+\] \((?P<file>.*)\)",
        "The target has {file} open as descriptor {fd}, which CRIU cannot save",
        "Let it close that descriptor before the checkpoint",
    ),
    _meaning(
        "foreign-pidfd",
        r"pidfd pid (?P<pid>\d+) is not a part of process tree",
        "The target holds a pidfd of process {pid}, which is outside of it",
        "Checkpoint from that process on, or let the target close the pidfd",
    ),
    _meaning(
        "foreign-mount",
        r"Can't lookup mount=\d+ for fd=-?\d+ path=(?P<path>.*)",
        "The target uses /{path} on a mount that CRIU does not see",
        "Let it close that file, or checkpoint the process that made the mount namespace",
    ),
    _meaning(
        "overmounted-file",
        r"Open files on overmounted mounts are not supported yet;.* path=(?P<path>.*)",
        "The target has /{path} open, over which something else was mounted since",
        "Take the covering mount away, or let the target close that file",
    ),
    _meaning(
        "nested-namespace",
        r"Can't dump nested (?P<kind>\w+) namespace for (?P<pid>\d+)",
        "Process {pid} has a {kind} namespace of its own inside the target's",
        "Checkpoint that process alone, or run the target without a nested namespace",
    ),
    _meaning(
        "tcp-established",
        r"Connected TCP socket, consider using --tcp-established",
        "The target has an established TCP connection",
        "Checkpoint with --tcp-established and restore at the same address, or close it before",
    ),
    _meaning(
        "tcp-in-flight",
        r"In-flight connection",
        "The target has a TCP connection that is not accepted yet",
        "Try again when it is accepted",
    ),
    _meaning(
        "old-criu-for-sockets",
        r"Can't get 1:(?:16|34) opt: Operation not supported",
        "This CRIU cannot save network sockets on kernels from 6.16 on",
        "Name a CRIU 4.2 or newer in GPUSNAP_CRIU",
    ),
    _meaning(
        "unknown-socket",
        r"BUG! Unknown socket collected \(family (?P<family>\d+)\)",
        "The target has a socket of address family {family}, which CRIU cannot save",
        "Let it close that socket before the checkpoint",
    ),
    _meaning(
        "network-lock",
        r"Locking network failed|Failed to lock TCP connection|iptables-restore.* failed",
        "CRIU could not hold back packets for the target's connections",
        "Install iptables, or use a kernel with nftables",
    ),
    _meaning(
        "external-stream-socket",
        r"Can't dump half of stream unix connection.*peer name: (?P<peer>.*)",
        "The target is connected to the socket {peer} of a process outside of it",
        "End that connection before the checkpoint: CRIU cannot save one half of a stream",
    ),
    _meaning(
        "external-socket",
        r"External socket is used. Consider using --ext-unix-sk|Can't dump name-less external",
        "The target is connected to a Unix socket of a process outside of it",
        "End that connection before the checkpoint; datagram sockets are let through by "
        "--ext-unix-sk",
    ),
    _meaning(
        "file-locks",
        r"Some file locks are hold by dumping tasks",
        "The target holds file locks",
        "Checkpoint with --file-locks",
    ),
    _meaning(
        "ghost-too-large",
        r"Can't dump ghost file (?P<path>.*) of (?P<bytes>\d+) size",
        "The target has the deleted file /{path} of {bytes} bytes open, too large to be saved",
        "Let it close that file, or keep the file until after the restore",
    ),
    _meaning(
        "link-remap",
        r"Can't create link remap for (?P<path>.*)\. Use link-remap",
        "The target has /{path} open, which was deleted and lives on under another name",
        "Checkpoint with --link-remap",
    ),
    _meaning(
        "terminal",
        r"Task attached to shell terminal",
        "The target is attached to a terminal",
        "Start it detached, with `setsid` and its output in files",
        beside_errors=True,
    ),
    _meaning(
        "terminal-pair",
        r"Found slave peer index \d+ without correspond master|Found dangling tty",
        "The target is attached to a terminal whose other end is outside of it",
        "Start it detached, with `setsid` and its output in files",
    ),
    _meaning(
        "session-leader",
        r"The root process (?P<pid>\d+) is not a session leader"
        r"|session leader of (?:zombie process )?(?P<outside>\d+)\(\d+\) is outside",
        "The target belongs to the session of a process outside of it",
        "Start it with `setsid`, or checkpoint the leader of its session",
    ),
    _meaning(
        "own-ancestor",
        r"The criu itself is within dumped tree",
        "CRIU is itself part of the target",
        "Run gpusnap from outside of the process tree it is to checkpoint",
    ),
    _meaning(
        "zombie-threads",
        r"Zombie thread not supported|Zombies with threads are not supported",
        "A thread of the target has ended and was not collected yet",
        "Try again; if it persists the program has ended its first thread and cannot be saved",
    ),
    _meaning(
        "pending-trap",
        r"Can't dump the (?P<pid>\d+) thread with a pending SIGTRAP",
        "Thread {pid} of the target is being stopped by a debugger",
        "End the debugger first",
    ),
    _meaning(
        "32-bit-mode",
        r"Can't dump task (?P<pid>\d+) running in 32-bit mode|with LDT descriptors",
        "A process of the target runs 32-bit code, which CRIU cannot save here",
        None,
    ),
    _meaning(
        "seccomp",
        r"PTRACE_O_SUSPEND_SECCOMP|suspend(?:ing)? seccomp|Dumping seccomp filters not supported"
        r"|Can't fetch (?:filter|seccomp metadata)",
        "CRIU could not read or suspend the target's seccomp filters",
        "Run gpusnap outside of a sandbox, as root, on a kernel with CONFIG_CHECKPOINT_RESTORE",
    ),
    _meaning(
        "not-seized",
        r"Unable to interrupt task: (?P<pid>\d+)",
        "CRIU could not stop process {pid}",
        "Run gpusnap as root, outside of containers that forbid ptrace",
        beside_errors=True,
    ),
    _meaning(
        "freeze-timeout",
        r"Timeout reached\. Try to interrupt|Unable to freeze cgroup",
        "The target could not be frozen in time",
        "Try again, or give it more time with --timeout: a process that waits for a disk or a "
        "network file system cannot be stopped",
    ),
    # Plugins
    _meaning(
        "missing-plugin",
        r"Missing required plugin: (?P<plugin>\S+)",
        "The snapshot needs CRIU's plugin {plugin}, which is not loaded",
        "Restore it with `gpusnap restore` and the backend that made it, not with criu alone",
    ),
    _meaning(
        "plugin-not-loaded",
        r"Unable to load (?P<plugin>\S+): (?P<reason>.*)|Corrupted plugin (?P<corrupted>\S+)"
        r"|Can't load plugin (?P<unnamed>\S+)",
        "CRIU could not load one of its plugins",
        "Use the plugin of the same CRIU version, with the libraries it needs",
    ),
    _meaning(
        "guard-failed",
        r"Error \(gpusnap_guard\): (?P<reason>.*)",
        "The guard in CRIU cannot hide memory from it: {reason}",
        None,
    ),
    _meaning(
        "plugin-failed",
        r"Failed in init\(\d+\) of \"(?P<plugin>[^\"]+)\"|(?:CHECKPOINT|PAUSE|RESUME)_DEVICES "
        r"(?:\w+ )?failed with|cuda-checkpoint (?:unexpectedly|exited)|handle_device_vma plugin",
        "A plugin of CRIU failed with the device",
        "See the log; the driver's own checkpoint is used with --engine driver",
    ),
    # What a restore needs
    _meaning(
        "pid-taken",
        r"Can't fork for (?P<pid>\d+): File exists",
        "PID {pid} is taken, but the target must come back under it",
        "Wait until that process is gone, or end it",
    ),
    _meaning(
        "missing-file",
        r"Can't open file (?P<path>.*?)(?: on restore)?: No such file",
        "The file /{path} is gone, but the target had it open",
        "Put it back as it was at the checkpoint",
    ),
    _meaning(
        "file-size",
        r"File (?P<path>.*) has bad size (?P<now>\d+) \(expect (?P<saved>\d+)\)",
        "The file /{path} has {now} bytes, but had {saved} at the checkpoint",
        "Put it back as it was; if it has only grown since, `truncate -s {saved} /{path}` does",
    ),
    _meaning(
        "file-build",
        r"File (?P<path>.*) has bad build-ID",
        "The program or library /{path} is another build than at the checkpoint",
        "Install the very same version again",
    ),
    _meaning(
        "file-mode",
        r"File (?P<path>.*) has bad mode 0*(?P<now>\d+) \(expect 0*(?P<saved>\d+)\)",
        "The file /{path} has mode {now}, but had {saved} at the checkpoint",
        "Set the mode as it was",
    ),
    _meaning(
        "watched-file",
        r"fsnotify: Unable to open (?P<path>.*): No such file",
        "The target watches /{path}, which is gone",
        "Put it back as it was at the checkpoint",
    ),
    _meaning(
        "socket-peer",
        r"Peer \d+ unresolved for \d+",
        "The target was waiting for a connection to a process outside of it, which cannot be "
        "brought back",
        "Checkpoint again once that connection is made or given up",
    ),
    _meaning(
        "no-terminal",
        r"Don't have tty to inherit session from",
        "The target ran on a terminal and needs one to come back to",
        "Restore it from a terminal",
    ),
    _meaning(
        "session-clash",
        r"Current [sg]id \d+ intersects with",
        "The session that gpusnap runs in has the number of one of the target's",
        "Restore from another shell",
    ),
    _meaning(
        "address-taken",
        r"Can't bind inet socket.*: Address already in use",
        "A network port of the target is taken by another process",
        "End that process, then restore again",
    ),
    _meaning(
        "address-missing",
        r"Can't bind inet socket.*: Cannot assign requested address",
        "A network address of the target is not on this machine",
        "Restore on a machine with the same address",
    ),
    _meaning(
        "socket-name-taken",
        r"unix: Can't bind id .*: Address already in use",
        "The name of a Unix socket of the target is taken by another process",
        "End that process, or restore with --new-pids, which gives the socket another name",
    ),
    _meaning(
        "cpu-differs",
        r"(?:CPU (?:instruction )?capabilities do|FPU feature required by image|CPU xsave)",
        "This processor lacks features that the target was using",
        "Restore on a machine with the same or a newer processor",
    ),
    _meaning(
        "damaged-image",
        r"Unexpected EOF on|Read \d+ bytes while \d+ expected|Failed unpacking object"
        r"|agic doesn't match|Can't read pages data|Page read err|Img trimmed|[Ii]mage corrupt"
        r"|Reached EOF unexpectedly",
        "A file of the snapshot is missing or damaged",
        _REMAKE,
    ),
    # The machine
    _meaning(
        "old-criu-for-kernel",
        r"Unexpected rt vDSO area bounds|Failed to fill self vdso symtable",
        "This CRIU is too old for the kernel: it cannot read its vDSO",
        "Use CRIU 4.1 or newer: `gpusnap setup-criu` makes a private copy",
    ),
    _meaning(
        "no-capability",
        r"CRIU needs to have the CAP_SYS_ADMIN",
        "CRIU lacks the capability CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE",
        "Run gpusnap as root",
        beside_errors=True,
    ),
    _meaning(
        "kernel-feature",
        r"(?:System call kcmp|prctl: PR_\w+|TCP_REPAIR\w*) (?:is|can't be|isn't) "
        r"|map_files is inaccessible|sem_next_id is inaccessible|ns_last_pid sysctl is inacc",
        "The kernel lacks a feature that CRIU needs",
        "Use a kernel built with CONFIG_CHECKPOINT_RESTORE, outside of a restricted container",
    ),
    _meaning(
        "no-space",
        r"No space left on device|Disk quota exceeded",
        "There is no space left for the snapshot",
        "Free space in the repository, or choose another with --repo",
    ),
    _meaning(
        "no-memory",
        r"Cannot allocate memory|[Oo]ut of memory|Can't allocate",
        "There is not enough memory",
        "Free memory on this machine, or raise the limit of the container",
    ),
    _meaning(
        "parasite",
        r"Can't infect \(pid: (?P<pid>\d+)\)|remote mmap\(\) failed|The task is not in parasite",
        "CRIU could not run its code inside the target",
        "Check that no debugger, tracer or security module guards the target",
    ),
)
