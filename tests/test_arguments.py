import pytest

import gpusnap
from gpusnap.errors import UsageError


@pytest.mark.parametrize("pid", ["123", 1.0, None, True, b"1"])
def test_no_pid(pid: object) -> None:
    with pytest.raises(UsageError, match="is not a PID"):
        gpusnap.create_checkpoint(pid, "x/y")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="is not a PID"):
        gpusnap.resume(pid)  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout", [0, -5, 10**30, float("inf"), "1s"])
def test_no_timeout(timeout: object) -> None:
    with pytest.raises(UsageError, match="timeout_us is"):
        gpusnap.create_checkpoint(1, "x/y", timeout_us=timeout)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="timeout_us is"):
        gpusnap.restore_checkpoint("x/y", timeout_us=timeout)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="timeout_us is"):
        gpusnap.suspend(1, lock_timeout_us=timeout)  # type: ignore[arg-type]


def test_no_engine() -> None:
    with pytest.raises(UsageError, match="is no engine"):
        gpusnap.create_checkpoint(1, "x/y", engine="steam")
