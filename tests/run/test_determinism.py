"""The same settings and seed give the same files, bit for bit, wherever and however a run is driven."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import uvloop

from aiorl import Run, Started
from tests.conftest import lead_of, small_settings
from tests.run.helpers import assert_same_checkpoint, files, train

LEADS = pytest.mark.parametrize(("algorithm", "lead"), [("sac", 0), ("sac", 1), ("appo", 0), ("appo", 1), ("appo", 2)])


def checkpoint_of(tmp_path: Path, name: str, *overrides: str, algorithm: str, loop: str = "asyncio") -> Path:
    factory = uvloop.new_event_loop if loop == "uvloop" else None
    with asyncio.Runner(loop_factory=factory) as runner:
        outcome = runner.run(train(small_settings(*overrides, algorithm=algorithm), tmp_path / name))
    assert outcome.state == "completed" and outcome.checkpoint is not None
    return outcome.checkpoint


@LEADS
@pytest.mark.parametrize(("collectors", "normalise"), [(1, "false"), (2, "true")])
def test_twice_the_same(tmp_path: Path, algorithm: str, lead: int, collectors: int, normalise: str) -> None:
    overrides = [
        lead_of(algorithm, lead),
        f"collection.collectors={collectors}",
        f"algorithm.normalise_observations={normalise}",
        "runtime.kind=inline",
    ]
    one = checkpoint_of(tmp_path, "one", *overrides, algorithm=algorithm)
    two = checkpoint_of(tmp_path, "two", *overrides, algorithm=algorithm)
    assert_same_checkpoint(one, two)
    other = checkpoint_of(tmp_path, "other", *overrides, "seed=1", algorithm=algorithm)
    same = [name for name, data in files(one).items() if data == files(other)[name]]
    assert not same


@pytest.mark.parametrize(("algorithm", "lead"), [("sac", 0), ("sac", 1), ("appo", 1)])
@pytest.mark.parametrize("collectors", [1, 2])
def test_processes_are_threads_and_loops_are_loops(tmp_path: Path, algorithm: str, lead: int, collectors: int) -> None:
    overrides = [lead_of(algorithm, lead), f"collection.collectors={collectors}"]
    inline = checkpoint_of(tmp_path, "inline", *overrides, "runtime.kind=inline", algorithm=algorithm)
    process = checkpoint_of(tmp_path, "process", *overrides, algorithm=algorithm)
    on_uvloop = checkpoint_of(tmp_path, "uvloop", *overrides, loop="uvloop", algorithm=algorithm)
    assert_same_checkpoint(inline, process)
    assert_same_checkpoint(process, on_uvloop)


@LEADS
@pytest.mark.parametrize("collectors", [1, 2])
def test_saving_on_the_way_changes_nothing(tmp_path: Path, algorithm: str, lead: int, collectors: int) -> None:
    overrides = [lead_of(algorithm, lead), f"collection.collectors={collectors}", "runtime.kind=inline"]
    plain = checkpoint_of(tmp_path, "plain", *overrides, algorithm=algorithm)
    saving = checkpoint_of(tmp_path, "saving", *overrides, "checkpoint.every_env_steps=50", algorithm=algorithm)
    assert_same_checkpoint(plain, saving)


@pytest.mark.parametrize(
    ("algorithm", "lead", "collectors"),
    [("sac", 0, 1), ("sac", 0, 2), ("sac", 1, 1), ("sac", 1, 2), ("appo", 0, 1), ("appo", 1, 2), ("appo", 2, 1)],
)
def test_stopped_and_resumed_is_straight_through(tmp_path: Path, algorithm: str, lead: int, collectors: int) -> None:
    overrides = [
        lead_of(algorithm, lead),
        f"collection.collectors={collectors}",
        "algorithm.normalise_observations=true",
        "runtime.kind=inline",
    ]
    straight = checkpoint_of(tmp_path, "straight", *overrides, algorithm=algorithm)
    for middle in (64, 80, 208):  # SAC's first update, its second, and well under way
        checkpoint_of(tmp_path, f"{middle}", *overrides, f"budget.env_steps={middle}", algorithm=algorithm)
        assert_same_checkpoint(straight, asyncio.run(resume(tmp_path / f"{middle}", "budget.env_steps=400")))


@pytest.mark.parametrize("lead", [0, 1])
def test_interrupted_in_the_warm_up_and_resumed_is_straight_through(tmp_path: Path, lead: int) -> None:
    """The statistics of the warm-up's observations are pending then, and belong to the checkpoint."""
    overrides = [
        f"collection.lead={lead}",
        "algorithm.normalise_observations=true",
        "collection.learning_starts=320",
        "runtime.kind=inline",
    ]
    straight = checkpoint_of(tmp_path, "straight", *overrides, algorithm="sac")

    async def interrupted() -> int:
        async with Run(small_settings(*overrides, algorithm="sac"), run_dir=tmp_path / "parts") as run:
            async for event in run:
                if isinstance(event, Started):
                    run.stop()
            outcome = await run.wait()
        assert outcome.state == "interrupted"
        return outcome.env_steps

    assert 0 < asyncio.run(interrupted()) < 320
    assert_same_checkpoint(straight, asyncio.run(resume(tmp_path / "parts")))


async def resume(run_dir: Path, *overrides: str) -> Path:
    async with Run.reopen(run_dir, overrides=overrides, environ={}) as run:
        outcome = await run.wait()
    assert outcome.state == "completed" and outcome.checkpoint is not None
    return outcome.checkpoint


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_an_older_on_policy_checkpoint_is_as_good_as_the_newest(tmp_path: Path, lag: int) -> None:
    """It needs no replay, so losing the newest costs time and nothing else."""
    overrides = [lead_of("appo", lag), "runtime.kind=inline", "checkpoint.every_env_steps=80"]
    straight = checkpoint_of(tmp_path, "straight", *overrides, algorithm="appo")
    newest = checkpoint_of(tmp_path, "broken", *overrides, algorithm="appo")
    (newest / "policy.safetensors").unlink()
    assert_same_checkpoint(straight, asyncio.run(resume(tmp_path / "broken")))
