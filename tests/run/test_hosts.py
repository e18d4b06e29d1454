"""Hosts of all kinds: scripts, threads, loops, exceptions at any moment, orders at any moment, odd consumers."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from aiorl import AiorlError, Evaluated, Finished, Outcome, Progress, Run, Saved, Started, train
from aiorl.event_stream import KEPT_PROGRESS
from tests.conftest import SMALL, small_settings
from tests.run.helpers import assert_no_tasks

ENDLESS = ("budget.env_steps=1e8", "runtime.kind=inline")
SCRIPT = f"""
import asyncio, os, sys
import aiorl

with open("started", "a") as file:
    file.write(f"{{os.getpid()}}\\n")
settings = aiorl.load_settings("sac/pendulum", overrides={list(SMALL["sac"])})
"""
START = 'print(aiorl.train(settings, run_dir="run").state)\n'


def run_python(*arguments: str, cwd: Path, stdin: str | None = None, timeout: float = 60) -> tuple[int, str, str]:
    """Run an interpreter to its end, and to that of everything which holds its stderr, as its workers do."""
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=cwd, input=stdin, capture_output=True, text=True, timeout=timeout)
    return done.returncode, done.stdout, done.stderr


def test_a_script_on_stdin_is_told_that_workers_cannot_import_it(tmp_path: Path) -> None:
    code, out, err = run_python("-", cwd=tmp_path, stdin=SCRIPT + START)
    assert code == 1 and out == ""
    last = err.strip().splitlines()[-1]
    assert "<stdin>" in last and "run it from a file" in last, err
    assert len((tmp_path / "started").read_text().splitlines()) == 1, "no worker was started"


def test_a_script_in_an_argument(tmp_path: Path) -> None:
    code, out, err = run_python("-c", SCRIPT + START, cwd=tmp_path)
    assert (code, out, err) == (0, "completed\n", "")


@pytest.mark.parametrize(
    "start",
    [
        START,
        "async def main():\n    async with aiorl.Run(settings, run_dir='run') as run:"
        "\n        await run.wait()\nasyncio.run(main())\n",
    ],
    ids=["train", "run"],
)
def test_a_script_without_a_main_guard_is_told_so(tmp_path: Path, start: str) -> None:
    (tmp_path / "script.py").write_text(SCRIPT + start)
    code, out, err = run_python("script.py", cwd=tmp_path, timeout=10)
    assert code == 1 and out == ""
    last = err.strip().splitlines()[-1]
    assert last.startswith("aiorl.errors.") and "if __name__ == '__main__':" in last, err
    assert len((tmp_path / "started").read_text().splitlines()) <= 4, "itself, its two workers, and no storm"


def test_a_loop_of_a_thread(run_dir: Path) -> None:
    started, results = threading.Event(), []

    async def host() -> Outcome:
        async with Run(small_settings("telemetry.interval_ticks=1"), run_dir=run_dir) as run:
            async for _ in run:
                started.set()
        return await run.wait()

    def thread() -> None:
        with asyncio.Runner() as runner:
            results.append(runner.run(host()))

    training = threading.Thread(target=thread)
    training.start()
    assert started.wait(60)
    # The main thread does as it likes meanwhile, with a loop of its own.
    other = asyncio.run(_small_outcome(run_dir.with_name("other"), "runtime.kind=inline"))
    training.join(60)
    assert not training.is_alive()
    assert [outcome.state for outcome in (*results, other)] == ["completed", "completed"]


async def _small_outcome(run_dir: Path, *overrides: str) -> Outcome:
    async with Run(small_settings(*overrides), run_dir=run_dir) as run:
        return await run.wait()


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run], ids=["asyncio.run", "uvloop.run"])
def test_runners(tmp_path: Path, runner: Callable[[Coroutine[Any, Any, Outcome]], Outcome]) -> None:
    for kind in ("process", "inline"):  # in a loop after the other
        assert runner(_small_outcome(tmp_path / kind, f"runtime.kind={kind}")).state == "completed"


async def test_train_refuses_a_running_loop_at_once(run_dir: Path) -> None:
    with pytest.raises(AiorlError, match=r"use `async with aiorl.Run\(settings\) as run`"):
        train(small_settings(), run_dir=run_dir)
    assert not run_dir.exists()


class HostError(Exception):
    """The host's own."""


Moment = type[Started | Progress | Saved | Evaluated | Finished]


async def until(run: Run, kind: Moment) -> None:
    async for event in run:
        if isinstance(event, kind):
            return
    raise AssertionError(f"no {kind.__name__}")


@pytest.mark.parametrize("moment", [Started, Saved, Evaluated, Finished])
async def test_an_exception_of_the_host_at_any_moment(run_dir: Path, moment: Moment) -> None:
    # The evaluation draws a curve, and matplotlib keeps its fonts open: not in this process.
    kind, at_end = ("process", "true") if moment is Evaluated else ("inline", "false")
    overrides = [f"runtime.kind={kind}", "checkpoint.every_env_steps=160", f"evaluation.at_end={at_end}"]
    with pytest.raises(HostError) as caught:
        async with Run(small_settings(*overrides), run_dir=run_dir) as run:
            await until(run, moment)
            raise HostError
    assert not hasattr(caught.value, "__notes__"), "the run did not fail"
    assert_no_tasks()
    state = json.loads((run_dir / "status.json").read_text())["state"]
    assert state == "interrupted" if moment in (Started, Saved) else state == "completed"
    assert (await run.wait()).state == state


async def test_an_exception_of_the_host_in_a_pause(run_dir: Path) -> None:
    with pytest.raises(HostError):
        async with Run(small_settings(*ENDLESS), run_dir=run_dir) as run:
            await until(run, Progress)
            run.pause()
            await run.save()
            raise HostError
    assert_no_tasks()
    assert (await run.wait()).checkpoint is not None


async def test_orders_before_it_has_started(run_dir: Path) -> None:
    async with Run(small_settings(*ENDLESS), run_dir=run_dir) as run:
        run.pause()
        assert await run.save() is None, "there is nothing to save yet"
        run.resume()
        run.pause()
        run.stop("seen enough")
        outcome = await run.wait()
        with pytest.raises(AiorlError, match="has ended"):
            await run.save()
    assert (outcome.state, outcome.tick, outcome.checkpoint) == ("interrupted", 0, None)


@pytest.mark.parametrize("moment", ["warm-up", "mid chunk"])
async def test_orders_in_the_warm_up_and_in_the_middle_of_a_chunk(run_dir: Path, moment: str) -> None:
    overrides = [*ENDLESS, "telemetry.interval_ticks=1"]
    if moment == "warm-up":
        overrides += ["collection.learning_starts=1e6", "replay.capacity=1e6"]
    else:
        overrides += ["env.id=aiorl.testing:SlowEnv", "env.kwargs.seconds=0.01"]
    async with Run(small_settings(*overrides), run_dir=run_dir) as run:
        await until(run, Progress)
        saved, _ = await asyncio.gather(run.save(), run.save())  # both at once are one
        run.pause()
        paused = await run.save()
        run.resume()
        async for event in run:
            if isinstance(event, Progress) and event.record["tick"] > int(str(paused and paused.name)):
                break
        run.stop()
        run.pause()  # too late: it ends
        outcome = await run.wait()
    assert saved and paused and outcome.checkpoint
    assert int(saved.name) <= int(paused.name) < int(outcome.checkpoint.name) == outcome.tick
    assert outcome.state == "interrupted" and (outcome.gradient_steps == 0) == (moment == "warm-up")


async def test_orders_in_the_final_evaluation(run_dir: Path) -> None:
    slow = ["env.id=aiorl.testing:SlowEnv", "env.kwargs.seconds=0.002", "env.kwargs.length=100000"]
    settings = small_settings(*slow, "runtime.kind=inline", "evaluation.at_end=true", "evaluation.num_envs=1")
    async with Run(settings, run_dir=run_dir) as run:
        await until(run, Saved)
        run.pause()  # nothing is trained any more that it could hold up
        saved = await run.save()
        run.resume()
        run.stop()  # the evaluation would take minutes
        outcome = await run.wait()
    assert outcome.state == "completed" and outcome.evaluation is None
    assert saved == outcome.checkpoint and saved is not None


async def test_orders_after_the_end_do_nothing(run_dir: Path) -> None:
    async with Run(small_settings("runtime.kind=inline"), run_dir=run_dir) as run:
        outcome = await run.wait()
        run.pause()
        run.resume()
        run.stop()
        run.abort()
    run.stop()
    assert await run.wait() is outcome
    assert [type(event) async for event in run][-1] is Finished, "events can be read after the block"


async def test_a_save_at_the_last_moments_gets_a_checkpoint(run_dir: Path) -> None:
    """Whoever asks before the end is told where the state is: never that it could not be saved."""
    paths: list[Path | None] = []
    async with Run(small_settings("runtime.kind=inline", "telemetry.interval_ticks=1"), run_dir=run_dir) as run:
        async for event in run:
            if isinstance(event, Finished):
                break
            try:
                paths.append(await run.save())
            except AiorlError as error:
                assert "the run has ended" in str(error)
        outcome = await run.wait()
    assert paths[-1] == outcome.checkpoint and None not in paths[1:]


async def test_abort_writes_nothing_more(run_dir: Path) -> None:
    async with Run(small_settings(*ENDLESS), run_dir=run_dir) as run:
        await until(run, Progress)
        saved = await run.save()
        run.abort()
        for waiting in (run.wait, lambda: until(run, Finished)):
            with pytest.raises(AiorlError, match="the run was aborted"):
                await waiting()
    assert saved is not None
    assert os.readlink(run_dir / "checkpoints" / "latest") == saved.name
    assert json.loads((run_dir / "status.json").read_text())["state"] == "interrupted"


async def test_a_consumer_slower_than_training_sees_the_newest(run_dir: Path) -> None:
    ticks = KEPT_PROGRESS + 40
    few_updates = ["collection.learning_starts=4600", "replay.capacity=5000"]
    overrides = ["telemetry.interval_ticks=1", f"budget.env_steps={ticks * 16}", *few_updates]
    kept: list[int] = []
    others: list[type] = []
    async with Run(small_settings("runtime.kind=inline", *overrides), run_dir=run_dir) as run:
        async for event in run:
            if not others:
                await run.wait()  # it takes its time over the first event
            if isinstance(event, Progress):
                kept.append(int(event.record["tick"]))
            else:
                others.append(type(event))
    assert kept == list(range(ticks - KEPT_PROGRESS + 1, ticks + 1))
    assert others == [Started, Saved, Finished]
    assert len((run_dir / "metrics.jsonl").read_text().splitlines()) == ticks, "the file has them all"


async def test_two_consumers_share_the_events(run_dir: Path) -> None:
    async def consume(run: Run) -> list[Any]:
        return [event async for event in run]

    async with Run(small_settings("runtime.kind=inline", "telemetry.interval_ticks=1"), run_dir=run_dir) as run:
        async with asyncio.timeout(60):
            one, two = await asyncio.gather(consume(run), consume(run))
    ticks = sorted(event.record["tick"] for event in [*one, *two] if isinstance(event, Progress))
    assert ticks == list(range(1, 26)), "each event goes to one of them"
    assert sum(isinstance(event, Finished) for event in [*one, *two]) == 1


async def test_a_wait_that_is_cancelled_leaves_the_run_going(run_dir: Path) -> None:
    async with Run(small_settings(*ENDLESS), run_dir=run_dir) as run:
        orders: list[Awaitable[object]] = [run.wait(), anext(run)]
        for order in orders:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await order
        await until(run, Progress)
