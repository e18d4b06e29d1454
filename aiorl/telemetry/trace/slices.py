"""Slices: what a process did from when to when, and the file that it keeps them in."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter_ns, thread_time_ns

import msgspec

from aiorl.protocol import Request

SUFFIX = ".slices"
FLUSH_AT = 4_096
"""Slices held in memory before they are written, ..."""
FLUSH_NS = 1_000_000_000
"""... and for how long at most: what a process that is killed takes with it."""
_LENGTH = struct.Struct("<I")
_encoder = msgspec.msgpack.Encoder()


class Slice(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One phase: wall time between two readings of the machine's clock, and the thread's own CPU time in it.

    `request` and `tick` say what caused it; `track` is empty but for the coordinator, which has one for each worker.
    """

    name: str
    request: str
    tick: int
    begin_ns: int
    end_ns: int
    cpu_ns: int
    track: str = ""


_decoder = msgspec.msgpack.Decoder(list[Slice])


class SliceFile:
    """Keeps the newest slices of one process: two files of half as many each, the older one dropped as a third begins.

    Written in whole frames, so that a process that is killed leaves a file that can be read. A disk that is full
    must not end a night of training: then `failure` says so, and nothing more is written.
    """

    def __init__(self, stem: Path, most: int) -> None:
        self._stem, self._per_segment = stem, max(1, most // 2)
        self._segment, self._count = 0, 0
        self.failure: OSError | None = None

    def append(self, slices: list[Slice]) -> None:
        """Write slices behind the others."""
        if self.failure is None:
            try:
                self._append(slices)
            except OSError as error:
                self.failure = error

    def _append(self, slices: list[Slice]) -> None:
        if self._count >= self._per_segment:
            self._path(self._segment - 1).unlink(missing_ok=True)
            self._segment, self._count = self._segment + 1, 0
        data = _encoder.encode(slices)
        with self._path(self._segment).open("ab") as file:
            file.write(_LENGTH.pack(len(data)) + data)
        self._count += len(slices)

    def _path(self, segment: int) -> Path:
        return self._stem.with_name(f"{self._stem.name}.{segment}{SUFFIX}")


def read_slices(path: Path) -> Iterator[list[Slice]]:
    """Read what a process has written, frame by frame; half a frame at the end is left out."""
    with path.open("rb") as file:
        while len(head := file.read(_LENGTH.size)) == _LENGTH.size:
            data = file.read(_LENGTH.unpack(head)[0])
            try:
                yield _decoder.decode(data)
            except msgspec.DecodeError:
                return


class Trace:
    """Where a worker notes what it does; this one records nothing, as no trace was asked for."""

    is_on = False

    def received(self, request: Request) -> None:
        """Say that a request has come."""

    def mark(self, name: str) -> None:
        """Say that everything since the last mark was `name`."""

    def replied(self) -> None:
        """Say that the reply is sent."""

    def close(self) -> None:
        """Write what is left."""


UNTRACED = Trace()


class WorkerTrace(Trace):
    """Records a worker's slices: every moment since its start is in exactly one of them."""

    is_on = True

    def __init__(self, file: SliceFile) -> None:
        self._file = file
        self._slices: list[Slice] = []
        self._request, self._tick = "Start", 0
        self._is_marked = False
        self._last, self._last_cpu = perf_counter_ns(), thread_time_ns()
        self._flushed = self._last

    def received(self, request: Request) -> None:
        """Say that a request has come: everything since the last mark was waiting for it."""
        self._request, self._tick = type(request).__name__, getattr(request, "tick", 0)
        self.mark("wait")
        self._is_marked = False

    def mark(self, name: str) -> None:
        """Say that everything since the last mark was `name`."""
        now, cpu = perf_counter_ns(), thread_time_ns()
        self._slices.append(Slice(name, self._request, self._tick, self._last, now, cpu - self._last_cpu))
        self._last, self._last_cpu = now, cpu
        self._is_marked = True

    def replied(self) -> None:
        """Say that the reply is sent; a request that marked no phase of its own is one as a whole."""
        self.mark("reply" if self._is_marked else _snake(self._request))
        if len(self._slices) >= FLUSH_AT or self._last - self._flushed >= FLUSH_NS:
            self._flush()
            self.mark("write_trace")

    def close(self) -> None:
        """Write what is left."""
        self._flush()

    def _flush(self) -> None:
        self._flushed = self._last
        if self._slices:
            self._file.append(self._slices)
            self._slices = []


class CoordinatorTrace:
    """Records the coordinator's slices: each request from its sending to its reply, in a track for each worker.

    `cpu_ns` of a request is what the thread of the event loop has used meanwhile, for whatever.
    """

    def __init__(self, file: SliceFile, submit: Callable[[Callable[[], object]], object]) -> None:
        self._file, self._submit = file, submit
        self._slices: list[Slice] = []
        self._flushed = perf_counter_ns()

    def add(self, name: str, request: str, tick: int, begin_ns: int, begin_cpu_ns: int, track: str) -> None:
        """Record what has just ended."""
        now, cpu = perf_counter_ns(), thread_time_ns() - begin_cpu_ns
        self._slices.append(Slice(name, request, tick, begin_ns, now, cpu, track))
        if len(self._slices) >= FLUSH_AT or now - self._flushed >= FLUSH_NS:
            self._flushed = now
            self.close()

    def called(self, worker: str, request: Request, begin_ns: int, begin_cpu_ns: int) -> None:
        """Record a request whose reply has come."""
        kind = type(request).__name__
        self.add(kind, kind, getattr(request, "tick", 0), begin_ns, begin_cpu_ns, worker)

    def close(self) -> None:
        """Have what is left written."""
        slices, self._slices = self._slices, []
        if slices:
            self._submit(lambda: self._file.append(slices))


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).strip("_")
