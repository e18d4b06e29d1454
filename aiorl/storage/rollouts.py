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
from aiorl.storage.recent import EPISODES, RecentEpisodes
from aiorl.storage.rows import obs_column

ROLLOUT_FLAGS = ("terminated", "truncated", "cut", "valid")


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
            Field("progress", (slots, 3), "int64"),
            EPISODES,
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
    _progress: NDArray[np.int64]

    @property
    def label(self) -> tuple[int, int]:
        """Tick and weight version."""
        return int(self._tick[0]), int(self._weight_version[0])

    @label.setter
    def label(self, label: tuple[int, int]) -> None:
        self._tick[0], self._weight_version[0] = label

    def begin(self, tick: int, weight_version: int) -> int:
        """Start to fill the slot; return how many steps of this rollout a collector that died has left in it."""
        self.label = (0, 0)
        progress = self._progress
        if (progress[0], progress[1]) != (tick, weight_version):
            progress[2] = 0
            progress[:2] = tick, weight_version
        return int(progress[2])

    @property
    def steps_begun(self) -> int:
        """Steps of a rollout that is not whole yet."""
        return int(self._progress[2]) if self.label == (0, 0) else 0

    def steps_of(self, tick: int) -> int:
        """Steps of a tick's rollout that are here; 0 for one that was not begun."""
        return int(self._progress[2]) if self._progress[0] == tick else 0

    def commit(self) -> None:
        """Count a step, all of whose columns are written now."""
        self._progress[2] += 1

    def require(self, tick: int, weight_version: int) -> None:
        """Check that the slot holds this tick's whole rollout.

        Raises:
            StorageError: it holds another one, or none.

        """
        if self.label != (tick, weight_version):
            raise StorageError(
                f"a rollout slot holds tick and weight version {self.label}, not {(tick, weight_version)}"
            )


def recent_episodes(memory: NDArray[np.uint8], settings: RunSettings, spec: EnvSpec) -> RecentEpisodes:
    """Return the last finished episodes that lie in `memory`."""
    return RecentEpisodes(rollout_layout(settings, spec).views(memory)[EPISODES.name])


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
            _progress=arrays["progress"][slot],
        )
        for slot in range(settings.rollout_slots)
    ]
