"""The learning curve of a run as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from aiorl.telemetry.metrics import Record

CURVE_FILE = "learning_curve.png"
_CURVES = (
    ("episode/return_interval_mean", "training, episodes as they end", "."),
    ("episode/return_mean", "training, mean of the last 100 episodes", "-"),
)


def draw_learning_curve(
    path: Path,
    records: Sequence[Record],
    title: str,
    evaluation: tuple[float, float, float, float] | None = None,
) -> None:
    """Draw return against env steps and against time; `evaluation` is (env_steps, mean, min, max)."""
    from matplotlib.figure import Figure  # no pyplot: nothing global, and it works in any thread

    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for name, label, style in _CURVES:
        points = [record for record in records if name in record]
        returns = [record[name] for record in points]
        left.plot([record["env_steps"] for record in points], returns, style, color="C0", alpha=0.6, label=label)
        right.plot([record["seconds"] for record in points], returns, style, color="C0", alpha=0.6)
    if evaluation is not None:
        env_steps, mean, low, high = evaluation
        left.errorbar(
            [env_steps], [mean], [[mean - low], [high - mean]], fmt="o", color="C1", capsize=4,
            label=f"evaluation, deterministic: {mean:.4g}",
        )  # fmt: skip
    starts = next((record["env_steps"] for record in records if record["gradient_steps"] > 0), None)
    if starts is not None:
        left.axvline(starts, color="grey", linewidth=0.8, linestyle=":", label="learning starts")
    left.set(xlabel="env steps", ylabel="episode return (raw rewards)")
    right.set(xlabel="seconds of training")
    for axes in (left, right):
        axes.grid(alpha=0.3)
    if left.get_legend_handles_labels()[1]:
        left.legend(loc="best", fontsize="small")
    figure.suptitle(title)
    draft = path.with_name(f".{path.name}")
    figure.savefig(draft, format="png", dpi=120)
    draft.replace(path)
