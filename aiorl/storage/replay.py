"""A replay shard: one collector's ring of vector steps in shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aiorl.errors import StorageError
from aiorl.protocol import EnvSpec
from aiorl.settings import RunSettings
from aiorl.storage.layout import Field, Layout
from aiorl.storage.recent import EPISODES, RecentEpisodes
from aiorl.storage.rows import RowLayout

FLAGS = ("terminated", "truncated", "cut", "valid")


def replay_layout(settings: RunSettings, spec: EnvSpec) -> Layout:
    """Return the layout of one collector's shard."""
    steps, envs = settings.shard_steps, spec.num_envs
    return Layout(
        (
            Field("rows", (steps, envs, RowLayout.of(spec).width), "float32"),
            *(Field(flag, (steps, envs), "bool") for flag in FLAGS),
            Field("weight_version", (steps,), "int64"),
            Field("written", (1,), "int64"),
            Field("tick", (2,), "int64"),
            Field("packed", (3,), "int64"),
            EPISODES,
        )
    )


@dataclass(frozen=True)
class Snapshot:
    """The committed part of a shard: vector steps ever written, and how many of them are still there."""

    written_steps: int
    present_steps: int


class ReplayShard:
    """The ring itself. One process writes it and packs from it, so there is nothing to lock.

    It says itself how far its collector came, so that a replacement can go on from there. Every mark is set in an
    order in which a death between two stores loses nothing and counts nothing twice.

    `rows` is `(steps, num_envs, width)`, the flags `(steps, num_envs)`, `weight_version` `(steps,)`.
    """

    def __init__(self, memory: NDArray[np.uint8], settings: RunSettings, spec: EnvSpec) -> None:
        arrays = replay_layout(settings, spec).views(memory)
        self.layout = RowLayout.of(spec)
        self.rows: NDArray[np.float32] = arrays["rows"]
        self.terminated: NDArray[np.bool_] = arrays["terminated"]
        self.truncated: NDArray[np.bool_] = arrays["truncated"]
        self.cut: NDArray[np.bool_] = arrays["cut"]
        self.valid: NDArray[np.bool_] = arrays["valid"]
        self.weight_version: NDArray[np.int64] = arrays["weight_version"]
        self._written: NDArray[np.int64] = arrays["written"]
        self._tick: NDArray[np.int64] = arrays["tick"]
        self._packed: NDArray[np.int64] = arrays["packed"]
        self.recent_episodes = RecentEpisodes(arrays["episodes"])
        self.steps: int = self.terminated.shape[0]
        self.num_envs: int = self.terminated.shape[1]

    @property
    def snapshot(self) -> Snapshot:
        """What is committed now."""
        written = int(self._written[0])
        return Snapshot(written, min(written, self.steps))

    @property
    def head(self) -> int:
        """Ring position of the next vector step."""
        return int(self._written[0]) % self.steps

    def commit(self, weight_version: int) -> None:
        """Count the vector step at `head`, whose arrays are whole now."""
        self.weight_version[self.head] = weight_version
        self._written[0] += 1

    def begin_tick(self, tick: int) -> int:
        """Say which tick the next steps are of; return how many of them a collector that died has left here."""
        if self._tick[0] != tick:
            self._tick[1] = self._written[0]
            self._tick[0] = tick
        return self.steps_of(tick)

    def steps_of(self, tick: int) -> int:
        """Vector steps of the newest tick that are here; 0 for one that was not begun."""
        return int(self._written[0] - self._tick[1]) if self._tick[0] == tick else 0

    def begin_pack(self, tick: int) -> None:
        """Say that the statistics of all steps so far go with the pack of a tick."""
        if self._packed[0] != tick:
            self._packed[1] = self._packed[2]
            self._packed[0] = tick
        self._packed[2] = self._written[0]

    def set_packed(self, steps: int) -> None:
        """Take it that the statistics of so many vector steps have gone with packs."""
        self._packed[:] = 0, steps, steps

    def packed_before(self, tick: int) -> int:
        """Vector steps whose statistics went with packs before that of a tick."""
        return int(self._packed[1] if self._packed[0] >= tick else self._packed[2])

    def recent(self, first: int) -> NDArray[np.intp]:
        """Ring positions of the steps from number `first` ever written on, as far as they are still here."""
        snapshot = self.snapshot
        oldest = snapshot.written_steps - snapshot.present_steps
        steps: NDArray[np.intp] = np.arange(max(first, oldest), snapshot.written_steps)
        return steps % self.steps

    def mark_cut(self, envs: NDArray[np.bool_]) -> None:
        """Say that the newest row of these envs is not followed by the next one, `(num_envs,)`."""
        if self._written[0]:
            self.cut[(self.head - 1) % self.steps] |= envs

    def ages(self) -> NDArray[np.intp]:
        """Ring positions from oldest to newest, `(present_steps,)`."""
        return self.recent(0)

    def column(self, name: str, positions: NDArray[np.intp]) -> NDArray[Any]:
        """Return a column at these ring positions, `(len(positions), num_envs, …)`, as a copy."""
        if name in FLAGS:
            flags: NDArray[np.bool_] = getattr(self, name)
            return flags[positions]
        if name == "weight_version":
            return np.repeat(self.weight_version[positions, None], self.num_envs, axis=1)
        values = self.rows[positions][..., self.layout.slices[name]]
        return values[..., 0] if name == "reward" else values

    def fill(self, columns: dict[str, NDArray[Any]], first: int, written_steps: int) -> None:
        """Put a run of saved vector steps back, the first of them being number `first` ever written.

        Raises:
            StorageError: the columns are not those of this shard.

        """
        count = len(columns["terminated"])
        positions = np.arange(first, first + count) % self.steps
        for name in (*self.layout.slices, *FLAGS, "weight_version"):
            values = columns[name]
            expected = self.column(name, positions[:1]).shape[1:]
            if values.shape[1:] != expected:
                raise StorageError(f"replay column {name} has shape {values.shape[1:]}, expected {expected}")
            if name in FLAGS:
                getattr(self, name)[positions] = values
            elif name == "weight_version":
                self.weight_version[positions] = values[:, 0]
            else:
                part = self.layout.slices[name]
                self.rows[positions, :, part] = values[..., None] if name == "reward" else values
        self._written[0] = written_steps

    @property
    def column_shapes(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape behind `(steps, num_envs)` and dtype of every column, as checkpoints hold them."""
        shapes: dict[str, tuple[tuple[int, ...], str]] = {
            name: (() if name == "reward" else (size,), "float32") for name, size in self.layout.sizes.items()
        }
        shapes |= dict.fromkeys(FLAGS, ((), "bool"))
        shapes["weight_version"] = ((), "int64")
        return shapes
