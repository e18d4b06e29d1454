"""The batched swing-up task: physics in `mujoco.batch`, the task in vectorised numpy."""

from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from mujoco.batch import Batch
from numpy.typing import NDArray

from aiorl.envs.mujoco_warnings import no_warning_file
from aiorl.storage.generators import get_generator, set_generator

SUBSTEPS = 4  # of 0.01 s: a control period of 0.04 s
SPEED_UNIT_RAD_S = 10.0  # a free fall from upright passes the bottom at about 9 rad/s
SPEED_BOUND = 5.0  # in that unit; the motor alone spins up to 40 rad/s
START_NOISE = np.array([0.2, 0.2])  # rad and rad/s, uniform either side of hanging at rest
_BAD_STATES = [int(getattr(mujoco.mjtWarning, f"mjWARN_BAD{what}")) for what in ("QPOS", "QVEL", "QACC")]


class PendulumSwingupVectorEnv(VectorEnv[NDArray[np.float32], NDArray[np.floating[Any]], NDArray[Any]]):
    """Swing `num_envs` pendulums up with motors too weak to lift them, and balance them there.

    Observation (3,) float32: cos θ, sin θ, angular velocity in 10 rad/s clipped to ±5; θ = 0 is upright.
    Action (1,): torque in units of the actuator's 2 N·m, clipped to [-1, 1]; the static load is 5.15 N·m.
    Reward in [0, 1], see `swingup_reward`. Never terminated; truncated after `max_episode_steps` control
    steps of 0.04 s (None: no limit). Episodes start hanging, ±0.2 rad and ±0.2 rad/s, uniform.

    `stagger` shortens an env's first episode after a full reset that seeds it, by an offset from the env's
    own generator, so that envs do not all end together. With `copy=False` the observation array is reused.

    `info["unstable"]`, (num_envs,) bool in every step, marks simulations that MuJoCo found unstable: such
    an env ends truncated with reward 0 and its last finite observation; its reset repairs it.

    `qpos` and `qvel`, (num_envs, 1) in rad and rad/s, are live: a write is the state of the next step.
    `generators` has one numpy Generator per env; it is empty before the first reset.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012  # an instance attribute in Gymnasium
        "render_modes": ["rgb_array"],
        "render_fps": 25,
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }

    _renderer: mujoco.Renderer | None = None  # here, because Gymnasium closes envs whose constructor failed, too

    def __init__(
        self,
        num_envs: int = 1,
        max_episode_steps: int | None = 200,
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
        nthread: int = 1,
        stagger: bool = True,
        copy: bool = True,
        render_mode: str | None = None,
    ) -> None:
        if min(num_envs, nthread, max_episode_steps or 1) < 1 or max_episode_steps == 0:
            raise ValueError("num_envs, nthread and max_episode_steps must be at least 1")
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"render_mode must be None or 'rgb_array', not {render_mode!r}")
        if isinstance(autoreset_mode, str):
            names = AutoresetMode.__members__
            autoreset_mode = names.get(autoreset_mode) or AutoresetMode(autoreset_mode)
        self.num_envs, self.max_episode_steps, self.render_mode = num_envs, max_episode_steps, render_mode
        self.autoreset_mode, self.stagger, self.copy = autoreset_mode, stagger, copy
        self.metadata = {**self.metadata, "autoreset_mode": autoreset_mode}

        bound = np.array([1, 1, SPEED_BOUND], np.float32)
        self.single_observation_space = Box(-bound, bound, dtype=np.float32)
        self.single_action_space = Box(-1, 1, (1,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

        self._model = mujoco.MjModel.from_xml_path(str(Path(__file__).with_name("pendulum.xml")))
        self._torque_limit_nm = float(self._model.actuator_ctrlrange[0, 1])
        self._batch = Batch(self._model, num_envs, nthread)
        self.qpos, self.qvel, self._ctrl = (self._batch.bind(field) for field in ("qpos", "qvel", "ctrl"))
        self.qpos[:] = np.pi
        self._hanging = self._batch.state[0].copy()

        self.generators: list[np.random.Generator] = []
        self._observations = np.zeros((num_envs, 3), np.float32)
        self._elapsed_steps = np.zeros(num_envs, np.int64)
        self._offset_steps = np.zeros(num_envs, np.int64)
        self._is_over = np.zeros(num_envs, np.bool_)  # finished and not yet reset

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start episodes in all envs, or in those of `options["reset_mask"]`; (num_envs, 3) observations.

        An int seeds env i with seed + i, a list gives one each, None continues the env's generator.
        """
        mask = (options or {}).get("reset_mask")
        ids = np.arange(self.num_envs) if mask is None else self._ids_of(mask)
        seeds: list[int | None] = [None] * self.num_envs
        if isinstance(seed, int | np.integer):
            seeds = [int(seed) + i for i in range(self.num_envs)]
        elif seed is not None:
            seeds = list(seed)
        if len(seeds) != self.num_envs:
            raise ValueError(f"got {len(seeds)} seeds for {self.num_envs} envs")
        generators = self.generators or [np.random.default_rng(one) for one in seeds]
        offset_steps = np.zeros(self.num_envs, np.int64)
        for i in ids.tolist():
            if seeds[i] is not None:
                generators[i] = np.random.default_rng(seeds[i])
            if seeds[i] is not None or not self.generators:
                # Drawn in any case, so that neither `stagger` nor a mask changes the start states.
                offset_steps[i] = int(generators[i].random() * (self.max_episode_steps or 0))
        self.generators = generators
        self._begin(ids)
        if self.stagger and mask is None:
            self._offset_steps[:] = offset_steps
        return self._observations.copy() if self.copy else self._observations, {}

    def step(
        self, actions: NDArray[np.floating[Any]]
    ) -> tuple[NDArray[np.float32], NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Apply (num_envs, 1) actions for one control period.

        Returns (num_envs, 3) observations; (num_envs,) rewards, terminated and truncated; info.
        """
        only_resets = self._is_over  # such a row is no transition; there is none in SAME_STEP
        if not self.generators or (self.autoreset_mode is AutoresetMode.DISABLED and only_resets.any()):
            raise ResetNeeded(f"reset envs {np.flatnonzero(only_resets).tolist() or 'first'}")
        torques = self._checked(actions, only_resets)
        self._ctrl[:, 0] = torques * self._torque_limit_nm
        with no_warning_file():
            self._batch.step(nstep=SUBSTEPS)

        unstable = (self._batch.warning[:, _BAD_STATES, 1] > 0).any(axis=1) & ~only_resets
        last_observations = self._observations[unstable]
        cos_angle = self._observe(slice(None))
        rewards = swingup_reward(cos_angle, self.qvel[:, 0], torques)
        self._elapsed_steps += 1
        truncated = unstable.copy()
        if self.max_episode_steps is not None:
            truncated |= self._elapsed_steps + self._offset_steps >= self.max_episode_steps
        info: dict[str, Any] = {"unstable": unstable, "_unstable": ~only_resets}
        if unstable.any():
            self._observations[unstable] = last_observations
            rewards[unstable] = 0.0
        if only_resets.any():
            rewards[only_resets] = 0.0
            truncated &= ~only_resets
            self._begin(np.flatnonzero(only_resets))
        if self.autoreset_mode is not AutoresetMode.SAME_STEP:
            self._is_over = truncated.copy()
        elif truncated.any():
            ids = np.flatnonzero(truncated)
            info["final_obs"] = np.full(self.num_envs, None, dtype=object)
            for i in ids:
                info["final_obs"][i] = self._observations[i].copy()
            info["final_info"] = {"unstable": unstable.copy(), "_unstable": truncated.copy()}
            info["_final_obs"], info["_final_info"] = truncated.copy(), truncated.copy()
            self._begin(ids)
        observations = self._observations.copy() if self.copy else self._observations
        return observations, rewards, np.zeros(self.num_envs, np.bool_), truncated, info

    def get_state(self) -> dict[str, NDArray[Any]]:
        """Copy all that the future depends on, as arrays with one row per env."""
        return {
            "simulation": self._batch.state.copy(),  # mjSTATE_INTEGRATION
            "elapsed_steps": self._elapsed_steps.copy(),
            "offset_steps": self._offset_steps.copy(),
            "is_over": self._is_over.copy(),
            "generators": np.array([get_generator(one) for one in self.generators], np.uint64).reshape(-1, 6),
        }

    def set_state(self, state: dict[str, NDArray[Any]]) -> None:
        """Continue from what `get_state` returned, here or in another instance; bitwise the same future."""
        if state["simulation"].shape != self._batch.state.shape:
            raise ValueError(f"state of shape {state['simulation'].shape}, not {self._batch.state.shape}")
        self._batch.state[:], self._batch.warning[:] = state["simulation"], 0
        self._elapsed_steps[:], self._offset_steps[:] = state["elapsed_steps"], state["offset_steps"]
        self._is_over = state["is_over"].astype(np.bool_)
        self.generators = [np.random.default_rng(0) for _ in state["generators"]]
        for generator, row in zip(self.generators, state["generators"], strict=True):
            set_generator(generator, row)
        self._observe(slice(None))

    def render(self) -> tuple[NDArray[np.uint8], ...] | None:
        """Draw every env: num_envs times (480, 480, 3) uint8, or None without a render mode."""
        if self.render_mode is None:
            return None
        self._renderer = self._renderer or mujoco.Renderer(self._model, 480, 480)
        frames = []
        for i in range(self.num_envs):
            data = self._batch.get_data(i)
            mujoco.mj_forward(self._model, data)
            self._renderer.update_scene(data, "side")
            frames.append(self._renderer.render())
        return tuple(frames)

    def close_extras(self) -> None:
        """Free the renderer."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    def _begin(self, ids: NDArray[np.int64]) -> None:
        """Start an episode in each of `ids`, drawn from the env's own generator."""
        # A row copy is 100 times cheaper than `Batch.reset`, and repairs whatever is in the row.
        self._batch.state[ids] = self._hanging
        self._batch.warning[ids] = 0
        noise = np.array([self.generators[i].uniform(-START_NOISE, START_NOISE) for i in ids])
        self.qpos[ids, 0] += noise[:, 0]
        self.qvel[ids, 0] += noise[:, 1]
        self._elapsed_steps[ids] = self._offset_steps[ids] = 0
        self._is_over[ids] = False
        self._observe(ids)

    def _observe(self, envs: NDArray[Any] | slice) -> NDArray[np.float64]:
        """Write the observations of `envs` in place; return their cos θ in double precision."""
        # numpy rounds cos of a strided array unlike that of a contiguous one, which a batch of one is.
        angle = np.array(self.qpos[envs, 0], order="C")
        cos_angle: NDArray[np.float64] = np.cos(angle)
        self._observations[envs, 0] = cos_angle
        self._observations[envs, 1] = np.sin(angle)
        speed = self.qvel[envs, 0] / SPEED_UNIT_RAD_S
        self._observations[envs, 2] = np.clip(speed, -SPEED_BOUND, SPEED_BOUND)
        return cos_angle

    def _checked(self, actions: NDArray[Any], ignored: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return (num_envs,) torques in [-1, 1]; MuJoCo would take a NaN as 0 and go on."""
        actions = np.asarray(actions, np.float64)
        if actions.shape != (self.num_envs, 1):
            raise ValueError(f"actions must be of shape ({self.num_envs}, 1), not {actions.shape}")
        torques = np.where(ignored, 0.0, actions[:, 0])
        bad = np.flatnonzero(~np.isfinite(torques))
        if bad.size:
            raise ValueError(f"the actions of envs {bad.tolist()} are not finite: {torques[bad].tolist()}")
        return np.clip(torques, -1.0, 1.0)

    def _ids_of(self, mask: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the indices of a reset mask, which Gymnasium requires to be bool and not empty."""
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
            raise TypeError("options['reset_mask'] must be a numpy array of bool")
        if mask.shape != (self.num_envs,) or not mask.any():
            raise ValueError(f"options['reset_mask'] must select some of {self.num_envs} envs, is {mask}")
        if not self.generators:
            raise ResetNeeded("reset all envs before some")
        return np.flatnonzero(mask)


def swingup_reward(
    cos_angle: NDArray[np.float64], speed_rad_s: NDArray[np.float64], torque: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Score a step in [0, 1]: 1 upright, at rest and without torque (in [-1, 1]); 0 hanging."""
    upright = (1.0 + cos_angle) / 2.0
    still = 1.0 / (1.0 + (speed_rad_s / 2.0) ** 2)
    gentle = 1.0 - torque**2
    # Speed and torque cost at most half and a fifth, so that swinging up always pays.
    return upright * (1.0 + still) / 2.0 * (4.0 + gentle) / 5.0
