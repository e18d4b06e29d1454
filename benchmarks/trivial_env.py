"""A vector env that costs next to nothing: 48 observations, 12 actions, linear dynamics in numpy.

    python -m aiorl run sac/pendulum env.id=benchmarks.trivial_env:make

What a run of it takes is what everything but the simulation takes. Episodes end: where the state leaves a box they
are terminated, and after 200 steps they are truncated; each env starts at a step of its own, so not all at once.
"""

from typing import Any

import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

OBSERVATIONS, ACTIONS, LENGTH, EDGE = 48, 12, 200, 4.0


class TrivialVectorEnv(VectorEnv[Any, Any, Any]):
    """x ← 0.95 x + a W, with reward 1 − mean x²."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012  # Gymnasium's own way

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.single_observation_space = Box(-np.inf, np.inf, (OBSERVATIONS,), np.float32)
        self.single_action_space = Box(-1.0, 1.0, (ACTIONS,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._gain = np.random.default_rng(0).normal(0, 0.3, (ACTIONS, OBSERVATIONS)).astype(np.float32)
        self._rng = np.random.default_rng(0)
        self._state = np.zeros((num_envs, OBSERVATIONS), np.float32)
        self._age = np.zeros(num_envs, np.int64)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._rng = np.random.default_rng(seed)
        self._state = self._start(self.num_envs)
        self._age = np.arange(self.num_envs) % LENGTH
        return self._state.copy(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        state = self._state
        state *= np.float32(0.95)
        state += np.asarray(actions, np.float32) @ self._gain
        self._age += 1
        reward = 1.0 - np.einsum("ij,ij->i", state, state) / OBSERVATIONS
        terminated = np.abs(state[:, 0]) > EDGE
        truncated = self._age >= LENGTH
        ended = terminated | truncated
        info: dict[str, Any] = {}
        if ended.any():
            info = {"final_obs": state.copy(), "_final_obs": ended}
            state[ended] = self._start(int(ended.sum()))
            self._age[ended] = 0
        return state.copy(), reward, terminated, truncated, info

    def _start(self, count: int) -> Any:
        return self._rng.normal(size=(count, OBSERVATIONS)).astype(np.float32)


def make(num_envs: int) -> TrivialVectorEnv:
    """Make the env."""
    return TrivialVectorEnv(num_envs)
