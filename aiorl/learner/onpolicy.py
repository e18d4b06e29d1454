"""The on-policy learner: one update on a rollout of each collector."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter_ns

import numpy as np

from aiorl.checkpoint.tensors import save_arrays
from aiorl.learner.service import LearnerService
from aiorl.learner.staging import RolloutStaging
from aiorl.protocol import Requests, TrainerDone, UpdateOnRollouts
from aiorl.service import Blocks
from aiorl.storage.rollouts import RolloutSlot, rollout_layout, rollout_slots, value_group
from aiorl.storage.rows import obs_column


class OnPolicyLearnerService(LearnerService):
    """Trains on rollout slots. A rollout's statistics enter after its update: on-policy, π must be what acted."""

    def _map(self, blocks: Blocks) -> None:
        settings, spec = self._settings, self._spec
        nbytes = rollout_layout(settings, spec).nbytes
        self._slots = [rollout_slots(block.map(nbytes), settings, spec) for block in blocks.experience]
        self._staging = RolloutStaging(spec, self._device)

    def _work(self, request: Requests) -> TrainerDone | None:
        return self._update(request) if isinstance(request, UpdateOnRollouts) else None

    def _update(self, request: UpdateOnRollouts) -> TrainerDone:
        begin = perf_counter_ns()
        slots = [own[slot] for own, slot in zip(self._slots, request.slots, strict=True)]
        for slot in slots:
            slot.require(request.tick, request.acting_version)
        if request.dump:
            self._dump(request, slots)
        rollouts = self._staging.stage(slots)
        staged = perf_counter_ns()
        self._mark("stage")
        measured = self._learner.update(rollouts)
        if not rollouts.valid.any():
            measured = measured[:0]  # resets alone: there was nothing to measure
        self._merge_statistics(np.stack([slot.statistics for slot in slots]))
        self._mark("statistics")
        return self._done(request, measured, begin, staged)

    def _dump(self, request: UpdateOnRollouts, slots: list[RolloutSlot]) -> None:
        folder = Path(request.dump)
        try:
            folder.mkdir(exist_ok=True)
            for index, slot in enumerate(slots):
                version = np.full(slot.columns["valid"].shape, request.acting_version)
                own = {"last_" + obs_column(value_group(self._spec)): slot.last_obs, "weight_version": version}
                save_arrays(folder / f"{request.tick}-{index}.safetensors", slot.columns | own)
        except OSError as error:  # a help for debugging must not end a night of training
            self._assignment.log("warning", "a rollout could not be dumped", tick=request.tick, error=str(error))
