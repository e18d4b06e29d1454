"""Kill collectors again and again, and see what it costs: kill -9, twenty times in one run.

    python -m benchmarks.replacement [--kills 20] [--out docs/replacement.png] [--folder DIR]

Trains the swing-up with SAC and APPO, two seeds each, undisturbed and with a collector killed every so many env steps
(`collection.on_collector_death: replace`). Prints the time to notice, the time to replace, the rows kept, and the
evaluations, and draws SAC's learning curves.
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import tempfile
import time
from pathlib import Path

import aiorl
from benchmarks.learning_curves import draw, read_run

SEEDS = (0, 1)
PRESETS = {
    "sac/pendulum": ("env.num_envs=4", "learner.gradient_steps=4", "env.kwargs.stagger=false"),
    "appo/pendulum": (),
}
"""With what changes: whole episodes, of 200 steps, must fit between two kills to be seen.

APPO needs its envs staggered: after a kill the first episodes of some are short, so its curve is not drawn.
"""


async def train(preset: str, seed: int, run_dir: Path, kills: int) -> list[tuple[float, aiorl.WorkerReplaced]]:
    """Train to the end, kill the collector `kills` times on the way; return when each was noticed, and the event."""
    settings = aiorl.load_settings(
        preset,
        overrides=[
            f"seed={seed}",
            *PRESETS[preset],
            "collection.on_collector_death=replace",
            f"collection.max_replacements={max(kills, 1)}",
            "telemetry.interval_ticks=1",
            "runtime.learner_threads=1",
            "runtime.collector_threads=1",
        ],
        environ={},
    )
    assert settings.budget.env_steps is not None
    every = settings.budget.env_steps // (kills + 1)
    found: list[tuple[float, aiorl.WorkerReplaced]] = []
    killed_at, killed = 0.0, 0
    async with aiorl.Run(settings, run_dir=run_dir) as run:
        async for event in run:
            if isinstance(event, aiorl.WorkerReplaced):
                found.append((time.monotonic() - killed_at - event.seconds, event))
            elif not isinstance(event, aiorl.Progress) or not killed == len(found) < kills:
                continue
            elif event.record["env_steps"] >= every * (killed + 1):
                killed, killed_at = killed + 1, time.monotonic()
                os.kill(found[-1][1].pid or 0 if found else _collector(run_dir), signal.SIGKILL)
        outcome = await run.wait()
    assert outcome.evaluation is not None and len(found) == kills
    print(f"{run_dir.name}: {kills} kills, evaluation {outcome.evaluation.return_mean:.1f}, {outcome.seconds:.0f} s")
    return found


def _collector(run_dir: Path) -> int:
    workers = json.loads((run_dir / "status.json").read_text())["workers"]
    return int(next(worker["pid"] for worker in workers if worker["role"] == "collector"))


def _spread(values: list[float], unit: str, scale: float = 1.0) -> str:
    shown = [value * scale for value in values]
    return f"{statistics.median(shown):.0f} {unit} ({min(shown):.0f} to {max(shown):.0f})"


def main() -> None:
    """Train, kill, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("docs/replacement.png"))
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="replacement-"))
    curves = {}
    for preset in PRESETS:
        name = preset.partition("/")[0]
        for kills in (0, arguments.kills):
            label = f"{name}, {kills} kills" if kills else f"{name}, undisturbed"
            runs, found = [], []
            for seed in SEEDS:
                run_dir = folder / f"{name}-{kills}-{seed}"
                found += asyncio.run(train(preset, seed, run_dir, kills))
                runs.append(read_run(run_dir))
            curves[label] = runs
            if found:
                print(f"{name}: noticed after {_spread([noticed for noticed, _ in found], 'ms', 1000)}")
                print(f"{name}: replaced after {_spread([event.seconds for _, event in found], 'ms', 1000)} more")
                print(f"{name}: rows kept {[event.rows_kept for _, event in found]}")
    draw(
        {label: runs for label, runs in curves.items() if label.startswith("sac")}, arguments.out, "SAC on the swing-up"
    )


if __name__ == "__main__":
    main()
