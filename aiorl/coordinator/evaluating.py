"""Evaluating a checkpoint in a worker of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from aiorl.coordinator.offpolicy import call
from aiorl.coordinator.workers import WorkerFactory
from aiorl.events import Evaluation
from aiorl.protocol import EpisodesEvaluated, Evaluate
from aiorl.settings import RunSettings

EVALUATION_FILE = "evaluation.json"


async def evaluate(settings: RunSettings, checkpoint: Path, env_steps: int, factory: WorkerFactory) -> Evaluation:
    """Play the settings' evaluation episodes with the deterministic policy of a checkpoint.

    Every env plays the same number of episodes, so the number is rounded up.
    """
    worker = factory.make("evaluator", 0, None)
    num_envs = min(settings.evaluation.num_envs, settings.evaluation.episodes)
    request = Evaluate(str(checkpoint), -(-settings.evaluation.episodes // num_envs), settings.seed)
    at_once = True
    try:
        await worker.start()
        played = await call(worker, request, EpisodesEvaluated)
        at_once = False
    finally:
        await worker.stop(at_once=at_once)
    return Evaluation(
        env_steps=env_steps,
        checkpoint=checkpoint,
        returns=played.returns,
        lengths=played.lengths,
        terminated=played.terminated,
        truncated=played.truncated,
    )


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
        "checkpoint": str(evaluation.checkpoint),
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
