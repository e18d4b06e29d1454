"""What a trace says of a run's cycles: time by phase, who was busy together, and who waited for whom."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from aiorl.errors import StorageError
from aiorl.telemetry.trace.merging import Recorded
from aiorl.telemetry.trace.slices import Slice

LEARNER, COLLECTOR = "learner", "collector"
_UPDATES = ("Update", "UpdateOnRollouts")
_COLLECTS = ("CollectChunk", "CollectRollout")
Milliseconds = NDArray[np.float64]


@dataclass(frozen=True)
class Worker:
    """One process's slices over a whole run, in time order, as columns."""

    name: str
    phases: list[str]
    phase: NDArray[np.intp]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    cpu: NDArray[np.int64]

    @classmethod
    def of(cls, name: str, slices: Iterable[Slice]) -> Worker:
        """Take the slices of a worker, in any order."""
        ordered = sorted(slices, key=lambda each: each.begin_ns)
        phases = list(dict.fromkeys(each.name for each in ordered))
        numbers = {phase: number for number, phase in enumerate(phases)}
        return cls(
            name,
            phases,
            np.array([numbers[each.name] for each in ordered], np.intp),
            np.array([each.begin_ns for each in ordered], np.int64),
            np.array([each.end_ns for each in ordered], np.int64),
            np.array([each.cpu_ns for each in ordered], np.int64),
        )

    @cached_property
    def is_busy(self) -> NDArray[np.bool_]:
        """Which slices are not waiting."""
        busy: NDArray[np.bool_] = self.phase != (self.phases.index("wait") if "wait" in self.phases else -1)
        return busy


class Cycles:
    """The cycles of a trace: each from the end of one update to the end of the next.

    A trace without two updates has the ends of collected ticks as bounds instead. `ticks` are their numbers,
    `edges` their bounds in nanoseconds, one more.
    """

    def __init__(self, recorded: list[Recorded]) -> None:
        by_process: dict[str, list[Slice]] = {}
        for each in recorded:
            if each.process.split(" ")[0] in (LEARNER, COLLECTOR):
                by_process.setdefault(each.process, []).extend(each.slices)
        self.workers = [Worker.of(name, slices) for name, slices in sorted(by_process.items(), key=_learner_last)]
        self.coordinator = [each for each in recorded if each.process == "coordinator"]
        ends = _ends_by_tick(by_process, _UPDATES)
        self.bounded_by = "update"
        if len(ends) < 2:
            ends, self.bounded_by = _ends_by_tick(by_process, _COLLECTS), "collected tick"
        if len(ends) < 2:
            raise StorageError("the trace has fewer than two whole cycles: let the run go on for longer")
        # What is kept are the newest slices of each process, which may begin at different times.
        begins = max(int(worker.begin[0]) for worker in self.workers)
        whole = [tick for tick in sorted(ends) if ends[tick] >= begins]
        self.ticks = whole[1:]
        self.edges = np.array([ends[tick] for tick in whole], np.int64)
        if len(self.ticks) < 1:
            raise StorageError("the trace has no whole cycle that all processes have recorded")

    @cached_property
    def length_ms(self) -> Milliseconds:
        """How long each cycle took."""
        length: Milliseconds = np.diff(self.edges) / 1e6
        return length

    def phase_ms(self, worker: Worker) -> dict[str, Milliseconds]:
        """Return a worker's time by phase in each cycle; a slice counts where it lies, cut at the bounds."""
        return {
            phase: self._per_cycle(worker.begin[which], worker.end[which])
            for number, phase in enumerate(worker.phases)
            if (which := worker.phase == number).any()
        }

    def cpu_ms(self, worker: Worker) -> Milliseconds:
        """Return the CPU time of a worker's thread in each cycle."""
        return self._per_cycle(worker.begin, worker.end, worker.cpu)

    def coordinator_ms(self) -> dict[str, Milliseconds]:
        """Return what the coordinator's loop does by itself in each cycle."""
        slices = [each for thread in self.coordinator if thread.thread == "loop" for each in thread.slices]
        worker = Worker.of("coordinator", slices)
        return self.phase_ms(worker)

    @cached_property
    def together(self) -> Together:
        """Who was busy when."""
        return Together(self.workers, self.edges)

    def _per_cycle(
        self, begin: NDArray[np.int64], end: NDArray[np.int64], value: NDArray[np.int64] | None = None
    ) -> Milliseconds:
        """Sum spans (or a value of theirs, spread evenly) by cycle."""
        # The running total at any moment: what lies before an edge, the part of a span that an edge cuts included.
        value = end - begin if value is None else value
        points = np.column_stack([begin, end]).ravel().astype(np.float64)
        totals = np.column_stack([np.cumsum(value) - value, np.cumsum(value)]).ravel().astype(np.float64)
        at_edges = np.interp(self.edges.astype(np.float64), points, totals)
        spent: Milliseconds = np.diff(at_edges) / 1e6
        return spent


class Together:
    """The state of all workers between any two moments at which one of them changes, summed by cycle."""

    def __init__(self, workers: list[Worker], edges: NDArray[np.int64]) -> None:
        self._workers, self._cycles = workers, len(edges) - 1
        spans = [(worker.begin[worker.is_busy], worker.end[worker.is_busy]) for worker in workers]
        moments = np.unique(np.concatenate([edges, *(part for span in spans for part in span)]))
        moments = moments[(moments >= edges[0]) & (moments <= edges[-1])]
        self._length = np.diff(moments) / 1e6
        self._cycle = np.searchsorted(edges, moments[:-1], side="right") - 1
        middle = moments[:-1]
        self.busy: dict[str, NDArray[np.bool_]] = {}
        for worker, (begin, end) in zip(workers, spans, strict=True):
            last = np.searchsorted(begin, middle, side="right") - 1
            self.busy[worker.name] = (last >= 0) & (middle < end[np.maximum(last, 0)]) if len(begin) else middle < 0
        none = np.zeros(len(middle), bool)
        self.learner = self._any(LEARNER, none)
        self.collectors = self._any(COLLECTOR, none)

    def ms(self, when: NDArray[np.bool_]) -> Milliseconds:
        """Return for how long something held in each cycle."""
        return np.bincount(self._cycle, self._length * when, self._cycles).astype(np.float64)

    def waits(self, worker: Worker) -> dict[str, Milliseconds]:
        """Return how long a worker waited in each cycle, by what: others that were busy, or messages on their way."""
        idle = ~self.busy[worker.name]
        if worker.name.startswith(LEARNER):
            return {"for collectors": self.ms(idle & self.collectors), "for messages": self.ms(idle & ~self.collectors)}
        return {
            "for the learner": self.ms(idle & self.learner),
            "for other collectors": self.ms(idle & ~self.learner & self.collectors),
            "for messages": self.ms(idle & ~self.learner & ~self.collectors),
        }

    def _any(self, role: str, none: NDArray[np.bool_]) -> NDArray[np.bool_]:
        mine = [self.busy[worker.name] for worker in self._workers if worker.name.startswith(role)]
        held: NDArray[np.bool_] = np.logical_or.reduce([none, *mine])
        return held


def _ends_by_tick(by_process: dict[str, list[Slice]], requests: tuple[str, ...]) -> dict[int, int]:
    """Return when the last worker was done with each tick's request."""
    ends: dict[int, int] = {}
    for slices in by_process.values():
        for each in slices:
            if each.request in requests and each.name != "wait":
                ends[each.tick] = max(ends.get(each.tick, 0), each.end_ns)
    return ends


def _learner_last(item: tuple[str, list[Slice]]) -> tuple[bool, str]:
    return item[0].startswith(LEARNER), item[0]
