"""Evaluation: whole episodes of a deterministic policy, in a worker with envs of its own.

The policy is a checkpoint's, or, on the way, the learner's own through shared memory.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from aiorl.algorithms.flat import flatten
from aiorl.algorithms.interface import Policy, make_policy
from aiorl.algorithms.state import load_exactly
from aiorl.checkpoint.best import STATISTICS_FILE
from aiorl.checkpoint.manifest import require_intact
from aiorl.checkpoint.tensors import Arrays, load_arrays, save_arrays
from aiorl.envs.make import EnvSettingsError, make_vector_env
from aiorl.envs.stepper import VectorStepper
from aiorl.errors import CheckpointError, ProtocolError
from aiorl.protocol import (
    Attach,
    Attached,
    CurveDrawn,
    DrawCurve,
    EnvSpec,
    EpisodesEvaluated,
    Evaluate,
    EvaluatedEpisode,
    EvaluatePolicy,
    EvaluationBegun,
    Message,
    PlayOn,
    PolicySaved,
    Ready,
    Requests,
    SavePolicy,
)
from aiorl.service import Assignment, Purpose, RefusedError, seed_number
from aiorl.settings import RunSettings
from aiorl.storage.block import Block
from aiorl.storage.evaluated import EvaluatedSlot, evaluated_layout
from aiorl.telemetry.plot import draw_learning_curve

POLICY_FILE, LEARNER_FILE = "policy.safetensors", "learner.safetensors"
MOST_EPISODES = 1_000
"""Episodes after which a reply is sent early: a frame has its bounds."""


def load_policy_module(directory: Path, settings: RunSettings, spec: EnvSpec) -> Policy:
    """Make the policy of a checkpoint, in eval mode.

    Raises:
        CheckpointError: its file is broken or does not fit these settings.

    """
    require_intact(directory / POLICY_FILE)
    policy = make_policy(settings, spec)
    tensors = {name: torch.from_numpy(values) for name, values in load_arrays(directory / POLICY_FILE).items()}
    try:
        load_exactly(policy, tensors)
    except RuntimeError as error:
        raise CheckpointError(f"{directory}: its policy does not fit these settings: {error}") from error
    if not all(tensor.isfinite().all() for tensor in policy.state_dict().values()):
        raise CheckpointError(f"{directory / POLICY_FILE}: holds values that are not finite")
    return policy


class EvaluatorService:
    """Plays episodes; it shares at most the slot of the evaluated policy, and touches no training state."""

    def __init__(self, assignment: Assignment) -> None:
        self._settings = settings = assignment.settings
        self._block = assignment.blocks
        self._source: Path | None = None
        self.num_envs = min(settings.evaluation.num_envs, settings.evaluation.episodes)
        try:
            env = make_vector_env(settings.env, self.num_envs, assignment.env_factory, settings.evaluation.kwargs)
            self._stepper = VectorStepper(env, settings.env, settings.algorithm.groups)
        except EnvSettingsError as error:
            raise RefusedError(error.key, str(error)) from error

    def ready(self) -> Ready:
        """Say what the env looks like."""
        return Ready(pid=os.getpid(), spec=self._stepper.spec)

    def handle(self, request: Requests) -> Message:
        """Carry out a request."""
        match request:
            case Attach():
                return self._attach(request)
            case Evaluate():
                self._source = Path(request.directory)
                self._policy = load_policy_module(self._source, self._settings, self._stepper.spec)
                return self._begin(request)
            case EvaluatePolicy():
                self._statistics = self._slot.read(request.weight_version, self._flat)
                return self._begin(request)
            case PlayOn():
                for _ in range(request.steps):
                    if self._episodes.is_over or self._episodes.is_full:
                        break
                    self._episodes.step()
                return self._episodes.take()
            case SavePolicy():
                return self._save(Path(request.directory))
            case DrawCurve():
                draw_learning_curve(Path(request.run_dir), self._settings, request.evaluation_file or None)
                return CurveDrawn()
            case _:
                raise ProtocolError(f"an evaluator does not answer {type(request).__name__}")

    def close(self) -> None:
        """Close the envs."""
        self._stepper.close()

    def _attach(self, request: Attach) -> Attached:
        block, spec = self._block, self._stepper.spec
        assert isinstance(block, Block)
        self._policy = make_policy(self._settings, spec)
        self._flat = flatten(self._policy).numpy()
        if request.policy_bytes != self._flat.size:
            raise ProtocolError(f"the learner's policy has {request.policy_bytes} bytes, ours {self._flat.size}")
        memory = block.map(evaluated_layout(spec, request.policy_bytes).nbytes)
        self._slot = EvaluatedSlot.on(memory, spec, request.policy_bytes)
        block.close()
        return Attached()

    def _begin(self, request: Evaluate | EvaluatePolicy) -> EvaluationBegun:
        envs = range(self._stepper.num_envs)
        self._stepper.reset([seed_number(request.seed, Purpose.EVALUATION, env) for env in envs])
        limit = self._settings.evaluation.max_episode_steps
        self._episodes = Episodes(self._stepper, self._policy, request.episodes_per_env, limit)
        return EvaluationBegun()

    def _save(self, directory: Path) -> PolicySaved:
        policy = {name: tensor.numpy() for name, tensor in self._policy.state_dict().items()}
        files = (
            save_arrays(directory / POLICY_FILE, policy),
            save_arrays(directory / STATISTICS_FILE, self._moments()),
        )
        return PolicySaved(files)

    def _moments(self) -> Arrays:
        """Return the moments of observations and rewards that go with the policy."""
        if self._source is None:
            return {f"moments.{name}": vector for name, vector in self._statistics.items()}
        require_intact(self._source / LEARNER_FILE)
        state = load_arrays(self._source / LEARNER_FILE)
        return {name: vector for name, vector in state.items() if name.startswith("moments.")}


class Episodes:
    """Episodes that are being played: as many in every env, so that short ones are not counted more often."""

    def __init__(self, stepper: VectorStepper, policy: Policy, per_env: int, max_episode_steps: int) -> None:
        self._stepper, self._policy = stepper, policy
        self._per_env, self._max_episode_steps = per_env, max_episode_steps
        count = stepper.num_envs
        self._next_obs = {name: np.zeros_like(values) for name, values in stepper.obs.items()}
        self._return: NDArray[np.float64] = np.zeros(count)
        self._length = np.zeros(count, np.int64)
        self._finished = np.zeros(count, np.int64)
        self._new: list[EvaluatedEpisode] = []

    @property
    def is_over(self) -> bool:
        """Whether every env has finished its episodes."""
        return bool((self._finished == self._per_env).all())

    @property
    def is_full(self) -> bool:
        """Whether a reply could hardly take more."""
        return len(self._new) >= MOST_EPISODES

    @torch.inference_mode()
    def step(self) -> None:
        """Make one vector step."""
        obs = torch.from_numpy(self._stepper.obs["policy"])
        step = self._stepper.step(self._policy.bounds(self._policy.act(obs)).numpy(), self._next_obs)
        self._return += np.where(step.valid, step.reward, 0)
        self._length += step.valid
        # An env without a time limit of its own must not play for ever.
        too_long = self._length >= self._max_episode_steps
        over = step.terminated | step.truncated | too_long
        for env in np.flatnonzero(over & step.valid & (self._finished < self._per_env)).tolist():
            self._finished[env] += 1
            self._new.append(
                EvaluatedEpisode(env, float(self._return[env]), int(self._length[env]), bool(step.terminated[env]))
            )
        self._return[over | ~step.valid] = 0
        self._length[over | ~step.valid] = 0

    def take(self) -> EpisodesEvaluated:
        """Return what ended since the last call."""
        new, self._new = self._new, []
        return EpisodesEvaluated(self.is_over, tuple(new))
