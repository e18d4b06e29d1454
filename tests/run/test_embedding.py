"""A run in somebody else's loop: it neither blocks it nor leaves a mark on its host."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from pathlib import Path

import pytest
import torch

from aiorl import Evaluated, Finished, Outcome, Progress, Run, RunSettings, Saved, Started
from aiorl.event_stream import KEPT_PROGRESS, EventStream
from aiorl.events import Event
from tests.conftest import small_settings
from tests.run.helpers import assert_same_checkpoint, events_of, train


async def test_events_come_in_order_and_end_with_finished(run_dir: Path) -> None:
    settings = small_settings("evaluation.at_end=true", "checkpoint.every_env_steps=200")
    events = await events_of(Run(settings, run_dir=run_dir))
    kinds = [type(event) for event in events]
    assert kinds[0] is Started and kinds[-2:] == [Evaluated, Finished]
    assert kinds.count(Saved) == 2
    ticks = [event.record["tick"] for event in events if isinstance(event, Progress)]
    assert ticks == [5, 10, 13, 18, 23, 25], "every interval, and where a checkpoint is, so that a resume leaves no gap"


def test_a_slow_consumer_loses_the_oldest_progress_only() -> None:
    stream = EventStream()
    stream.put(Started(Path(), 0, 0))
    for tick in range(KEPT_PROGRESS + 10):
        stream.put(Progress({"tick": tick}))
    stream.put(Saved(Path(), 1, 1))
    events: list[Event] = []
    while (event := stream.take()) is not None:
        events.append(event)
    assert isinstance(events[0], Started) and isinstance(events[-1], Saved)
    kept = [event.record["tick"] for event in events if isinstance(event, Progress)]
    assert kept == list(range(10, KEPT_PROGRESS + 10))


def waited_for_a_core_s() -> float:
    """How long this thread could have run and had no core: what others on the machine cost it, not what we do."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


async def test_the_loop_is_never_blocked_for_long(run_dir: Path) -> None:
    gaps: list[float] = []
    loop = asyncio.get_running_loop()

    async def ticker() -> None:
        last = loop.time() - waited_for_a_core_s()
        while True:
            await asyncio.sleep(0.005)
            now = loop.time() - waited_for_a_core_s()
            gaps.append(now - last)
            last = now

    ticking = asyncio.create_task(ticker())
    await just_run(small_settings("telemetry.tensorboard=true"), run_dir)
    ticking.cancel()
    await asyncio.gather(ticking, return_exceptions=True)
    assert max(gaps) < 0.05, "held up, not counting the time in which it waited for a core"


async def just_run(settings: RunSettings, run_dir: Path) -> Outcome:
    async with Run(settings, run_dir=run_dir) as run:
        return await run.wait()


async def test_the_host_is_left_as_it_was(run_dir: Path) -> None:
    def marks() -> object:
        handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
        root = logging.getLogger()
        return (
            handlers,
            list(root.handlers),
            root.level,
            logging.getLogger("aiorl").handlers,
            dict(os.environ),
            type(asyncio.get_event_loop_policy()),
            torch.get_num_threads(),
            os.getcwd(),
        )

    before = marks()
    await train(small_settings(), run_dir)
    assert marks() == before


@pytest.mark.parametrize("kind", ["inline", "process"])
async def test_two_runs_at_once_and_one_after_another(tmp_path: Path, kind: str) -> None:
    one, two = await asyncio.gather(
        just_run(small_settings(f"runtime.kind={kind}"), tmp_path / "one"),
        just_run(small_settings(f"runtime.kind={kind}", "seed=1"), tmp_path / "two"),
    )
    assert one.state == two.state == "completed"
    third = await train(small_settings(f"runtime.kind={kind}"), tmp_path / "three")
    assert third.state == "completed"
    assert one.checkpoint and two.checkpoint and third.checkpoint
    assert_same_checkpoint(one.checkpoint, third.checkpoint)


async def test_an_absent_consumer_holds_nothing_back(run_dir: Path) -> None:
    async with Run(small_settings("runtime.kind=inline", "telemetry.interval_ticks=1"), run_dir=run_dir) as run:
        outcome = await run.wait()
        first = await anext(run)
    assert outcome.state == "completed" and isinstance(first, Started)


async def test_a_run_is_entered_once_and_before_it_is_used(run_dir: Path) -> None:
    run = Run(small_settings("runtime.kind=inline"), run_dir=run_dir)
    with pytest.raises(Exception, match="enter the run first"):
        run.stop()
    async with run:
        await run.wait()
    with pytest.raises(Exception, match="entered once"):
        async with run:
            raise AssertionError("unreachable")
    with pytest.raises(Exception, match="has ended"):
        await run.save()
