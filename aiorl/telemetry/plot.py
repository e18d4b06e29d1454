"""The learning curve of a run as a picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from aiorl.settings import RunSettings
from aiorl.telemetry.sinks import EVALUATIONS_FILE, METRICS_FILE, read_metrics

CURVE_FILE = "learning_curve.png"
_CURVES = (
    ("episode/return_interval_mean", "training, episodes as they end", "."),
    ("episode/return_mean", "training, mean of the last 100 episodes", "-"),
)


def draw_learning_curve(run_dir: Path, settings: RunSettings, evaluation_file: str | None) -> None:
    """Draw return against env steps and time into a run's directory.

    With it go the evaluations on the way, where there are any, and the one whose file is named.

    Raises:
        StorageError: its metrics are broken.
    """
    from matplotlib.figure import Figure  # no pyplot: nothing global, and it works in any thread

    records = read_metrics(run_dir / METRICS_FILE)
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for name, label, style in _CURVES:
        points = [record for record in records if name in record]
        returns = [record[name] for record in points]
        left.plot([record["env_steps"] for record in points], returns, style, color="C0", alpha=0.6, label=label)
        right.plot([record["seconds"] for record in points], returns, style, color="C0", alpha=0.6)
    if evaluations := read_metrics(run_dir / EVALUATIONS_FILE):
        mean, low, high = ([each[f"return_{name}"] for each in evaluations] for name in ("mean", "min", "max"))
        for axes, axis in ((left, "env_steps"), (right, "seconds")):
            at = [each[axis] for each in evaluations]
            axes.plot(at, mean, "o-", color="C1", markersize=3, label="evaluations on the way, deterministic")
            axes.fill_between(at, low, high, color="C1", alpha=0.2, linewidth=0, label="their lowest to highest")
    if evaluation_file is not None:
        _draw_evaluation(left, json.loads((run_dir / evaluation_file).read_text(encoding="utf-8")))
    if starts := settings.learning_starts:
        left.axvline(starts, color="grey", linewidth=0.8, linestyle=":", label="learning starts")
    left.set(xlabel="env steps", ylabel="episode return (raw rewards)")
    right.set(xlabel="seconds of training")
    for axes in (left, right):
        axes.grid(alpha=0.3)
    if left.get_legend_handles_labels()[1]:
        left.legend(loc="best", fontsize="small")
    figure.suptitle(f"{settings.name}: {settings.algorithm.kind} on {settings.env.id}")
    path = run_dir / CURVE_FILE
    draft = path.with_name(f".{path.name}")
    figure.savefig(draft, format="png", dpi=120)
    draft.replace(path)


def _draw_evaluation(axes: Any, evaluation: dict[str, Any]) -> None:
    mean, low, high = (evaluation[f"return_{name}"] for name in ("mean", "min", "max"))
    axes.errorbar(
        [evaluation["env_steps"]],
        [mean],
        [[mean - low], [high - mean]],
        fmt="o",
        color="C3",
        capsize=4,
        label=f"evaluation, deterministic: {mean:.4g}",
    )
