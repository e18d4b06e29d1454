"""An environment that does something terrible, where and when it is told."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from aiorl.testing.probes import CountEnv

Trap = Literal[
    "raise",
    "exit",
    "kill",
    "hang",
    "gil",
    "nan_obs",
    "inf_obs",
    "nan_reward",
    "inf_reward",
    "nan_final_obs",
    "inf_final_obs",
    "shape",
    "dtype",
]
"""raise, exit (`os._exit`), kill (SIGKILL), hang, gil (hang in C with the interpreter's lock held); or a bad value."""


class TrapEnv(CountEnv):
    """A CountEnv that does something terrible in its constructor, in reset, at step `at`, or in close.

    `where` is "init", "reset", "step" or "close". `once` names a file: while it exists the trap is off, and
    springing makes it. Bad values (not finite, of another shape or type) come in one step, or in every reset.
    """

    def __init__(
        self, trap: Trap = "raise", where: str = "step", at: int = 37, once: str | None = None, **arguments: Any
    ) -> None:
        super().__init__(**arguments)
        self._trap, self._where, self._at = trap, where, at
        self._once = None if once is None else Path(once)
        self._steps = 0
        if where == "init":
            self._spring()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset, or trap."""
        obs, info = super().reset(seed=seed)
        return (self._sprung(obs, 0.0)[0] if self._where == "reset" else obs), info

    def step(self, action: NDArray[np.float32]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step, or trap."""
        obs, reward, terminated, truncated, info = super().step(action)
        self._steps += 1
        is_due = self._steps == self._at
        if "final" in self._trap:
            is_due = self._steps >= self._at and (terminated or truncated)
        if is_due and self._where == "step":
            obs, reward = self._sprung(obs, reward)
        return obs, reward, terminated, truncated, info

    def close(self) -> None:
        """Close, or trap."""
        super().close()
        if self._where == "close":
            self._spring()

    def _sprung(self, obs: Any, reward: float) -> tuple[Any, float]:
        bad = float("inf") if self._trap.startswith("inf") else float("nan")
        if self._trap.endswith("reward"):
            return obs, bad
        if self._trap == "shape":
            return obs[:-1], reward
        if self._trap == "dtype":
            return np.array(["no", "number", "here"][: len(obs)]), reward
        if self._trap.endswith("obs"):
            spoiled = np.array(obs)
            spoiled[0] = bad
            return spoiled, reward
        self._spring()
        return obs, reward

    def _spring(self) -> None:
        if self._once is not None:
            if self._once.exists():
                return
            self._once.touch()
        match self._trap:
            case "raise":
                raise RuntimeError("the trap env has sprung")
            case "exit":
                os._exit(9)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                threading.Event().wait()
            case "gil":
                ctypes.PyDLL(None).pause()  # a PyDLL keeps the lock
