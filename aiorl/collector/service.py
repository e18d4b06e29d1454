"""The collector's service: chunks, packs, its part of a checkpoint."""

from __future__ import annotations

import os
from pathlib import Path
from time import perf_counter_ns

import numpy as np

from aiorl.checkpoint.replay_file import load_replay, save_replay
from aiorl.checkpoint.tensors import Arrays, load_arrays, save_arrays
from aiorl.collector.actor import Actor
from aiorl.collector.episodes import EpisodeTracker
from aiorl.collector.packing import draw, pack
from aiorl.collector.phases import PhaseClock
from aiorl.envs.make import EnvSettingsError, make_vector_env
from aiorl.envs.stepper import VectorStepper
from aiorl.errors import CheckpointError, ProtocolError
from aiorl.protocol import (
    Attach,
    Attached,
    BatchPacked,
    ChunkCollected,
    CollectChunk,
    Message,
    PackBatch,
    Ready,
    Requests,
    Restore,
    Restored,
    Save,
    Saved,
)
from aiorl.service import Assignment, Purpose, RefusedError, seed_number, spawn_seed
from aiorl.storage.batches import BatchSlots, batch_layout, fresh_moments, statistics_slices
from aiorl.storage.replay import ReplayShard, replay_layout
from aiorl.storage.rows import obs_column
from aiorl.storage.weights import WeightSlots, weights_layout


class CollectorService:
    """Owns envs, an actor and a replay shard."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment, self._settings, self._index = assignment, assignment.settings, assignment.index
        settings = self._settings
        try:
            env = make_vector_env(settings.env, settings.envs_per_collector, assignment.env_factory)
            self._stepper = VectorStepper(env, settings.env, settings.algorithm.groups)
            if self._index == 0 and settings.evaluation.at_end and settings.evaluation.kwargs:
                # Better refused now than after a night of training.
                make_vector_env(settings.env, 1, assignment.env_factory, settings.evaluation.kwargs).close()
        except EnvSettingsError as error:
            raise RefusedError(error.key, str(error)) from error
        if self._stepper.num_envs != settings.envs_per_collector:
            raise RefusedError(
                "env.num_envs",
                f"the env made {self._stepper.num_envs} envs, not {settings.envs_per_collector}",
            )
        self._spec = self._stepper.spec
        self._actor = Actor(settings, self._spec, self._index)
        self._episodes = EpisodeTracker(self._spec.num_envs)
        self._moments = fresh_moments(self._spec)
        self._clock = PhaseClock()
        self._is_reset = False

    def ready(self) -> Ready:
        """Say what the env looks like."""
        return Ready(pid=os.getpid(), spec=self._spec)

    def handle(self, request: Requests) -> Message:
        """Carry out a request."""
        self._clock.mark("coordination")
        match request:
            case CollectChunk():
                return self._collect(request)
            case PackBatch():
                return self._pack(request)
            case Attach():
                return self._attach(request)
            case Save():
                return self._save(request)
            case Restore():
                return self._restore(request)
            case _:
                raise ProtocolError(f"a collector does not answer {type(request).__name__}")

    def close(self) -> None:
        """Close the envs."""
        self._stepper.close()

    def _attach(self, request: Attach) -> Attached:
        if request.policy_bytes != self._actor.policy_bytes:
            raise ProtocolError(
                f"the learner's policy has {request.policy_bytes} bytes, ours {self._actor.policy_bytes}"
            )
        settings, spec, blocks = self._settings, self._spec, self._assignment.blocks
        assert blocks is not None
        self._shard = ReplayShard(blocks.replay[0].map(replay_layout(settings, spec).nbytes), settings, spec)
        self._batches = BatchSlots.on(blocks.batches.map(batch_layout(settings, spec).nbytes), settings, spec)
        weights = blocks.weights.map(weights_layout(settings, request.policy_bytes).nbytes)
        self._weights = WeightSlots.on(weights, settings, request.policy_bytes)
        blocks.close()
        return Attached()

    def _collect(self, request: CollectChunk) -> ChunkCollected:
        if not self._is_reset:
            self._reset_envs()
        self._clock.mark("env_step")
        self._actor.load(self._weights, request.weights, request.weight_version)
        self._clock.mark("weight_sync")
        first = self._shard.snapshot.written_steps
        invalid = nonfinite = 0
        for _ in range(request.steps):
            unusable = self._step(request.uniform, request.weight_version)
            invalid, nonfinite = invalid + unusable[0], nonfinite + unusable[1]
        self._add_moments(first, request.steps)
        self._clock.mark("replay")
        return ChunkCollected(
            tick=request.tick,
            rows=request.steps * self._spec.num_envs,
            weight_version=self._actor.weight_version,
            invalid_rows=invalid,
            nonfinite=nonfinite,
            episodes=self._episodes.take(),
            phases=self._clock.take(),
        )

    def _step(self, uniform: bool, weight_version: int) -> tuple[int, int]:
        """Make one vector step and commit its rows; return how many are invalid, and how many not finite."""
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
        self._episodes.add(step)
        clock.mark("replay")
        return int((~step.valid).sum()), step.nonfinite

    def _add_moments(self, first: int, steps: int) -> None:
        # A chunk may be longer than the ring only if settings allowed it; they do not.
        positions = np.arange(first, first + steps) % self._shard.steps
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

    def _save(self, request: Save) -> Saved:
        directory = Path(request.directory)
        state = {f"stepper.{name}": values for name, values in self._stepper.get_state().items()}
        state |= {f"actor.{name}": values for name, values in self._actor.get_state().items()}
        state |= {f"episodes.{name}": values for name, values in self._episodes.get_state().items()}
        state |= {f"moments.{name}": moments.vector for name, moments in self._moments.items()}
        files = (
            save_arrays(directory / f"collector-{self._index}.safetensors", state),
            save_replay(directory / f"replay-{self._index}.safetensors", self._shard),
        )
        return Saved(tick=request.tick, files=files)

    def _restore(self, request: Restore) -> Restored:
        directory = Path(request.directory)
        if request.has_replay:
            load_replay(directory / f"replay-{self._index}.safetensors", self._shard)
        self._is_reset = request.has_state and self._take_state(directory)
        if self._is_reset:
            return Restored()
        if not request.has_state:
            self._actor.reseed(request.vector_steps)
            self._stepper.vector_steps = request.vector_steps
        self._episodes.forget_running()
        self._shard.mark_cut(np.ones(self._spec.num_envs, bool))
        return Restored(note="environments restart their episodes; the break is marked in the replay")

    def _take_state(self, directory: Path) -> bool:
        """Take back what `_save` wrote; return whether the envs themselves went on."""
        path = directory / f"collector-{self._index}.safetensors"
        state = load_arrays(path)

        def part(prefix: str) -> Arrays:
            return {name.removeprefix(f"{prefix}."): v for name, v in state.items() if name.startswith(f"{prefix}.")}

        try:
            self._actor.set_state(part("actor"))
            self._episodes.set_state(part("episodes"))
            for name, vector in part("moments").items():
                self._moments[name].vector[:] = vector
            return self._stepper.set_state(part("stepper"))
        except (KeyError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"{path}: does not fit this run: {error}") from error

    def _reset_envs(self) -> None:
        # A resumed env must not repeat the episodes it started with, so its seeds depend on where it is.
        base = self._index, self._stepper.vector_steps
        seeds = [seed_number(self._settings.seed, Purpose.ENV, *base, env) for env in range(self._spec.num_envs)]
        self._stepper.reset(seeds)
        self._is_reset = True
