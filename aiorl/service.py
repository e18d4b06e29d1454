"""What a worker's service is given at its start, and what it must offer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

import numpy as np

from aiorl.errors import AiorlError
from aiorl.protocol import Message, Ready, Requests
from aiorl.settings import RunSettings
from aiorl.storage.block import Block
from aiorl.telemetry.trace.slices import UNTRACED, Trace


class Purpose(IntEnum):
    """What a stream of random numbers is for; streams of different purposes never meet."""

    ENV = 0
    ACTING = 1
    PACKING = 2
    LEARNER = 3
    EVALUATION = 4


def spawn_seed(run_seed: int, purpose: Purpose, *key: int) -> np.random.SeedSequence:
    """Return the seed of one stream of a run, independent of all others."""
    return np.random.SeedSequence(run_seed, spawn_key=(purpose, *key))


def seed_number(run_seed: int, purpose: Purpose, *key: int) -> int:
    """Return a stream's seed as one number of 31 bits, which every environment accepts."""
    return int(spawn_seed(run_seed, purpose, *key).generate_state(1, np.uint32)[0] >> 1)


class WorkerLog(Protocol):
    """Where a worker writes what it has to say."""

    def __call__(self, level: str, event: str, **fields: object) -> None:
        """Write one line."""


@dataclass(frozen=True)
class Blocks:
    """The shared blocks of a run: experience (each collector's replay shard, or its rollout slots), batches, weights.

    Only the off-policy side has batch slots; `evaluated` is there where a run is evaluated on the way.
    """

    experience: tuple[Block, ...]
    batches: Block
    weights: Block
    evaluated: Block | None = None

    @classmethod
    def create(cls, collectors: int, *, evaluates: bool = False) -> Blocks:
        """Create all blocks, empty."""
        experience = tuple(Block(f"experience-{index}") for index in range(collectors))
        return cls(experience, Block("batches"), Block("weights"), Block("evaluated") if evaluates else None)

    def duplicate(self) -> Blocks:
        """Return the same blocks under descriptors of their own."""
        return Blocks(
            tuple(block.duplicate() for block in self.experience),
            self.batches.duplicate(),
            self.weights.duplicate(),
            self.evaluated and self.evaluated.duplicate(),
        )

    def for_collector(self, index: int) -> Blocks:
        """Return what a collector needs: of the experience only its own."""
        return Blocks((self.experience[index],), self.batches, self.weights)

    def close(self) -> None:
        """Close all descriptors."""
        for block in (*self.experience, self.batches, self.weights, self.evaluated):
            if block is not None:
                block.close()


@dataclass(frozen=True)
class Assignment:
    """Everything that a worker knows when it starts.

    An evaluator shares only the block of the evaluated policy, and not even that where it plays checkpoints.
    `incarnation` counts the collectors that had this place before, and died.
    """

    role: str
    index: int
    settings: RunSettings
    blocks: Blocks | Block | None
    env_factory: Callable[..., Any] | None
    log: WorkerLog
    incarnation: int = 0
    trace: Trace = UNTRACED


class RefusedError(AiorlError):
    """These settings cannot work here: `key` names the culprit; a settings error for the user."""

    def __init__(self, key: str, sentence: str) -> None:
        super().__init__(sentence)
        self.key, self.sentence = key, sentence


class Service(Protocol):
    """One role's work: blocking, single-threaded, a reply for each request.

    Its constructor takes an Assignment and raises RefusedError where the settings cannot work here.
    """

    def ready(self) -> Ready:
        """Return the first message."""

    def handle(self, request: Requests) -> Message:
        """Carry out a request and return its reply."""

    def close(self) -> None:
        """Free envs and memory; called on every way out."""
