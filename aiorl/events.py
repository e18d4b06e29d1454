"""What a run tells the world while it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

State = Literal["starting", "running", "completed", "interrupted", "failed"]


@dataclass(frozen=True)
class Evaluation:
    """Raw returns and lengths of evaluation episodes, deterministic policy.

    The policy is that of a checkpoint, or, where that is None, the one that a run had after `env_steps`.
    """

    env_steps: int
    checkpoint: Path | None
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    terminated: int
    truncated: int

    @property
    def return_mean(self) -> float:
        """Mean return."""
        return sum(self.returns) / len(self.returns)


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    state: State
    reason: str
    tick: int
    env_steps: int
    gradient_steps: int
    seconds: float
    run_dir: Path
    checkpoint: Path | None
    evaluation: Evaluation | None
    reproducible: bool
    """Whether settings and seed give the same again: no collector was replaced, nothing was lost before."""


@dataclass(frozen=True)
class Started:
    """All workers are ready; a resumed run goes on from `tick`."""

    run_dir: Path
    tick: int
    env_steps: int


@dataclass(frozen=True)
class Progress:
    """A metrics record, as in metrics.jsonl."""

    record: Mapping[str, float]


@dataclass(frozen=True)
class Saved:
    """A checkpoint is whole."""

    checkpoint: Path
    tick: int
    env_steps: int


@dataclass(frozen=True)
class Evaluated:
    """An evaluation is done."""

    evaluation: Evaluation


@dataclass(frozen=True)
class WorkerReplaced:
    """A collector died of `cause` and another took its place: `pid`, ready `seconds` after the death was noticed.

    `rows_kept` committed transitions stay; the run cannot be reproduced from its settings any more.
    """

    role: str
    index: int
    pid: int | None
    cause: str
    seconds: float
    rows_kept: int


@dataclass(frozen=True)
class Finished:
    """The last event of a run that did not fail."""

    outcome: Outcome


Event = Started | Progress | Saved | Evaluated | WorkerReplaced | Finished
