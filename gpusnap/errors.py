"""Every error gpusnap raises on purpose; each class owns its exit code.

::

    GpusnapError                  1   failed
    ├── UsageError                2   wrong argument
    ├── NotFoundError            10   no such snapshot, process or repository
    ├── BusyError                11   another operation holds the target or repository
    ├── IntegrityError           12   a snapshot is damaged
    ├── NoBackendError           13   no usable backend
    ├── IncompatibleError        14   other device, driver or host
    ├── PrivilegeError           15   a capability is missing
    ├── TargetError              16   target gone or not checkpointable
    ├── DeadlineError            17   an operation took too long
    ├── CriuError                18   CRIU failed
    └── PluginError              19   a plugin failed

Exit code 0 is success, 3 is success with warnings, 128+N is signal N.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar

from gpusnap.types import DeviceState, Finding, Severity

EXIT_OK = 0
EXIT_WARNINGS = 3


class GpusnapError(Exception):
    """Base of all: one sentence, and a cure where there is one.

    Attributes:
        exit_code: What the command line exits with.
        text: The sentence.
        cure: What the user can do, or None.
        details: Further lines, such as the decisive line of a log.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, text: str, *, cure: str | None = None, details: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.text = text
        self.cure = cure
        self.details = tuple(details)


class UsageError(GpusnapError):
    """An argument that can never be right: a bad name, an unknown unit."""

    exit_code = 2


class NotFoundError(GpusnapError):
    """The snapshot, process, device or repository that was named does not exist."""

    exit_code = 10


class BusyError(GpusnapError):
    """Another gpusnap operation holds the target or the repository."""

    exit_code = 11


class IntegrityError(GpusnapError):
    """Bytes on disk are not the bytes that were saved."""

    exit_code = 12


class NoBackendError(GpusnapError):
    """No backend can do what was asked on this machine."""

    exit_code = 13


class IncompatibleError(GpusnapError):
    """The devices or the host differ from the snapshot's in a way that matters."""

    exit_code = 14


class PrivilegeError(GpusnapError):
    """A capability or permission is missing."""

    exit_code = 15


class TargetError(GpusnapError):
    """The target is gone, or cannot be checkpointed as it is."""

    exit_code = 16


class DeadlineError(GpusnapError):
    """An operation did not end within its time."""

    exit_code = 17


class CriuError(GpusnapError):
    """CRIU refused or failed; ``details`` holds the decisive line of its log."""

    exit_code = 18


class PluginError(GpusnapError):
    """A plugin raised something it should not have, or broke the interface."""

    exit_code = 19


class DeviceError(TargetError):
    """The driver refused a call for a process.

    Attributes:
        pid: The process.
        state: Its state in the driver after the failure, if it could be read.
    """

    def __init__(
        self,
        text: str,
        *,
        pid: int,
        state: DeviceState | None = None,
        cure: str | None = None,
        details: Sequence[str] = (),
    ) -> None:
        super().__init__(text, cure=cure, details=details)
        self.pid = pid
        self.state = state


class CallbackError(TargetError):
    """A function that the program registered raised, or did not end within its time.

    Attributes:
        callback: The name of the function.
    """

    def __init__(
        self, text: str, *, callback: str, cure: str | None = None, details: Sequence[str] = ()
    ) -> None:
        super().__init__(text, cure=cure, details=details)
        self.callback = callback


ERROR_OF_CODE: Mapping[str, type[GpusnapError]] = MappingProxyType(
    {
        "amd-kfd-version": NoBackendError,
        "amd-plugin-missing": NoBackendError,
        "checkpoint-not-offered": NoBackendError,
        "criu-missing": CriuError,
        "device-unclaimed": NoBackendError,
        "privilege": PrivilegeError,
        "repository-space": GpusnapError,
        "snapshot-owner": PrivilegeError,
    }
)
"""The class of a finding that means the same whatever was being checked."""


def refuse(findings: Sequence[Finding], default: type[GpusnapError] = TargetError) -> None:
    """Raise for the first error finding, the others as details; without one do nothing.

    Args:
        findings: What a check saw.
        default: Class to raise for codes that are not in :data:`ERROR_OF_CODE`.
    """
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    if not errors:
        return
    first, *rest = errors
    raise ERROR_OF_CODE.get(first.code, default)(
        f"{first.text} [{first.code}]",
        cure=first.cure,
        details=[f"{finding.text} [{finding.code}]" for finding in rest],
    )
