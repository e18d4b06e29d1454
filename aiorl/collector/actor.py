"""The actor: the acting copy of the policy inside a collector."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from aiorl.algorithms.flat import flatten
from aiorl.algorithms.interface import StochasticPolicy, make_policy
from aiorl.envs.groups import Arrays
from aiorl.protocol import EnvSpec
from aiorl.service import Purpose, spawn_seed
from aiorl.settings import RunSettings
from aiorl.storage.generators import get_generator, set_generator
from aiorl.storage.weights import WeightSlots


class Actor:
    """Chooses actions under one weight version at a time; its random generators are its own."""

    def __init__(self, settings: RunSettings, spec: EnvSpec, index: int) -> None:
        self._policy = make_policy(settings, spec)
        self._flat = flatten(self._policy).numpy()
        self._shape = (spec.num_envs, spec.action_size)
        self._seed, self._index = settings.seed, index
        self.weight_version = -1
        self.reseed(0)

    def reseed(self, *key: int) -> None:
        """Start the generators afresh; `key` says where the collector is, so that it repeats nothing."""
        uniform, noise = spawn_seed(self._seed, Purpose.ACTING, self._index, *key).spawn(2)
        self._uniform = np.random.default_rng(uniform)
        self._noise = torch.Generator().manual_seed(int(noise.generate_state(1, np.uint64)[0] >> 1))

    @property
    def policy_bytes(self) -> int:
        """Bytes of the policy as it is published."""
        return self._flat.size

    def load(self, slots: WeightSlots, slot: int, weight_version: int) -> None:
        """Take the policy from a weight slot."""
        slots.read(slot, weight_version, self._flat)
        self.weight_version = weight_version

    @torch.inference_mode()
    def choose(self, obs: Arrays, uniform: bool) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return actions in [-1, 1] and the same in env units, each `(num_envs, action_size)`."""
        if uniform:
            action = torch.from_numpy(self._uniform.uniform(-1, 1, self._shape).astype(np.float32))
        else:
            action = self._policy.explore(torch.from_numpy(obs["policy"]), self._noise)
        return action.numpy(), self._policy.bounds(action).numpy()

    @torch.inference_mode()
    def sample(self, obs: Arrays) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """Return actions in units of [-1, 1], their log-probabilities `(num_envs,)`, and the actions in env units."""
        assert isinstance(self._policy, StochasticPolicy)
        action, log_prob = self._policy.sample(torch.from_numpy(obs["policy"]), self._noise)
        return action.numpy(), log_prob.numpy(), self._policy.bounds(action).numpy()

    def get_state(self) -> dict[str, NDArray[Any]]:
        """Return the generators."""
        return {"uniform": get_generator(self._uniform), "noise": self._noise.get_state().numpy()}

    def set_state(self, state: dict[str, NDArray[Any]]) -> None:
        """Take back what `get_state` returned."""
        set_generator(self._uniform, state["uniform"])
        self._noise.set_state(torch.from_numpy(state["noise"].copy()))
