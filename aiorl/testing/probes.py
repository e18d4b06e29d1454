"""Environments that show what a trainer does with them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict
from numpy.typing import NDArray

EPISODE_UNIT = 1_000
ENV_UNIT = 100_000


class CountEnv(gymnasium.Env[NDArray[np.float32], NDArray[np.float32]]):
    """Every number of an observation is `env * 100000 + episode * 1000 + t`; the reward is 1.

    Episodes end after `length` steps by termination, by truncation, or by both at once. With `number` None
    the env takes its number from the first seed that it is given, modulo 10.
    """

    def __init__(
        self,
        length: int = 20,
        end: Literal["terminated", "truncated", "both"] = "truncated",
        width: int = 3,
        number: int | None = None,
        groups: tuple[str, ...] = (),
    ) -> None:
        self._length, self._end, self._width, self._number, self._groups = length, end, width, number, groups
        box = Box(-np.inf, np.inf, (width,), np.float32)
        self.observation_space = Dict(dict.fromkeys(groups, box)) if groups else box  # type: ignore[assignment]
        self.action_space = Box(-1, 1, (1,), np.float32)
        self._episode, self._t = -1, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start the next episode."""
        super().reset(seed=seed)
        if self._number is None:
            self._number = (seed or 0) % 10
        self._episode += 1
        self._t = 0
        return self._observation(), {}

    def step(self, action: NDArray[np.float32]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Count one step."""
        self._t += 1
        is_over = self._t >= self._length
        terminated = is_over and self._end in ("terminated", "both")
        truncated = is_over and self._end in ("truncated", "both")
        return self._observation(), 1.0, terminated, truncated, {}

    def _observation(self) -> Any:
        count = (self._number or 0) * ENV_UNIT + self._episode * EPISODE_UNIT + self._t
        obs = np.full(self._width, count, np.float32)
        # The critic's group is told apart by its sign.
        return {name: -obs if name == "critic" else obs for name in self._groups} if self._groups else obs


class ScratchEnv(CountEnv):
    """A CountEnv that returns the same array every step and overwrites it in place."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._scratch = np.zeros(self._width, np.float32)

    def _observation(self) -> NDArray[np.float32]:
        self._scratch[:] = super()._observation()
        return self._scratch


class ClockEnv(CountEnv):
    """A CountEnv whose observation is the share of its episode that is over, so that values can be learned."""

    def _observation(self) -> NDArray[np.float32]:
        return np.full(self._width, self._t / self._length, np.float32)


class SeedEnv(CountEnv):
    """A CountEnv that appends the seed it got and its first random draw to `folder`/<pid>-<object>."""

    def __init__(self, folder: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._file = Path(folder) / f"{os.getpid()}-{id(self)}"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Write down what came."""
        result = super().reset(seed=seed)
        if seed is not None:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(f"{seed} {self.np_random.random()!r}\n")
        return result


class BoxEnv(CountEnv):
    """A CountEnv with the asymmetric action space [-2, 6], which observes the action that it was given."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.action_space = Box(-2, 6, (2,), np.float32)
        self._action = np.zeros(2, np.float32)

    def step(self, action: NDArray[np.float32]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Refuse actions out of bounds; remember the others.

        Raises:
            ValueError: the action is out of bounds.
        """
        if not self.action_space.contains(action):
            raise ValueError(f"action {action} is not in {self.action_space}")
        self._action = np.array(action)
        return super().step(action)

    def _observation(self) -> NDArray[np.float32]:
        return np.concatenate([super()._observation()[:1], self._action]).astype(np.float32)


class SlowEnv(CountEnv):
    """A CountEnv whose step takes `seconds`, asleep."""

    def __init__(self, seconds: float, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._seconds = seconds

    def step(self, action: NDArray[np.float32]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take the time."""
        time.sleep(self._seconds)
        return super().step(action)
