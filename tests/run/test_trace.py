"""Traces of real runs: every process in them, no moment twice, and the training untouched by it."""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path

import pytest

from aiorl import AiorlError, Progress, Run, WorkerReplaced
from aiorl.telemetry.trace.cycles import Cycles
from aiorl.telemetry.trace.merging import Recorded, merge, read_trace
from tests.conftest import small_settings
from tests.run.helpers import assert_same_checkpoint, train

PHASES = {
    "sac": {
        "collector": {"wait", "weight_sync", "action_select", "env_step", "replay", "pack", "reply", "save"},
        "learner": {"wait", "stage", "critic", "actor", "temperature", "target", "metrics", "publish", "reply", "save"},
    },
    "appo": {
        "collector": {"wait", "weight_sync", "action_select", "env_step", "replay", "reply", "save"},
        "learner": {"wait", "stage", "judge", "minibatch", "statistics", "metrics", "publish", "reply", "save"},
    },
}


def by_process(run_dir: Path) -> dict[tuple[str, str], Recorded]:
    return {(each.process, each.thread): each for each in read_trace(run_dir / "trace.json")}


@pytest.mark.parametrize("kind", ["process", "inline"])
async def test_every_process_says_what_it_did(algorithm: str, kind: str, run_dir: Path) -> None:
    settings = small_settings(
        "collection.collectors=2", "telemetry.trace=true", f"runtime.kind={kind}", algorithm=algorithm
    )
    outcome = await train(settings, run_dir)
    found = by_process(run_dir)
    assert {process for process, _ in found} == {"coordinator", "collector 0", "collector 1", "learner 0"}
    for role in ("collector 0", "collector 1", "learner 0"):
        slices = found[role, "main"].slices
        assert all(one.end_ns == other.begin_ns for one, other in itertools.pairwise(slices))
        assert all(0 <= each.cpu_ns <= each.end_ns - each.begin_ns + 2_000_000 for each in slices)
        last = {each.name for each in slices if each.tick == outcome.tick}
        assert last == PHASES[algorithm][role.split(" ")[0]]
        ticks = [each.tick for each in slices if each.tick]
        assert ticks == sorted(ticks)
        assert set(ticks) >= set(range(outcome.tick - 5, outcome.tick + 1))
    calls = found["coordinator", "learner 0"].slices
    updates = [each.tick for each in calls if each.name.startswith("Update")]
    assert updates == list(range(updates[0], outcome.tick + 1))
    assert len(found["coordinator", "loop"].slices) == outcome.tick  # a report a tick
    cycles = Cycles(list(found.values()))
    assert cycles.ticks == updates[1:]
    assert not (run_dir / "trace").exists()


async def test_a_trace_changes_nothing(algorithm: str, tmp_path: Path) -> None:
    with_trace = await train(small_settings("telemetry.trace=true", algorithm=algorithm), tmp_path / "with")
    without = await train(small_settings(algorithm=algorithm), tmp_path / "without")
    assert with_trace.checkpoint and without.checkpoint
    assert_same_checkpoint(with_trace.checkpoint, without.checkpoint)
    assert not list((tmp_path / "without").glob("*trace*"))


async def test_only_the_newest_slices_are_kept(run_dir: Path) -> None:
    settings = small_settings("telemetry.trace=true", "telemetry.trace_slices=100", "budget.env_steps=8000")
    outcome = await train(settings, run_dir)
    found = by_process(run_dir)
    for role in ("collector 0", "learner 0"):
        slices = found[role, "main"].slices
        assert slices[-1].name == "save"
        assert slices[0].tick > 1  # as many as were written at a time, or twice, and not all of them
        assert any(each.tick == outcome.tick for each in slices)


async def test_a_collector_that_is_replaced_has_a_thread_of_its_own(run_dir: Path) -> None:
    settings = small_settings("telemetry.trace=true", "collection.on_collector_death=replace", "budget.env_steps=4000")
    killed = False
    async with Run(settings, run_dir=run_dir) as run:
        async for event in run:
            if isinstance(event, Progress) and not killed:
                killed = True
                (status,) = [each for each in run_status(run_dir) if each["role"] == "collector"]
                os.kill(status["pid"], signal.SIGKILL)
            replaced = isinstance(event, WorkerReplaced)
            assert not replaced or killed
    found = by_process(run_dir)
    assert found["collector 0", "replacement 1"].slices
    assert Cycles(list(found.values())).ticks


async def test_a_run_that_fails_leaves_its_trace(run_dir: Path) -> None:
    settings = small_settings("telemetry.trace=true", "budget.env_steps=1000000")
    with pytest.raises(AiorlError, match="SIGKILL"):
        async with Run(settings, run_dir=run_dir) as run:
            async for event in run:
                if isinstance(event, Progress):
                    (status,) = [each for each in run_status(run_dir) if each["role"] == "learner"]
                    os.kill(status["pid"], signal.SIGKILL)
    found = by_process(run_dir)
    assert "collector 0" in {process for process, _ in found}
    assert found["coordinator", "learner 0"].slices[-1].name == "Update"


async def test_what_an_aborted_run_has_recorded_can_be_put_together(run_dir: Path) -> None:
    settings = small_settings("telemetry.trace=true", "budget.env_steps=1000000")
    async with Run(settings, run_dir=run_dir) as run:
        async for event in run:
            if isinstance(event, Progress) and event.record["tick"] > 200:
                run.abort()
                break
    assert not (run_dir / "trace.json").exists()
    assert merge(run_dir)
    assert "learner 0" in {process for process, _ in by_process(run_dir)}


def run_status(run_dir: Path) -> list[dict[str, int | str]]:
    import json

    workers: list[dict[str, int | str]] = json.loads((run_dir / "status.json").read_text())["workers"]
    return workers
