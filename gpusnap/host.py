"""Facts about this machine that a snapshot records."""

import platform
from pathlib import Path

from gpusnap.criu import Criu
from gpusnap.repository import Host


def read_host(criu: Criu) -> Host:
    """Read kernel, C library, boot and tool versions."""
    return Host(
        kernel=platform.release(),
        machine=platform.machine(),
        hostname=platform.node(),
        boot_id=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        libc=" ".join(part for part in platform.libc_ver() if part),
        criu_version=criu.version_text,
        python_version=platform.python_version(),
    )
