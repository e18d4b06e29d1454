"""The learner's service: updates, publications, its part of a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter_ns

import numpy as np
import torch

from aiorl.algorithms.flat import flatten
from aiorl.algorithms.interface import make_learner
from aiorl.checkpoint.replay_file import save_replay
from aiorl.checkpoint.tensors import load_arrays, save_arrays
from aiorl.errors import CheckpointError, ProtocolError
from aiorl.learner.staging import Staging
from aiorl.protocol import (
    Attach,
    Attached,
    Build,
    Built,
    Measure,
    Message,
    Publish,
    Published,
    Ready,
    Requests,
    Restore,
    Restored,
    Save,
    Saved,
    TrainerDone,
    Update,
)
from aiorl.service import Assignment, Purpose, RefusedError, seed_number
from aiorl.storage.batches import BatchSlots, batch_layout, fresh_moments, statistics_slices
from aiorl.storage.replay import ReplayShard, replay_layout
from aiorl.storage.rows import RowLayout
from aiorl.storage.weights import WeightSlots, weights_layout

POLICY_FILE = "policy.safetensors"
LEARNER_FILE = "learner.safetensors"


class LearnerService:
    """Owns the networks, the statistics of observations, and the published policy's bytes."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment, self._settings = assignment, assignment.settings
        self._device = pick_device(self._settings.learner.device)
        self._weight_version = 0
        self._idle_since = perf_counter_ns()

    def ready(self) -> Ready:
        """Say that the device is there."""
        return Ready(pid=os.getpid())

    def handle(self, request: Requests) -> Message:
        """Carry out a request."""
        match request:
            case Update():
                reply: Message = self._update(request)
            case Build():
                reply = self._build(request)
            case Attach():
                reply = self._attach(request)
            case Publish():
                self._publish(request.slot)
                reply = Published(weight_version=self._weight_version)
            case Save():
                reply = self._save(request)
            case Restore():
                reply = self._restore(request)
            case _:
                raise ProtocolError(f"a learner does not answer {type(request).__name__}")
        self._idle_since = perf_counter_ns()
        return reply

    def close(self) -> None:
        """Nothing of a learner outlives its process."""

    def _build(self, request: Build) -> Built:
        self._spec = request.spec
        seed = seed_number(self._settings.seed, Purpose.LEARNER)
        self._learner = make_learner(self._settings, request.spec, self._device, seed)
        self._flat = flatten(self._learner.policy)
        self._moments = fresh_moments(request.spec)
        tensors = self._learner.tensors().values()
        # Optimisers keep two moments of every parameter, which are not there before the first step.
        learner_bytes = 3 * sum(tensor.nbytes for tensor in tensors) + 4 * self._flat.nbytes
        return Built(policy_bytes=self._flat.nbytes, checkpoint_bytes=learner_bytes)

    def _attach(self, request: Attach) -> Attached:
        settings, blocks = self._settings, self._assignment.blocks
        assert blocks is not None
        slots = BatchSlots.on(blocks.batches.map(batch_layout(settings, self._spec).nbytes), settings, self._spec)
        weights = blocks.weights.map(weights_layout(settings, request.policy_bytes).nbytes)
        self._weights = WeightSlots.on(weights, settings, request.policy_bytes)
        self._statistics = slots.statistics
        nbytes = replay_layout(settings, self._spec).nbytes
        self._shards = [ReplayShard(block.map(nbytes), settings, self._spec) for block in blocks.replay]
        self._staging = Staging(slots, RowLayout.of(self._spec), self._device)
        blocks.close()
        return Attached()

    def _update(self, request: Update) -> TrainerDone:
        begin = perf_counter_ns()
        self._merge_statistics(request.slot)
        batches = self._staging.stage(request.slot)
        staged = perf_counter_ns()
        total = torch.stack([self._learner.gradient_step(batch) for batch in batches]).mean(dim=0)
        metrics = total.tolist()  # waits for the device
        trained = perf_counter_ns()
        names = self._learner.metric_names
        if not np.isfinite(metrics).all():
            broken = ", ".join(name for name, value in zip(names, metrics, strict=True) if not np.isfinite(value))
            raise FloatingPointError(f"{broken} not finite in the update of tick {request.tick}")
        _refuse_nonfinite(self._learner.policy.state_dict(), f"the policy after the update of tick {request.tick}")
        self._weight_version = request.weight_version
        self._publish(request.weights)
        return TrainerDone(
            tick=request.tick,
            weight_version=self._weight_version,
            metrics=tuple(Measure(name, value) for name, value in zip(names, metrics, strict=True)),
            wait_ns=begin - self._idle_since,
            stage_ns=staged - begin,
            train_ns=trained - staged,
            publish_ns=perf_counter_ns() - trained,
        )

    def _merge_statistics(self, slot: int) -> None:
        parts = statistics_slices(self._spec)
        for header in self._statistics[slot]:  # in collector order, so that the sums are the same every time
            for name, moments in self._moments.items():
                moments.merge(header[parts[name]])
        self._learner.set_moments(self._moments)

    def _publish(self, slot: int) -> None:
        self._weights.write(slot, self._weight_version, self._flat.cpu().numpy())

    def _save(self, request: Save) -> Saved:
        directory = Path(request.directory)
        # A state that cannot go on must not become the newest checkpoint.
        _refuse_nonfinite(self._learner.tensors(), "the learner's state")
        policy = {name: tensor.cpu().numpy() for name, tensor in self._learner.policy.state_dict().items()}
        state = {f"learner.{name}": tensor.cpu().numpy() for name, tensor in self._learner.tensors().items()}
        state |= {f"moments.{name}": moments.vector for name, moments in self._moments.items()}
        for number, slot in enumerate(request.pending):
            state[f"pending.{number}"] = self._weights.policy[slot]
        files = [save_arrays(directory / POLICY_FILE, policy), save_arrays(directory / LEARNER_FILE, state)]
        if request.shards:
            for index, shard in enumerate(self._shards):
                files.append(save_replay(directory / f"replay-{index}.safetensors", shard, is_orphaned=True))
        return Saved(tick=request.tick, files=tuple(files))

    def _restore(self, request: Restore) -> Restored:
        directory = Path(request.directory)
        policy = load_arrays(directory / POLICY_FILE)
        state = load_arrays(directory / LEARNER_FILE)
        try:
            tensors = {name: torch.from_numpy(values) for name, values in policy.items()}
            self._learner.policy.load_state_dict(tensors)
            for name, moments in self._moments.items():
                moments.vector[:] = state[f"moments.{name}"]
            self._learner.set_moments(self._moments)
            if not request.policy_only:
                own = {name.removeprefix("learner."): v for name, v in state.items() if name.startswith("learner.")}
                self._learner.load_tensors({name: torch.from_numpy(values) for name, values in own.items()})
            for number, slot in enumerate(request.pending):
                self._weights.write(slot, request.pending_versions[number], state[f"pending.{number}"])
        except (KeyError, RuntimeError, ValueError) as error:
            raise CheckpointError(f"{directory}: does not fit this run: {_first_line(error)}") from error
        self._weight_version = request.weight_version
        self._publish(request.weights)
        return Restored()


def pick_device(name: str) -> torch.device:
    """Return the torch device of a setting.

    Raises:
        RefusedError: this machine does not have it.

    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise RefusedError("learner.device", f"{name}: this machine has {count or 'no'} CUDA device{'s' * (count > 1)}")
    return device


def _refuse_nonfinite(tensors: Mapping[str, torch.Tensor], what: str) -> None:
    floats = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
    finite = torch.stack([tensor.isfinite().all() for tensor in floats.values()]).tolist()
    if not all(finite):
        broken = ", ".join(name for name, is_finite in zip(floats, finite, strict=True) if not is_finite)
        raise FloatingPointError(f"{what} is not finite: {broken}")


def _first_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
