"""Everything that one finished tick reports."""

from __future__ import annotations

from dataclasses import dataclass

from aiorl.protocol import BatchPacked, ChunkCollected, TrainerDone


@dataclass(frozen=True)
class TickReport:
    """The replies of one tick: a chunk and a pack of each collector, and the update; no packs in the warm-up."""

    tick: int
    env_steps: int
    gradient_steps: int
    weight_version: int
    chunks: tuple[ChunkCollected, ...]
    packs: tuple[BatchPacked, ...]
    update: TrainerDone | None
