"""Evaluation: whole episodes of a checkpoint's deterministic policy, in a worker with envs of its own."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from aiorl.algorithms.interface import Policy, make_policy
from aiorl.checkpoint.tensors import load_arrays
from aiorl.envs.make import EnvSettingsError, make_vector_env
from aiorl.envs.stepper import VectorStepper
from aiorl.errors import CheckpointError, ProtocolError
from aiorl.protocol import CurveDrawn, DrawCurve, EnvSpec, EpisodesEvaluated, Evaluate, Message, Ready, Requests
from aiorl.service import Assignment, Purpose, RefusedError, seed_number
from aiorl.settings import RunSettings
from aiorl.telemetry.plot import draw_learning_curve

POLICY_FILE = "policy.safetensors"


def load_policy_module(directory: Path, settings: RunSettings, spec: EnvSpec) -> Policy:
    """Make the policy of a checkpoint, in eval mode.

    Raises:
        CheckpointError: its file is broken or does not fit these settings.

    """
    policy = make_policy(settings, spec)
    tensors = {name: torch.from_numpy(values) for name, values in load_arrays(directory / POLICY_FILE).items()}
    try:
        policy.load_state_dict(tensors)
    except RuntimeError as error:
        raise CheckpointError(f"{directory}: its policy does not fit these settings: {error}") from error
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
                return play_episodes(self._stepper, policy, request.episodes_per_env, request.seed)
            case DrawCurve():
                draw_learning_curve(Path(request.run_dir), self._settings, request.evaluation_file)
                return CurveDrawn()
            case _:
                raise ProtocolError(f"an evaluator does not answer {type(request).__name__}")

    def close(self) -> None:
        """Close the envs."""
        self._stepper.close()


@torch.inference_mode()
def play_episodes(stepper: VectorStepper, policy: Policy, episodes_per_env: int, seed: int) -> EpisodesEvaluated:
    """Play until every env has finished this many episodes; the first ones of each env count.

    Taking the same number from each env keeps short episodes from being counted more often.
    """
    count = stepper.num_envs
    stepper.reset([seed_number(seed, Purpose.EVALUATION, env) for env in range(count)])
    next_obs = {name: np.zeros_like(values) for name, values in stepper.obs.items()}
    running: NDArray[np.float64] = np.zeros(count)
    length = np.zeros(count, np.int64)
    returns: list[list[float]] = [[] for _ in range(count)]
    lengths: list[list[int]] = [[] for _ in range(count)]
    terminated = truncated = 0
    while any(len(finished) < episodes_per_env for finished in returns):
        action = policy.bounds(policy.act(torch.from_numpy(stepper.obs["policy"]))).numpy()
        step = stepper.step(action, next_obs)
        running += np.where(step.valid, step.reward, 0)
        length += step.valid
        ended = step.terminated | step.truncated
        for env in np.flatnonzero(ended & step.valid):
            if len(returns[env]) < episodes_per_env:
                returns[env].append(float(running[env]))
                lengths[env].append(int(length[env]))
                terminated += bool(step.terminated[env])
                truncated += not step.terminated[env]
        over = ended | ~step.valid
        running[over] = 0
        length[over] = 0
    return EpisodesEvaluated(
        returns=tuple(value for each in returns for value in each),
        lengths=tuple(value for each in lengths for value in each),
        terminated=terminated,
        truncated=truncated,
    )
