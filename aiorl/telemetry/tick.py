"""Everything that one finished tick reports."""

from __future__ import annotations

from dataclasses import dataclass

from aiorl.protocol import BatchPacked, Collected, TrainerDone


@dataclass(frozen=True)
class TickReport:
    """The replies of one tick: of each collector its steps and, off-policy, its pack; and the update.

    `waiting` collected ticks were there already when the update was done. There is no update in the warm-up.
    """

    tick: int
    env_steps: int
    gradient_steps: int
    weight_version: int
    chunks: tuple[Collected, ...]
    packs: tuple[BatchPacked, ...]
    update: TrainerDone | None
    waiting: int
