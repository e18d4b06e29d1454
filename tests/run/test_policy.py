"""Policies after their run: loaded without processes, equal to what evaluation plays, and as a start of a new run."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

from aiorl import CheckpointError, Run, load_policy, train
from aiorl.testing import BoxEnv
from tests.conftest import small_settings
from tests.run import helpers
from tests.run.helpers import files, replay

BOX = ["env.id=aiorl.testing:BoxEnv", "algorithm.normalise_observations=true", "runtime.kind=inline"]


@pytest.fixture
def trained(run_dir: Path) -> Path:
    outcome = train(small_settings(*BOX), run_dir=run_dir)
    assert outcome.state == "completed"
    return run_dir


def test_a_loaded_policy_gives_env_units_for_one_and_many(trained: Path) -> None:
    policy = load_policy(trained)
    obs = np.random.default_rng(0).normal(size=(100, 3)) * 10
    actions = policy(obs)
    assert actions.shape == (100, 2) and actions.min() >= -2 and actions.max() <= 6
    assert np.allclose(policy(obs[0]), actions[0], atol=1e-6) and policy(obs[0]).shape == (2,)
    assert np.array_equal(policy({"policy": obs}), actions)
    assert np.array_equal(load_policy(trained / "checkpoints" / "latest")(obs), actions)
    with pytest.raises(ValueError, match=r"\(3,\)"):
        policy(np.zeros(4))
    with pytest.raises(ValueError, match="group policy"):
        policy({"critic": obs})
    with pytest.raises(CheckpointError, match="no such run directory"):
        load_policy(trained / "nowhere")


def test_evaluation_plays_the_loaded_policy(tmp_path: Path) -> None:
    """The last row of the replay shows what an evaluation's env saw: compare with playing by hand."""
    settings = small_settings("evaluation.at_end=true", "evaluation.num_envs=2")
    outcome = train(settings, run_dir=tmp_path / "run")
    assert outcome.evaluation is not None and len(outcome.evaluation.returns) == 4
    assert outcome.evaluation.lengths == (200,) * 4

    from aiorl.envs.pendulum.env import PendulumSwingupVectorEnv
    from aiorl.service import Purpose, seed_number

    policy = load_policy(tmp_path / "run")
    env = PendulumSwingupVectorEnv(2, stagger=False)
    obs, _ = env.reset(seed=[seed_number(0, Purpose.EVALUATION, index) for index in range(2)])
    returns = np.zeros((2, 2))
    for step in range(400):
        obs, reward, _, _, _ = env.step(policy(obs))
        returns[step // 200] += reward
    env.close()
    assert np.allclose(outcome.evaluation.returns, returns.T.reshape(-1), rtol=1e-5)


def test_evaluating_changes_no_training_state(tmp_path: Path) -> None:
    with_end = train(small_settings("evaluation.at_end=true"), run_dir=tmp_path / "with")
    without = train(small_settings("runtime.kind=inline"), run_dir=tmp_path / "without")
    assert with_end.checkpoint and without.checkpoint
    helpers.assert_same_checkpoint(with_end.checkpoint, without.checkpoint)


def test_warm_start_takes_policy_and_statistics(trained: Path, tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    # No update happens before the budget of this run ends: what it saves is what it started with.
    still = ["collection.learning_starts=400", "collection.random_steps=0", "budget.env_steps=400", "seed=7"]
    outcome = train(small_settings(*BOX, *still, f"checkpoint.warm_start={trained}"), run_dir=tmp_path / "warm")
    cold = train(small_settings(*BOX, *still), run_dir=tmp_path / "cold")
    assert outcome.checkpoint and cold.checkpoint
    warm_start = replay(outcome.checkpoint)["action"][:90]
    obs = replay(outcome.checkpoint)["obs"][:90]
    assert not np.allclose(warm_start, replay(cold.checkpoint)["action"][:90], atol=0.05)
    assert obs.shape == (90, 4, 3)
    count = load_file(outcome.checkpoint / "learner.safetensors")["moments.policy"][0]
    assert count == 400 + 400, "the statistics go on from those of the policy"


def test_warm_start_refuses_another_env_and_nothing(trained: Path, tmp_path: Path) -> None:
    other = small_settings("runtime.kind=inline", f"checkpoint.warm_start={trained}")
    with pytest.raises(CheckpointError, match="another environment"):
        train(other, run_dir=tmp_path / "other")
    appo = small_settings(*BOX, f"checkpoint.warm_start={trained}", algorithm="appo")
    with pytest.raises(CheckpointError, match="its policy is one of sac; this run's algorithm is appo"):
        train(appo, run_dir=tmp_path / "appo")
    nothing = small_settings("runtime.kind=inline", f"checkpoint.warm_start={tmp_path}")
    with pytest.raises(CheckpointError, match="no whole checkpoint"):
        train(nothing, run_dir=tmp_path / "nothing")


def test_a_python_factory_and_its_resume(tmp_path: Path) -> None:
    def factory(**arguments: object) -> BoxEnv:
        return BoxEnv(length=9)

    async def both() -> int:
        async with Run(small_settings(), run_dir=tmp_path / "run", env_factory=factory) as run:
            await run.wait()
        more = ["budget.env_steps=500"]
        async with Run.reopen(tmp_path / "run", overrides=more, environ={}, env_factory=factory) as run:
            return (await run.wait()).env_steps

    assert asyncio.run(both()) == 512


def test_a_broken_newest_checkpoint_is_skipped_and_the_older_one_refills(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train(small_settings("runtime.kind=inline", "checkpoint.every_env_steps=200"), run_dir=run_dir)
    assert sorted(path.name for path in (run_dir / "checkpoints").iterdir()) == ["13", "25", "latest"]
    policy = run_dir / "checkpoints" / "25" / "policy.safetensors"
    policy.write_bytes(policy.read_bytes()[:-8])
    run = Run.reopen(run_dir, environ={})
    assert "skipped" in run.resumes_from and "policy.safetensors" in run.resumes_from

    async def go_on() -> tuple[int, int]:
        async with run:
            outcome = await run.wait()
        return outcome.env_steps, outcome.gradient_steps

    # From tick 13 (20 gradient steps): 64 env steps refill the replay, so ticks 17 to 25 train.
    assert asyncio.run(go_on()) == (400, 20 + 9 * 2)
    log = [json.loads(line) for line in (run_dir / "log.jsonl").read_text().splitlines()]
    assert any("no updates before 272 env steps" in line["event"] for line in log)
    assert set(files(run_dir / "checkpoints" / "25")) >= {"replay-0.safetensors"}


def test_a_setting_that_an_older_version_did_not_know_is_no_change(trained: Path) -> None:
    manifest = trained / "checkpoints" / "latest" / "manifest.json"
    recorded = json.loads(manifest.read_text())
    del recorded["settings"]["algorithm"]["tau"], recorded["settings"]["telemetry"]
    manifest.write_text(json.dumps(recorded))

    async def go_on() -> int:
        async with Run.reopen(trained, overrides=["budget.env_steps=480"], environ={}) as run:
            return (await run.wait()).env_steps

    assert asyncio.run(go_on()) == 480


def test_two_runs_do_not_share_a_directory(trained: Path) -> None:
    async def twice() -> None:
        more = ["budget.env_steps=1e6"]
        async with Run.reopen(trained, overrides=more, environ={}) as first:
            second = Run.reopen(trained, overrides=more, environ={})
            with pytest.raises(Exception, match="another process is running this run"):
                async with second:
                    raise AssertionError("unreachable")
            first.stop()

    asyncio.run(twice())


def test_train_refuses_to_block_a_running_loop(run_dir: Path) -> None:
    async def inside() -> None:
        with pytest.raises(Exception, match="async with"):
            train(small_settings(), run_dir=run_dir)

    asyncio.run(inside())
    assert not run_dir.exists()
