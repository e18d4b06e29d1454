"""Draw and tabulate the learning curves of several runs.

    python -m benchmarks.learning_curves --out docs/half_cheetah.png LABEL=DIR[,DIR...] LABEL2=DIR[,DIR...]

Reads `metrics.jsonl` of each directory, as written by `benchmarks.plain_sac` or by aiorl. Where a run has no
`seconds`, its `time` minus that of its first record stands in. Returns between records are interpolated.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
from matplotlib import pyplot as plt

RETURN = "episode/return_interval_mean"


@dataclass
class Run:
    directory: Path
    env_steps: np.ndarray
    seconds: np.ndarray
    returns: np.ndarray

    def at_env_steps(self, env_steps: float, values: np.ndarray) -> float:
        """Interpolated; NaN before the first record that has a return."""
        return float(np.interp(env_steps, self.env_steps, values, left=np.nan))


def read_run(directory: Path) -> Run:
    path = directory / "metrics.jsonl"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise SystemExit(f"cannot read {path}: {error.strerror}") from error
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number < len(lines):  # the last line may be half written
                raise SystemExit(f"{path}:{number}: not JSON") from error
    clock = "seconds" if all("seconds" in record for record in records) else "time"
    zero = 0.0 if clock == "seconds" else next((r[clock] for r in records if clock in r), 0.0)
    points: list[tuple[float, float, float]] = []
    for record in records:
        value = record.get(RETURN)
        if value is None or not np.isfinite(value) or "env_steps" not in record or clock not in record:
            continue
        while points and points[-1][0] >= record["env_steps"]:
            points.pop()  # a resumed run overwrites what it repeats
        points.append((record["env_steps"], record[clock] - zero, value))
    if not points:
        raise SystemExit(f"{path}: no record has env_steps, a clock and {RETURN}")
    return Run(directory, *np.array(points, np.float64).T)


def parse_label(argument: str) -> tuple[str, list[Path]]:
    label, separator, directories = argument.partition("=")
    paths = [Path(directory) for directory in directories.split(",") if directory]
    if not separator or not label or not paths:
        raise argparse.ArgumentTypeError(f"{argument!r} is not LABEL=DIR[,DIR...]")
    return label, paths


def draw(groups: dict[str, list[Run]], out: Path, title: str | None) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), sharey=True, layout="constrained")
    panels = (("env_steps", "environment steps"), ("seconds", "wall-clock seconds"))
    for axis, (attribute, name) in zip(axes, panels, strict=True):
        for index, (label, runs) in enumerate(groups.items()):
            color = f"C{index % 10}"
            xs = [getattr(run, attribute) for run in runs]
            for run, x in zip(runs, xs, strict=True):
                axis.plot(x, run.returns, color=color, linewidth=0.8, alpha=0.45)
            # The mean is drawn only where every seed has data.
            first, last = max(x[0] for x in xs), min(x[-1] for x in xs)
            if last >= first:
                grid = np.linspace(first, last, 400)
                mean = np.mean([np.interp(grid, x, r.returns) for x, r in zip(xs, runs, strict=True)], axis=0)
                seeds = f"{len(runs)} seed{'s' if len(runs) > 1 else ''}"
                axis.plot(grid, mean, color=color, linewidth=2.4, label=f"{label} (mean of {seeds})")
        axis.set_xlabel(name)
        axis.set_xlim(left=0)
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("training return (episodes as they end)")
    axes[0].legend(frameon=False, loc="best")
    if title:
        figure.suptitle(title)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=150)
    plt.close(figure)


def table(groups: dict[str, list[Run]]) -> str:
    common = min(run.env_steps[-1] for runs in groups.values() for run in runs)
    results = {
        label: [(r, r.at_env_steps(common, r.returns), r.at_env_steps(common, r.seconds)) for r in runs]
        for label, runs in groups.items()
    }
    label_width = max(len("label"), *map(len, groups))
    run_width = max(len("run"), *(len(str(run.directory)) for runs in groups.values() for run in runs))
    lines = [
        f"at {common:.0f} env steps, the last that every run has:",
        f"{'label':<{label_width}}  {'run':<{run_width}}  {'return':>10}  {'seconds':>9}",
    ]
    for label, rows in results.items():
        for run, value, seconds in rows:
            name = str(run.directory)
            lines.append(f"{label:<{label_width}}  {name:<{run_width}}  {value:>10.1f}  {seconds:>9.1f}")
    first = next(iter(results))
    worst = min(value for _, value, _ in results[first])
    lines.append(f"\nworst seed of {first}: {worst:.1f}")
    for label, rows in results.items():
        mean = float(np.mean([value for _, value, _ in rows]))
        seconds = float(np.mean([seconds for *_, seconds in rows]))
        ratio = f"{mean / worst:.3f}" if worst > 0 else "n/a, as that seed's return is not above 0"
        lines.append(f"{label:<{label_width}}  mean {mean:.1f} in {seconds:.1f} s, ratio to that worst seed {ratio}")
    for label, rows in results.items():
        finals = {run.directory.name: final_evaluation(run.directory) for run, *_ in rows}
        known = [value for value in finals.values() if value is not None]
        if known:
            each = ", ".join(f"{name} {value:.1f}" for name, value in finals.items() if value is not None)
            lines.append(
                f"{label:<{label_width}}  evaluation at the end, deterministic: mean {np.mean(known):.1f} ({each})"
            )
    return "\n".join(lines)


def final_evaluation(directory: Path) -> float | None:
    path = directory / "evaluation.json"
    return float(json.loads(path.read_text(encoding="utf-8"))["return_mean"]) if path.exists() else None


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning_curves", description="Compare runs.")
    parser.add_argument("--out", type=Path, required=True, metavar="PNG")
    parser.add_argument("--title")
    parser.add_argument("runs", nargs="+", type=parse_label, metavar="LABEL=DIR[,DIR...]")
    arguments = parser.parse_args(argv)
    groups: dict[str, list[Run]] = {}
    for label, directories in arguments.runs:
        groups.setdefault(label, []).extend(read_run(directory) for directory in directories)
    draw(groups, arguments.out, arguments.title)
    print(table(groups))


if __name__ == "__main__":
    main()
