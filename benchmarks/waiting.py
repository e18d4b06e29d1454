"""What waiting costs: CPU time of coordinator and collectors while the learner works; and what the live view costs.

    python -m benchmarks.waiting [--rounds 3] [--seconds 10]

First, a run whose every update takes a minute or two: a window of ten seconds inside one of them, while everything else
has nothing to do but wait. CPU time is the kernel's own, in nanoseconds, summed over a process's threads. Output is
plain. Then, a run of ten ticks a second, its output plain or a live view on a terminal of 100 x 30, in turn: what the
coordinator takes of a core with each. Three minutes.
"""

import fcntl
import json
import math
import os
import pty
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.commands import environ
from benchmarks.gradient_steps import seconds_per_step
from benchmarks.measuring import Row, Table, alternate, parser_of, report

OVERRIDES = (
    "sac/pendulum", "env.num_envs=4", "collection.chunk_steps=1", "collection.learning_starts=64",
    "replay.capacity=10000", "learner.batch_size=256", "evaluation.at_end=false", "checkpoint.every_seconds=null",
    "runtime.collector_threads=1", "runtime.learner_threads=1", "learner.device=cpu", "budget.env_steps=1e9",
)  # fmt: skip
LONG_UPDATE_S, SHORT_UPDATE_S = 90.0, 0.1
Status = dict[str, Any]


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process so far."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def shares(pids: dict[str, int], seconds: float) -> dict[str, float]:
    """Return what each process takes of a core over the next seconds, in percent."""
    before, begin = {name: cpu_seconds(pid) for name, pid in pids.items()}, time.perf_counter()
    time.sleep(seconds)
    elapsed = time.perf_counter() - begin
    return {name: 100 * (cpu_seconds(pid) - before[name]) / elapsed for name, pid in pids.items()}


@contextmanager
def running(run_dir: Path, *overrides: str, stdout: int = subprocess.DEVNULL) -> Iterator[subprocess.Popen[bytes]]:
    """Run aiorl as its command line does, and end it at once."""
    command = [sys.executable, "-m", "aiorl", "run", *OVERRIDES, *overrides, "--run-dir", str(run_dir)]
    variables = environ() | {"TERM": "xterm-256color"}
    process = subprocess.Popen(command, stdout=stdout, stderr=subprocess.DEVNULL, env=variables)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)  # the second one does not wait for the update
        process.wait()


def status(run_dir: Path) -> Status:
    try:
        found: Status = json.loads((run_dir / "status.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {"state": "", "tick": 0, "gradient_steps": 0, "workers": []}
    return found


def until(run_dir: Path, key: str, value: int, process: subprocess.Popen[bytes]) -> Status:
    """Look again and again until a counter has come so far."""
    while (found := status(run_dir))["state"] != "running" or found[key] < value:
        if process.poll() is not None:
            raise SystemExit(f"the run ended by itself: {found}")
        time.sleep(0.05)
    return found


def pids_of(found: Status, coordinator: int) -> dict[str, int]:
    return {"coordinator": coordinator} | {f"{each['role']} {each['index']}": each["pid"] for each in found["workers"]}


def inside_an_update(gradient_steps: int, collectors: int, seconds: float) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        overrides = (f"learner.gradient_steps={gradient_steps}", f"collection.collectors={collectors}")
        with running(run_dir, *overrides) as process:
            # The first 15 ticks train nothing; then everybody has a few seconds to pack two batches of thousands.
            found = until(run_dir, "tick", 1, process)
            pids = pids_of(found, process.pid)
            while not _only_the_learner_works(shares(pids, 1.0)):
                pass
            before = status(run_dir)["gradient_steps"]
            measured = shares(pids, seconds)
            if status(run_dir)["gradient_steps"] != before or measured["learner 0"] < 25:
                raise SystemExit(f"the window was not inside an update: {measured}")
            return measured


def _only_the_learner_works(found: dict[str, float]) -> bool:
    return all(share > 25 if name == "learner 0" else share < 20 for name, share in found.items())


def with_output(gradient_steps: int, seconds: float, is_live: bool) -> float:
    """Return what the coordinator takes of a core while ticks come, in percent."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir, overrides = Path(folder) / "run", [f"learner.gradient_steps={gradient_steps}"]
        with terminal() as (far_end, seen):
            with running(run_dir, *overrides, stdout=far_end if is_live else subprocess.DEVNULL) as process:
                found = until(run_dir, "gradient_steps", 1, process)
                time.sleep(2)  # what only the start takes
                share = shares(pids_of(found, process.pid), seconds)["coordinator"]
            if is_live and sum(map(len, seen)) < 1000:
                raise SystemExit("the live view drew nothing")
            return share


@contextmanager
def terminal() -> Iterator[tuple[int, list[bytes]]]:
    """Open a pseudo-terminal; yield the end that a program writes to, and what it has written."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    seen: list[bytes] = []

    def read() -> None:
        try:
            while data := os.read(ours, 65536):
                seen.append(data)
        except OSError:  # the other end is closed
            pass

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield theirs, seen
    finally:
        os.close(theirs)
        reader.join()
        os.close(ours)


def measure(rounds: int = 3, seconds: float = 10.0) -> Table:
    step = seconds_per_step(observations=3, actions=1)
    rows = []
    found = [inside_an_update(math.ceil(LONG_UPDATE_S / step), 2, seconds) for _ in range(rounds)]
    for name in found[0]:
        is_waiting = name != "learner 0"
        what = f"{name}, {'while the learner works' if is_waiting else 'at work'}"
        rows.append(Row(what, tuple(each[name] for each in found), "%", at_most=0.5 if is_waiting else None))
    short = math.ceil(SHORT_UPDATE_S / step)
    kinds = {"plain output": False, "live view": True}
    shown = alternate(rounds, {name: partial(with_output, short, seconds, live) for name, live in kinds.items()})
    for name, values in shown.items():
        rows.append(Row(f"coordinator at ten ticks a second, {name}", tuple(values), "%"))
    return Table("CPU time, of one core", tuple(rows))


def main() -> None:
    parser = parser_of("waiting", __doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0)
    arguments = parser.parse_args()
    report(measure(arguments.rounds, arguments.seconds), arguments.json)


if __name__ == "__main__":
    main()
