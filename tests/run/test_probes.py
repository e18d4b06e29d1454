"""What lands in replay and rollouts, read from files as a user would, with environments that cannot be fooled."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aiorl.telemetry.sinks import read_metrics
from aiorl.testing import ENV_UNIT, EPISODE_UNIT
from tests.conftest import lead_of, small_settings, steps_of
from tests.run.helpers import experience, replay, train, valid_rows

MODES = ["SAME_STEP", "NEXT_STEP", "DISABLED"]
VECTOR = "env.id=aiorl.testing:probe_vector_env"


def checkpoint_of(run_dir: Path, *overrides: str, algorithm: str = "sac") -> Path:
    if algorithm == "appo":
        overrides = (*overrides, "telemetry.dump_rollouts=true")
    outcome = asyncio.run(train(small_settings("runtime.kind=inline", *overrides, algorithm=algorithm), run_dir))
    assert outcome.checkpoint is not None
    return outcome.checkpoint


def rows_of(
    run_dir: Path, probe: str, mode: str, *overrides: str, algorithm: str = "sac", **arguments: Any
) -> dict[str, Any]:
    kwargs = [f"env.kwargs.{name}={value}" for name, value in arguments.items()]
    probing = [VECTOR, f"env.kwargs.probe={probe}", f"env.kwargs.autoreset_mode={mode}", *kwargs]
    checkpoint_of(run_dir, *probing, *overrides, algorithm=algorithm)
    return experience(algorithm, run_dir)


@pytest.mark.parametrize("mode", [*MODES, "single envs"])
@pytest.mark.parametrize("probe", ["CountEnv", "ScratchEnv"])
@pytest.mark.parametrize("end", ["terminated", "truncated", "both"])
def test_every_row_is_a_transition(run_dir: Path, algorithm: str, mode: str, probe: str, end: str) -> None:
    if mode == "single envs":
        overrides = [f"env.id=aiorl.testing:{probe}", f"env.kwargs.end={end}", "env.kwargs.length=7"]
        checkpoint_of(run_dir, *overrides, algorithm=algorithm)
        columns = experience(algorithm, run_dir)
    elif mode == "SAME_STEP" and probe == "ScratchEnv":
        pytest.skip("Gymnasium's own SAME_STEP keeps no copy of the final observation of such an env")
    else:
        columns = rows_of(run_dir, probe, mode, algorithm=algorithm, end=end, length=7)
    rows = valid_rows(columns)
    assert np.array_equal(rows["next_obs"], rows["obs"] + 1), "a next observation belongs to its own row"
    t = rows["obs"][:, 0] % EPISODE_UNIT
    over = t == 6
    assert over.any()
    assert np.array_equal(rows["terminated"], over & (end != "truncated"))
    assert np.array_equal(rows["truncated"], over & (end != "terminated"))
    assert np.array_equal(rows["reward"], np.ones(len(rows["reward"])))
    assert not rows["cut"].any()
    assert columns["valid"].shape == (100, 4) and rows["obs"][0, 0] % EPISODE_UNIT == 0, "no step is lost at the start"
    invalid = ~columns["valid"]
    assert invalid.any() == (mode == "NEXT_STEP"), "only NEXT_STEP spends steps on resets"
    assert not (columns["terminated"] | columns["truncated"])[invalid].any()


@pytest.mark.parametrize("mode", MODES)
def test_all_modes_store_the_same_rows(tmp_path: Path, algorithm: str, mode: str) -> None:
    # One env, so that its rows come in one order; NEXT_STEP gets through fewer in the same number of steps.
    single = ["env.num_envs=1", steps_of(algorithm, 16), "budget.env_steps=320"]
    same = valid_rows(rows_of(tmp_path / "same", "CountEnv", "SAME_STEP", *single, algorithm=algorithm, length=5))
    other = valid_rows(rows_of(tmp_path / "other", "CountEnv", mode, *single, algorithm=algorithm, length=5))
    count = len(other["reward"])
    assert count > 250
    for name in ("obs", "next_obs", "reward", "terminated", "truncated"):
        assert np.array_equal(same[name][:count], other[name]), name


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_reported_episodes_are_the_envs_own(run_dir: Path, algorithm: str, mode: str, end: str) -> None:
    rows_of(run_dir, "CountEnv", mode, algorithm=algorithm, end=end, length=20, **{"number": 1})
    records = [record for record in read_metrics(run_dir / "metrics.jsonl") if record["episode/finished"]]
    assert records
    for record in records:
        for name in ("return_mean", "return_interval_mean", "return_min", "return_max", "length_mean"):
            assert record[f"episode/{name}"] == 20, name
        assert record["episode/terminated_share"] == (end == "terminated")
        assert record["episode/truncated_share"] == (end == "truncated")
        assert record["env_steps"] % 16 == 0, "resets count as vector steps like any other"


def test_asymmetric_actions_are_stored_in_one_unit(run_dir: Path, algorithm: str) -> None:
    """BoxEnv shows in its next observation the action it was given, and refuses those out of bounds."""
    scaled = "algorithm.normalise_observations=true"
    rows = valid_rows(rows_of(run_dir, "BoxEnv", "SAME_STEP", scaled, algorithm=algorithm, length=20))
    given, stored = rows["next_obs"][:, 1:], rows["action"]
    beyond = (np.abs(stored) > 1).mean()
    assert beyond == 0 if algorithm == "sac" else beyond > 0.1, "APPO keeps the action whose density it recorded"
    assert np.allclose(given, np.clip(-2 + (stored + 1) / 2 * 8, -2, 6), atol=1e-5)
    if algorithm == "sac":
        warm_up = given[: len(given) // 8]
        assert warm_up.min() < -1 and warm_up.max() > 5, "the warm-up covers the box"


def seeds(folder: Path) -> list[tuple[int, float]]:
    lines = [line.split() for path in folder.iterdir() for line in path.read_text().splitlines()]
    return sorted((int(seed), float(draw)) for seed, draw in lines)


def test_every_env_has_a_stream_of_its_own(tmp_path: Path, algorithm: str) -> None:
    def streams(name: str, *overrides: str) -> list[tuple[int, float]]:
        folder = tmp_path / f"{name}-seeds"
        folder.mkdir()
        probing = ["env.id=aiorl.testing:SeedEnv", f"env.kwargs.folder={folder}"]
        checkpoint_of(tmp_path / name, *probing, *overrides, algorithm=algorithm)
        return seeds(folder)

    one = streams("one", "collection.collectors=2", "env.num_envs=8")
    assert len(one) == 8 and len({draw for _, draw in one}) == 8
    assert streams("again", "collection.collectors=2", "env.num_envs=8") == one
    other = streams("other", "seed=1", "collection.collectors=2", "env.num_envs=8")
    assert not set(one) & set(other)
    more = streams("more", "seed=1", "collection.collectors=2", "env.num_envs=16")
    assert not set(one) & set(more) and len({draw for _, draw in more}) == 16


@pytest.mark.parametrize("mode", MODES)
def test_observation_groups_reach_the_learner(run_dir: Path, algorithm: str, mode: str) -> None:
    groups = "[policy, critic]"
    rows = valid_rows(rows_of(run_dir, "CountEnv", mode, algorithm=algorithm, groups=groups, length=7))
    assert np.array_equal(rows["critic_obs"], -rows["obs"])
    assert np.array_equal(rows["next_critic_obs"], rows["critic_obs"] - 1)
    if algorithm == "sac":  # on-policy only the value function looks ahead
        assert np.array_equal(rows["next_obs"], rows["obs"] + 1)


def test_two_collectors_own_a_share_each(run_dir: Path, algorithm: str) -> None:
    checkpoint_of(run_dir, "env.id=aiorl.testing:CountEnv", "collection.collectors=2", algorithm=algorithm)
    for index in (0, 1):
        columns = experience(algorithm, run_dir, index)
        assert columns["obs"].shape == (100, 2, 3)
        assert columns["written_steps"] == [100]
        rows = valid_rows(columns)
        assert np.array_equal(rows["next_obs"], rows["obs"] + 1)
        assert len(np.unique(columns["obs"][:, :, 0] // ENV_UNIT, axis=0)) == 1, "columns are envs"


def test_the_ring_keeps_the_newest_steps_in_time_order(run_dir: Path) -> None:
    overrides = ["replay.capacity=100", "env.id=aiorl.testing:CountEnv", "env.kwargs.length=900"]
    columns = replay(checkpoint_of(run_dir, *overrides, "env.num_envs=2", "collection.learning_starts=80"))
    assert columns["obs"].shape[:2] == (50, 2)
    t = columns["obs"][:, 0, 0] % EPISODE_UNIT
    assert np.array_equal(t, np.arange(t[0], t[0] + 50)) and t[-1] == 200 - 1


@pytest.mark.parametrize(("algorithm", "lead"), [("sac", 0), ("sac", 1), *(("appo", lag) for lag in range(4))])
def test_the_version_of_each_tick_is_the_promised_one(run_dir: Path, algorithm: str, lead: int) -> None:
    """16 env steps a tick; SAC learns from 64 on: its tick 4 makes version 1. Tick k acts with update k-1-lead."""
    checkpoint_of(run_dir, lead_of(algorithm, lead), algorithm=algorithm)
    versions = experience(algorithm, run_dir)["weight_version"][:, 0].reshape(25, 4)
    before = 3 if algorithm == "sac" else 0
    expected = [max(0, tick - 1 - lead - before) for tick in range(1, 26)]
    assert np.array_equal(versions, np.repeat(np.array(expected)[:, None], 4, axis=1))
    assert read_metrics(run_dir / "metrics.jsonl")[-1]["policy/lag"] == lead


@pytest.mark.parametrize("mode", ["SAME_STEP", "NEXT_STEP"])
def test_observation_statistics_count_every_fresh_observation_once(run_dir: Path, algorithm: str, mode: str) -> None:
    from safetensors.numpy import load_file

    for steps in (1, 8):
        repeats = f"learner.gradient_steps={steps}" if algorithm == "sac" else f"algorithm.epochs={steps}"
        path = run_dir.with_name(str(steps))
        overrides = ["algorithm.normalise_observations=true", repeats, "collection.collectors=2"]
        rows_of(path, "CountEnv", mode, *overrides, algorithm=algorithm, length=7)
        state = load_file(path / "checkpoints" / "latest" / "learner.safetensors")
        count, mean = state["moments.policy"][0], state["moments.policy"][1:4]
        seen = np.concatenate([valid_rows(experience(algorithm, path, index))["obs"] for index in (0, 1)])
        assert count == len(seen) and (count == 400) == (mode == "SAME_STEP")
        assert np.allclose(mean, seen.astype(np.float64).mean(axis=0), rtol=1e-9)
