"""One thread that saves memory.

It does what is most urgent: it copies out of the target as long as there is a buffer, and
otherwise encodes and writes what was copied. So the target waits for a codec or the disk only
where its memory exceeds the budget. Bytes that no codec makes smaller are written at once where
that is what releases the target first; all of them, where it does not run on anyway: a buffer that
is used again costs less than a new one, and the disk has work from the start. Then each chunk goes
straight into the pack right after it was copied, while it is in the processor's cache.
"""

import time

from gpusnap.datapath.backlog import Backlog, Filled
from gpusnap.datapath.buffers import Buffer
from gpusnap.datapath.codecs import SAMPLE, SAMPLES, Choice
from gpusnap.datapath.pace import Pace
from gpusnap.datapath.records import CHUNK, Codec
from gpusnap.datapath.source import Data, Piece, Pieces, Windows, copy_pieces, send_runs
from gpusnap.datapath.store import Store
from gpusnap.native import Outlet

_HUGE_PAGE = 2 << 20
"""Bytes: memory of so many lies in one page, whose cache lines do not push each other out."""

_SPARSE = 2
"""With less than one byte in so many that is not zero, a time tells nothing of writing."""


class Worker:
    """Copies, encodes and writes, into a pack of its own.

    Attributes:
        read: Bytes that it copied, zeros included.
        zero: Of them, bytes of pages of zeros.
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
        # Each thread has its own, which stays in the cache of its processor
        self._scratch = memoryview(Buffer(_HUGE_PAGE).memory)[:CHUNK]
        self._sample = memoryview(bytearray(SAMPLES * SAMPLE))
        self._choice = Choice(Codec.RAW)
        self._chosen_for = 0
        self._refused_in = 0
        self.read = 0
        self.zero = 0

    def run(self) -> None:
        """Work until there is nothing left to do."""
        copying = True
        while True:
            if copying and self._pieces.run() is None:
                copying = False
                self._backlog.finished_copying(self._pieces.take_passed())
            if copying and self._goes_straight():
                continue
            match self._backlog.next(copying=copying):
                case None:
                    return
                case Filled() as filled:
                    self._write(filled)
                case buffer:
                    self._serve(buffer)

    def _goes_straight(self) -> bool:
        """Copy what was taken straight into the pack; if not, it needs a buffer."""
        if self._pieces.run() is None or self._refused_in == self._pieces.window:
            return False
        # Where the target runs on a copy alone is measured first, to be compared with
        pace = self._pace
        soonest = self._at_once or (pace.fresh.cost is not None and pace.favours_writing)
        if not self._store.may_send or not soonest or self._choose().codec is not Codec.RAW:
            return False
        outlet = self._store.outlet()
        if outlet is None:
            self._begin()
        else:
            self._send(outlet)
        return True

    def _begin(self) -> None:
        """Copy a chunk first and write it then: the pack begins with what of it is not zero."""
        data = self._copy(self._next(CHUNK), self._scratch)
        self._put(data, self._scratch, Codec.RAW)
        length = sum(each.length for each in data)
        self._backlog.count(length, self._pieces.take_passed(), length)

    def _send(self, outlet: Outlet) -> None:
        self._backlog.check()
        begin = time.perf_counter()
        runs = self._pieces.runs()
        with self._store.writing():
            length, written = send_runs(self._windows, runs, self._scratch, outlet)
        self._store.note(written)
        if written.length * _SPARSE >= length:
            self._pace.note_straight(time.perf_counter() - begin, written.length)
        if length < sum(run.length for run in runs):
            self._refused_in = self._pieces.window
        self._pieces.skip(length)
        self.read += length
        self.zero += length - written.length
        self._backlog.count(written.length, self._pieces.take_passed(), written.length)

    def _serve(self, buffer: Buffer) -> None:
        filled = self._fill(buffer, self._choose())
        self._backlog.count(filled.length, self._pieces.take_passed())
        fast = self._codec(filled) is Codec.RAW and self._pace.favours_writing
        if fast or self._at_once:
            self._write(filled)
        else:
            self._backlog.add(filled)

    def _fill(self, buffer: Buffer, choice: Choice) -> Filled:
        view = memoryview(buffer.memory)
        pieces = self._next(len(view))
        begin = time.perf_counter()
        data = self._copy(pieces, view)
        rate = self._pace.used if buffer.used else self._pace.fresh
        rate.note(time.perf_counter() - begin, sum(piece.length for piece in pieces))
        return Filled(buffer, data, choice)

    def _copy(self, pieces: list[Piece], view: memoryview) -> list[Data]:
        self._backlog.check()
        used = sum(piece.length for piece in pieces)
        data = copy_pieces(self._windows, pieces, view[:used])
        self.read += used
        self.zero += used - sum(each.length for each in data)
        return data

    def _next(self, room: int) -> list[Piece]:
        """As many pieces as there is room for."""
        pieces: list[Piece] = []
        while (piece := self._pieces.peek()) and piece.length <= room:
            pieces.append(piece)
            room -= piece.length
            self._pieces.skip(piece.length)
        return pieces

    def _choose(self) -> Choice:
        """How to store what comes next: found out, or not, for each window."""
        encoder = self._store.encoder
        if encoder.fixed is not None:
            return encoder.fixed
        if self._chosen_for != self._pieces.window:
            self._chosen_for = self._pieces.window
            skips = encoder.may_skip and not self._pace.try_is_due()
            self._choice = Choice(Codec.RAW) if skips else self._try()
        return self._choice

    def _try(self) -> Choice:
        """What is best for the memory that comes next, by samples of it."""
        encoder = self._store.encoder
        places = self._pieces.samples(SAMPLES, SAMPLE)
        sample = self._sample[: sum(place.length for place in places)]
        self._windows.source.read(places, sample)
        choice = encoder.choose(sample)
        if not encoder.may_skip:
            return choice
        pays = self._pays(choice)
        self._pace.tried(pays=pays)
        return choice if pays else Choice(Codec.RAW)

    def _pays(self, choice: Choice) -> bool:
        return choice.codec is not Codec.RAW and self._pace.pays(choice.ratio, choice.cost)

    def _write(self, filled: Filled) -> None:
        encoder, codec = self._store.encoder, self._codec(filled)
        seconds, length = encoder.seconds, encoder.length
        self._put(filled.data, memoryview(filled.buffer.memory), codec)
        if codec is filled.choice.codec:
            seconds, length = encoder.seconds - seconds, encoder.length - length
            self._pace.encoded(seconds, length, filled.choice.cost)
        self._backlog.wrote(filled)

    def _put(self, data: list[Data], view: memoryview, codec: Codec) -> None:
        begin = time.perf_counter()
        for each in data:
            self._backlog.check()
            self._store.put(each, view[each.at : each.at + each.length], codec)
        self._store.flush()
        if codec is Codec.RAW:
            length = sum(each.length for each in data)
            self._pace.write.note(time.perf_counter() - begin, length)

    def _codec(self, filled: Filled) -> Codec:
        """What was chosen, unless it is left to gpusnap and would only take longer."""
        free = self._store.encoder.may_skip
        slow = free and not self._pays(filled.choice)
        return Codec.RAW if slow else filled.choice.codec
