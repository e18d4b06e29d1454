"""The swing-up as an ordinary Gymnasium environment: a batch of one."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from aiorl.envs.pendulum.env import PendulumSwingupVectorEnv


class PendulumSwingupEnv(gymnasium.Env[NDArray[np.float32], NDArray[np.float32]]):
    """Swing one pendulum up, with the same trajectory as the vector environment under the same seed.

    The time limit is Gymnasium's `TimeLimit` wrapper, which `gymnasium.make` adds. `info["unstable"]` is a
    bool. `np_random` is the generator in use; assigning another one has no effect, seed `reset` instead.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 25}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self._batch_of_one = PendulumSwingupVectorEnv(
            max_episode_steps=None,
            autoreset_mode=AutoresetMode.DISABLED,
            render_mode=render_mode,
        )
        self.observation_space = self._batch_of_one.single_observation_space
        self.action_space = self._batch_of_one.single_action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start an episode hanging down; (3,) observation."""
        super().reset(seed=seed)
        if seed is None and self._np_random is None:
            # Gymnasium draws a seed and remembers it, so that the first episode can be named afterwards.
            seed = self.np_random_seed
        observations, _ = self._batch_of_one.reset(seed=seed)
        self._np_random = self._batch_of_one.generators[0]
        return observations[0], {}

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Apply one (1,) action in [-1, 1] for a control period."""
        observations, rewards, terminated, truncated, infos = self._batch_of_one.step(np.asarray(action)[None])
        info = {"unstable": bool(infos["unstable"][0])}
        return observations[0], float(rewards[0]), bool(terminated[0]), bool(truncated[0]), info

    def render(self) -> NDArray[np.uint8] | None:
        """Draw the pendulum: (480, 480, 3) uint8, or None without a render mode."""
        frames = self._batch_of_one.render()
        return None if frames is None else frames[0]

    def close(self) -> None:
        """Free the renderer."""
        self._batch_of_one.close()
