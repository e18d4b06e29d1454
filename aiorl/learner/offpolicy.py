"""The off-policy learner: gradient steps on batches that collectors packed."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter_ns

import torch

from aiorl.checkpoint.replay_file import save_replay
from aiorl.learner.service import LearnerService
from aiorl.learner.staging import BatchStaging
from aiorl.protocol import FileRecord, Requests, TrainerDone, Update
from aiorl.service import Blocks
from aiorl.storage.batches import BatchSlots, batch_layout
from aiorl.storage.replay import ReplayShard, replay_layout
from aiorl.storage.rows import RowLayout


class OffPolicyLearnerService(LearnerService):
    """Trains on batch slots; it can reach the shards, to save those of collectors that died."""

    def _map(self, blocks: Blocks) -> None:
        settings, spec = self._settings, self._spec
        slots = BatchSlots.on(blocks.batches.map(batch_layout(settings, spec).nbytes), settings, spec)
        self._statistics = slots.statistics
        nbytes = replay_layout(settings, spec).nbytes
        self._shards = [ReplayShard(block.map(nbytes), settings, spec) for block in blocks.experience]
        self._staging = BatchStaging(slots, RowLayout.of(spec), self._device)

    def _work(self, request: Requests) -> TrainerDone | None:
        return self._update(request) if isinstance(request, Update) else None

    def _update(self, request: Update) -> TrainerDone:
        begin = perf_counter_ns()
        self._merge_statistics(self._statistics[request.slot])
        batches = self._staging.stage(request.slot)
        staged = perf_counter_ns()
        self._mark("stage")
        measured = torch.stack([self._learner.gradient_step(batch) for batch in batches]).mean(dim=0)
        return self._done(request, measured, begin, staged)

    def _save_shards(self, directory: Path, tick: int) -> list[FileRecord]:
        return [
            save_replay(directory / f"replay-{index}.safetensors", shard, tick, is_orphaned=True)
            for index, shard in enumerate(self._shards)
        ]
