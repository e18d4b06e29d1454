"""What overlap gains: APPO's cycle against its parts, and against a plain synchronous loop on the same job.

    python -m benchmarks.overlap [--env-steps 300000] [--rounds 3]

Each round runs, one after another: the plain PPO loop; APPO with a policy lag of 1; APPO with lag 0 beside a
process that keeps the other core busy, which gives the times of a rollout and of an update as they are when
both cores work. Every process has one thread. Ratios are of medians over the rounds; the first quarter of each
run is left out.
"""

import argparse
import json
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.commands import run, start

COLLECTOR = ("weight_sync", "action_select", "env_step", "replay")
LEARNER = ("stage", "train", "publish")


KEEP_BUSY = """
import numpy as np
rng = np.random.default_rng(0)
left, right = rng.normal(size=(512, 256)).astype(np.float32), rng.normal(size=(256, 128)).astype(np.float32)
while True:
    left @ right
"""
"""What a learner's core does."""


def steady(folder: Path) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return records[len(records) // 4 :]


def rate(folder: Path) -> float:
    """Env steps per second that gradient steps were taken on: every step of both is trained on."""
    records = steady(folder)
    return (records[-1]["env_steps"] - records[0]["env_steps"]) / (records[-1]["seconds"] - records[0]["seconds"])


def mean(folder: Path, names: list[str]) -> float:
    return float(np.mean([sum(record[name] for name in names) for record in steady(folder)]))


def one_round(folder: Path, env_steps: int, seed: int) -> dict[str, float]:
    plain, overlapped, strict = folder / "plain", folder / "lag-1", folder / "lag-0"
    common = ["appo/half_cheetah", f"budget.env_steps={env_steps}", f"seed={seed}", "evaluation.at_end=false"]
    threads = ["runtime.collector_threads=1", "runtime.learner_threads=1", "telemetry.interval_ticks=5"]
    run("benchmarks.plain_ppo", "--env-steps", str(env_steps), "--seed", str(seed), "--out", str(plain))
    run("aiorl", "run", *common, *threads, "--run-dir", str(overlapped))
    busy = start(KEEP_BUSY)
    try:
        run("aiorl", "run", *common, *threads, "algorithm.max_policy_lag=0", "--run-dir", str(strict))
    finally:
        busy.kill()
        busy.wait()
    records = steady(overlapped)
    ticks = records[-1]["tick"] - records[0]["tick"]
    return {
        "plain loop: env steps/s trained on": rate(plain),
        "plain loop: rollout ms": mean(plain, ["time/rollout_ms"]),
        "plain loop: update ms": mean(plain, ["time/update_ms"]),
        "APPO: env steps/s trained on": rate(overlapped),
        "APPO: cycle ms": (records[-1]["seconds"] - records[0]["seconds"]) / ticks * 1e3,
        "lag 0 beside a busy core: rollout ms": mean(strict, [f"time/{name}_ms" for name in COLLECTOR]),
        "lag 0 beside a busy core: update ms": mean(strict, [f"time/learner_{name}_ms" for name in LEARNER]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overlap", description=__doc__)
    parser.add_argument("--runs", type=Path, default=Path(f"runs/overlap-{datetime.now():%Y%m%d-%H%M%S}"))
    parser.add_argument("--env-steps", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    rounds = [one_round(arguments.runs / str(seed), arguments.env_steps, seed) for seed in range(arguments.rounds)]
    medians = {name: median(each[name] for each in rounds) for name in rounds[0]}
    for name, value in medians.items():
        values = [each[name] for each in rounds]
        print(f"{name:40} {value:9.1f}   ({min(values):.1f} to {max(values):.1f})")
    parts = (medians[f"lag 0 beside a busy core: {part} ms"] for part in ("rollout", "update"))
    print(f"{'cycle / max(rollout, update)':40} {medians['APPO: cycle ms'] / max(parts):9.2f}")
    speed = medians["APPO: env steps/s trained on"] / medians["plain loop: env steps/s trained on"]
    print(f"{'APPO / plain loop, env steps/s':40} {speed:9.2f}")


if __name__ == "__main__":
    main()
