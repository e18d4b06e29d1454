"""One contract for every autoreset mode: each step gives whole transitions, and says which rows are none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from aiorl.envs.groups import Arrays, ObservationGroups
from aiorl.envs.make import EnvSettingsError
from aiorl.errors import EnvError
from aiorl.protocol import EnvSpec
from aiorl.settings.sections import EnvSettings

Flags = NDArray[np.bool_]


@dataclass
class Step:
    """What one vector step gave, each `(num_envs,)`; its next observations went where the caller said.

    `reward` is the env's own, in its own precision. Where `valid` is false the row is no transition.
    """

    reward: NDArray[Any]
    terminated: Flags
    truncated: Flags
    valid: Flags
    nonfinite: int
    info: dict[str, Any]


class VectorStepper:
    """Steps a vector env; `obs` holds, by group, what the policy acts on next (copies, float32)."""

    def __init__(self, env: VectorEnv[Any, Any, Any], settings: EnvSettings, used_groups: tuple[str, ...]) -> None:
        self.env = env
        self.num_envs = env.num_envs
        self._end_episode_on_nonfinite = settings.on_nonfinite == "end_episode"
        self._groups = ObservationGroups(env.single_observation_space, used_groups)
        self._mode = _autoreset_mode(env, settings)
        self.obs: Arrays = self._groups.empty(self.num_envs)
        self._awaits_reset = np.zeros(self.num_envs, bool)  # NEXT_STEP: this env's next step only resets it
        self.vector_steps = 0
        action_space = env.single_action_space
        if not isinstance(action_space, Box) or not np.all(np.isfinite([action_space.low, action_space.high])):
            raise EnvSettingsError(
                "env.id", f"its action space is {action_space}; aiorl drives finite Box actions only"
            )
        if action_space.shape is None or len(action_space.shape) != 1:
            raise EnvSettingsError("env.id", f"its actions have shape {action_space.shape}; aiorl drives flat vectors")
        self.spec = EnvSpec(
            num_envs=self.num_envs,
            groups=self._groups.groups,
            action_low=tuple(float(bound) for bound in action_space.low),
            action_high=tuple(float(bound) for bound in action_space.high),
            saves_state=all(callable(getattr(env.unwrapped, name, None)) for name in ("get_state", "set_state")),
            notes=self._groups.notes,
            warnings=self._groups.warnings,
        )
        self._action_space = action_space

    def reset(self, seeds: list[int]) -> None:
        """Start every env afresh, seeded."""
        try:
            obs, _ = self.env.reset(seed=seeds)  # type: ignore[arg-type]  # most vector envs take one seed for each env
        except (TypeError, ValueError, gymnasium.error.Error):
            obs, _ = self.env.reset(seed=seeds[0])
        self._groups.write(obs, self.obs)
        self._awaits_reset[:] = False
        for name, values in self.obs.items():
            self._require_finite(values, f"observation {name} after reset")

    def step(self, action: NDArray[np.float32], next_obs: Arrays) -> Step:
        """Step all envs with actions in env units; write each row's own next observation into `next_obs`.

        Raises:
            EnvError: the env broke its contract, or something is not finite and settings say stop.

        """
        self.vector_steps += 1
        self._require_finite(action, "action of the policy")
        actions = action.astype(self._action_space.dtype)
        # A bound that float32 cannot hold must not be passed by its rounding.
        np.clip(actions, self._action_space.low, self._action_space.high, out=actions)
        obs, reward, terminated, truncated, info = self.env.step(actions)
        reward = self._per_env(reward, "reward")
        terminated = self._per_env(terminated, "terminated").astype(bool)
        truncated = self._per_env(truncated, "truncated").astype(bool)
        valid = ~self._awaits_reset
        ended = terminated | truncated
        self._groups.write(obs, next_obs)
        if self._mode is AutoresetMode.SAME_STEP:
            self._groups.write(obs, self.obs)
            if ended.any():
                self._write_final(info, ended, next_obs)
        else:
            for name, values in next_obs.items():
                self.obs[name][:] = values
        if self._mode is AutoresetMode.NEXT_STEP:
            self._awaits_reset = ended & valid
            terminated, truncated = terminated & valid, truncated & valid
        valid &= ~self._unstable(info, ended)
        broken = self._nonfinite(next_obs, reward)
        if self._mode is AutoresetMode.DISABLED and (ended | broken).any():
            self._reset_some(ended | broken)
        if broken.any():
            # Only with resets of single envs do we get here: the row counts for nothing, and nothing of it is kept.
            valid, terminated, truncated = valid & ~broken, terminated & ~broken, truncated & ~broken
            reward = np.where(broken, 0, reward)
            for values in next_obs.values():
                values[broken] = 0
        return Step(reward, terminated, truncated, valid, int(broken.sum()), info)

    def get_state(self) -> dict[str, NDArray[Any]]:
        """Return current observations, pending resets and, where the env can give it, its own state."""
        state: dict[str, NDArray[Any]] = {f"obs.{name}": values.copy() for name, values in self.obs.items()}
        state["awaits_reset"] = self._awaits_reset.copy()
        state["vector_steps"] = np.array([self.vector_steps])
        if self.spec.saves_state:
            own = self.env.unwrapped.get_state()  # type: ignore[attr-defined]
            state |= {f"env.{name}": np.array(values) for name, values in own.items()}
        return state

    def set_state(self, state: dict[str, NDArray[Any]]) -> bool:
        """Take a state back; return whether the env itself went on (else it must be reset)."""
        self.vector_steps = int(state["vector_steps"][0])
        if self.vector_steps < 0:
            raise ValueError(f"{self.vector_steps} vector steps")
        if not self.spec.saves_state:
            return False
        own = {name.removeprefix("env."): values for name, values in state.items() if name.startswith("env.")}
        self.env.unwrapped.set_state(own)  # type: ignore[attr-defined]
        self._awaits_reset = state["awaits_reset"].astype(bool)
        for name, values in self.obs.items():
            if state[f"obs.{name}"].shape != values.shape:
                raise ValueError(f"obs.{name} has shape {state[f'obs.{name}'].shape}, not {values.shape}")
            values[:] = state[f"obs.{name}"]
        return True

    def close(self) -> None:
        """Close the env."""
        self.env.close()

    def _per_env(self, values: Any, what: str) -> NDArray[Any]:
        array = np.array(values)
        if array.shape != (self.num_envs,):
            raise EnvError(f"the env's {what} has shape {array.shape}, expected {(self.num_envs,)}")
        return array

    def _unstable(self, info: dict[str, Any], ended: Flags) -> Flags:
        """Return which envs say that their simulation broke down in this step."""
        marks: Flags = np.zeros(self.num_envs, bool)
        if "unstable" in info:
            marks = self._per_env(info["unstable"], "info['unstable']").astype(bool)
        final = info.get("final_info")
        if self._mode is AutoresetMode.SAME_STEP and isinstance(final, dict) and "unstable" in final:
            # Single envs: the info of a finished row lies there, and the rest is of the reset.
            marks = np.where(ended, self._per_env(final["unstable"], "final_info['unstable']").astype(bool), marks)
        return marks

    def _write_final(self, info: dict[str, Any], ended: Flags, next_obs: Arrays) -> None:
        envs = np.flatnonzero(ended)
        final, mask = info.get("final_obs"), info.get("_final_obs")
        missing = envs if final is None else envs[~np.asarray(mask)[envs]] if mask is not None else envs[:0]
        if len(missing):
            raise EnvError(
                f"env {int(missing[0])} ended an episode but info['final_obs'] has nothing for it;"
                " an env in SAME_STEP mode must give the final observation of every finished episode"
            )
        self._groups.write_rows(final, envs, next_obs)

    def _reset_some(self, envs: Flags) -> None:
        obs, _ = self.env.reset(options={"reset_mask": envs.copy()})
        fresh = self._groups.empty(self.num_envs)
        self._groups.write(obs, fresh)
        for name, values in fresh.items():
            self._require_finite(np.where(envs[:, None], values, 0), f"observation {name} after reset")
            self.obs[name][envs] = values[envs]

    def _nonfinite(self, next_obs: Arrays, reward: NDArray[Any]) -> Flags:
        broken: Flags = np.zeros(self.num_envs, bool)
        checks = [(f"next observation {name}", values) for name, values in next_obs.items()]
        checks.append(("reward", np.asarray(reward, np.float32)[:, None]))
        if self._mode is AutoresetMode.SAME_STEP:
            checks += [(f"observation {name}", values) for name, values in self.obs.items()]
        for what, values in checks:
            if not self._end_episode_on_nonfinite:
                self._require_finite(values, what)
            elif not _all_finite(values):
                broken |= ~np.isfinite(values).all(axis=1)
        return broken

    def _require_finite(self, values: NDArray[np.float32], what: str) -> None:
        """Check an array `(num_envs, size)`."""
        if not _all_finite(values):
            envs = np.flatnonzero(~np.isfinite(values).all(axis=1))
            raise EnvError(
                f"{what} is not finite in env {int(envs[0])}"
                f"{f' and {len(envs) - 1} more' if len(envs) > 1 else ''} at vector step {self.vector_steps}"
            )


def _all_finite(values: NDArray[np.float32]) -> bool:
    return bool(np.isfinite(values).all())


def _autoreset_mode(env: VectorEnv[Any, Any, Any], settings: EnvSettings) -> AutoresetMode:
    given = env.metadata.get("autoreset_mode")
    try:
        mode = AutoresetMode(given)
    except ValueError:
        raise EnvSettingsError(
            "env.id",
            f"its metadata['autoreset_mode'] is {given!r}; known are {', '.join(m.name for m in AutoresetMode)}",
        ) from None
    if settings.on_nonfinite == "end_episode" and mode is not AutoresetMode.DISABLED:
        raise EnvSettingsError(
            "env.on_nonfinite",
            f"end_episode needs an env that resets single sub-envs (autoreset mode DISABLED); this one has {mode.name}",
        )
    return mode
