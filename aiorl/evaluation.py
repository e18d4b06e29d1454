"""Evaluation: whole episodes of a checkpoint's deterministic policy, in a worker with envs of its own."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from aiorl.algorithms.interface import Policy, make_policy
from aiorl.algorithms.state import load_exactly
from aiorl.checkpoint.manifest import require_intact
from aiorl.checkpoint.tensors import load_arrays
from aiorl.envs.make import EnvSettingsError, make_vector_env
from aiorl.envs.stepper import VectorStepper
from aiorl.errors import CheckpointError, ProtocolError
from aiorl.protocol import (
    CurveDrawn,
    DrawCurve,
    EnvSpec,
    EpisodesEvaluated,
    Evaluate,
    EvaluatedEpisode,
    EvaluationBegun,
    Message,
    PlayOn,
    Ready,
    Requests,
)
from aiorl.service import Assignment, Purpose, RefusedError, seed_number
from aiorl.settings import RunSettings
from aiorl.telemetry.plot import draw_learning_curve

POLICY_FILE = "policy.safetensors"
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
    """Plays episodes; it has no shared memory and touches no training state."""

    def __init__(self, assignment: Assignment) -> None:
        self._settings = settings = assignment.settings
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
            case Evaluate():
                policy = load_policy_module(Path(request.directory), self._settings, self._stepper.spec)
                self._stepper.reset(
                    [seed_number(request.seed, Purpose.EVALUATION, env) for env in range(self._stepper.num_envs)]
                )
                limit = self._settings.evaluation.max_episode_steps
                self._episodes = Episodes(self._stepper, policy, request.episodes_per_env, limit)
                return EvaluationBegun()
            case PlayOn():
                for _ in range(request.steps):
                    if self._episodes.is_over or self._episodes.is_full:
                        break
                    self._episodes.step()
                return self._episodes.take()
            case DrawCurve():
                draw_learning_curve(Path(request.run_dir), self._settings, request.evaluation_file)
                return CurveDrawn()
            case _:
                raise ProtocolError(f"an evaluator does not answer {type(request).__name__}")

    def close(self) -> None:
        """Close the envs."""
        self._stepper.close()


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
