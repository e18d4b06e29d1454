"""Single envs that are held to their own observation space, step by step."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict

from aiorl.errors import EnvError


class CheckedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Says so, with the env's number, where an observation is not of the shape that its space says.

    Gymnasium's vector envs find that out too, but only as an array that does not fit.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], number: int) -> None:
        super().__init__(env)
        self._number = number
        space = env.observation_space
        self._shapes = {
            name: (box.shape, box.dtype)
            for name, box in (space.items() if isinstance(space, Dict) else [("", space)])
            if isinstance(box, Box)
        }

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the env.

        Raises:
            EnvError: the observation is not what the space says.

        """
        result = self.env.step(action)
        self._check(result[0])
        return result

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the env.

        Raises:
            EnvError: the observation is not what the space says.

        """
        result = self.env.reset(seed=seed, options=options)
        self._check(result[0])
        return result

    def _check(self, obs: Any) -> None:
        for name, (shape, dtype) in self._shapes.items():
            part = self._part(obs, name)
            values = part if isinstance(part, np.ndarray) else np.asarray(part)
            if values.shape != shape:
                self._refuse(name, f"the shape {values.shape}; its space says {shape}")
            if values.dtype != dtype and values.dtype.kind not in "biuf":
                self._refuse(name, f"elements of type {values.dtype}, which are no numbers; its space says {dtype}")

    def _part(self, obs: Any, name: str) -> Any:
        if not name:
            return obs
        if not isinstance(obs, dict) or name not in obs:
            self._refuse(name, "nothing in it, though its space has that group")
        return obs[name]

    def _refuse(self, name: str, what: str) -> None:
        group = f" {name}" if name else ""
        raise EnvError(f"env {self._number} gave an observation{group} that has {what}")
