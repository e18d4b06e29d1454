"""SAC end to end: aiorl's rate of training beside a plain single-process loop with the same networks and steps.

    python -m benchmarks.end_to_end [--rounds 3] [--jobs trivial few balanced] [--sb3 PYTHON]

Three jobs, each with networks of 256-256 and batches of 256, one collector, lead 1, a chunk of one vector step:
  trivial   a vector env that costs nothing, 128 envs, 1 gradient step for each vector step
  few       HalfCheetah-v5, 16 envs in Python, 8 gradient steps for each vector step: the learner's time is all
  balanced  HalfCheetah-v5, 128 envs in Python, 1 gradient step for each vector step: about as long as the vector step
The figure is env steps per second that were trained on, between the first record after a tenth of the training and the
last one, for both sides the same part of the run. One thread in each process. Runs alternate; ratios are of pairs of
runs. aiorl runs as its command line does, with TensorBoard files and all. With `--sb3`, the python of a virtual
environment with stable-baselines3 (see benchmarks/sb3_sac.py), SB3's SAC takes part in the second job.

Eight minutes on two cores, three more with SB3.
"""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.commands import run
from benchmarks.measuring import Row, Table, alternate, parser_of, ratios, records, report

RECORDS = 40
"""Of each run."""


@dataclass(frozen=True)
class Job:
    """What both sides do: `ticks` vector steps, the first `warm_up` of them without training."""

    env: str
    num_envs: int
    gradient_steps: int
    ticks: int
    warm_up: int
    at_least: float
    title: str

    @property
    def env_steps(self) -> int:
        return self.ticks * self.num_envs

    @property
    def learning_starts(self) -> int:
        return self.warm_up * self.num_envs

    @property
    def ticks_per_record(self) -> int:
        return max(1, self.ticks // RECORDS)


JOBS = {
    "trivial": Job("benchmarks.trivial_env:make", 128, 1, 1500, 40, 1.05, "trivial env, 128 envs, 1 gradient step"),
    "few": Job("HalfCheetah-v5", 16, 8, 250, 100, 1.05, "HalfCheetah-v5, 16 envs, 8 gradient steps"),
    "balanced": Job("HalfCheetah-v5", 128, 1, 1000, 40, 1.6, "HalfCheetah-v5, 128 envs, 1 gradient step"),
}


def aiorl_arguments(job: Job) -> list[str]:
    """Return the overrides of `aiorl run sac/half_cheetah` for a job."""
    return [
        f"env.id={job.env}", f"env.num_envs={job.num_envs}", f"learner.gradient_steps={job.gradient_steps}",
        "learner.batch_size=256", "collection.chunk_steps=1", "collection.lead=1", "collection.collectors=1",
        f"collection.learning_starts={job.learning_starts}", f"replay.capacity={max(200_000, job.env_steps)}",
        f"budget.env_steps={job.env_steps}", "evaluation.at_end=false", "checkpoint.every_seconds=null",
        f"telemetry.interval_ticks={job.ticks_per_record}", "learner.device=cpu",
        "runtime.collector_threads=1", "runtime.learner_threads=1",
    ]  # fmt: skip


def plain_arguments(job: Job) -> list[str]:
    """Return the arguments of the plain loops for a job."""
    per_gradient_step = job.num_envs / job.gradient_steps
    return [
        "--env", job.env, "--num-envs", str(job.num_envs), "--env-steps", str(job.env_steps),
        "--env-steps-per-gradient-step", str(per_gradient_step), "--learning-starts", str(job.learning_starts),
        "--replay-capacity", str(max(200_000, job.env_steps)), "--batch-size", "256",
        "--env-steps-per-record", str(job.ticks_per_record * job.num_envs), "--evaluation-episodes", "0",
    ]  # fmt: skip


def rate(folder: Path, job: Job) -> float:
    """Env steps per second that were trained on, once a tenth of the training is over."""
    begin = job.learning_starts + (job.env_steps - job.learning_starts) // 10
    steady = [record for record in records(folder) if record["env_steps"] >= begin]
    first, last = steady[0], steady[-1]
    gradient_steps = last["gradient_steps"] - first["gradient_steps"]
    env_steps = last["env_steps"] - first["env_steps"]
    assert gradient_steps * job.num_envs == env_steps * job.gradient_steps, "another replay ratio than was asked for"
    return env_steps / (last["seconds"] - first["seconds"])


def measure(rounds: int = 3, jobs: Sequence[str] = tuple(JOBS), sb3: str | None = None) -> Table:
    rows: list[Row] = []
    for name in jobs:
        job = JOBS[name]
        functions: dict[str, Callable[[], float]] = {"plain": partial(plain, job), "aiorl": partial(ours, job)}
        if sb3 is not None and name == "few":
            functions["sb3"] = partial(stable_baselines, job, sb3)
        found = alternate(rounds, functions)
        speed = ratios(found["aiorl"], found["plain"])
        rows.append(Row(f"{job.title}: aiorl / plain loop", speed, "×", at_least=job.at_least))
        rows.append(Row(f"{job.title}: plain loop", tuple(found["plain"]), "env steps/s"))
        rows.append(Row(f"{job.title}: aiorl", tuple(found["aiorl"]), "env steps/s"))
        if "sb3" in found:
            rows.append(Row(f"{job.title}: SB3 / plain loop", ratios(found["sb3"], found["plain"]), "×"))
    return Table("SAC end to end, gradient steps for each vector step", tuple(rows))


def ours(job: Job) -> float:
    with tempfile.TemporaryDirectory() as folder:
        run("aiorl", "run", "sac/half_cheetah", *aiorl_arguments(job), "--run-dir", f"{folder}/run")
        return rate(Path(folder) / "run", job)


def plain(job: Job) -> float:
    with tempfile.TemporaryDirectory() as folder:
        run("benchmarks.plain_sac", *plain_arguments(job), "--out", folder)
        return rate(Path(folder), job)


def stable_baselines(job: Job, python: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        run("benchmarks.sb3_sac", *plain_arguments(job), "--out", folder, python=python)
        return rate(Path(folder), job)


def main() -> None:
    parser = parser_of("end_to_end", __doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--sb3", metavar="PYTHON")
    arguments = parser.parse_args()
    report(measure(arguments.rounds, arguments.jobs, arguments.sb3), arguments.json)


if __name__ == "__main__":
    main()
