"""The codes that findings carry, and what may be forced."""

import difflib
from collections.abc import Collection, Mapping
from types import MappingProxyType

from gpusnap.errors import UsageError
from gpusnap.plugins import Plugins

CODES: Mapping[str, str] = MappingProxyType(
    {
        # Machine
        "criu-missing": "no CRIU was found that works on this kernel",
        "criu-passed-over": "a CRIU was found and is not used",
        "criu-used": "which CRIU is used",
        "guard-unusable": "memory cannot be kept from CRIU, which saves all of it by itself",
        "host-memory": "device memory does not fit into the free host memory",
        "huge-pages-left": "huge pages could not be set back to what they were",
        "huge-pages-unavailable": "huge pages cannot be switched on",
        "metrics-port": "metrics cannot be served on the port that was named",
        "plugin-event": "a plugin failed while it was told of an event",
        "privilege": "capabilities are missing",
        "ptrace-scope": "the kernel lets no process trace another",
        "repository-space": "the repository's file system has too little room",
        "restore-space": "the folder for temporary files has no room for the images of a restore",
        "sandbox": "gpusnap itself is in a sandbox that keeps CRIU from saving sandboxed processes",
        "parent-unusable": "the parent of an incremental snapshot cannot be built on",
        # Target
        "checkpoint-not-offered": "the backend cannot save the device state of a process",
        "descriptor-kind": "a file of a kind that CRIU cannot save is open",
        "device-file": "a device that CRIU cannot save is open",
        "device-not-checkpointed": "the driver has the process running already",
        "device-not-running": "the driver has the process locked, checkpointed or failed",
        "device-unclaimed": "a device is in use, and no usable backend claims its state",
        "device-unknown-process": "the driver does not know a claimed process",
        "file-locks": "file locks are held, which the user forbade to save",
        "guard-pages": "CRIU is too old to save memory with guard pages",
        "io-uring": "io_uring is in use, which CRIU cannot save",
        "link-remap": "a deleted file has another name, and the user forbade to link it",
        "pid-namespace": "the target is in another PID namespace, as in a container",
        "namespace-nested": "a process has another namespace than the root of its tree",
        "namespace-other": "the tree has namespaces other than gpusnap's, as in a container",
        "pidfd-outside": "a process outside of the tree is held by a pidfd",
        "pipe-outside": "a process outside of the tree holds the other end of a pipe",
        "seccomp": "a process has a seccomp filter, which is saved",
        "secret-memory": "secret memory is in use, which nobody else can read",
        "socket-old-criu": "CRIU is too old to save network sockets on this kernel",
        "socket-protocol": "a socket of a protocol that CRIU cannot save is open",
        "sysv-shm": "System V shared memory is attached",
        "target-changing": "a process of the tree ended during the check",
        "target-traced": "a debugger is attached",
        "tcp-established": "a TCP connection is established",
        "tcp-in-flight": "a TCP connection is not accepted yet",
        "terminal": "a terminal is in use whose other end is outside of the tree",
        "unix-socket-outside": "a Unix socket is connected to a process outside of the tree",
        "watch-proc": "a file of /proc is watched by inotify",
        # NVIDIA
        "nccl-transport": "NCCL shares device memory between processes",
        "nvidia-cuda-ipc": "device memory is shared by CUDA IPC",
        "nvidia-driver-old": "the driver is known to fail on PyTorch programs",
        "nvidia-managed-memory": "managed memory is in use",
        "nvidia-mig": "the GPU is split by MIG",
        "nvidia-mps": "the GPU is used through MPS",
        "nvidia-persistence": "persistence mode is off",
        "nvidia-uprobe": "calls of the CUDA library are traced",
        # AMD
        "amd-images-damaged": "the images of an AMD device are damaged",
        "amd-kfd-version": "KFD is too old to be checkpointed, or cannot be asked",
        "amd-library": "a library of the AMD backend does not work",
        "amd-node-skipped": "a node of KFD is not among the devices",
        "amd-plugin-missing": "CRIU's amdgpu plugin is not installed",
        "rocgdb-failed": "AMD's debugger told nothing of a process",
        "rocgdb-queues": "how many queues AMD's debugger sees",
        "rocgdb-waves": "how many waves AMD's debugger sees",
        "amd-untried": "the AMD backend has not run on hardware",
        # Restore
        "abstract-socket-renamed": "the name of an abstract socket is in use: a copy has another",
        "abstract-socket-taken": "the name of an abstract socket is in use",
        "device-count": "there are more or fewer devices than the snapshot knows",
        "device-links": "the links of the devices are not those of the snapshot's",
        "device-map-stale": "processes on other devices remember the old ones",
        "device-map-unfit": "the devices that were chosen are not enough",
        "device-memory": "a device has less memory",
        "device-memory-free": "a device has too little free memory",
        "device-model": "a device is of another model",
        "device-order": "the devices are in another order",
        "device-property": "a device differs in a property that counts",
        "driver-version": "the driver is of another version",
        "host-machine": "the snapshot is of another CPU architecture",
        "new-pids-engine": "CRIU's plugin does not work with PIDs that others do not see",
        "new-pids-init": "the snapshot has a process with PID 1",
        "pid-taken": "a PID of the snapshot is taken",
        "program-missing": "the program of a process is missing",
        "snapshot-owner": "others than root and the caller could have written the snapshot",
        # Damage
        "snapshot-chunk-damaged": "a chunk of memory has other bytes",
        "snapshot-file-altered": "a file of the snapshot has other bytes",
        "snapshot-file-extra": "a file was added to the snapshot",
        "snapshot-file-missing": "a file of the snapshot is gone",
        "snapshot-file-truncated": "a file of the snapshot is too short",
        "snapshot-file-unreadable": "a file of the snapshot cannot be read",
        "snapshot-manifest-damaged": "the list of the snapshot's files is damaged",
    }
)
"""Every code of gpusnap and its backends, with what it says; a backend of others declares its own.

docs/how-to/troubleshooting.md explains each.
"""

_NEAR = 3


def check_known_codes(force: Collection[str], plugins: Plugins) -> frozenset[str]:
    """The codes of findings to override; a single one may come by itself.

    Args:
        force: What the user named.
        plugins: The backends, which may have codes of their own.

    Raises:
        UsageError: No finding has such a code.
    """
    codes = frozenset((force,) if isinstance(force, str) else force)
    known = set(CODES).union(*(each.info.finding_codes for each in plugins.backends()))
    for code in sorted(codes - known):
        near = difflib.get_close_matches(code, sorted(known), _NEAR)
        cure = f"Did you mean {' or '.join(near)}?" if near else "gpusnap check PID shows the codes"
        raise UsageError(f"No finding has the code {code!r}", cure=cure)
    return codes
