"""The dialogue: collect a tick, learn from it, and round again, with collectors ahead of the learner by the lead.

Tick k is collected once update k-1-lead is done, and acts with exactly its version. With lead 0 each step waits
for the one before; with a lead, ticks to come are collected while the learner is busy.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from aiorl.coordinator.ledger import SlotLedger
from aiorl.coordinator.schedule import Schedule
from aiorl.coordinator.team import Team
from aiorl.protocol import BatchPacked, Collected, Message, Publish, Request, TrainerDone
from aiorl.runtime.handle import WorkerHandle
from aiorl.settings import RunSettings
from aiorl.storage.weights import weight_slot_count
from aiorl.telemetry.tick import TickReport

Reply = TypeVar("Reply", bound=Message)


@dataclass(frozen=True)
class CollectedTick:
    """A tick that is collected: what each collector said, and the slots to train on, none in the warm-up."""

    tick: int
    chunks: tuple[Collected, ...]
    packs: tuple[BatchPacked, ...] = ()
    slots: tuple[int, ...] = ()


class Dialogue(ABC):
    """Drives a started team tick by tick; `tick` is the last one whose update is done.

    `after_tick` is awaited between a tick's update and the next one, while the learner has the policy of that tick.
    """

    def __init__(self, settings: RunSettings, team: Team, schedule: Schedule) -> None:
        self._settings, self._team, self.schedule = settings, team, schedule
        self.after_tick: Callable[[int], Awaitable[None]] | None = None
        self.weights = SlotLedger("policy", weight_slot_count(settings))
        self.tick = schedule.start.tick
        self._waiting: deque[CollectedTick] = deque()

    async def publish_first(self) -> None:
        """Have the learner publish the policy that it has now."""
        learner = self._team.learner
        slot = self.weights.claim(self.schedule.start.weight_version, [learner.name])
        await learner.call(Publish(slot))
        self.weights.written(slot, learner.name)

    async def advance(self, may_collect: Callable[[int], bool], report: Callable[[TickReport], None]) -> None:
        """Go on until `may_collect(next tick)` says no, and every collected tick is finished."""
        newest = self.tick
        collecting: asyncio.Task[CollectedTick] | None = None
        learning: asyncio.Task[None] | None = None
        try:
            while True:
                # The learner first: where it is the slower side, it is what has just become free.
                if learning is None and self._waiting:
                    learning = _task(self._learn_tick(self._waiting.popleft(), report))
                if collecting is None and newest - self._settings.lead <= self.tick and may_collect(newest + 1):
                    newest += 1
                    collecting = _task(self._collect_tick(newest))
                busy = [task for task in (learning, collecting) if task is not None]
                if not busy:
                    return
                await asyncio.wait(busy, return_when=asyncio.FIRST_COMPLETED)
                if learning is not None and not learning.done():
                    await self._finish_if_failed(collecting, learning)
                if learning is not None and learning.done():
                    learning.result()
                    learning = None
                if collecting is not None and collecting.done():
                    self._waiting.append(collecting.result())
                    collecting = None
        finally:
            self._waiting.clear()
            left = [task for task in (learning, collecting) if task is not None]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    async def _finish_if_failed(
        self, collecting: asyncio.Task[CollectedTick] | None, learning: asyncio.Task[None]
    ) -> None:
        """Raise what collecting failed of; the update under way is finished first, and counts."""
        if collecting is None or not collecting.done() or (error := collecting.exception()) is None:
            return
        await asyncio.wait([learning])
        if (second := learning.exception()) is not None:
            error.add_note(f"aiorl: the update under way failed as well: {second}")
        raise error

    async def _collect_tick(self, tick: int) -> CollectedTick:
        version = self.schedule.acting_version(tick)
        weights = self.weights.find(version)
        names = [collector.name for collector in self._team.collectors]
        self.weights.lend(weights, names)
        return await self._collect(tick, weights, version)

    async def _learn_tick(self, collected: CollectedTick, report: Callable[[TickReport], None]) -> None:
        tick, update = collected.tick, None
        if collected.slots:
            learner = self._team.learner
            # What ticks to come act with must stay.
            self.weights.free_below(self.schedule.acting_version(tick + 1))
            version = self.schedule.version_after(tick)
            weights = self.weights.claim(version, [learner.name])
            update = await self._update(collected, weights, version)
            self.weights.written(weights, learner.name)
        self.tick = tick
        report(
            TickReport(
                tick=tick,
                env_steps=self.schedule.env_steps(tick),
                gradient_steps=self.schedule.gradient_steps(tick),
                weight_version=self.schedule.version_after(tick),
                chunks=collected.chunks,
                packs=collected.packs,
                update=update,
                waiting=len(self._waiting),
            )
        )
        if self.after_tick is not None:
            await self.after_tick(tick)

    @abstractmethod
    async def _collect(self, tick: int, weights: int, version: int) -> CollectedTick:
        """Have every collector collect a tick with the policy in a weight slot, and return that slot."""

    @abstractmethod
    async def _update(self, collected: CollectedTick, weights: int, version: int) -> TrainerDone:
        """Have the learner train on a tick and publish into a weight slot."""


async def call(worker: WorkerHandle, request: Request, kind: type[Reply]) -> Reply:
    """Call a worker; its reply is of this kind (the conversation has checked it)."""
    reply = await worker.call(request)
    assert isinstance(reply, kind)
    return reply


def _task(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.ensure_future(work)
