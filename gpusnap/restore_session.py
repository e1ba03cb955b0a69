"""CRIU's session of a restore: processes are made, filled and answered before they run."""

import contextlib
from collections.abc import Callable

from gpusnap.criu import Namespace, Session
from gpusnap.errors import CriuError, TargetError
from gpusnap.events import CriuNotified, Event, Phase
from gpusnap.inprocess.answers import restored
from gpusnap.journal import Journal
from gpusnap.links import links_in_place
from gpusnap.mailbox import write_answer
from gpusnap.phases import Phases
from gpusnap.pids import SAME, PidMap, map_of
from gpusnap.restore_plan import PreparedRestore
from gpusnap.sockets import socket_folders
from gpusnap.target import alive, identity
from gpusnap.thp import huge_pages
from gpusnap.types import ProcessId


class RestoreSession:
    """Has CRIU make the processes of a snapshot again, with all that was saved past it.

    A failure at any stage leaves no process, but what CRIU itself could not end.

    Attributes:
        pids: From the PIDs of the snapshot to those here, told from ``post-restore`` on.
        undone: After a failure, whether CRIU itself has ended all that it had made.
    """

    def __init__(
        self,
        prepared: PreparedRestore,
        namespace: Namespace | None,
        phases: Phases,
        journal: Journal,
        emit: Callable[[Event], None],
    ) -> None:
        self.pids: PidMap = SAME
        self.undone = False
        self._prepared = prepared
        self._namespace = namespace
        self._phases = phases
        self._journal = journal
        self._emit = emit
        self._standing: tuple[ProcessId, ...] = ()
        self._filled = prepared.filler is None
        self._restoring = contextlib.ExitStack()

    @property
    def outside(self) -> tuple[int, ...]:
        """The PIDs of the tree as they are here."""
        return self.pids.translate_all(self._prepared.snapshot.manifest.target.pids)

    def run(self) -> None:
        """Make the processes; once this returns they run, but for their devices.

        Raises:
            CriuError: CRIU failed, or left out a stage.
            DeadlineError: CRIU took too long.
            TargetError: A process was killed meanwhile.
            IntegrityError: The memory that was saved past CRIU is damaged.
            GpusnapError: Something else stood in the way.
        """
        snapshot = self._prepared.snapshot
        session = Session(self._prepared.criu, self._journal.criu_started, self._namespace)
        with session, self._restoring:
            self._restoring.enter_context(self._phases.step(Phase.CRIU_RESTORE))
            links = links_in_place(snapshot.manifest.links, snapshot.images)
            folders = socket_folders(snapshot.images)
            with links, folders, huge_pages(self._emit, wanted=self._prepared.options.thp):
                try:
                    session.restore(self._prepared.request, self._notified, self._watch)
                finally:
                    self.undone = session.undone
        self._require_filled()
        self._journal.update(criu=None)

    def _notified(self, script: str, _pid: int | None) -> bool:
        if script == "post-restore":
            self._note_processes()
        if script == "pre-resume":
            self._require_filled()
            self._standing = ()
        if script == "post-resume" and self._namespace is None:
            self._journal.update(resumed=True)
        self._emit(CriuNotified(script=script))
        if script == "post-restore":
            self._fill_memory()
            self._answer_program()
        return True

    def _note_processes(self) -> None:
        """All exist now and none runs: these very ones are to be ended on failure."""
        if self._namespace is not None:
            self.pids = map_of(self._namespace.init.pid)
        made = [identity(pid) for pid in self.outside]
        present = tuple(each for each in made if each is not None)
        self._standing = tuple(filter(alive, present))  # a saved zombie is none
        if self._namespace is not None:
            claimed = self.pids.translate_all(self._prepared.claimed)
            self._journal.update(processes=(self._namespace.init, *present), claimed=claimed)
        elif len(present) == len(made):
            self._journal.update(processes=present, made=True)

    def _watch(self) -> None:
        """For one that is killed before it could run CRIU would wait for ever."""
        for process in self._standing:
            if not alive(process):
                msg = f"Process {process.pid} was killed while it was being restored"
                raise TargetError(msg, cure="Find out what killed it, then restore again")

    def _fill_memory(self) -> None:
        """Put back what was saved past CRIU, before any task runs; a failure ends the tree."""
        filler = self._prepared.filler
        if filler is None:
            return
        self._restoring.close()
        with self._phases.step(Phase.FILL, filler.raw_bytes) as progress:
            verify = self._prepared.options.verify_memory
            filler.fill(progress, verify=verify, pids=self.pids.translate)
        self._filled = True

    def _require_filled(self) -> None:
        """A CRIU that left out the stage of the filling would let the tree run on empty memory."""
        if not self._filled:
            msg = "CRIU was about to let the processes run without their memory"
            raise CriuError(msg, cure="Use another CRIU; see gpusnap setup-criu")

    def _answer_program(self) -> None:
        """Tell a program that had itself saved that it was restored, before any task runs."""
        prepared = self._prepared
        mailbox = prepared.snapshot.manifest.mailbox
        if mailbox is not None:
            answer = restored(prepared.snapshot, prepared.device_map, prepared.options.overrides)
            write_answer(self.pids.translate(mailbox.pid), mailbox, answer)
