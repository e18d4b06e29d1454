"""Staging: a batch slot on the learner's device, cut into minibatches."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from aiorl.algorithms.interface import Batch
from aiorl.storage.batches import BatchSlots
from aiorl.storage.rows import RowLayout


class Staging:
    """On the CPU a slot is used where it lies; elsewhere it is copied over whole, once."""

    def __init__(self, slots: BatchSlots, layout: RowLayout, device: torch.device) -> None:
        self._slots, self._layout, self._device = slots, layout, device

    def stage(self, slot: int) -> list[Batch]:
        """Return the minibatches of a slot, one for each gradient step."""
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
