"""The off-policy side of the dialogue: collect a chunk, pack a batch, update."""

from __future__ import annotations

from aiorl.coordinator.dialogue import CollectedTick, Dialogue, call
from aiorl.coordinator.ledger import SlotLedger
from aiorl.coordinator.schedule import Schedule
from aiorl.coordinator.team import Team
from aiorl.coordinator.together import together
from aiorl.errors import ProtocolError
from aiorl.protocol import BatchPacked, ChunkCollected, CollectChunk, PackBatch, TrainerDone, Update
from aiorl.runtime.handle import WorkerHandle
from aiorl.settings import RunSettings
from aiorl.storage.batches import batch_slot_count


class OffPolicyDialogue(Dialogue):
    """A batch slot is written by all collectors, each its own part, then read by the learner."""

    def __init__(self, settings: RunSettings, team: Team, schedule: Schedule) -> None:
        super().__init__(settings, team, schedule)
        self.batches = SlotLedger("batch", batch_slot_count(settings))
        self._rows_written = dict.fromkeys((worker.name for worker in team.collectors), 0)

    async def _collect(self, tick: int, weights: int, version: int) -> CollectedTick:
        names = [collector.name for collector in self._team.collectors]
        slot = self.batches.claim(tick, names) if self.schedule.trains(tick) else None
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
            self._count_rows(collector, packed)
            self.batches.written(slot, collector.name)
            return collected, packed

        replies = await together((one(collector) for collector in self._team.collectors), cancel_others=True)
        packs = tuple(packed for _, packed in replies if packed is not None)
        return CollectedTick(tick, tuple(chunk for chunk, _ in replies), packs, () if slot is None else (slot,))

    async def _update(self, collected: CollectedTick, weights: int, version: int) -> TrainerDone:
        learner, (slot,) = self._team.learner, collected.slots
        self.batches.lend(slot, [learner.name])
        request = Update(collected.tick, slot, self._settings.learner.gradient_steps, weights, version)
        done = await call(learner, request, TrainerDone)
        self.batches.returned(slot, learner.name)
        self.batches.free(slot)
        return done

    def _count_rows(self, collector: WorkerHandle, packed: BatchPacked) -> None:
        name, before = collector.name, self._rows_written[collector.name]
        if packed.rows_written <= before:
            error = ProtocolError(f"{name}: its rows went from {before} to {packed.rows_written}")
            raise error.of(collector.role, collector.index, collector.pid)
        self._rows_written[name] = packed.rows_written
