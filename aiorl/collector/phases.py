"""Where a collector's time goes: every nanosecond in exactly one phase."""

from __future__ import annotations

from time import perf_counter_ns

from aiorl.protocol import PhaseTimes
from aiorl.telemetry.trace.slices import Trace


class PhaseClock:
    """Attributes the time since the last mark to a phase."""

    def __init__(self) -> None:
        self._last = perf_counter_ns()
        self._spent: dict[str, int] = dict.fromkeys(PhaseTimes.__struct_fields__, 0)

    def mark(self, phase: str) -> None:
        """Say that everything since the last mark was `phase`."""
        now = perf_counter_ns()
        self._spent[phase] += now - self._last
        self._last = now

    def take(self) -> PhaseTimes:
        """Return what was spent since the last call."""
        times = PhaseTimes(**self._spent)
        self._spent = dict.fromkeys(self._spent, 0)
        return times


class TracedPhaseClock(PhaseClock):
    """The same, with a slice in the trace for every mark; waiting for a command is a slice there already."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace = trace

    def mark(self, phase: str) -> None:
        """Say that everything since the last mark was `phase`."""
        super().mark(phase)
        if phase != "coordination":
            self._trace.mark(phase)
