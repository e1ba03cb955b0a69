"""One thread that saves memory.

It does what is most urgent: it copies out of the target as long as there is a buffer, and
otherwise encodes and writes what was copied. So the target waits for a codec or the disk only
where its memory exceeds the budget. Bytes that no codec makes smaller are written at once where
that is what releases the target first; all of them, where it does not run on anyway: a buffer that
is used again costs less than a new one, and the disk has work from the start. Where nothing is to
be found out about the bytes first, each piece is written right after it was copied, while it is in
the processor's cache, and not even the buffer is filled.
"""

import time

from gpusnap.datapath.backlog import Backlog, Filled
from gpusnap.datapath.buffers import Buffer
from gpusnap.datapath.codecs import Choice
from gpusnap.datapath.pace import Pace
from gpusnap.datapath.records import Codec
from gpusnap.datapath.source import Piece, Pieces, Windows, copy_pieces
from gpusnap.datapath.store import Store
from gpusnap.native import Outlet


class Worker:
    """Copies, encodes and writes, into a pack of its own.

    Attributes:
        read: Bytes that it copied, zeros included.
    """

    def __init__(
        self, windows: Windows, backlog: Backlog, store: Store, pace: Pace, *, at_once: bool
    ) -> None:
        self._windows = windows
        self._pieces = Pieces(windows)
        self._backlog = backlog
        self._store = store
        self._pace = pace
        self._at_once = at_once
        self.read = 0

    def run(self) -> None:
        """Work until there is nothing left to do."""
        copying = True
        while True:
            if copying and self._pieces.peek() is None:
                copying = False
                self._backlog.finished_copying(self._pieces.take_passed())
            match self._backlog.next(copying=copying):
                case None:
                    return
                case Filled() as filled:
                    self._write(filled)
                case buffer:
                    self._serve(buffer)

    def _serve(self, buffer: Buffer) -> None:
        encoder, pace = self._store.encoder, self._pace
        due = not encoder.may_skip or pace.try_is_due()
        writes = self._at_once or pace.favours_writing
        outlet = None if due or not writes else self._store.outlet()
        filled = self._fill(buffer, outlet, due=due)
        self._backlog.count(filled, self._pieces.take_passed())
        fast = self._codec(filled) is Codec.RAW and pace.favours_writing
        if fast or self._at_once or outlet is not None:
            self._write(filled)
        else:
            self._backlog.add(filled)

    def _fill(self, buffer: Buffer, outlet: Outlet | None, *, due: bool) -> Filled:
        view = memoryview(buffer.memory)
        begin = time.perf_counter()
        used = 0
        pieces: list[Piece] = []
        while (piece := self._pieces.peek()) and used + piece.length <= len(view):
            pieces.append(piece)
            used += piece.length
            self._pieces.skip()
        self._backlog.check()
        with self._store.writing():
            data = copy_pieces(self._windows, pieces, view[:used], outlet)
        self.read += used
        seconds = time.perf_counter() - begin
        choice = self._try(view[:used]) if due else Choice(Codec.RAW)
        filled = Filled(buffer, used, data, choice)
        if outlet is None:
            (self._pace.used if buffer.used else self._pace.fresh).note(seconds, used)
        elif filled.written == filled.length > 0:
            self._pace.note_straight(seconds, used)
        return filled

    def _try(self, memory: memoryview) -> Choice:
        encoder = self._store.encoder
        choice = encoder.choose(memory)
        if encoder.may_skip:
            self._pace.tried(pays=self._pays(choice))
        return choice

    def _pays(self, choice: Choice) -> bool:
        return choice.codec is not Codec.RAW and self._pace.pays(choice.ratio, choice.cost)

    def _write(self, filled: Filled) -> None:
        view = memoryview(filled.buffer.memory)
        codec = self._codec(filled)
        begin = time.perf_counter()
        for data in filled.data:
            self._backlog.check()
            self._store.put(data, view[data.at : data.at + data.length], codec)
        self._store.flush()
        if codec is Codec.RAW and not filled.written:
            self._pace.write.note(time.perf_counter() - begin, filled.length)
        self._backlog.wrote(filled)

    def _codec(self, filled: Filled) -> Codec:
        """What was chosen, unless it is left to gpusnap and would only take longer."""
        free = self._store.encoder.may_skip
        slow = free and not self._pays(filled.choice)
        return Codec.RAW if slow else filled.choice.codec
