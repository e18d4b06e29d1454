"""The learner's service: what every kind of learner is, whatever it trains on."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from aiorl.algorithms.flat import flatten
from aiorl.algorithms.interface import make_learner
from aiorl.algorithms.state import load_exactly
from aiorl.checkpoint.best import STATISTICS_FILE
from aiorl.checkpoint.manifest import require_intact
from aiorl.checkpoint.tensors import load_arrays, save_arrays
from aiorl.errors import CheckpointError, ProtocolError
from aiorl.learner.device import pick_device
from aiorl.learner.marks import Marks
from aiorl.protocol import (
    Attach,
    Attached,
    Build,
    Built,
    FileRecord,
    Measure,
    Message,
    Publish,
    Published,
    PublishEvaluated,
    Ready,
    Requests,
    Restore,
    Restored,
    Save,
    Saved,
    TrainerDone,
    Update,
    UpdateOnRollouts,
)
from aiorl.service import Assignment, Blocks, Purpose, seed_number
from aiorl.storage.evaluated import EvaluatedSlot, evaluated_layout
from aiorl.storage.moments import fresh_moments, statistics_slices
from aiorl.storage.weights import WeightSlots, weights_layout

POLICY_FILE = "policy.safetensors"
LEARNER_FILE = "learner.safetensors"


class LearnerService(ABC):
    """Owns the networks, the statistics of observations, and the published policy's bytes."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment, self._settings = assignment, assignment.settings
        self._device = pick_device(self._settings.learner.device)
        self._mark = Marks(assignment.trace, self._device)
        self._weight_version = 0
        self._idle_since = perf_counter_ns()

    def ready(self) -> Ready:
        """Say that the device is there."""
        return Ready(pid=os.getpid())

    def handle(self, request: Requests) -> Message:
        """Carry out a request."""
        match request:
            case Build():
                reply: Message = self._build(request)
            case Attach():
                reply = self._attach(request)
            case Publish():
                self._publish(request.slot)
                reply = Published(weight_version=self._weight_version)
            case PublishEvaluated():
                self._evaluated.write(self._weight_version, self._flat.cpu().numpy(), self._moments)
                reply = Published(weight_version=self._weight_version)
            case Save():
                reply = self._save(request)
            case Restore():
                reply = self._restore(request)
            case _:
                if (done := self._work(request)) is None:
                    raise ProtocolError(f"a {type(self).__name__} does not answer {type(request).__name__}")
                reply = done
        self._idle_since = perf_counter_ns()
        return reply

    def close(self) -> None:  # noqa: B027
        """Nothing of a learner outlives its process."""

    @abstractmethod
    def _map(self, blocks: Blocks) -> None:
        """Map the memory that experience comes from."""

    @abstractmethod
    def _work(self, request: Requests) -> TrainerDone | None:
        """Carry out an update of this kind's own; None where the request is none."""

    def _save_shards(self, directory: Path, tick: int) -> list[FileRecord]:
        """Write the steps that belong to a checkpoint, of collectors that are gone."""
        return []

    def _build(self, request: Build) -> Built:
        self._spec = request.spec
        seed = seed_number(self._settings.seed, Purpose.LEARNER)
        self._learner = make_learner(self._settings, request.spec, self._device, seed)
        self._learner.mark = self._mark
        self._flat = flatten(self._learner.policy)
        self._is_float = all(each.dtype == torch.float32 for each in self._learner.policy.state_dict().values())
        self._moments = fresh_moments(request.spec)
        tensors = self._learner.tensors().values()
        # Optimisers keep two moments of every parameter, which are not there before the first step; and the
        # policies that ticks to come act with are saved beside the newest.
        policies = 4 + self._settings.lead
        learner_bytes = 3 * sum(tensor.nbytes for tensor in tensors) + policies * self._flat.nbytes
        return Built(policy_bytes=self._flat.nbytes, checkpoint_bytes=learner_bytes)

    def _attach(self, request: Attach) -> Attached:
        blocks = self._assignment.blocks
        assert isinstance(blocks, Blocks)
        self._map(blocks)
        weights = blocks.weights.map(weights_layout(self._settings, request.policy_bytes).nbytes)
        self._weights = WeightSlots.on(weights, self._settings, request.policy_bytes)
        if blocks.evaluated is not None:
            memory = blocks.evaluated.map(evaluated_layout(self._spec, request.policy_bytes).nbytes)
            self._evaluated = EvaluatedSlot.on(memory, self._spec, request.policy_bytes)
        blocks.close()
        return Attached()

    def _done(self, request: Update | UpdateOnRollouts, measured: torch.Tensor, begin: int, staged: int) -> TrainerDone:
        """Check what an update made, publish it, and report; `measured` are the learner's metrics, or nothing."""
        metrics = measured.tolist()  # waits for the device
        self._mark("metrics")
        trained = perf_counter_ns()
        names = self._learner.metric_names[: len(metrics)]
        if not all(map(math.isfinite, metrics)):
            broken = ", ".join(name for name, value in zip(names, metrics, strict=True) if not math.isfinite(value))
            raise FloatingPointError(f"{broken} not finite in the update of tick {request.tick}")
        self._refuse_broken_policy(f"the policy after the update of tick {request.tick}")
        self._weight_version = request.weight_version
        self._publish(request.weights)
        self._mark("publish")
        return TrainerDone(
            tick=request.tick,
            weight_version=self._weight_version,
            metrics=tuple(Measure(name, value) for name, value in zip(names, metrics, strict=True)),
            wait_ns=begin - self._idle_since,
            stage_ns=staged - begin,
            train_ns=trained - staged,
            publish_ns=perf_counter_ns() - trained,
        )

    def _refuse_broken_policy(self, what: str) -> None:
        """Check that all of the policy is finite: in one pass over its flat bytes where these are floats alone."""
        if not self._is_float or not torch.stack(torch.aminmax(self._flat.view(torch.float32))).isfinite().all():
            _refuse_nonfinite(self._learner.policy.state_dict(), what)

    def _merge_statistics(self, headers: NDArray[np.float64]) -> None:
        """Take the statistics of fresh observations, one header of each collector."""
        parts = statistics_slices(self._spec)
        for header in headers:  # in collector order, so that the sums are the same every time
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
            files += self._save_shards(directory, request.tick)
        return Saved(tick=request.tick, files=tuple(files))

    def _restore(self, request: Restore) -> Restored:
        directory = Path(request.directory)
        # A run's best policy has no learner beside it, only its statistics.
        is_alone = request.policy_only and not (directory / LEARNER_FILE).exists()
        state_file = STATISTICS_FILE if is_alone else LEARNER_FILE
        for name in (POLICY_FILE, state_file):
            require_intact(directory / name)
        policy = load_arrays(directory / POLICY_FILE)
        state = load_arrays(directory / state_file)
        try:
            for number, slot in enumerate(request.pending):
                self._restore_pending(slot, request.pending_versions[number], f"pending.{number}", state)
            tensors = {name: torch.from_numpy(values) for name, values in policy.items()}
            load_exactly(self._learner.policy, tensors)
            for name, moments in self._moments.items():
                moments.restore(state[f"moments.{name}"])
            self._learner.set_moments(self._moments)
            if not request.policy_only:
                own = {name.removeprefix("learner."): v for name, v in state.items() if name.startswith("learner.")}
                self._load_all({name: torch.from_numpy(values) for name, values in own.items()})
            _refuse_nonfinite(self._learner.policy.state_dict() | self._learner.tensors(), "what was saved")
        except (KeyError, IndexError, RuntimeError, TypeError, ValueError, ArithmeticError) as error:
            raise CheckpointError(f"{directory}: does not fit this run: {_first_line(error)}") from error
        self._weight_version = request.weight_version
        self._publish(request.weights)
        return Restored()

    def _load_all(self, saved: Mapping[str, torch.Tensor]) -> None:
        """Give the learner its state; none of it may be left over, or become another value on the way."""
        self._learner.load_tensors(saved)
        loaded = self._learner.tensors()
        changed = [name for name, tensor in loaded.items() if not torch.equal(tensor.cpu(), saved[name])]
        if other := sorted({*changed, *(saved.keys() ^ loaded.keys())}):
            raise ValueError(f"not as it was saved: {', '.join(other)}")

    def _restore_pending(self, slot: int, version: int, name: str, state: Mapping[str, NDArray[Any]]) -> None:
        """Put a policy that ticks to come act with into its slot; it passes through the newest one's place."""
        flat, own = state[name], self._weights.policy[slot]
        if flat.shape != own.shape or flat.dtype != own.dtype:
            raise ValueError(f"{name} is {flat.dtype} {flat.shape}, not {own.dtype} {own.shape}")
        self._flat.copy_(torch.from_numpy(flat[: self._flat.nbytes]))
        _refuse_nonfinite(self._learner.policy.state_dict(), name)
        self._weights.write(slot, version, flat)


def _refuse_nonfinite(tensors: Mapping[str, torch.Tensor], what: str) -> None:
    floats = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
    finite = torch.stack([tensor.isfinite().all() for tensor in floats.values()]).tolist()
    if not all(finite):
        broken = ", ".join(name for name, is_finite in zip(floats, finite, strict=True) if not is_finite)
        raise FloatingPointError(f"{what} is not finite: {broken}")


def _first_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
