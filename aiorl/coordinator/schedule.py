"""Which tick does what: a pure function of the settings and of where the run started from."""

from __future__ import annotations

import math
from dataclasses import dataclass

from aiorl.settings import RunSettings


@dataclass(frozen=True)
class Position:
    """Where a run stands: after the update of `tick`.

    `previous_versions` are the policies after the ticks before that, newest last: with a lead the ticks to come
    act with them. A resumed run without its replay fills it anew from `replay_from_env_steps` on.
    """

    tick: int = 0
    weight_version: int = 0
    previous_versions: tuple[int, ...] = ()
    replay_from_env_steps: int = 0

    @property
    def pending_versions(self) -> tuple[int, ...]:
        """Versions other than the newest that ticks to come act with."""
        return tuple(version for version in dict.fromkeys(self.previous_versions) if version != self.weight_version)


class Schedule:
    """Answers for every tick after the start position. Ticks count from 1."""

    def __init__(self, settings: RunSettings, start: Position) -> None:
        self._settings, self.start = settings, start
        self._per_tick = settings.env_steps_per_tick
        needed = start.replay_from_env_steps + settings.learning_starts
        self._first_training = max(math.ceil(needed / self._per_tick), start.tick + 1)

    @property
    def learning_starts(self) -> int:
        """Env steps that the replay needs before the first update."""
        return self._settings.learning_starts

    def env_steps(self, tick: int) -> int:
        """Env steps collected after a tick."""
        return tick * self._per_tick

    def trains(self, tick: int) -> bool:
        """Whether a tick is trained on."""
        return tick >= self._first_training

    def is_uniform(self, tick: int) -> bool:
        """Whether a tick acts uniformly at random."""
        return self.env_steps(tick - 1) < self._settings.uniform_steps

    def version_after(self, tick: int) -> int:
        """Return the version of update `tick`: the newest one published at or before it."""
        if tick < self.start.tick:
            previous = self.start.previous_versions
            return previous[max(tick - self.start.tick, -len(previous))] if previous else self.start.weight_version
        return self.start.weight_version + max(0, tick - self._first_training + 1)

    def acting_version(self, tick: int) -> int:
        """Return the version that a tick acts with."""
        return self.version_after(tick - 1 - self._settings.lead)

    def gradient_steps(self, tick: int) -> int:
        """Gradient steps taken after a tick."""
        return self.version_after(tick) * self._settings.gradient_steps_per_update

    def budget_reached(self, tick: int) -> str | None:
        """Return which budget of steps is used up after a tick, if one is."""
        budget = self._settings.budget
        if budget.env_steps is not None and self.env_steps(tick) >= budget.env_steps:
            return f"budget.env_steps={budget.env_steps}"
        if budget.gradient_steps is not None and self.gradient_steps(tick) >= budget.gradient_steps:
            return f"budget.gradient_steps={budget.gradient_steps}"
        return None

    def crosses(self, tick: int, every: int) -> bool:
        """Return whether a multiple of `every` env steps is reached in a tick."""
        return self.env_steps(tick) // every > self.env_steps(tick - 1) // every

    def position(self, tick: int) -> Position:
        """Return the position after a tick."""
        return Position(
            tick=tick,
            weight_version=self.version_after(tick),
            previous_versions=tuple(self.version_after(tick - back) for back in range(self._settings.lead, 0, -1)),
            replay_from_env_steps=self.start.replay_from_env_steps,
        )
