"""What the outside asks of a running dialogue: stop, save, pause."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Control:
    """Requests take effect between ticks, once the newest collected tick is finished."""

    def __init__(self) -> None:
        self.stop_reason: str | None = None
        self._saves: list[asyncio.Future[object]] = []
        self._is_held = False
        self._changed = asyncio.Event()
        self._final: list[object] = []

    @property
    def wants_drain(self) -> bool:
        """Whether no new chunk should start for now."""
        return self.stop_reason is not None or bool(self._saves) or self._is_held

    @property
    def is_paused(self) -> bool:
        """Whether a pause holds the run."""
        return self._is_held and self.stop_reason is None and not self._saves

    def stop(self, reason: str) -> None:
        """End the run after the newest collected tick; the first reason counts."""
        self.stop_reason = self.stop_reason or reason
        self._changed.set()

    def request_save(self) -> asyncio.Future[object]:
        """Ask for a checkpoint; the future gives its path."""
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        if self._final:
            future.set_result(self._final[0])
            return future
        self._saves.append(future)
        self._changed.set()
        return future

    def finish(self, checkpoint: object) -> None:
        """Training is over: whoever asks for a save from now on gets this one."""
        self._final = [checkpoint]
        for save in self.take_saves():
            if not save.done():
                save.set_result(checkpoint)

    def take_saves(self) -> list[asyncio.Future[object]]:
        """Return the futures of the saves that were asked for, and forget them."""
        taken, self._saves = self._saves, []
        return taken

    def pause(self) -> None:
        """Start no new chunk until `resume`."""
        self._is_held = True

    def resume(self) -> None:
        """Go on."""
        self._is_held = False
        self._changed.set()

    async def unless_stopped(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Do something that an order to end may cut short: then it is cancelled, and None returned."""
        working = asyncio.ensure_future(work)
        stopping = asyncio.ensure_future(self._stopped())
        try:
            either: list[asyncio.Future[Any]] = [working, stopping]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() else None
        finally:
            for task in (working, stopping):
                task.cancel()
            await asyncio.gather(working, stopping, return_exceptions=True)

    async def _stopped(self) -> None:
        while self.stop_reason is None:
            self._changed.clear()
            await self._changed.wait()

    async def while_paused(self) -> None:
        """Wait until there is something to do again."""
        while self.is_paused:
            self._changed.clear()
            await self._changed.wait()
