"""The off-policy dialogue: collect a chunk, pack a batch, update, publish, and round again.

With lead 0 each step waits for the one before. With lead 1 chunk k+1 is collected and packed while the
learner updates on batch k; the two meet before the next round, because each needs what the other made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from aiorl.coordinator.ledger import SlotLedger
from aiorl.coordinator.schedule import Schedule
from aiorl.coordinator.team import Team
from aiorl.coordinator.together import both, together
from aiorl.errors import ProtocolError
from aiorl.protocol import (
    BatchPacked,
    ChunkCollected,
    CollectChunk,
    Message,
    PackBatch,
    Publish,
    Request,
    TrainerDone,
    Update,
)
from aiorl.runtime.handle import WorkerHandle
from aiorl.settings import RunSettings
from aiorl.storage.batches import batch_slot_count
from aiorl.storage.weights import weight_slot_count
from aiorl.telemetry.tick import TickReport

Reply = TypeVar("Reply", bound=Message)


@dataclass(frozen=True)
class Collected:
    """A tick that is collected, and packed into `slot` where it will be trained on."""

    tick: int
    chunks: tuple[ChunkCollected, ...]
    packs: tuple[BatchPacked, ...]
    slot: int | None


class OffPolicyDialogue:
    """Drives a started team tick by tick; `position` is the last tick whose update is done."""

    def __init__(self, settings: RunSettings, team: Team, schedule: Schedule) -> None:
        self._settings, self._team, self.schedule = settings, team, schedule
        self.batches = SlotLedger("batch", batch_slot_count(settings))
        self.weights = SlotLedger("policy", weight_slot_count(settings))
        self.tick = schedule.start.tick
        self._rows_written = dict.fromkeys((worker.name for worker in team.collectors), 0)

    async def publish_first(self) -> None:
        """Have the learner publish the policy that it has now."""
        learner = self._team.learner
        slot = self.weights.claim(self.schedule.start.weight_version, [learner.name])
        await learner.call(Publish(slot))
        self.weights.written(slot, learner.name)

    async def advance(self, may_collect: Callable[[int], bool], report: Callable[[TickReport], None]) -> None:
        """Go on until `may_collect(next tick)` says no, and every collected tick is finished."""
        lead = self._settings.collection.lead
        waiting: Collected | None = None
        while True:
            following = (waiting.tick if waiting else self.tick) + 1
            collects = may_collect(following)
            if waiting is None and not collects:
                return
            if waiting is None:
                waiting = await self._collect_and_pack(following)
                if lead == 0:
                    await self._learn(waiting, report)
                    waiting = None
            elif collects:
                # An update under way is finished, and counts, even if the collectors fail meanwhile.
                _, waiting = await both(self._learn(waiting, report), self._collect_and_pack(following))
            else:
                await self._learn(waiting, report)
                waiting = None

    async def _collect_and_pack(self, tick: int) -> Collected:
        version = self.schedule.acting_version(tick)
        weights = self.weights.find(version)
        trains = self.schedule.trains(tick)
        names = [collector.name for collector in self._team.collectors]
        self.weights.lend(weights, names)
        slot = self.batches.claim(tick, names) if trains else None
        chunk = CollectChunk(
            tick=tick,
            steps=self._settings.collection.chunk_steps,
            weights=weights,
            weight_version=version,
            uniform=self.schedule.is_uniform(tick),
        )

        async def one(collector: WorkerHandle) -> tuple[ChunkCollected, BatchPacked | None]:
            collected = await call(collector, chunk, ChunkCollected)
            self.weights.returned(weights, collector.name)
            if slot is None:
                return collected, None
            packed = await call(collector, PackBatch(tick, slot, self._settings.seed), BatchPacked)
            self._count_rows(collector.name, packed)
            self.batches.written(slot, collector.name)
            return collected, packed

        replies = await together((one(collector) for collector in self._team.collectors), cancel_others=True)
        packs = tuple(packed for _, packed in replies if packed is not None)
        return Collected(tick, tuple(chunk for chunk, _ in replies), packs, slot)

    async def _learn(self, collected: Collected, report: Callable[[TickReport], None]) -> None:
        tick, slot, update = collected.tick, collected.slot, None
        if slot is not None:
            learner = self._team.learner
            # The chunk after this one still acts with the version before this update (lead 1).
            self.weights.free_below(self.schedule.version_after(tick - 1))
            version = self.schedule.version_after(tick)
            weights = self.weights.claim(version, [learner.name])
            self.batches.lend(slot, [learner.name])
            update = await call(
                learner,
                Update(tick, slot, self._settings.learner.gradient_steps, weights, version),
                TrainerDone,
            )
            self.batches.returned(slot, learner.name)
            self.batches.free(slot)
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
            )
        )

    def _count_rows(self, collector: str, packed: BatchPacked) -> None:
        if packed.rows_written <= self._rows_written[collector]:
            raise ProtocolError(
                f"{collector}: its rows went from {self._rows_written[collector]} to {packed.rows_written}"
            )
        self._rows_written[collector] = packed.rows_written


async def call(worker: WorkerHandle, request: Request, kind: type[Reply]) -> Reply:
    """Call a worker; its reply is of this kind (the conversation has checked it)."""
    reply = await worker.call(request)
    assert isinstance(reply, kind)
    return reply
