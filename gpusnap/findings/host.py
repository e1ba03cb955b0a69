"""Whether this machine lets processes be saved and brought back."""

from collections.abc import Iterator
from pathlib import Path

from gpusnap.criu import Search
from gpusnap.target import read_status
from gpusnap.types import Finding, Severity

_NEEDED_CAPABILITIES = {"CAP_SYS_PTRACE": 19, "CAP_SYS_ADMIN": 21, "CAP_CHECKPOINT_RESTORE": 40}
_PTRACE_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
_NOBODY = "3"
"""No process may trace another until the next boot (Documentation/admin-guide/LSM/Yama.rst)."""


def check_privileges() -> Iterator[Finding]:
    """Name what is missing to freeze, dump and restore processes."""
    mask = int(read_status("self").get("CapEff", "0"), 16)
    missing = [name for name, bit in _NEEDED_CAPABILITIES.items() if not mask >> bit & 1]
    if missing:
        yield Finding(
            code="privilege",
            severity=Severity.ERROR,
            text=f"gpusnap lacks {', '.join(missing)} to freeze, save and restore processes",
            cure="Run it as root, or give it these capabilities",
        )
    if _read(_PTRACE_SCOPE).strip() == _NOBODY:
        yield Finding(
            code="ptrace-scope",
            severity=Severity.ERROR,
            text="The kernel lets no process trace another (kernel.yama.ptrace_scope is 3)",
            cure="Set it to 2 or less in the boot's settings and boot anew: it cannot be lowered",
        )


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def check_criu(search: Search) -> Iterator[Finding]:
    """Say which CRIU is used, and why others were passed over."""
    for passed in search.passed:
        yield Finding(
            code="criu-passed-over",
            severity=Severity.WARNING if search.criu is None else Severity.INFO,
            text=f"The CRIU at {passed.path} is not used: {passed.reason}",
        )
    if search.criu is None:
        yield Finding(
            code="criu-missing",
            severity=Severity.ERROR,
            text="No CRIU that works was found",
            cure="Run gpusnap setup-criu, or point GPUSNAP_CRIU at one",
        )
        return
    yield Finding(
        code="criu-used",
        severity=Severity.INFO,
        text=f"CRIU {search.criu.version_text} at {search.criu.path} is used",
    )
