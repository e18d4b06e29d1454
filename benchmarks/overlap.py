"""What overlap gains: the cycle of an overlapped run against its parts, and against a plain loop on the same job.

    python -m benchmarks.overlap [--algorithm sac appo] [--rounds 3] [--env-steps 100000]

Each round runs, one after another: the plain loop; aiorl with a lead (a policy lag) of 1; aiorl with 0, so that it does
one thing at a time, beside a process that keeps the other core busy: that gives the times of collecting and of an
update as they are when both cores work. Every process has one thread. For SAC the job is the balanced one of
benchmarks/end_to_end.py, and collecting includes the pack; for APPO it is the preset for HalfCheetah-v5. A cycle is
compared with max(collect + pack, update), or max(rollout, update), of its own round. The first quarter of each run is
left out. Three minutes on two cores; the README's figures of APPO are of `--algorithm appo --env-steps 200000`.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.commands import run, start
from benchmarks.end_to_end import JOBS, Job, aiorl_arguments, plain_arguments
from benchmarks.measuring import Row, Table, parser_of, ratios, records, report

COLLECTOR = ("weight_sync", "action_select", "env_step", "replay", "pack")
LEARNER = ("stage", "train", "publish")


KEEP_BUSY = """
import numpy as np
rng = np.random.default_rng(0)
left, right = rng.normal(size=(512, 256)).astype(np.float32), rng.normal(size=(256, 128)).astype(np.float32)
while True:
    left @ right
"""
"""What a learner's core does."""


def steady(folder: Path) -> list[dict[str, float]]:
    """Return the records behind the first quarter."""
    found = records(folder)
    return found[len(found) // 4 :]


def rate(folder: Path) -> float:
    """Env steps per second that gradient steps were taken on: every step of both is trained on."""
    found = steady(folder)
    return (found[-1]["env_steps"] - found[0]["env_steps"]) / (found[-1]["seconds"] - found[0]["seconds"])


def mean(folder: Path, names: list[str]) -> float:
    return float(np.mean([sum(record[name] for name in names) for record in steady(folder)]))


def cycle_ms(folder: Path) -> float:
    """Milliseconds from one tick to the next."""
    found = steady(folder)
    ticks = found[-1]["tick"] - found[0]["tick"]
    return (found[-1]["seconds"] - found[0]["seconds"]) / ticks * 1e3


def beside_a_busy_core(*arguments: str) -> None:
    """Run aiorl while something else keeps a core busy."""
    busy = start(KEEP_BUSY)
    try:
        run("aiorl", "run", *arguments)
    finally:
        busy.kill()
        busy.wait()


def parts(folder: Path) -> dict[str, float]:
    return {
        "plain": rate(folder / "plain"),
        "overlapped": rate(folder / "overlapped"),
        "cycle": cycle_ms(folder / "overlapped"),
        "collect": mean(folder / "strict", [f"time/{name}_ms" for name in COLLECTOR]),
        "update": mean(folder / "strict", [f"time/learner_{name}_ms" for name in LEARNER]),
    }


def appo_round(folder: Path, env_steps: int, seed: int) -> dict[str, float]:
    common = ["appo/half_cheetah", f"budget.env_steps={env_steps}", f"seed={seed}", "evaluation.at_end=false"]
    threads = ["runtime.collector_threads=1", "runtime.learner_threads=1", "telemetry.interval_ticks=2"]
    sizes = ["--env-steps", str(env_steps), "--seed", str(seed)]
    run("benchmarks.plain_ppo", *sizes, "--out", str(folder / "plain"))
    run("aiorl", "run", *common, *threads, "--run-dir", str(folder / "overlapped"))
    beside_a_busy_core(*common, *threads, "algorithm.max_policy_lag=0", "--run-dir", str(folder / "strict"))
    alone = {f"plain loop, {part} alone": mean(folder / "plain", [f"time/{part}_ms"]) for part in ("rollout", "update")}
    return parts(folder) | alone


def sac_round(folder: Path, job: Job, seed: int) -> dict[str, float]:
    common = ["sac/half_cheetah", *aiorl_arguments(job), f"seed={seed}"]
    run("benchmarks.plain_sac", *plain_arguments(job), "--seed", str(seed), "--out", str(folder / "plain"))
    run("aiorl", "run", *common, "--run-dir", str(folder / "overlapped"))
    beside_a_busy_core(*common, "collection.lead=0", "--run-dir", str(folder / "strict"))
    return parts(folder)


def rows_of(name: str, collect: str, rounds: list[dict[str, float]]) -> list[Row]:
    found = {key: [each[key] for each in rounds] for key in rounds[0]}
    longer = [max(each["collect"], each["update"]) for each in rounds]
    return [
        Row(f"{name}: cycle / max({collect}, update)", ratios(found["cycle"], longer), "×", at_most=1.10),
        Row(f"{name}: cycle", tuple(found["cycle"]), "ms"),
        Row(f"{name}: {collect}, beside a busy core", tuple(found["collect"]), "ms"),
        Row(f"{name}: update, beside a busy core", tuple(found["update"]), "ms"),
        Row(f"{name}: env steps/s trained on, over a plain loop's", ratios(found["overlapped"], found["plain"]), "×"),
        Row(f"{name}: aiorl", tuple(found["overlapped"]), "env steps/s"),
        Row(f"{name}: plain loop", tuple(found["plain"]), "env steps/s"),
        *(Row(f"{name}: {key}", tuple(found[key]), "ms") for key in found if key.startswith("plain loop, ")),
    ]


def measure(
    rounds: int = 3,
    algorithms: Sequence[str] = ("sac", "appo"),
    env_steps: int = 100_000,
    runs: Path | None = None,
) -> Table:
    """Measure; the runs stay where `runs` says, if anywhere."""
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = runs or Path(scratch)
        job = replace(JOBS["balanced"], ticks=400)
        if "sac" in algorithms:
            found = [sac_round(folder / f"sac-{seed}", job, seed) for seed in range(rounds)]
            rows += rows_of("SAC", "collect + pack", found)
        if "appo" in algorithms:
            found = [appo_round(folder / f"appo-{seed}", env_steps, seed) for seed in range(rounds)]
            rows += rows_of("APPO", "rollout", found)
    return Table("What overlap gains", tuple(rows))


def main() -> None:
    parser = parser_of("overlap", __doc__)
    parser.add_argument("--algorithm", nargs="+", choices=["sac", "appo"], default=["sac", "appo"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--env-steps", type=int, default=100_000, help="of each run of APPO")
    parser.add_argument("--runs", type=Path, help="keep the run directories there")
    arguments = parser.parse_args()
    table = measure(arguments.rounds, arguments.algorithm, arguments.env_steps, arguments.runs)
    report(table, arguments.json)


if __name__ == "__main__":
    main()
