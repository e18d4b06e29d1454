"""Staging: what an update trains on, on the learner's device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from aiorl.algorithms.interface import Batch, Rollouts
from aiorl.protocol import EnvSpec
from aiorl.storage.batches import BatchSlots
from aiorl.storage.rollouts import RolloutSlot, value_group
from aiorl.storage.rows import RowLayout, obs_column


class BatchStaging:
    """A batch slot, cut into minibatches. On the CPU it is used where it lies; elsewhere it is copied whole, once."""

    def __init__(self, slots: BatchSlots, layout: RowLayout, device: torch.device) -> None:
        self._slots, self._layout, self._device = slots, layout, device
        self._in_place: dict[int, list[Batch]] = {}

    def stage(self, slot: int) -> list[Batch]:
        """Return the minibatches of a slot, one for each gradient step."""
        if self._device.type != "cpu":
            return self._cut(slot)
        if slot not in self._in_place:  # views of memory that stays where it is
            self._in_place[slot] = self._cut(slot)
        return self._in_place[slot]

    def _cut(self, slot: int) -> list[Batch]:
        rows = self._to_device(self._slots.rows[slot])
        discount = self._to_device(self._slots.discount[slot])
        return [self._batch(rows[step].flatten(0, 1), discount[step].flatten()) for step in range(len(rows))]

    def _to_device(self, values: NDArray[np.float32]) -> torch.Tensor:
        return torch.from_numpy(values).to(self._device)

    def _batch(self, rows: torch.Tensor, discount: torch.Tensor) -> Batch:
        part = {name: rows[:, where] for name, where in self._layout.slices.items()}
        return Batch(
            obs=part["obs"],
            critic_obs=part.get("critic_obs", part["obs"]),
            action=part["action"],
            reward=part["reward"].squeeze(-1),
            discount=discount,
            next_obs=part["next_obs"],
            next_critic_obs=part.get("next_critic_obs", part["next_obs"]),
        )


class RolloutStaging:
    """Rollouts of all collectors, side by side. On the CPU the only one is used where it lies."""

    def __init__(self, spec: EnvSpec, device: torch.device) -> None:
        self._critic_obs, self._device = obs_column(value_group(spec)), device

    def stage(self, slots: list[RolloutSlot]) -> Rollouts:
        """Return the rollouts of these slots, in their order."""

        def column(name: str) -> torch.Tensor:
            return self._side_by_side([slot.columns[name] for slot in slots], dim=1)

        obs = column("obs")
        return Rollouts(
            obs=obs,
            critic_obs=obs if self._critic_obs == "obs" else column(self._critic_obs),
            action=column("action"),
            log_prob=column("log_prob"),
            reward=column("reward"),
            terminated=column("terminated"),
            # What comes after a cut is as unknown as what comes after a truncation: both are bootstrapped.
            truncated=column("truncated") | column("cut"),
            valid=column("valid"),
            next_critic_obs=column("next_" + self._critic_obs),
            last_critic_obs=self._side_by_side([slot.last_obs for slot in slots], dim=0),
        )

    def _side_by_side(self, arrays: list[NDArray[Any]], dim: int) -> torch.Tensor:
        tensors = [torch.from_numpy(values).to(self._device) for values in arrays]
        return tensors[0] if len(tensors) == 1 else torch.cat(tensors, dim)
