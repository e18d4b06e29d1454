"""Collectors that are killed and replaced, as a host sees it; every phase and cause is in tests/endings."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aiorl import EnvError, Outcome, Progress, Run, Started, WorkerCrashedError, WorkerFailedError, WorkerReplaced
from tests.conftest import small_settings
from tests.run.helpers import assert_no_tasks, experience, train, valid_rows

REPLACE = "collection.on_collector_death=replace"
COUNT = ("env.id=aiorl.testing:CountEnv", "telemetry.dump_rollouts=true")
TRAP = "env.id=aiorl.testing:TrapEnv"


def status(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "status.json").read_text())  # type: ignore[no-any-return]


def pid_of(run_dir: Path, role: str = "collector", index: int = 0) -> int:
    workers = status(run_dir)["workers"]
    return int(next(each["pid"] for each in workers if (each["role"], each["index"]) == (role, index)))


def kill(run_dir: Path, role: str = "collector") -> None:
    os.kill(pid_of(run_dir, role), signal.SIGKILL)


def manifest(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "checkpoints" / "latest" / "manifest.json").read_text())  # type: ignore[no-any-return]


async def test_one_after_another_dies_and_the_run_completes(run_dir: Path, algorithm: str) -> None:
    overrides = COUNT[: 1 + (algorithm == "appo")]
    settings = small_settings(
        REPLACE, *overrides, "collection.collectors=2", "budget.env_steps=1600", "telemetry.interval_ticks=1",
        algorithm=algorithm,
    )  # fmt: skip
    replaced: list[WorkerReplaced] = []
    pids: dict[int, int] = {}
    async with Run(settings, run_dir=run_dir) as run:
        async for event in run:
            if not isinstance(event, Progress) or len(replaced) == 4 or event.record["tick"] <= 20 * len(replaced):
                continue
            os.kill(pids.get(len(replaced) % 2) or pid_of(run_dir, index=len(replaced) % 2), signal.SIGKILL)
            while not isinstance(event := await anext(run), WorkerReplaced):
                pass
            replaced.append(event)
            assert "SIGKILL" in event.cause and event.pid is not None
            pids[event.index] = event.pid
        outcome = await run.wait()
    assert outcome.state == "completed" and not outcome.reproducible and len(replaced) == 4
    assert [event.index for event in replaced] == [0, 1, 0, 1]
    assert manifest(run_dir)["exact"] and not manifest(run_dir)["reproducible"]
    assert status(run_dir)["reproducible"] is False
    for index in (0, 1):
        columns = experience(algorithm, run_dir, index)
        assert columns["valid"].shape == (400, 2)
        rows = valid_rows(columns)
        assert np.array_equal(rows["next_obs"], rows["obs"] + 1)

    async with Run.reopen(run_dir, overrides=["budget.env_steps=1700"], environ={}) as run:
        resumed = await run.wait()
    assert resumed.state == "completed" and not resumed.reproducible and not manifest(run_dir)["reproducible"]
    assert_no_tasks()


async def test_an_env_that_always_fails_spends_the_budget(run_dir: Path, algorithm: str) -> None:
    settings = small_settings(REPLACE, TRAP, "env.kwargs.at=20", "collection.max_replacements=2", algorithm=algorithm)
    with pytest.raises(WorkerFailedError, match=r"trap env has sprung; collection\.max_replacements=2") as caught:
        await train(settings, run_dir)
    assert "_spring" in str(caught.value.__cause__)
    log = [json.loads(line)["event"] for line in (run_dir / "log.jsonl").read_text().splitlines()]
    assert sum(event.startswith("collector 0 was replaced") for event in log) == 2
    assert status(run_dir)["state"] == "failed" and manifest(run_dir)["exact"] is False


async def test_a_value_that_is_not_finite_is_not_made_good(run_dir: Path) -> None:
    settings = small_settings(REPLACE, TRAP, "env.kwargs.trap=nan_obs", "runtime.kind=inline")
    with pytest.raises(EnvError, match="not finite"):
        await train(settings, run_dir)


async def test_a_thread_is_replaced_too(run_dir: Path, tmp_path: Path) -> None:
    once = ("env.kwargs.at=20", f"env.kwargs.once={tmp_path / 'sprung'}")
    outcome = await train(small_settings(REPLACE, TRAP, *once, "runtime.kind=inline"), run_dir)
    assert outcome.state == "completed" and not outcome.reproducible


async def test_a_death_in_a_pause_is_made_good_in_the_pause(run_dir: Path, algorithm: str) -> None:
    async with Run(small_settings(REPLACE, "budget.env_steps=1e8", algorithm=algorithm), run_dir=run_dir) as run:
        async for event in run:
            if isinstance(event, Progress):
                break
        run.pause()
        saved = await run.save()
        kill(run_dir)
        async for event in run:
            if isinstance(event, WorkerReplaced):
                break
        assert await run.save() == saved, "nothing was collected meanwhile"
        run.resume()
        async for event in run:
            if isinstance(event, Progress) and saved is not None and event.record["tick"] > int(saved.name):
                break
        run.stop()
        outcome = await run.wait()
    assert outcome.state == "interrupted" and manifest(run_dir)["exact"]


@pytest.mark.parametrize("order", ["stop", "save", "cancel", "abort"])
async def test_orders_in_the_middle_of_a_replacement(run_dir: Path, order: str) -> None:
    async def host() -> Outcome:
        settings = small_settings(REPLACE, "budget.env_steps=1e8", "telemetry.interval_ticks=1")
        async with Run(settings, run_dir=run_dir) as run:
            async for event in run:
                if isinstance(event, Progress) and event.record["tick"] > 8:
                    break
            kill(run_dir)
            match order:
                case "stop":
                    run.stop()
                case "save":
                    assert await run.save() is not None
                    run.stop()
                case "cancel":
                    task = asyncio.current_task()
                    assert task is not None
                    task.cancel()
                case "abort":
                    run.abort()
            return await run.wait()

    task = asyncio.create_task(host())
    async with asyncio.timeout(20):
        (end,) = await asyncio.gather(task, return_exceptions=True)
    assert_no_tasks()
    if order in ("stop", "save"):
        assert isinstance(end, Outcome) and end.state == "interrupted" and manifest(run_dir)["exact"], end
    else:
        assert isinstance(end, BaseException)


async def test_a_learner_is_never_replaced(run_dir: Path) -> None:
    with pytest.raises(WorkerCrashedError, match="learner 0"):
        async with Run(small_settings(REPLACE, "budget.env_steps=1e8"), run_dir=run_dir) as run:
            async for event in run:
                if isinstance(event, Started):
                    kill(run_dir, "learner")
    assert_no_tasks()
