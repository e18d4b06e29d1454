"""What is the on-policy side's own: rollouts consumed whole, once, in order, and values that mean something."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file

from aiorl import Progress, Run
from aiorl.algorithms import gaussian
from aiorl.algorithms.appo.learner import AppoLearner
from aiorl.checkpoint.manifest import read_manifest
from aiorl.evaluation import load_policy_module
from aiorl.settings import RunSettings
from aiorl.telemetry.sinks import read_metrics
from aiorl.testing import ENV_UNIT, EPISODE_UNIT
from tests.conftest import lead_of, small_settings
from tests.run.helpers import assert_same_checkpoint, rollouts, train, valid_rows

COUNT = "env.id=aiorl.testing:CountEnv"
DUMP = "telemetry.dump_rollouts=true"


def appo(*overrides: str) -> RunSettings:
    return small_settings(*overrides, algorithm="appo")


def checkpoint_of(run_dir: Path, *overrides: str) -> Path:
    outcome = asyncio.run(train(appo("runtime.kind=inline", *overrides), run_dir))
    assert outcome.checkpoint is not None
    return outcome.checkpoint


def assert_unbroken(run_dir: Path, ticks: int, steps: int, index: int = 0) -> None:
    """Each env's count goes on by one from the first row of the first rollout to the last row of the last."""
    names = sorted(int(path.stem.split("-")[0]) for path in (run_dir / "rollouts").glob(f"*-{index}.safetensors"))
    assert names == list(range(1, ticks + 1))
    columns = rollouts(run_dir, index)
    assert len(columns["obs"]) == ticks * steps
    count = columns["obs"][..., 0] % ENV_UNIT
    assert (count[0] == 0).all() and columns["valid"].all()
    ended = columns["truncated"]
    episode, t = count // EPISODE_UNIT, count % EPISODE_UNIT
    assert np.array_equal(episode[1:], episode[:-1] + ended[:-1])
    assert np.array_equal(t[1:], np.where(ended[:-1], 0, t[:-1] + 1))


@pytest.mark.parametrize("lag", [1, 3])
def test_a_slow_learner_gets_every_rollout_once_in_order_and_whole(run_dir: Path, lag: int) -> None:
    """Many epochs make an update some ten times as long as a rollout."""
    settings = appo(
        COUNT,
        DUMP,
        lead_of("appo", lag),
        "collection.collectors=2",
        "collection.rollout_steps=8",
        "algorithm.epochs=40",
        "budget.env_steps=960",
        "telemetry.interval_ticks=1",
    )
    used: list[int] = []

    async def watch() -> None:
        nonlocal used
        async with Run(settings, run_dir=run_dir) as run:
            async for event in run:
                if isinstance(event, Progress):
                    used += [sum(worker.memory_info().rss for worker in workers_of(run_dir))]

    asyncio.run(watch())
    for index in (0, 1):
        assert_unbroken(run_dir, 30, 8, index)
    records = read_metrics(run_dir / "metrics.jsonl")
    assert records[-1]["policy/lag"] == lag
    assert [record["rollout/waiting"] for record in records[lag : -lag or None]].count(lag) > 20
    middle = len(used) // 2
    assert max(used[middle:]) < used[middle] + 30e6, "memory does not grow with rollouts"


def test_a_learner_waits_for_a_slow_collector_without_using_the_cpu(run_dir: Path) -> None:
    slow = ["env.id=aiorl.testing:SlowEnv", "env.kwargs.seconds=0.05", "env.num_envs=2", "collection.rollout_steps=10"]
    settings = appo(*slow, "budget.env_steps=80", "telemetry.interval_ticks=1")
    seconds, cpu = [], []

    async def watch() -> None:
        async with Run(settings, run_dir=run_dir) as run:
            async for event in run:
                if isinstance(event, Progress):
                    times = workers_of(run_dir)[-1].cpu_times()
                    seconds.append(event.record["seconds"])
                    cpu.append(times.user + times.system)

    asyncio.run(watch())
    assert seconds[-1] - seconds[0] > 1.2, "three rollouts of a second"
    assert cpu[-1] - cpu[0] < 0.4


def workers_of(run_dir: Path) -> list[psutil.Process]:
    """The workers' processes, the learner last."""
    workers = json.loads((run_dir / "status.json").read_text())["workers"]
    return [psutil.Process(each["pid"]) for each in sorted(workers, key=lambda each: each["role"])]


@pytest.mark.parametrize("mode", ["SAME_STEP", "NEXT_STEP", "DISABLED"])
@pytest.mark.parametrize("steps", [1, 3])
def test_a_rollout_may_be_shorter_than_an_episode_and_of_resets_alone(run_dir: Path, mode: str, steps: int) -> None:
    overrides = [
        "env.id=aiorl.testing:probe_vector_env",
        "env.kwargs.probe=CountEnv",
        f"env.kwargs.autoreset_mode={mode}",
        "env.kwargs.length=4",
        f"collection.rollout_steps={steps}",
        "algorithm.minibatches=1",
        "algorithm.normalise_observations=true",
        f"budget.env_steps={160 * steps}",
    ]
    checkpoint_of(run_dir, DUMP, *overrides)
    columns = rollouts(run_dir)
    rows = valid_rows(columns)
    assert np.array_equal(rows["next_obs"], rows["obs"] + 1)
    assert columns["valid"].all() == (mode != "NEXT_STEP")
    assert rows["truncated"].sum() == (rows["obs"][:, 0] % EPISODE_UNIT == 3).sum()


def test_updates_on_resets_alone_measure_nothing(run_dir: Path) -> None:
    overrides = [
        "env.id=aiorl.testing:probe_vector_env",
        "env.kwargs.probe=CountEnv",
        "env.kwargs.autoreset_mode=NEXT_STEP",
        "env.kwargs.length=1",
        "collection.rollout_steps=1",
        "algorithm.minibatches=1",
        "budget.env_steps=80",
    ]
    checkpoint_of(run_dir, "telemetry.interval_ticks=1", *overrides)
    records = read_metrics(run_dir / "metrics.jsonl")
    assert [record["env/invalid_rows"] for record in records] == [0, 4] * 10
    assert ["loss/critic" in record for record in records] == [True, False] * 10


def test_a_dump_that_cannot_be_written_ends_no_run_and_a_resume_cuts_dumps_back(run_dir: Path) -> None:
    async def run(*overrides: str) -> None:
        async with Run.reopen(run_dir, overrides=overrides, environ={}) as again:
            await again.wait()

    checkpoint_of(run_dir, DUMP, COUNT, "budget.env_steps=80")
    for stray in ("9-0", "notes-0"):
        (run_dir / "rollouts" / f"{stray}.safetensors").touch()
    asyncio.run(run("budget.env_steps=96"))
    names = sorted(path.stem for path in (run_dir / "rollouts").iterdir())
    assert names == [*(f"{tick}-0" for tick in range(1, 7)), "notes-0"]
    for path in (run_dir / "rollouts").iterdir():
        path.unlink()
    (run_dir / "rollouts").rmdir()
    (run_dir / "rollouts").touch()
    asyncio.run(run("budget.env_steps=128"))
    log = [json.loads(line) for line in (run_dir / "log.jsonl").read_text().splitlines()]
    assert any("could not be dumped" in line["event"] for line in log)


def test_the_observation_to_bootstrap_from_is_the_next_rollouts_first(run_dir: Path) -> None:
    checkpoint_of(run_dir, DUMP, COUNT, "env.kwargs.length=7")
    files = [dict(load_file(run_dir / "rollouts" / f"{tick}-0.safetensors")) for tick in range(1, 26)]
    for one, following in pairwise(files):
        assert np.array_equal(one["last_obs"], following["obs"][0])


def test_strict_is_on_policy_to_the_last_digit_that_matters(run_dir: Path) -> None:
    """Recomputed with the very policy of each rollout's version, log-probabilities are the recorded ones."""
    saving = ["checkpoint.every_env_steps=16", "checkpoint.keep=100", "algorithm.normalise_observations=true"]
    settings = appo(DUMP, lead_of("appo", 0), "runtime.kind=inline", *saving)
    asyncio.run(train(settings, run_dir))
    spec = read_manifest(run_dir / "checkpoints" / "1").spec
    for tick in range(2, 26):
        rollout = load_file(run_dir / "rollouts" / f"{tick}-0.safetensors")
        assert (rollout["weight_version"] == tick - 1).all()
        policy: Any = load_policy_module(run_dir / "checkpoints" / str(tick - 1), settings, spec)
        obs, action = torch.from_numpy(rollout["obs"]), torch.from_numpy(rollout["action"])
        with torch.no_grad():
            log_prob = gaussian.log_prob(action, policy.act(obs), policy.log_std)
        assert np.abs(log_prob.numpy() - rollout["log_prob"]).max() < 1e-5
    last = read_metrics(run_dir / "metrics.jsonl")[-1]
    assert last["policy/lag"] == 0 and last["policy/rho_clip_share"] == 0


def test_strict_twice_is_the_same(tmp_path: Path) -> None:
    preset = ["runtime.kind=inline", lead_of("appo", 0), "algorithm.epochs=5", "algorithm.minibatches=4"]
    assert_same_checkpoint(checkpoint_of(tmp_path / "one", *preset), checkpoint_of(tmp_path / "two", *preset))


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("end", ["truncated", "terminated"])
def test_values_are_worth_what_the_future_is(run_dir: Path, end: str, lag: int) -> None:
    """Reward 1, γ 0.9: a truncated future is worth 10, a terminated one the rest of its episode."""
    overrides = [
        "env.id=aiorl.testing:ClockEnv",
        "env.kwargs.length=20",
        f"env.kwargs.end={end}",
        "env.num_envs=8",
        lead_of("appo", lag),
        "collection.rollout_steps=16",
        "algorithm.gamma=0.9",
        "algorithm.normalise_observations=false",
        "algorithm.critic_hidden=[64, 64]",
        "algorithm.epochs=5",
        "algorithm.minibatches=4",
        "algorithm.learning_rate_min=1e-3",
        "budget.env_steps=12_800",
    ]
    checkpoint = checkpoint_of(run_dir, *overrides)
    learner = AppoLearner(appo(*overrides).algorithm, read_manifest(checkpoint).spec, torch.device("cpu"), 0)  # type: ignore[arg-type]
    tensors = load_file(checkpoint / "learner.safetensors")
    own = {name.removeprefix("learner."): torch.from_numpy(value) for name, value in tensors.items()}
    learner.load_tensors({name: value for name, value in own.items() if "moments" not in name})
    t = np.arange(20)
    with torch.no_grad():
        values: NDArray[np.float32] = learner.critic(torch.from_numpy(t / 20).float()[:, None].expand(-1, 3)).numpy()
    worth = np.full(20, 10.0) if end == "truncated" else (1 - 0.9 ** (20 - t)) / (1 - 0.9)
    assert np.abs(values / worth - 1).max() < 0.1, values
    for record in read_metrics(run_dir / "metrics.jsonl"):
        if record["episode/finished"]:
            for name in ("return_mean", "return_interval_mean", "return_min", "return_max", "length_mean"):
                assert record[f"episode/{name}"] == 20, "whatever the critic says"
