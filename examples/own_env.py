"""An environment of your own, given as a callable: train, look at the evaluation, use the policy."""

import sys
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

import aiorl

Array = NDArray[np.float32]


class PointMass(gymnasium.Env[Array, Array]):
    """Push a mass over a plane to a goal; a step costs its distance, and being there ends the episode."""

    def __init__(self, goal_radius: float = 0.1, steps: int = 100) -> None:
        self.observation_space = Box(-np.inf, np.inf, (4,), np.float32)
        self.action_space = Box(-1, 1, (2,), np.float32)
        self._goal_radius, self._steps = goal_radius, steps

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Put the mass somewhere, at rest."""
        super().reset(seed=seed)
        self._to_goal, self._velocity, self._t = self.np_random.uniform(-1, 1, 2), np.zeros(2), 0
        return self._observation(), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Push, and let a tenth of a second go by."""
        self._t += 1
        self._velocity = 0.95 * self._velocity + 0.1 * action
        self._to_goal = self._to_goal - 0.1 * self._velocity
        distance = float(np.linalg.norm(self._to_goal))
        is_there = distance < self._goal_radius
        # Ended by the task or by the clock: only the first says that nothing more would have come.
        return self._observation(), -distance, is_there, not is_there and self._t >= self._steps, {}

    def _observation(self) -> Array:
        return np.concatenate([self._to_goal, self._velocity]).astype(np.float32)


def main(run_dir: str, *overrides: str) -> None:
    # The preset is the pendulum's: what it says of its env's evaluation is not for ours.
    mine = ["name=point-mass", "evaluation.kwargs={}", "budget.env_steps=12000", *overrides]
    settings = aiorl.load_settings("sac/pendulum", overrides=mine)
    outcome = aiorl.train(settings, run_dir=run_dir, env_factory=PointMass)
    if outcome.evaluation is not None:
        print(f"evaluation return {outcome.evaluation.return_mean:.1f}")

    policy = aiorl.load_policy(outcome.run_dir)
    env = PointMass()
    obs, _ = env.reset(seed=1)
    steps, is_there, is_late = 0, False, False
    while not (is_there or is_late):
        obs, _, is_there, is_late, _ = env.step(policy(obs))
        steps += 1
    print(f"{outcome.state}: {'at the goal' if is_there else 'not there'} after {steps} steps")


if __name__ == "__main__":
    main(*sys.argv[1:] or ["runs/own_env"])
