"""The command line as a process of its own, in a session (and so a process group) of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.conftest import SMALL


def start(*arguments: str, cwd: Path, module: str = "aiorl", **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=_hear_signals,
        env={**os.environ, **environ},
    )


def _hear_signals() -> None:
    """A suite that runs in the background has SIGINT ignored, and would hand that down."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def finish(process: subprocess.Popen[str], timeout_s: float = 60) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise AssertionError(f"still running after {timeout_s} s\n{out}\n{err}") from None
    return process.returncode, out, err


def aiorl(*arguments: str, cwd: Path, **environ: str) -> tuple[int, str, str]:
    return finish(start(*arguments, cwd=cwd, **environ))


def small(algorithm: str = "sac") -> list[str]:
    """The arguments of a small run."""
    return [f"{algorithm}/pendulum", *SMALL[algorithm]]


def run_small(*overrides: str, cwd: Path, algorithm: str = "sac", **environ: str) -> tuple[int, str, str]:
    return aiorl("run", *small(algorithm), *overrides, "--run-dir", "run", cwd=cwd, **environ)
