"""Rollout slots: one collector's T steps under one weight version, from its hands to the learner's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aiorl.errors import StorageError
from aiorl.protocol import EnvSpec
from aiorl.settings import RunSettings
from aiorl.storage.layout import Field, Layout
from aiorl.storage.moments import statistics_size
from aiorl.storage.rows import obs_column

ROLLOUT_FLAGS = ("terminated", "truncated", "valid")


def value_group(spec: EnvSpec) -> str:
    """Return the observation group that the value function sees."""
    return spec.group("critic").name


def step_fields(spec: EnvSpec) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return shape behind `(T, num_envs)` and dtype of every column of a rollout.

    The next observation of the value function is dense: where an episode ended it is the final one.
    """
    seen = value_group(spec)
    shapes: dict[str, tuple[tuple[int, ...], str]] = {
        obs_column(group.name): ((group.size,), "float32") for group in spec.groups
    }
    shapes["next_" + obs_column(seen)] = ((spec.group(seen).size,), "float32")
    shapes["action"] = ((spec.action_size,), "float32")
    shapes |= dict.fromkeys(("log_prob", "reward"), ((), "float32"))
    return shapes | dict.fromkeys(ROLLOUT_FLAGS, ((), "bool"))


def rollout_layout(settings: RunSettings, spec: EnvSpec) -> Layout:
    """Return the layout of one collector's slots."""
    slots, steps, envs = settings.rollout_slots, settings.collection.rollout_steps, spec.num_envs
    last = spec.group(value_group(spec)).size
    return Layout(
        (
            *(Field(name, (slots, steps, envs, *tail), dtype) for name, (tail, dtype) in step_fields(spec).items()),
            Field("last_" + obs_column(value_group(spec)), (slots, envs, last), "float32"),
            Field("statistics", (slots, statistics_size(spec)), "float64"),
            Field("tick", (slots,), "int64"),
            Field("weight_version", (slots,), "int64"),
        )
    )


@dataclass
class RolloutSlot:
    """One slot: columns `(T, num_envs, …)` by name, `last_obs` (or `last_critic_obs`) `(num_envs, size)`.

    `label` is `(tick, weight version)` once the slot is whole, and `(0, 0)` while it is not.
    """

    columns: dict[str, NDArray[Any]]
    last_obs: NDArray[np.float32]
    statistics: NDArray[np.float64]
    _tick: NDArray[np.int64]
    _weight_version: NDArray[np.int64]

    @property
    def label(self) -> tuple[int, int]:
        """Tick and weight version."""
        return int(self._tick[0]), int(self._weight_version[0])

    @label.setter
    def label(self, label: tuple[int, int]) -> None:
        self._tick[0], self._weight_version[0] = label

    def require(self, tick: int, weight_version: int) -> None:
        """Check that the slot holds this tick's whole rollout.

        Raises:
            StorageError: it holds another one, or none.

        """
        if self.label != (tick, weight_version):
            raise StorageError(
                f"a rollout slot holds tick and weight version {self.label}, not {(tick, weight_version)}"
            )


def rollout_slots(memory: NDArray[np.uint8], settings: RunSettings, spec: EnvSpec) -> list[RolloutSlot]:
    """Return the slots that lie in `memory`."""
    arrays = rollout_layout(settings, spec).views(memory)
    last = "last_" + obs_column(value_group(spec))
    return [
        RolloutSlot(
            columns={name: arrays[name][slot] for name in step_fields(spec)},
            last_obs=arrays[last][slot],
            statistics=arrays["statistics"][slot],
            _tick=arrays["tick"][slot : slot + 1],
            _weight_version=arrays["weight_version"][slot : slot + 1],
        )
        for slot in range(settings.rollout_slots)
    ]
