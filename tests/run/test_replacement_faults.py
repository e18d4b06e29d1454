"""Replacement where it is easily got wrong: over a save, in a pause, with grandchildren, again and again."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from aiorl import Progress, Run, Started, WorkerCrashedError, WorkerFailedError, WorkerReplaced
from aiorl.collector.service import CollectorService
from aiorl.runtime.process import ProcessWorker
from tests.conftest import small_settings
from tests.run.helpers import assert_no_tasks, experience, valid_rows
from tests.run.test_replacement import COUNT, REPLACE, TRAP, kill, manifest, status


async def test_a_checkpoint_over_which_a_collector_died_is_not_reproducible(
    run_dir: Path, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, died = CollectorService._save, []

    def save(self: CollectorService, request: Any) -> Any:
        if not died:
            died.append(1)
            raise RuntimeError("over Save")
        return real(self, request)

    monkeypatch.setattr(CollectorService, "_save", save)
    async with Run(small_settings(REPLACE, "runtime.kind=inline", algorithm=algorithm), run_dir=run_dir) as run:
        outcome = await run.wait()
    assert outcome.state == "completed" and not outcome.reproducible
    assert manifest(run_dir)["exact"] and not manifest(run_dir)["reproducible"]


async def test_saving_in_a_pause_in_the_middle_of_a_replacement(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, launching = ProcessWorker._launch, asyncio.Event()

    async def launch(self: ProcessWorker) -> Any:
        if self._start.incarnation:
            launching.set()
        return await real(self)

    monkeypatch.setattr(ProcessWorker, "_launch", launch)
    async with asyncio.timeout(30), Run(small_settings(REPLACE, "budget.env_steps=1e8"), run_dir=run_dir) as run:
        async for event in run:
            if isinstance(event, Progress):
                break
        run.pause()
        saved = await run.save()
        kill(run_dir)
        await launching.wait()
        assert await run.save() == saved
        async for event in run:
            if isinstance(event, WorkerReplaced):
                break
        run.stop()
        await run.wait()
    assert_no_tasks()


async def test_processes_of_an_async_vector_env_go_with_their_collector(run_dir: Path, algorithm: str) -> None:
    overrides = (*COUNT[: 1 + (algorithm == "appo")], "env.vectorization=async", "telemetry.interval_ticks=1")
    settings = small_settings(REPLACE, *overrides, algorithm=algorithm)
    async with asyncio.timeout(60), Run(settings, run_dir=run_dir) as run:
        forked: list[psutil.Process] = []
        async for event in run:
            if isinstance(event, Progress) and event.record["tick"] > 5 and not forked:
                pid = next(each["pid"] for each in status(run_dir)["workers"] if each["role"] == "collector")
                forked = psutil.Process(pid).children()
                assert len(forked) == 4
                kill(run_dir)
            if isinstance(event, WorkerReplaced):
                gone, alive = psutil.wait_procs(forked, timeout=10)
                assert not alive and len(gone) == 4
        outcome = await run.wait()
    assert outcome.state == "completed" and not outcome.reproducible
    rows = valid_rows(experience(algorithm, run_dir))
    assert np.array_equal(rows["next_obs"], rows["obs"] + 1)


@pytest.mark.parametrize("trap", ["kill", "exit", "hang", "raise"])
async def test_an_env_that_springs_once(run_dir: Path, tmp_path: Path, algorithm: str, trap: str) -> None:
    short = ("runtime.first_deadline_s=3", "runtime.deadline_s=1")
    once = (f"env.kwargs.trap={trap}", f"env.kwargs.once={tmp_path / 'sprung'}", "env.kwargs.at=18")
    settings = small_settings(
        REPLACE, TRAP, COUNT[1] if algorithm == "appo" else TRAP, *short, *once, algorithm=algorithm
    )
    async with asyncio.timeout(60), Run(settings, run_dir=run_dir) as run:
        events = [event async for event in run]
        outcome = await run.wait()
    (event,) = [each for each in events if isinstance(each, WorkerReplaced)]
    words = {"kill": "SIGKILL", "exit": "code 9", "hang": "did not answer", "raise": "the trap env has sprung"}
    assert words[trap] in event.cause and event.role == "collector" and event.index == 0
    # Steps 17 of the run is the first of its tick: 16 vector steps were there, of APPO none of the rollout.
    assert event.rows_kept == (68 if algorithm == "sac" else 4)
    assert outcome.state == "completed" and outcome.env_steps == 400 and not outcome.reproducible
    columns = experience(algorithm, run_dir)
    assert columns["valid"].shape == (100, 4) and columns["cut"].sum() == 4
    rows = valid_rows(columns)
    assert np.array_equal(rows["next_obs"], rows["obs"] + 1)


async def test_too_many_deaths_end_it_at_once_with_a_checkpoint_that_can_be_resumed(
    run_dir: Path, algorithm: str
) -> None:
    settings = small_settings(
        REPLACE,
        "collection.max_replacements=1",
        "budget.env_steps=1e8",
        "telemetry.interval_ticks=1",
        algorithm=algorithm,
    )
    killed = 0
    async with asyncio.timeout(30):
        with pytest.raises(WorkerCrashedError, match=r"SIGKILL.*collection\.max_replacements=1"):
            async with Run(settings, run_dir=run_dir) as run:
                async for event in run:
                    if isinstance(event, WorkerReplaced) and event.pid is not None:
                        os.kill(event.pid, signal.SIGKILL)  # status.json may not say it yet
                        killed += 1
                    elif isinstance(event, Progress) and not killed:
                        kill(run_dir)
                        killed += 1
    assert killed == 2 and not manifest(run_dir)["exact"] and not manifest(run_dir)["reproducible"]
    budget = f"budget.env_steps={manifest(run_dir)['env_steps'] + 160}"
    async with Run.reopen(run_dir, overrides=[budget], environ={}) as run:
        outcome = await run.wait()
    assert outcome.state == "completed" and not outcome.reproducible


async def test_an_env_that_cannot_be_made_again_spends_the_budget(run_dir: Path, tmp_path: Path) -> None:
    """The first one starts; every later one dies in its constructor."""
    settings = small_settings(REPLACE, "collection.max_replacements=2", "budget.env_steps=1e8")

    def factory(sprung: str = str(tmp_path / "sprung")) -> Any:
        from aiorl.testing import CountEnv

        if os.path.exists(sprung):
            raise RuntimeError("no second time")
        return CountEnv()

    async with asyncio.timeout(60):
        with pytest.raises(Exception, match="no second time") as caught:
            async with Run(settings, run_dir=run_dir, env_factory=factory) as run:
                async for event in run:
                    if isinstance(event, Started):
                        Path(tmp_path / "sprung").touch()
                        kill(run_dir)
    assert str(caught.value).count("max_replacements") == 1, caught.value
    assert isinstance(caught.value, WorkerFailedError) or "Startup" in type(caught.value).__name__


async def test_a_stopped_process_is_replaced(run_dir: Path, algorithm: str) -> None:
    short = ("runtime.first_deadline_s=3", "runtime.deadline_s=1")
    settings = small_settings(REPLACE, *short, "telemetry.interval_ticks=1", algorithm=algorithm)
    stopped = False
    async with asyncio.timeout(30), Run(settings, run_dir=run_dir) as run:
        async for event in run:
            if isinstance(event, Progress) and not stopped:
                workers = status(run_dir)["workers"]
                os.kill(next(each["pid"] for each in workers if each["role"] == "collector"), signal.SIGSTOP)
                stopped = True
        outcome = await run.wait()
    assert outcome.state == "completed" and not outcome.reproducible
