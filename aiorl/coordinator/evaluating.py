"""Evaluating a policy in a worker of its own: how it is played, and what is written of it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from aiorl.coordinator.dialogue import call
from aiorl.coordinator.workers import WorkerFactory
from aiorl.events import Evaluation
from aiorl.protocol import (
    CurveDrawn,
    DrawCurve,
    EpisodesEvaluated,
    Evaluate,
    EvaluatedEpisode,
    EvaluationBegun,
    FileRecord,
    PlayOn,
    PolicySaved,
    SavePolicy,
)
from aiorl.runtime.handle import WorkerHandle
from aiorl.settings import RunSettings

EVALUATION_FILE = "evaluation.json"
PIECE_STEPS = 100
"""Vector steps of an evaluation between two replies."""


class Evaluator:
    """An evaluator worker, there while its block is entered."""

    def __init__(self, settings: RunSettings, factory: WorkerFactory) -> None:
        self._settings = settings
        self._worker = factory.make("evaluator", 0, None)

    async def __aenter__(self) -> Self:
        try:
            await self._worker.start()
        except BaseException:
            await self._worker.stop(at_once=True)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._worker.stop(at_once=error is not None)

    async def play(self, checkpoint: Path, env_steps: int) -> Evaluation:
        """Play the settings' episodes with a checkpoint's deterministic policy, as many in every env (rounded up)."""
        begin = Evaluate(str(checkpoint), episodes_per_env(self._settings), self._settings.seed)
        await call(self._worker, begin, EvaluationBegun)
        return await play_on(self._worker, checkpoint, env_steps)

    async def save_policy(self, directory: Path) -> tuple[FileRecord, ...]:
        """Write the policy that was played into a folder."""
        return await save_policy(self._worker, directory)

    async def draw(self, run_dir: Path, evaluation_file: str) -> None:
        """Draw a run's learning curve with a written evaluation in it."""
        await call(self._worker, DrawCurve(str(run_dir), evaluation_file), CurveDrawn)


def episodes_per_env(settings: RunSettings) -> int:
    """Return how many episodes each env of an evaluation plays."""
    evaluation = settings.evaluation
    return math.ceil(evaluation.episodes / min(evaluation.num_envs, evaluation.episodes))


async def play_on(worker: WorkerHandle, checkpoint: Path | None, env_steps: int) -> Evaluation:
    """Have an evaluation that has begun played to its end."""
    episodes: list[EvaluatedEpisode] = []
    is_over = False
    while not is_over:
        played = await call(worker, PlayOn(PIECE_STEPS), EpisodesEvaluated)
        episodes += played.episodes
        is_over = played.is_over
    episodes.sort(key=lambda episode: episode.env)
    terminated = sum(episode.terminated for episode in episodes)
    return Evaluation(
        env_steps=env_steps,
        checkpoint=checkpoint,
        returns=tuple(episode.episode_return for episode in episodes),
        lengths=tuple(episode.episode_length for episode in episodes),
        terminated=terminated,
        truncated=len(episodes) - terminated,
    )


async def save_policy(worker: WorkerHandle, directory: Path) -> tuple[FileRecord, ...]:
    """Have an evaluator write the policy that it has played into a folder."""
    saved = await call(worker, SavePolicy(str(directory)), PolicySaved)
    return saved.files


def write_evaluation(path: Path, evaluation: Evaluation) -> None:
    """Write the result as JSON, replaced in one step."""
    draft = path.with_name(f".{path.name}")
    draft.write_text(json.dumps(evaluation_entry(evaluation), indent=2) + "\n", encoding="utf-8")
    draft.replace(path)


def evaluation_entry(evaluation: Evaluation) -> dict[str, Any]:
    """Return what evaluation.json says."""
    returns = evaluation.returns
    mean = evaluation.return_mean
    return {
        "checkpoint": None if evaluation.checkpoint is None else str(evaluation.checkpoint),
        "env_steps": evaluation.env_steps,
        "episodes": len(returns),
        "return_mean": mean,
        "return_std": (sum((value - mean) ** 2 for value in returns) / len(returns)) ** 0.5,
        "return_min": min(returns),
        "return_max": max(returns),
        "length_mean": sum(evaluation.lengths) / len(returns),
        "terminated_share": evaluation.terminated / len(returns),
        "truncated_share": evaluation.truncated / len(returns),
        "returns": list(returns),
        "lengths": list(evaluation.lengths),
    }
