"""The events of a run on their way to a consumer that may be slow, or absent."""

from __future__ import annotations

import asyncio
from collections import deque

from aiorl.events import Event, Progress

KEPT_PROGRESS = 256


class EventStream:
    """Never holds the run back: of `Progress` the oldest go, other events never do."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._progress = 0
        self._arrived = asyncio.Event()

    def put(self, event: Event) -> None:
        """Add an event."""
        if isinstance(event, Progress):
            if self._progress == KEPT_PROGRESS:
                self._events.remove(next(each for each in self._events if isinstance(each, Progress)))
            else:
                self._progress += 1
        self._events.append(event)
        self._arrived.set()

    def take(self) -> Event | None:
        """Return the next event, or None if there is none now."""
        if not self._events:
            self._arrived.clear()
            return None
        event = self._events.popleft()
        self._progress -= isinstance(event, Progress)
        return event

    async def arrived(self) -> None:
        """Wait until there is an event."""
        await self._arrived.wait()
