"""Playing a case of the matrix through the command line: signals, and deaths of the coordinator itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from aiorl import Run, load_policy
from aiorl.checkpoint.store import CheckpointStore
from tests.cli.helpers import finish, small, start
from tests.endings.cases import BEFORE_SAVE, Checkpoint, phases
from tests.endings.gates import Gates

ROOT = str(Path(__file__).parents[2])
CODES = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129}


@dataclass(frozen=True)
class CliCase:
    """A signal to the parent or its whole group, once or twice, in one phase."""

    number: str
    to_group: bool
    is_twice: bool
    phase: str
    algorithm: str
    gates: tuple[str, ...]
    code: int
    checkpoint: Checkpoint
    bound_s: float = 10.0

    @property
    def cause(self) -> str:
        who = "the group" if self.to_group else "the parent"
        if self.number == "SIGKILL" and not self.to_group:
            who = "the coordinator"
        return f"{self.number} to {who}{', twice' if self.is_twice else ''}"

    def __str__(self) -> str:
        return f"{self.algorithm}: {self.cause} · {self.phase}"


@dataclass(frozen=True)
class CliEnding:
    """Exit code, what was said, and seconds from the (last) signal until all processes were gone."""

    code: int
    err: str
    ended_s: float


def cli_matrix(algorithm: str) -> Iterator[CliCase]:
    """All cases of one algorithm through the command line."""
    for phase, gates in phases(algorithm, "collector").items():
        older: Checkpoint = "none" if phase in ("start-up", "warm-up") else "older"
        whole: Checkpoint = "none" if phase == "start-up" else "of the end"
        if phase == "shutdown":
            older = "of the end"
        for number, to_group in (("SIGINT", True), ("SIGINT", False), ("SIGTERM", False), ("SIGHUP", False)):
            code = CODES[number]
            yield CliCase(number, to_group, False, phase, algorithm, gates, 0 if phase == "shutdown" else code, whole)
            yield CliCase(number, to_group, True, phase, algorithm, gates, code, older)
        for to_group in (False, True):
            yield CliCase("SIGKILL", to_group, False, phase, algorithm, gates, -9, older)


def play_cli(case: CliCase, folder: Path) -> CliEnding:
    """Start the command line, hold the phase, send the signals, wait for the end of everything."""
    gates = Gates(folder / "gates", list(case.gates))
    process = start(
        "run", *small(case.algorithm), *BEFORE_SAVE, *gates.overrides, "env.kwargs.at=1000000000", "--run-dir", "run",
        cwd=folder, module="tests.endings.cli", PYTHONPATH=ROOT,
    )  # fmt: skip
    try:
        for number in range(len(case.gates)):
            gates.reached_within(number, 60)
        family = psutil.Process(process.pid).children(recursive=True)
        _send(process, case)
        if case.is_twice:
            assert process.stderr is not None
            assert "once more stops at once" in process.stderr.readline()
            begin = _send(process, case)
        else:
            begin = time.monotonic()
            for number in range(len(case.gates)):
                gates.open(number)
        code, _, err = finish(process, 60)
        _, left = psutil.wait_procs(family, timeout=10)
        ended = time.monotonic() - begin
        assert not left, left
        return CliEnding(code, err, ended)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        gates.close()


def _send(process: subprocess.Popen[str], case: CliCase) -> float:
    (os.killpg if case.to_group else os.kill)(process.pid, signal.Signals[case.number])
    return time.monotonic()


def check_cli(case: CliCase, ending: CliEnding, folder: Path) -> None:
    """Hold an ending against what the case says."""
    assert ending.code == case.code, ending.err
    assert ending.ended_s < case.bound_s
    assert "Traceback" not in ending.err and "resource_tracker" not in ending.err, ending.err
    run_dir = folder / "run"
    state = json.loads((run_dir / "status.json").read_text())["state"]
    if case.number != "SIGKILL":
        last = ending.err.splitlines()[-1]
        assert ("aiorl resume run" in last) == (case.checkpoint != "none" and case.code != 0), ending.err
        assert state in ("interrupted", "completed")
    latest = run_dir / "checkpoints" / "latest"
    assert latest.exists() == (case.checkpoint != "none")
    if case.checkpoint == "none":
        return
    found = CheckpointStore(run_dir / "checkpoints").newest_whole()
    assert found.manifest.exact and (found.manifest.tick > 10) == (
        case.checkpoint != "older" and case.phase != "warm-up"
    )
    load_policy(run_dir)
    assert str(found.path) in Run.reopen(run_dir, overrides=["budget.env_steps=1000"], environ={}).resumes_from
