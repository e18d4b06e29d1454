"""Faults beside the matrix of tests/endings: what is resumed after them, and what the host meets."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from aiorl import (
    AiorlError,
    Outcome,
    Progress,
    Run,
    SettingsError,
    Started,
    WorkerCrashedError,
    WorkerFailedError,
)
from tests.conftest import lead_of, small_settings, steps_of
from tests.run.helpers import assert_no_tasks, experience, train, valid_rows

TRAP = "env.id=aiorl.testing:TrapEnv"


async def failure_of(run_dir: Path, *overrides: str, algorithm: str = "sac") -> AiorlError:
    async with asyncio.timeout(60):
        with pytest.raises(AiorlError) as caught:
            await train(small_settings(*overrides, algorithm=algorithm), run_dir)
    assert_no_tasks()
    return caught.value


def status(run_dir: Path) -> dict[str, object]:
    return json.loads((run_dir / "status.json").read_text())


@pytest.mark.parametrize("role", ["collector", "learner"])
@pytest.mark.parametrize(("algorithm", "lead"), [("sac", 0), ("sac", 1), ("appo", 1)])
async def test_a_killed_worker(run_dir: Path, algorithm: str, role: str, lead: int) -> None:
    settings = small_settings(
        "budget.env_steps=1e8", lead_of(algorithm, lead), "collection.collectors=2", algorithm=algorithm
    )
    async with asyncio.timeout(60):
        with pytest.raises(WorkerCrashedError, match=rf"{role} 0 .*signal 9 \(SIGKILL\)"):
            async with Run(settings, run_dir=run_dir) as run:
                async for event in run:
                    if isinstance(event, Started):
                        continue
                    entries = status(run_dir)["workers"]
                    pid = next(each["pid"] for each in entries if each["role"] == role)  # type: ignore[attr-defined]
                    os.kill(pid, signal.SIGKILL)
                    break
                await run.wait()
    has_saved = (run_dir / "checkpoints" / "latest").exists()
    assert has_saved == (role == "collector"), "a run saves as long as its learner lives"
    if has_saved:
        latest = run_dir / "checkpoints" / "latest"
        manifest = json.loads((latest / "manifest.json").read_text())
        assert manifest["exact"] is False and manifest["has_replay"]
        outcome = await resumed(run_dir, f"budget.env_steps={manifest['env_steps'] + 160}")
        assert outcome.state == "completed" and outcome.env_steps >= manifest["env_steps"] + 160


async def resumed(run_dir: Path, *overrides: str) -> Outcome:
    async with Run.reopen(run_dir, overrides=overrides, environ={}) as run:
        return await run.wait()


async def test_an_env_that_breaks_once_goes_on_with_the_break_marked(
    run_dir: Path, algorithm: str, tmp_path: Path
) -> None:
    once = f"env.kwargs.once={tmp_path / 'sprung'}"
    seen = ["telemetry.dump_rollouts=true"] if algorithm == "appo" else []
    error = await failure_of(
        run_dir, TRAP, once, "env.kwargs.length=50", "env.kwargs.at=70", *seen, algorithm=algorithm
    )
    assert isinstance(error, WorkerFailedError)
    outcome = await resumed(run_dir)
    assert outcome.state == "completed" and outcome.checkpoint is not None
    rows = valid_rows(experience(algorithm, run_dir))
    assert np_equal_next(rows)
    if algorithm == "sac":
        assert rows["cut"].sum() == 4, "the last row of each env before the break"


def np_equal_next(rows: dict[str, object]) -> bool:
    import numpy as np

    return bool(np.array_equal(rows["next_obs"], rows["obs"] + 1))  # type: ignore[operator]


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("env.id=HalfCheeta-v5", "HalfCheetah"),
        ("env.id=no_such_module:Env-v0", "no_such_module"),
        ("env.id=CartPole-v1", "finite Box actions only"),
        ("learner.device=cuda:7", "no CUDA device"),
        ("replay.capacity=1e12", "shared memory"),
    ],
)
async def test_what_only_a_worker_can_know_is_refused_and_leaves_no_directory(
    run_dir: Path, override: str, words: str
) -> None:
    error = await failure_of(run_dir, override)
    assert isinstance(error, SettingsError)
    assert len(error.problems) == 1 and error.problems[0].startswith(override.split("=")[0])
    assert words in error.problems[0]
    assert not run_dir.exists()


async def test_cancelling_stops_saves_and_returns(run_dir: Path, algorithm: str) -> None:
    started = asyncio.Event()

    async def host() -> None:
        async with Run(small_settings("budget.env_steps=1e8", algorithm=algorithm), run_dir=run_dir) as run:
            async for _ in run:
                started.set()

    task = asyncio.create_task(host())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert_no_tasks()
    assert status(run_dir)["state"] == "interrupted"
    assert (run_dir / "checkpoints" / "latest" / "manifest.json").exists()
    outcome = await resumed(run_dir, "budget.env_steps=1000")
    assert outcome.state == "completed"


async def test_an_exception_in_the_block_stops_the_run_and_comes_out(run_dir: Path) -> None:
    with pytest.raises(KeyError, match="of the host"):
        async with Run(small_settings("budget.env_steps=1e8", "runtime.kind=inline"), run_dir=run_dir):
            raise KeyError("of the host")
    assert_no_tasks()
    assert status(run_dir)["state"] == "interrupted"


async def test_pause_save_resume_stop(run_dir: Path, algorithm: str) -> None:
    async with Run(
        small_settings("budget.env_steps=1e8", "runtime.kind=inline", algorithm=algorithm), run_dir=run_dir
    ) as run:
        async for event in run:
            if isinstance(event, Progress):
                break
        run.pause()
        first = await run.save()
        assert first is not None and first == await run.save(), "nothing happens while paused"
        run.resume()
        async for event in run:
            if isinstance(event, Progress) and event.record["tick"] > int(first.name):
                break
        second = await run.save()
        assert second is not None and int(second.name) > int(first.name)
        run.stop()
        outcome = await run.wait()
    assert outcome.state == "interrupted" and outcome.checkpoint is not None


@pytest.mark.parametrize("role", ["collector", "learner"])
async def test_a_death_in_a_pause_is_noticed(run_dir: Path, algorithm: str, role: str) -> None:
    async with asyncio.timeout(30):
        with pytest.raises(WorkerCrashedError, match=f"{role} 0"):
            async with Run(small_settings("budget.env_steps=1e8", algorithm=algorithm), run_dir=run_dir) as run:
                async for event in run:
                    if isinstance(event, Progress):
                        break
                run.pause()
                await run.save()
                entries = status(run_dir)["workers"]
                os.kill(next(each["pid"] for each in entries if each["role"] == role), signal.SIGKILL)  # type: ignore[attr-defined]
                await run.wait()
    assert_no_tasks()
    assert status(run_dir)["error"]["worker"]["role"] == role  # type: ignore[index]


async def test_a_learner_killed_while_collectors_are_busy_is_noticed_at_once(run_dir: Path, algorithm: str) -> None:
    slow = ["env.id=aiorl.testing:SlowEnv", "env.kwargs.seconds=0.05", steps_of(algorithm, 200)]
    async with asyncio.timeout(30):  # the chunk takes 40 s
        with pytest.raises(WorkerCrashedError, match="learner 0"):
            async with Run(small_settings(*slow, "budget.env_steps=1e8", algorithm=algorithm), run_dir=run_dir) as run:
                async for _ in run:
                    break
                entries = json.loads((run_dir / "status.json").read_text())["workers"]
                os.kill(next(each["pid"] for each in entries if each["role"] == "learner"), signal.SIGKILL)
                await run.wait()


@pytest.mark.parametrize("cancels", [1, 2, 5])
async def test_cancelling_again_and_again_tears_no_clean_up(run_dir: Path, cancels: int) -> None:
    """The leak check of every test is what fails here: descriptors of a clean-up cut in half."""
    started = asyncio.Event()

    async def host() -> None:
        async with Run(small_settings("budget.env_steps=1e8"), run_dir=run_dir) as run:
            async for event in run:
                if isinstance(event, Progress):
                    started.set()

    task = asyncio.create_task(host())
    await started.wait()
    for _ in range(cancels):
        task.cancel()
        for _ in range(20):  # let it get somewhere
            await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert_no_tasks()
    assert status(run_dir)["state"] == "interrupted"


async def test_a_factory_that_cannot_travel_is_refused_before_anything_is_made(run_dir: Path) -> None:
    lock = __import__("threading").Lock()
    with pytest.raises(SettingsError, match="env_factory"):
        Run(small_settings(), run_dir=run_dir, env_factory=lambda: lock)
    assert not run_dir.exists()


async def test_runs_without_a_directory_of_their_own_get_one_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = small_settings("runtime.kind=inline", "budget.env_steps=80")
    runs = [Run(settings) for _ in range(3)]
    for run in runs:
        async with run:
            await run.wait()
    assert len({run.run_dir for run in runs}) == 3
    assert all((run.run_dir / "checkpoints" / "latest").exists() for run in runs)


async def test_a_failure_is_not_lost_behind_the_hosts_own(run_dir: Path) -> None:
    with pytest.raises(KeyError) as caught:
        async with Run(small_settings(TRAP, "runtime.kind=inline"), run_dir=run_dir) as run:
            async with asyncio.timeout(30):
                await asyncio.wait([run._driver])  # type: ignore[list-item]
            raise KeyError("of the host")
    assert any("the trap env has sprung" in note for note in caught.value.__notes__)


async def test_a_stop_after_the_last_tick_finds_a_completed_run(run_dir: Path) -> None:
    async with Run(small_settings("runtime.kind=inline"), run_dir=run_dir) as run:
        async for event in run:
            if isinstance(event, Progress) and event.record["tick"] == 25:
                run.stop()
        outcome = await run.wait()
    assert outcome.state == "completed"
