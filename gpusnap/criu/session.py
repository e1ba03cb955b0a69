"""A dump or a restore by CRIU, with a say at each of its stages."""

import signal
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from gpusnap.criu import rpc_pb2
from gpusnap.criu.find import Criu
from gpusnap.criu.images import tree_pids
from gpusnap.criu.leftovers import Tree, end_session
from gpusnap.criu.log import explain_failure
from gpusnap.criu.namespace import Entrance, Namespace
from gpusnap.criu.plugin_log import asides, plugin_failure
from gpusnap.criu.request import CriuRequest, DumpRequest, RestoreRequest, log_path, rpc_options
from gpusnap.criu.service import GRACE_SECONDS, Service, open_folder
from gpusnap.ending import still_there
from gpusnap.errors import CriuError, DeadlineError, GpusnapError, IntegrityError, UsageError
from gpusnap.types import ProcessId

Notify = Callable[[str, int | None], bool]
"""Called at each stage with its name and, where CRIU tells it, the PID of the restored root.

False makes CRIU fail at that stage.
"""

Watch = Callable[[], None]
"""Called about every second in which CRIU says nothing; what it raises ends the operation."""

_LOOK_SECONDS = 1.0


class Session:
    """Dumps and restores, each by a `criu swrk` of its own that ends with it.

    Args:
        criu: The CRIU to run.
        started: Called with CRIU's PID before CRIU is asked for anything.
        namespace: Where CRIU runs, None for here. PIDs in a request, and those that CRIU tells,
            are those inside. One that was made for a restore ends where that fails.

    Attributes:
        undone: After a failure, whether CRIU told of it, and all that it had made has ended.
    """

    def __init__(
        self,
        criu: Criu,
        started: Callable[[int], None] | None = None,
        namespace: Entrance | None = None,
    ) -> None:
        self._criu = criu
        self._started = started
        self._namespace = namespace
        self._service: Service | None = None
        self.undone = False

    @property
    def pid(self) -> int:
        """The PID of CRIU, from the first notification on.

        Raises:
            UsageError: It has not been started yet.
        """
        if self._service is None:
            raise UsageError("CRIU has not been started in this session")
        return self._service.pid

    def dump(self, request: DumpRequest, notify: Notify, watch: Watch = lambda: None) -> None:
        """Dump a process tree.

        At ``post-dump`` the images are complete and the target is still frozen. It runs on if
        that stage is refused or raises, and also if gpusnap or CRIU dies before the answer.

        Raises:
            CriuError: CRIU failed, with the decisive line of its log; the target runs on.
            DeadlineError: CRIU took too long and was stopped.
            BaseException: Whatever ``notify`` or ``watch`` raised, after CRIU has ended.
        """
        self._carry_out(rpc_pb2.DUMP, request, notify, watch)

    def restore(self, request: RestoreRequest, notify: Notify, watch: Watch = lambda: None) -> int:
        """Bring a process tree back.

        At ``post-restore`` all memory is in place and no task has run yet; if that stage is
        refused, nothing of the tree remains. CRIU ignores a refusal at a later stage. Whatever
        is raised, by ``notify`` at any stage, by ``watch`` or by the death of CRIU, nothing remains
        either, nor what the tree has forked since it ran, as far as
        :func:`gpusnap.ending.stop_trees` finds it; but for zombies until they are reaped. A process
        that the kernel does not end in time is named in the details of a GpusnapError.

        Returns:
            The PID of the restored root.

        Raises:
            CriuError: CRIU failed, with the decisive line of its log.
            DeadlineError: CRIU took too long and was stopped, with what it had brought up.
            BaseException: Whatever ``notify`` or ``watch`` raised, after CRIU has ended.
        """
        return self._carry_out(rpc_pb2.RESTORE, request, notify, watch).restore.pid

    def close(self) -> None:
        """End a CRIU that still runs; only a call from another thread finds one."""
        if self._service is not None:
            self._service.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _carry_out(
        self,
        kind: rpc_pb2.RequestType,
        request: CriuRequest,
        notify: Notify,
        watch: Watch = lambda: None,
    ) -> rpc_pb2.Response:
        # What has the PIDs of the images here has nothing to do with a tree elsewhere
        tree = _tree_of(request) if self._namespace is None else Tree(())
        with (
            open_folder(request.images) as images,
            open_folder(request.work) as work,
            Service(self._criu, request, (images, work), self._namespace) as self._service,
        ):
            inside = self._namespace is not None
            options = rpc_options(request, images, work, inside=inside)
            conversation = _Conversation(self._service, request, notify, watch)
            try:
                if self._started is not None:
                    self._started(self._service.pid)
                self._service.send(rpc_pb2.Request(type=kind, opts=options))
                return conversation.run()
            except BaseException as error:
                if isinstance(error, GpusnapError):
                    error.details += asides(log_path(request), request.options.log_meanings)
                if isinstance(self._namespace, Namespace):
                    self._namespace.end()
                self._service.stop()
                outcome = conversation.outcome
                left = _clean_up(self._service, tree, outcome)
                self.undone = outcome is not None and not outcome.success and not left
                if isinstance(error, GpusnapError):
                    error.details += tuple(map(still_there, left))
                raise


def _tree_of(request: CriuRequest) -> Tree:
    if isinstance(request, DumpRequest):
        return Tree(())
    # An unreadable list leaves no way to know them; CRIU cannot read it either
    with suppress(IntegrityError):
        return Tree(tree_pids(request.images))
    return Tree(())


def _clean_up(
    service: Service, tree: Tree, outcome: rpc_pb2.Response | None
) -> tuple[ProcessId, ...]:
    """End what CRIU left behind, where it could not do so itself; returns what is still there."""
    if outcome is not None and not outcome.success:
        # CRIU answers before the tree that it has killed is gone
        return tree.wait_gone()
    left = end_session(service.pid) if outcome is None and service.leads_session else ()
    # What is not gone yet is found twice where it had not left CRIU's session
    return tuple(dict.fromkeys((*left, *tree.end())))


class _Conversation:
    """The exchange of messages from a request to its outcome."""

    def __init__(
        self, service: Service, request: CriuRequest, notify: Notify, watch: Watch
    ) -> None:
        self._service = service
        self._request = request
        self._notify = notify
        self._watch = watch
        self._deadline = time.monotonic() + request.timeout_us / 1_000_000
        self._stage = "start"
        self._refused_at: str | None = None
        self._raised: BaseException | None = None
        self.outcome: rpc_pb2.Response | None = None
        """What CRIU answered in the end; None until it has."""

    def run(self) -> rpc_pb2.Response:
        """Answer notifications until CRIU tells the outcome."""
        while (response := self._receive()) is not None:
            if response.type != rpc_pb2.NOTIFY:
                self.outcome = response
                break
            self._answer(response.notify)
        status = self._service.wait(GRACE_SECONDS)
        if self._raised is not None:
            raise self._raised
        if self.outcome is None or not self.outcome.success:
            raise self._failure(status)
        if self._restores and (failure := self._plugin_failure(fatal=True)):
            raise failure
        return self.outcome

    @property
    def _restores(self) -> bool:
        return isinstance(self._request, RestoreRequest)

    def _plugin_failure(self, *, fatal: bool = False) -> CriuError | None:
        meanings = self._request.options.log_meanings
        return plugin_failure(log_path(self._request), meanings, fatal=fatal)

    def _receive(self) -> rpc_pb2.Response | None:
        while True:
            look = min(self._deadline, time.monotonic() + _LOOK_SECONDS)
            with suppress(TimeoutError):
                return self._service.receive(look)
            if time.monotonic() >= self._deadline:
                break
            self._watch()
        raise DeadlineError(
            f"CRIU did not end within {self._request.timeout_us / 1_000_000:g} s and was "
            f"stopped after its stage {self._stage!r}",
            cure="Give it more time with --timeout",
        )

    def _answer(self, notification: rpc_pb2.Notification) -> None:
        """Let the caller do its part; the time that takes is not CRIU's."""
        started = time.monotonic()
        self._stage = notification.script
        agreed = self._ask(notification)
        if not agreed and self._refused_at is None:
            self._refused_at = self._stage
        self._deadline += time.monotonic() - started
        self._service.send(rpc_pb2.Request(type=rpc_pb2.NOTIFY, notify_success=agreed))

    def _ask(self, notification: rpc_pb2.Notification) -> bool:
        if self._raised is not None:
            return False
        pid = notification.pid if notification.HasField("pid") else None
        try:
            return self._notify(notification.script, pid)
        except BaseException as error:  # noqa: BLE001 - raised again once CRIU has ended
            self._raised = error
            return False

    def _failure(self, status: int | None) -> CriuError:
        if self._refused_at is None and (failure := self._plugin_failure()):
            return failure
        if self.outcome is None and status is not None and status < 0:
            name = signal.strsignal(-status) or "unknown"
            return CriuError(
                f"CRIU was killed by signal {-status} ({name}) after its stage {self._stage!r}"
            )
        if self._refused_at is not None:
            return CriuError(f"CRIU was told to stop at its stage {self._refused_at!r}")
        return explain_failure(log_path(self._request), self._service.output())
