"""Playing a case of the matrix through the API, and checking what came of it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from aiorl import Outcome, RemoteTracebackError, Run, WorkerFailedError, WorkerStartupError, load_policy
from aiorl.checkpoint.store import CheckpointStore
from aiorl.coordinator import workers
from tests.conftest import small_settings
from tests.endings.cases import BEFORE_SAVE, LADDER, Case
from tests.endings.gates import GATED, Gates
from tests.run.helpers import assert_no_tasks, experience


@dataclass(frozen=True)
class Ending:
    """How a case ended; seconds are counted from the cause."""

    error: BaseException | None
    outcome: Outcome | None
    noticed_s: float | None
    ended_s: float


async def play(case: Case, folder: Path) -> Ending:
    """Start a run, hold the phase, make the fault, wait for the end."""
    workers.SERVICES.update(GATED)  # only runs with gates in their settings pass any
    gates = Gates(folder / "gates", list(case.gates))
    try:
        settings = small_settings(
            *BEFORE_SAVE,
            *LADDER,
            *gates.overrides,
            "env.kwargs.at=1000000000",
            *case.overrides,
            algorithm=case.algorithm,
        )
        return await _played(case, Run(settings, run_dir=folder / "run"), gates)
    finally:
        gates.close()
        workers.SERVICES.update(REAL_SERVICES)


REAL_SERVICES = dict(workers.SERVICES)


async def _played(case: Case, run: Run, gates: Gates) -> Ending:
    at_gate, told = asyncio.Event(), asyncio.Event()

    async def host() -> Outcome:
        async with run:
            if case.act == "raise":
                await at_gate.wait()
                told.set()
                raise KeyError("of the host")
            return await run.wait()

    async def make_fault() -> tuple[float, float]:
        pids = [await gates.reached(number) for number in range(len(case.gates))]
        begin, clock = time.monotonic(), time.time()
        if not case.act:  # the worker does it itself, and has told when
            return pids[-1][1], clock - (begin - pids[-1][1])
        verb, _, role = case.act.partition(" ")
        if verb in ("kill", "stop"):
            own = case.gates[-1].startswith(role)
            pid = pids[-1][0] if own else _pid(run.run_dir, role)
            os.kill(pid, signal.SIGKILL if verb == "kill" else signal.SIGSTOP)
        elif verb == "cancel":
            hosting.cancel()
        elif verb == "abort":
            run.abort()
        elif verb == "raise":
            at_gate.set()
            await told.wait()
        if role != "only":
            for number in range(len(case.gates)):
                gates.open(number)
        return begin, clock

    hosting = asyncio.create_task(host())
    making = asyncio.create_task(make_fault())
    try:
        async with asyncio.timeout(60):
            await asyncio.wait([hosting, making], return_when=asyncio.FIRST_COMPLETED)
            ends = await asyncio.gather(hosting, return_exceptions=True)
            ended = time.monotonic()
            await asyncio.wait([making], timeout=1)  # what a worker did by itself may be told a moment later
            assert making.done(), f"it ended before the fault: {ends[0]!r}"
            begin, clock = await making
    finally:
        for task in (hosting, making):
            task.cancel()
        await asyncio.gather(hosting, making, return_exceptions=True)
    (end,) = ends
    error = end if isinstance(end, BaseException) else None
    noticed = _noticed(run.run_dir, clock) if isinstance(error, Exception) else None
    return Ending(error, None if error else end, noticed, ended - begin)  # type: ignore[arg-type]


def check(case: Case, ending: Ending, folder: Path) -> None:
    """Hold an ending against what the case says."""
    assert_no_tasks()
    run_dir, error = folder / "run", ending.error
    status = json.loads((run_dir / "status.json").read_text())
    if case.error is None:
        assert error is None, error
        assert ending.outcome is not None and ending.outcome.state == status["state"] == case.words
    else:
        assert type(error) is case.error, repr(error)
        assert re.search(case.words, str(error)), error
        is_hosts = case.error in (asyncio.CancelledError, KeyError) or case.act == "abort"
        assert status["state"] == ("completed" if case.phase == "shutdown" else "interrupted") if is_hosts else "failed"
        if not is_hosts:
            assert status["error"]["message"] == str(error)
            assert "Traceback" not in str(error)
            if case.error is WorkerFailedError:
                assert isinstance(error.__cause__, RemoteTracebackError)
                assert "Traceback (most recent call last)" in error.__cause__.text
            else:
                assert case.error is not WorkerStartupError or "Error" not in case.words or error.__cause__
    assert ending.ended_s < case.bound_s, f"it took {ending.ended_s:.1f} s"
    if ending.outcome is not None and "replaced" in case.cause:
        assert not ending.outcome.reproducible and not status["reproducible"]
        _check_rows(case, run_dir)
    _check_checkpoint(case, run_dir)


def _check_rows(case: Case, run_dir: Path) -> None:
    """Every step is there once, each next observation is of its own row, and the break is marked."""
    columns = experience(case.algorithm, run_dir)
    assert columns["valid"].shape == (100, 4) and columns["valid"].all()
    moments = load_file(run_dir / "checkpoints" / "latest" / "learner.safetensors")["moments.policy"]
    assert moments[0] == 400, "the statistics of each observation count once"
    assert np.allclose(moments[1:4], columns["obs"].reshape(400, 3).astype(np.float64).mean(axis=0), rtol=1e-12)
    rows = {name: columns[name].swapaxes(0, 1) for name in ("obs", "next_obs", "cut", "truncated")}
    assert np.array_equal(rows["next_obs"], rows["obs"] + 1)
    goes_on = np.isclose(rows["obs"][:, 1:], rows["next_obs"][:, :-1]).all(axis=-1)
    marked = (rows["cut"] | rows["truncated"])[:, :-1]
    if case.algorithm == "sac":
        assert np.array_equal(goes_on, ~marked) and rows["cut"].sum() == 4
    else:  # between rollouts nothing is carried on, so that a break there needs no mark
        within = np.arange(1, 100) % 4 != 0
        assert np.array_equal(goes_on[:, within], ~marked[:, within]) and rows["cut"].sum() in (0, 4)


def _check_checkpoint(case: Case, run_dir: Path) -> None:
    if case.checkpoint == "none":
        assert not (run_dir / "checkpoints" / "latest").exists()
        return
    found = CheckpointStore(run_dir / "checkpoints").newest_whole()
    assert found.is_newest and found.path.name == (run_dir / "checkpoints" / "latest").resolve().name
    assert found.manifest.exact == (case.checkpoint != "of the failure")
    if case.checkpoint == "older":
        assert found.manifest.tick == 10
    elif case.phase != "warm-up":
        assert found.manifest.tick > 10
    load_policy(run_dir)
    assert str(found.path) in Run.reopen(run_dir, overrides=["budget.env_steps=1000"], environ={}).resumes_from


def _pid(run_dir: Path, role: str) -> int:
    entries = json.loads((run_dir / "status.json").read_text())["workers"]
    return int(next(each["pid"] for each in entries if each["role"] == role))


def _noticed(run_dir: Path, clock: float) -> float | None:
    """Seconds from the cause until the coordinator wrote that it knows."""
    for line in (run_dir / "log.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record["event"] in ("failure noticed", "run failed"):
            return datetime.fromisoformat(record["time"]).timestamp() - clock
    return None
