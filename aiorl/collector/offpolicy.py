"""The off-policy collector: transitions go to its replay shard, from which it packs its share of batches."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter_ns

import numpy as np

from aiorl.checkpoint.manifest import require_intact
from aiorl.checkpoint.replay_file import load_replay, save_replay
from aiorl.collector.packing import draw, pack
from aiorl.collector.service import CollectorService
from aiorl.protocol import (
    BatchPacked,
    ChunkCollected,
    CollectChunk,
    FileRecord,
    Message,
    PackBatch,
    Repeatable,
    Requests,
    Save,
)
from aiorl.service import Blocks, Purpose, spawn_seed
from aiorl.storage.batches import BatchSlots, batch_layout
from aiorl.storage.moments import statistics_slices
from aiorl.storage.replay import ReplayShard, replay_layout
from aiorl.storage.rows import obs_column


class ReplayCollector(CollectorService):
    """Owns a replay shard."""

    def _map(self, blocks: Blocks) -> None:
        settings, spec = self._settings, self._spec
        self._shard = ReplayShard(blocks.experience[0].map(replay_layout(settings, spec).nbytes), settings, spec)
        self._episodes.recent = self._shard.recent_episodes
        self._batches = BatchSlots.on(blocks.batches.map(batch_layout(settings, spec).nbytes), settings, spec)

    def _work(self, request: Requests) -> Message | None:
        match request:
            case CollectChunk():
                return self._collect(request)
            case PackBatch():
                return self._pack(request)
        return None

    def _collect(self, request: CollectChunk) -> ChunkCollected:
        self._begin(request.weights, request.weight_version)
        done = self._shard.begin_tick(request.tick)
        first = self._shard.snapshot.written_steps
        for _ in range(request.steps - done):
            self._step(request.uniform, request.weight_version)
        self._add_moments(first)
        return self._say(ChunkCollected, request.tick, request.steps * self._spec.num_envs)

    def _step(self, uniform: bool, weight_version: int) -> None:
        """Make one vector step and commit its rows."""
        shard, stepper, clock = self._shard, self._stepper, self._clock
        head, slices = shard.head, shard.layout.slices
        row = shard.rows[head]
        for name, values in stepper.obs.items():
            row[:, slices[obs_column(name)]] = values
        clock.mark("replay")
        action, env_action = self._actor.choose(stepper.obs, uniform)
        clock.mark("action_select")
        step = stepper.step(env_action, {name: row[:, slices["next_" + obs_column(name)]] for name in stepper.obs})
        clock.mark("env_step")
        row[:, slices["action"]] = action
        row[:, slices["reward"]] = step.reward[:, None]
        shard.terminated[head] = step.terminated
        shard.truncated[head] = step.truncated
        shard.valid[head] = step.valid
        shard.cut[head] = False
        shard.commit(weight_version)
        self._count(step)
        clock.mark("replay")

    def _add_moments(self, first: int) -> None:
        """Count the steps from number `first` ever written on."""
        # A chunk may be longer than the ring only if settings allowed it; they do not.
        positions = self._shard.recent(first)
        valid = self._shard.valid[positions]
        for name, moments in self._moments.items():
            column = "reward" if name == "reward" else obs_column(name)
            values = self._shard.rows[positions][valid][:, self._shard.layout.slices[column]]
            moments.add(values)

    def _pack(self, request: PackBatch) -> BatchPacked:
        begin = perf_counter_ns()
        settings, shard = self._settings, self._shard
        generator = np.random.default_rng(spawn_seed(request.seed, Purpose.PACKING, request.tick, self._index))
        out = self._batches.rows[request.slot][:, self._index]
        discount = self._batches.discount[request.slot][:, self._index]
        rows = draw(shard, discount.size, generator).reshape(discount.shape)
        for step in range(len(rows)):
            pack(shard, rows[step], settings.replay.n_step, settings.algorithm.gamma, out[step], discount[step])
        shard.begin_pack(request.tick)
        header = self._batches.statistics[request.slot, self._index]
        for name, part in statistics_slices(self._spec).items():
            header[part] = self._moments[name].vector
            self._moments[name].clear()
        snapshot = shard.snapshot
        versions = shard.weight_version[shard.ages()]
        self._clock.mark("pack")
        return BatchPacked(
            tick=request.tick,
            slot=request.slot,
            rows_written=snapshot.written_steps * shard.num_envs,
            rows_present=snapshot.present_steps * shard.num_envs,
            version_min=int(versions.min()),
            version_max=int(versions.max()),
            begin_ns=begin,
            end_ns=perf_counter_ns(),
        )

    def _rows_kept(self) -> int:
        return self._shard.snapshot.present_steps * self._spec.num_envs

    def _inherit(self, request: Repeatable) -> int:
        self._mark_break()
        self._add_moments(self._shard.packed_before(request.tick + isinstance(request, Save)))
        return self._shard.steps_of(request.tick)

    def _save_experience(self, directory: Path, tick: int) -> list[FileRecord]:
        return [save_replay(directory / f"replay-{self._index}.safetensors", self._shard, tick)]

    def _restore_experience(self, directory: Path, has_state: bool) -> None:
        path = directory / f"replay-{self._index}.safetensors"
        require_intact(path)
        load_replay(path, self._shard)
        if not has_state:
            self._add_moments(self._shard.packed_before(1))

    def _mark_break(self) -> str:
        self._shard.mark_cut(np.ones(self._spec.num_envs, bool))
        return "environments restart their episodes; the break is marked in the replay"
