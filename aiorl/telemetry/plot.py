"""The learning curve of a run as a picture."""

from __future__ import annotations

import json
from pathlib import Path

from aiorl.settings import RunSettings
from aiorl.telemetry.sinks import METRICS_FILE, read_metrics

CURVE_FILE = "learning_curve.png"
_CURVES = (
    ("episode/return_interval_mean", "training, episodes as they end", "."),
    ("episode/return_mean", "training, mean of the last 100 episodes", "-"),
)


def draw_learning_curve(run_dir: Path, settings: RunSettings, evaluation_file: str) -> None:
    """Draw return against env steps and time, and an evaluation, into a run's directory.

    Raises:
        StorageError: its metrics are broken.
    """
    from matplotlib.figure import Figure  # no pyplot: nothing global, and it works in any thread

    records = read_metrics(run_dir / METRICS_FILE)
    evaluation = json.loads((run_dir / evaluation_file).read_text(encoding="utf-8"))
    mean, low, high = (evaluation[f"return_{name}"] for name in ("mean", "min", "max"))
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for name, label, style in _CURVES:
        points = [record for record in records if name in record]
        returns = [record[name] for record in points]
        left.plot([record["env_steps"] for record in points], returns, style, color="C0", alpha=0.6, label=label)
        right.plot([record["seconds"] for record in points], returns, style, color="C0", alpha=0.6)
    left.errorbar(
        [evaluation["env_steps"]],
        [mean],
        [[mean - low], [high - mean]],
        fmt="o",
        color="C1",
        capsize=4,
        label=f"evaluation, deterministic: {mean:.4g}",
    )
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
