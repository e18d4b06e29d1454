"""How long a worker may take to answer.

Until a reply of a kind was counted the deadline is generous; later it is a multiple of the slowest so far. Time
in which this process itself did not run (suspended, stopped) is not held against a worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiorl.settings.sections import RuntimeSettings

SLOWNESS = 10.0
SLICES = 8


class Deadlines:
    """The deadline of each kind of request, from the replies so far."""

    def __init__(self, settings: RuntimeSettings) -> None:
        self._first_s, self._least_s = settings.first_deadline_s, settings.deadline_s
        self._slowest_s: dict[str, float | None] = {}

    def deadline_s(self, kind: str) -> float:
        """Return the deadline of the next request of a kind."""
        slowest_s = self._slowest_s.get(kind)
        return self._first_s if slowest_s is None else max(self._least_s, SLOWNESS * slowest_s)

    def answered(self, kind: str, seconds: float) -> None:
        """Note how long a reply took; the first of a kind (which warms things up) is not counted."""
        if kind not in self._slowest_s:
            self._slowest_s[kind] = None
        else:
            self._slowest_s[kind] = max(self._slowest_s[kind] or 0.0, seconds)


class Countdown:
    """Calls back when `seconds` have passed in which the loop was running; a timer, cut into slices.

    A slice that ends much later than it should have means that this process was not scheduled: the excess
    is given back.
    """

    def __init__(self, seconds: float, expired: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        self._left_s, self._expired, self._loop = seconds, expired, loop
        self._slice_s = max(seconds / SLICES, 0.01)
        self._timer = self._next()

    def cancel(self) -> None:
        """Stop counting."""
        self._timer.cancel()

    def _next(self) -> asyncio.TimerHandle:
        self._step_s = min(self._slice_s, self._left_s)
        return self._loop.call_later(self._step_s, self._tick)

    def _tick(self) -> None:
        # However late the slice ended, it counts as one slice.
        self._left_s -= self._step_s
        if self._left_s > 1e-9:
            self._timer = self._next()
        else:
            self._expired()
