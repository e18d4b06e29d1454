"""Evaluation beside the training: what is evaluated when, what is kept of it, and that training knows nothing of it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from safetensors.numpy import load_file

import aiorl
from aiorl import (
    AiorlError,
    EnvError,
    Evaluated,
    Outcome,
    Progress,
    Run,
    Saved,
    SettingsError,
    Started,
    WorkerCrashedError,
)
from aiorl.coordinator import workers
from aiorl.telemetry.plot import CURVE_FILE
from tests.conftest import lead_of, small_settings
from tests.endings.gates import Gates
from tests.run.helpers import assert_no_tasks, assert_same_checkpoint, train

EVERY = "evaluation.every_env_steps=100"
DUE = [112, 208, 304, 400]
"""Env steps after the ticks, of 16 each, in which a multiple of 100 is reached."""
ENDLESS = "budget.env_steps=1e8"
FIRST_PIECE = "evaluator PlayOn 1 before wait"


class PaidEnv(aiorl.testing.CountEnv):
    """A CountEnv of 20 steps, each of which is worth `pay`."""

    def __init__(self, pay: float = 1.0, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._pay = pay

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return obs, self._pay * reward, *rest


PAID = f"env.id={__name__}:PaidEnv"


@pytest.fixture
def gates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gates]:
    """The evaluator waits before the first steps of the first evaluation."""
    gates = Gates(tmp_path / "gates", [FIRST_PIECE])
    monkeypatch.setattr(workers, "EVALUATOR", "tests.endings.gates:gated")
    yield gates
    gates.close()


@pytest.fixture
def _no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matplotlib keeps its fonts open, in each thread anew: no worker of this process draws."""
    monkeypatch.setattr("aiorl.evaluation.draw_learning_curve", lambda *arguments: None)


def gated(gates: Gates, *overrides: str, algorithm: str = "sac") -> aiorl.RunSettings:
    return small_settings(*gates.overrides, "env.kwargs.at=1000000000", EVERY, *overrides, algorithm=algorithm)


def lines(run_dir: Path) -> list[dict[str, Any]]:
    path = run_dir / "evaluations.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def skipped(run_dir: Path) -> list[int]:
    log = [json.loads(line) for line in (run_dir / "log.jsonl").read_text().splitlines()]
    return [each["env_steps"] for each in log if each["event"].startswith("evaluation skipped")]


def status(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "status.json").read_text())  # type: ignore[no-any-return]


def evaluator_pid(run_dir: Path) -> int:
    return int(next(each["pid"] for each in status(run_dir)["workers"] if each["role"] == "evaluator"))


def best(run_dir: Path) -> tuple[int, float]:
    folder = run_dir / "checkpoints" / "best"
    result = json.loads((folder / "evaluation.json").read_text())
    tick = json.loads((folder / "manifest.json").read_text())["tick"]
    assert result["checkpoint"] is None and result["env_steps"] == 16 * tick
    return tick, result["return_mean"]


async def resume(run_dir: Path, *overrides: str) -> Outcome:
    async with Run.reopen(run_dir, overrides=overrides, environ={}) as run:
        return await run.wait()


def latest(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "checkpoints" / "latest" / "manifest.json").read_text())  # type: ignore[no-any-return]


async def test_what_is_due_is_evaluated_or_said_to_be_skipped(run_dir: Path, algorithm: str) -> None:
    settings = small_settings(EVERY, PAID, "evaluation.kwargs.pay=2", algorithm=algorithm)
    events = []
    async with Run(settings, run_dir=run_dir) as run:
        async for event in run:
            events.append(event)
            if isinstance(event, Started):
                own, priority = psutil.Process(), psutil.Process(evaluator_pid(run_dir)).nice()
                assert priority == own.nice() + 10
        outcome = await run.wait()
    assert_no_tasks()
    found = lines(run_dir)
    assert sorted([each["env_steps"] for each in found] + skipped(run_dir)) == DUE
    assert found[0]["env_steps"] == 112
    for each in found:
        assert each["tick"] == each["env_steps"] / 16 and each["seconds"] > 0
        updates = each["tick"] - (3 if algorithm == "sac" else 0)  # SAC trains from 64 env steps on
        assert each["gradient_steps"] == 2 * updates
        assert each["returns"] == [40.0] * 4 and each["episodes"] == 4 and each["length_mean"] == 20
        assert (each["return_mean"], each["return_std"], each["return_min"], each["return_max"]) == (40, 0, 40, 40)
        assert each["terminated_share"] == 0
    evaluations = [event.evaluation for event in events if isinstance(event, Evaluated)]
    assert [each.env_steps for each in evaluations] == [each["env_steps"] for each in found]
    assert {each.checkpoint for each in evaluations} == {None} and outcome.evaluation == evaluations[-1]
    assert (run_dir / CURVE_FILE).stat().st_size > 10_000 and not (run_dir / "evaluation.json").exists()


@pytest.mark.usefixtures("_no_picture")
@pytest.mark.parametrize(("algorithm", "lead"), [("sac", 0), ("sac", 1), ("appo", 0), ("appo", 1)])
@pytest.mark.parametrize("kind", ["inline", "process"])
def test_training_is_the_same_with_and_without(tmp_path: Path, algorithm: str, lead: int, kind: str) -> None:
    overrides = [
        lead_of(algorithm, lead), f"runtime.kind={kind}", "algorithm.normalise_observations=true",
        "checkpoint.every_env_steps=100", "checkpoint.keep=9",
    ]  # fmt: skip
    without = asyncio.run(train(small_settings(*overrides, algorithm=algorithm), tmp_path / "without"))
    beside = asyncio.run(train(small_settings(*overrides, EVERY, algorithm=algorithm), tmp_path / "with"))
    assert without.checkpoint is not None and beside.checkpoint is not None
    assert_same_checkpoint(without.checkpoint, beside.checkpoint)
    # The best policy is one that training had, with its statistics, byte for byte.
    folder, (tick, mean) = tmp_path / "with" / "checkpoints", best(tmp_path / "with")
    assert mean == max(each["return_mean"] for each in lines(tmp_path / "with"))
    assert (folder / "best/policy.safetensors").read_bytes() == (folder / f"{tick}/policy.safetensors").read_bytes()
    statistics = load_file(folder / "best/statistics.safetensors")
    learner = load_file(folder / f"{tick}/learner.safetensors")
    assert statistics.keys() == {"moments.policy", "moments.reward"}
    assert all((learner[name] == values).all() and values[0] > 0 for name, values in statistics.items())


async def test_the_best_is_kept_until_a_better_one_comes(run_dir: Path) -> None:
    """One evaluation in each part of a run, so that none is skipped; each part pays what it says."""
    settings = small_settings(EVERY, PAID, "evaluation.kwargs.pay=3", "budget.env_steps=112", "checkpoint.keep=1")
    await train(settings, run_dir)
    assert best(run_dir) == (7, 60)
    for env_steps, pay, expected in [
        (208, 5, (13, 100)),
        (304, 4, (13, 100)),
        (400, 5, (13, 100)),
        (512, 6, (32, 120)),
    ]:
        await resume(run_dir, f"budget.env_steps={env_steps}", f"evaluation.kwargs.pay={pay}")
        assert best(run_dir) == expected
        kept = {path.name for path in (run_dir / "checkpoints").iterdir()}
        assert kept == {str(env_steps // 16), "latest", "best"}
    assert [each["return_mean"] for each in lines(run_dir)] == [60, 100, 80, 100, 120]
    assert [each["env_steps"] for each in lines(run_dir)] == [112, 208, 304, 400, 512]


async def test_a_final_evaluation_counts_too(run_dir: Path) -> None:
    overrides = [EVERY, PAID, "evaluation.kwargs.pay=3", "budget.env_steps=112"]
    await train(small_settings(*overrides), run_dir)
    outcome = await resume(run_dir, "budget.env_steps=160", "evaluation.at_end=true", "evaluation.kwargs.pay=4", EVERY)
    assert outcome.evaluation is not None and outcome.evaluation.checkpoint == outcome.checkpoint
    assert [(each["env_steps"], each["return_mean"]) for each in lines(run_dir)] == [(112, 60), (160, 80)]
    folder = run_dir / "checkpoints"
    assert json.loads((folder / "best/evaluation.json").read_text())["return_mean"] == 80
    assert (folder / "best/policy.safetensors").read_bytes() == (folder / "10/policy.safetensors").read_bytes()
    # Evaluated on the way and at the end: one point, as it is one policy.
    outcome = await resume(run_dir, "budget.env_steps=208")
    assert [each["env_steps"] for each in lines(run_dir)] == [112, 160, 208]
    assert outcome.evaluation is not None and outcome.evaluation.checkpoint == outcome.checkpoint
    assert outcome.evaluation.env_steps == 208
    result = json.loads((run_dir / "evaluation.json").read_text())
    assert result["env_steps"] == 208 and result["returns"] == lines(run_dir)[-1]["returns"]


@pytest.mark.parametrize("normalise", ["true", "false"])
async def test_a_run_starts_from_the_best(tmp_path: Path, algorithm: str, normalise: str) -> None:
    own = [f"algorithm.normalise_observations={normalise}", "runtime.kind=process"]
    settings = small_settings(*own, EVERY, "budget.env_steps=112", algorithm=algorithm)
    await train(settings, tmp_path / "first")
    folder = tmp_path / "first" / "checkpoints" / "best"
    policy = aiorl.load_policy(folder)
    assert policy.manifest.tick == 7 and policy.manifest.has_replay is False
    for name in ("best", "whole"):
        source = folder if name == "best" else tmp_path / "first"
        warm = small_settings(
            *own, f"checkpoint.warm_start={source}", "budget.env_steps=64", lead_of(algorithm, 0), algorithm=algorithm
        )
        await train(warm, tmp_path / name)
    assert_same_checkpoint(tmp_path / "best/checkpoints/latest", tmp_path / "whole/checkpoints/latest")


async def test_lines_after_the_checkpoint_are_cut_back(run_dir: Path) -> None:
    await train(small_settings(EVERY, PAID, "budget.env_steps=112"), run_dir)
    await resume(run_dir, "budget.env_steps=208")
    before = lines(run_dir)
    assert [each["env_steps"] for each in before] == [112, 208]
    (run_dir / "checkpoints" / "13" / "policy.safetensors").unlink()
    await resume(run_dir, "budget.env_steps=208")
    after = lines(run_dir)
    assert after[0] == before[0] and after[1]["env_steps"] == 208 and after[1]["time"] > before[1]["time"]
    assert len(after) == 2


async def test_training_does_not_wait_for_it(run_dir: Path, gates: Gates, algorithm: str) -> None:
    async with Run(gated(gates, algorithm=algorithm), run_dir=run_dir) as run:
        async for event in run:
            if isinstance(event, Saved):  # the last tick is trained on, and the first evaluation has not begun to play
                assert lines(run_dir) == [] and skipped(run_dir) == DUE[1:]
                gates.open(0)
        outcome = await run.wait()
    assert outcome.state == "completed" and [each["env_steps"] for each in lines(run_dir)] == DUE[:1]


@pytest.mark.parametrize("order", ["stop", "abort", "leave", "cancel", "stop once completed"])
async def test_an_order_to_end_gives_it_up(run_dir: Path, gates: Gates, order: str) -> None:
    budget = "budget.env_steps=112" if order.endswith("completed") else ENDLESS

    async def host() -> Outcome:
        async with Run(gated(gates, budget), run_dir=run_dir) as run:
            async for event in run:
                if isinstance(event, Saved if order.endswith("completed") else Progress) and await is_playing(gates):
                    break
            match order:
                case "abort":
                    run.abort()
                case "cancel":
                    task = asyncio.current_task()
                    assert task is not None
                    task.cancel()
                case "leave":
                    return None  # type: ignore[return-value]
                case _:
                    run.stop()
            return await run.wait()

    async with asyncio.timeout(30):  # the gate never opens
        (end,) = await asyncio.gather(asyncio.create_task(host()), return_exceptions=True)
    assert_no_tasks()
    if order.startswith("stop"):
        assert isinstance(end, Outcome), end
        assert end.state == ("completed" if order.endswith("completed") else "interrupted") and end.evaluation is None
    assert lines(run_dir) == [] and not (run_dir / "checkpoints" / "best").exists()
    if order != "abort":
        assert latest(run_dir)["exact"]


async def is_playing(gates: Gates) -> bool:
    await gates.reached(0)
    return True


@pytest.mark.parametrize("moment", ["idle", "playing", "paused", "finishing"])
async def test_its_death_ends_the_run_which_is_saved(run_dir: Path, gates: Gates, moment: str) -> None:
    budget = "budget.env_steps=112" if moment == "finishing" else ENDLESS
    every = ["evaluation.every_env_steps=100000000"] if moment == "idle" else []
    async with asyncio.timeout(60):
        with pytest.raises(WorkerCrashedError, match=r"evaluator 0 .*SIGKILL"):
            async with Run(gated(gates, budget, *every), run_dir=run_dir) as run:
                async for event in run:
                    if isinstance(event, Saved if moment == "finishing" else Progress):
                        break
                if moment == "idle":
                    pid = evaluator_pid(run_dir)
                else:
                    pid, _ = await gates.reached(0)
                    assert pid == evaluator_pid(run_dir)
                if moment == "paused":
                    run.pause()
                    await run.save()
                os.kill(pid, signal.SIGKILL)
                await run.wait()
    assert_no_tasks()
    assert status(run_dir)["state"] == "failed" and status(run_dir)["error"]["worker"]["role"] == "evaluator"
    assert latest(run_dir)["exact"] and latest(run_dir)["reproducible"], "nothing of the training was lost"


async def test_another_one_is_started_where_deaths_are_made_good(run_dir: Path, gates: Gates) -> None:
    settings = gated(gates, ENDLESS, "collection.on_collector_death=replace")
    async with Run(settings, run_dir=run_dir) as run:
        async for event in run:
            if isinstance(event, Progress):
                break
        pid, _ = await gates.reached(0)
        os.kill(pid, signal.SIGKILL)
        async for event in run:
            if isinstance(event, Evaluated):
                break
        assert evaluator_pid(run_dir) != pid and event.evaluation.returns == (20.0,) * 4
        run.stop()
        outcome = await run.wait()
    assert_no_tasks()
    assert outcome.state == "interrupted" and outcome.reproducible and latest(run_dir)["exact"]
    log = [json.loads(line) for line in (run_dir / "log.jsonl").read_text().splitlines()]
    lost = [each for each in log if each["event"].startswith("evaluator lost")]
    assert len(lost) == 1 and "SIGKILL" in lost[0]["cause"]


async def test_a_value_that_is_not_finite_ends_the_run_all_the_same(run_dir: Path) -> None:
    trap = ["env.id=aiorl.testing:TrapEnv", "env.kwargs.at=1000000000"]
    own = ["evaluation.kwargs.trap=nan_obs", "evaluation.kwargs.at=5"]
    settings = small_settings(*trap, *own, EVERY, ENDLESS, "collection.on_collector_death=replace")
    async with asyncio.timeout(60):
        with pytest.raises(EnvError, match=r"evaluator 0 .*not finite in env"):
            await train(settings, run_dir)
    assert latest(run_dir)["exact"]


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("evaluation.kwargs.nonsense=1", "nonsense"),
        ("evaluation.kwargs.width=4", "in which this run's policy cannot act"),
    ],
)
@pytest.mark.parametrize("kind", ["inline", "process"])
async def test_an_env_that_cannot_be_evaluated_in_is_refused_before_training(
    run_dir: Path, override: str, words: str, kind: str
) -> None:
    settings = small_settings(EVERY, "env.id=aiorl.testing:CountEnv", override, f"runtime.kind={kind}")
    with pytest.raises(AiorlError) as caught:
        await train(settings, run_dir)
    assert isinstance(caught.value, SettingsError) and len(caught.value.problems) == 1
    assert caught.value.problems[0].startswith("evaluation.kwargs: ") and words in caught.value.problems[0]
    assert not run_dir.exists()
    assert_no_tasks()
