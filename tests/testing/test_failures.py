from pathlib import Path

import pytest

from gpusnap.errors import UsageError
from gpusnap.testing import DriverCall, FailureKind, Machine, fail
from gpusnap.testing.failures import take_failure


def test_each_failure_is_consumed_once(machine: Machine) -> None:
    fail(machine, "lock", "busy", times=2)
    taken = [take_failure(machine, DriverCall.LOCK, 1) for _ in range(3)]
    assert taken == [FailureKind.BUSY, FailureKind.BUSY, None]


def test_failure_waits_for_its_call(machine: Machine) -> None:
    fail(machine.path, DriverCall.RESTORE, FailureKind.HANG)
    assert take_failure(machine, DriverCall.CHECKPOINT, 1) is None
    assert take_failure(machine, DriverCall.RESTORE, 1) is FailureKind.HANG


def test_failure_waits_for_its_process(machine: Machine) -> None:
    fail(str(machine.path), "unlock", "hang", pid=7)
    assert take_failure(machine, DriverCall.UNLOCK, 8) is None
    assert take_failure(machine, DriverCall.UNLOCK, 7) is FailureKind.HANG


@pytest.mark.parametrize(
    ("operation", "kind", "sentence"),
    [
        ("look", "busy", "look is no driver call"),
        ("lock", "tired", "tired is no kind of failure"),
        ("checkpoint", "busy", "A checkpoint call cannot fail as busy"),
        ("unlock", "out-of-memory", "A unlock call cannot fail as out-of-memory"),
    ],
)
def test_senseless_failures(tmp_path: Path, operation: str, kind: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        fail(tmp_path, operation, kind)
    assert not list(tmp_path.iterdir())
