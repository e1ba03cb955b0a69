"""Tells jobs whose processes share device memory through NCCL, which no driver restores.

Measured with driver 580: such a checkpoint succeeds and the restore then fails with 801 or
999 on every rank, so the job is lost. Over sockets it works.
"""

from collections.abc import Iterator
from pathlib import Path

from gpusnap.errors import GpusnapError
from gpusnap.target import read_maps
from gpusnap.types import Finding, Severity
from gpusnap_nvidia.results import NCCL_CURE
from gpusnap_nvidia.uses import Use

_SOCKETS_ONLY = {
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_CUMEM_ENABLE": "0",
    "NCCL_IB_DISABLE": "1",
}


def shared_transport(pids: tuple[int, ...], own: tuple[Use, ...]) -> Iterator[Finding]:
    """Find the processes of a job whose NCCL was not told to use sockets.

    Only jobs of several processes with device memory count: one alone shares nothing. A
    process that sets the variables itself after its start is not recognised.
    """
    holders = tuple(pid for pid in pids if pid in {use.pid for use in own}) or pids
    ranks = [pid for pid in holders if _maps_nccl(pid)]
    if len(ranks) < 2:  # noqa: PLR2004 - a pair is the least that shares
        return
    for pid in ranks:
        wrong = _not_set(pid)
        if wrong:
            yield Finding(
                code="nccl-transport",
                severity=Severity.ERROR,
                text=f"Process {pid} is one of {len(ranks)} that use NCCL and was started "
                f"without {' '.join(wrong)}: the driver could not restore it",
                cure=NCCL_CURE,
                pid=pid,
            )


def _maps_nccl(pid: int) -> bool:
    try:
        return any("/libnccl.so" in mapping.path for mapping in read_maps(pid))
    except GpusnapError:
        return False


def _not_set(pid: int) -> list[str]:
    try:
        variables = set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    except OSError:
        return []
    settings = [f"{name}={value}" for name, value in _SOCKETS_ONLY.items()]
    return [setting for setting in settings if setting.encode() not in variables]
