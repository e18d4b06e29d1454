"""Collectors that are replaced when they die: another process in the same place, with the same shard."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable

from aiorl.errors import (
    AiorlError,
    EnvError,
    WorkerCrashedError,
    WorkerError,
    WorkerFailedError,
    WorkerStalledError,
    WorkerStartupError,
)
from aiorl.events import WorkerReplaced
from aiorl.protocol import Attach, Attached, EnvSpec, Message, Ready, Repeatable, Request
from aiorl.runtime.handle import WorkerHandle
from aiorl.settings.sections import CollectionSettings

DEATHS = (WorkerCrashedError, WorkerStalledError, WorkerFailedError, WorkerStartupError)
"""What a replacement may help against; values that are not finite, or a broken contract, come again."""


OnReplaced = Callable[[WorkerReplaced, AiorlError], Awaitable[None]]
"""Told of every replacement, and of the death that it makes good."""


class ReplacementBudget:
    """So many replacements within any so many seconds, over all collectors of a run."""

    def __init__(self, settings: CollectionSettings) -> None:
        self._most, self._window_s = settings.max_replacements, settings.replacement_window_s
        self._times: deque[float] = deque()

    def spend(self, now: float) -> bool:
        """Count a replacement, if one more is allowed."""
        while self._times and now - self._times[0] >= self._window_s:
            self._times.popleft()
        if len(self._times) >= self._most:
            return False
        self._times.append(now)
        return True

    @property
    def text(self) -> str:
        """The bounds, as settings."""
        return f"collection.max_replacements={self._most} within collection.replacement_window_s={self._window_s:g}"


class ReplaceableCollector:
    """A worker handle behind which one process follows another.

    A request over which a collector died is put to the next one again: what was committed lies in shared
    memory, so that it does what is missing. Slots stay lent to the name, whoever bears it.
    """

    role = "collector"

    def __init__(
        self,
        index: int,
        make: Callable[[int], WorkerHandle],
        budget: ReplacementBudget,
        on_replaced: OnReplaced,
    ) -> None:
        self.index = index
        self._make, self._budget, self._on_replaced = make, budget, on_replaced
        self._incarnation = 0
        self._worker = make(0)
        self._cause: WorkerError | None = None
        self._noticed = 0.0
        self._replacing = asyncio.Lock()
        self._spec: EnvSpec | None = None
        self._attach: Attach | None = None

    @property
    def name(self) -> str:
        """Role and index."""
        return self._worker.name

    @property
    def pid(self) -> int | None:
        """The process that has the place now."""
        return self._worker.pid

    @property
    def state(self) -> str:
        """Its state."""
        return self._worker.state

    @property
    def is_gone(self) -> bool:
        """Whether nothing of it runs any more."""
        return self._worker.is_gone

    async def start(self) -> Ready:
        """Start the first one."""
        ready = await self._worker.start()
        self._spec = ready.spec
        return ready

    async def call(self, request: Request) -> Message:
        """Put a request to whoever has the place; replace it when it dies over a repeatable one.

        Raises:
            WorkerError: it died, and the budget is spent, or the run is not under way yet.

        """
        if isinstance(request, Attach):
            self._attach = request
        while True:
            await self._replace_dead()  # what it raises is final
            try:
                return await self._worker.call(request)
            except DEATHS as error:
                if not isinstance(request, Repeatable):
                    raise
                self._mourn(error)

    async def death(self) -> AiorlError:
        """Wait for a death that cannot be made good; return how it was."""
        while True:
            try:
                await self._replace_dead()  # of one that was broken off, too
                error = await self._worker.death()
                if not isinstance(error, DEATHS):
                    return error
                self._mourn(error)
            except AiorlError as last:
                return last

    def kill(self) -> None:
        """End it at once."""
        self._worker.kill()

    async def stop(self, *, at_once: bool = False) -> None:
        """End it."""
        await self._worker.stop(at_once=at_once)

    def _mourn(self, error: WorkerError) -> None:
        """Note a death that is to be made good.

        Raises:
            WorkerError: there were too many.

        """
        if not self._budget.spend(time.monotonic()):
            last = type(error)(f"{error}; {self._budget.text} are used up", role=error.role, index=error.index)
            last.pid = error.pid
            raise last from error.__cause__
        self._cause, self._noticed = error, time.monotonic()

    async def _replace_dead(self) -> None:
        async with self._replacing:
            while (cause := self._cause) is not None:
                try:
                    attached = await self._bring_up(cause)
                except DEATHS as error:
                    self._mourn(error)
                    continue
                self._cause = None
                seconds = time.monotonic() - self._noticed
                event = WorkerReplaced(self.role, self.index, self.pid, str(cause), seconds, attached.rows_kept)
                await self._on_replaced(event, cause)

    async def _bring_up(self, cause: WorkerError) -> Attached:
        # Whoever had the place, or was on the way to it when a call was cancelled, must be gone: one writer at a time.
        await self._worker.stop(at_once=True)
        if not self._worker.is_gone:
            raise AiorlError(f"{self.name} could not be killed, so it cannot be replaced: {cause}") from cause
        self._incarnation += 1
        self._worker = self._make(self._incarnation)
        ready = await self._worker.start()
        if ready.spec is None or self._spec is None or ready.spec.bare != self._spec.bare:
            raise EnvError(f"{self.name}: its replacement has another environment: {ready.spec}, not {self._spec}")
        assert self._attach is not None
        attached = await self._worker.call(self._attach)
        assert isinstance(attached, Attached)
        return attached
