"""Load: descriptors, threads and memory over thousands of chunks, dozens of runs, and episodes of one step.

    python -m benchmarks.load

Prints, for SAC and APPO: a run of 5 000 chunks under `ulimit -n 256`; 50 runs one after another in one process; 400 000
env steps of episodes of length 1 in 256 envs; and how long the host's loop was held up at most, by a ticker beside a
run. Two minutes on two cores.
"""

import asyncio
import json
import os
import resource
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

import aiorl
from tests.conftest import small_settings

MIB = 1 << 20
DESCRIPTORS = 256


@dataclass(frozen=True)
class Sample:
    """What a process holds: open descriptors, threads, and MiB of its own."""

    descriptors: int
    threads: int
    mib: float

    def __str__(self) -> str:
        return f"{self.descriptors} fds, {self.threads} threads, {self.mib:.1f} MiB"


Samples = dict[str, Sample]
"""Of the host and each worker, by name."""


def sample(pid: int) -> Sample:
    """Look at a process."""
    process = psutil.Process(pid)
    return Sample(process.num_fds(), process.num_threads(), process.memory_full_info().uss / MIB)


def sample_all(run_dir: Path) -> Samples:
    """Look at the host and at the workers of its run."""
    workers = json.loads((run_dir / "status.json").read_text())["workers"]
    return {"host": sample(os.getpid())} | {f"{each['role']} {each['index']}": sample(each["pid"]) for each in workers}


@contextmanager
def few_descriptors() -> Iterator[None]:
    """As after `ulimit -n 256`."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def over_a_run(algorithm: str, ticks: int, *overrides: str, num_envs: int = 4) -> list[Samples]:
    """Run so many ticks; look after a tenth, a half and nearly all of them."""
    marks = [ticks // 10, ticks // 2, ticks * 9 // 10]
    found: list[Samples] = []
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        settings = small_settings(
            f"env.num_envs={num_envs}", f"budget.env_steps={ticks * 4 * num_envs}",
            *(["replay.capacity=10000"] if algorithm == "sac" else []),
            f"telemetry.interval_ticks={max(1, ticks // 50)}", "telemetry.tensorboard=true", *overrides,
            algorithm=algorithm,
        )  # fmt: skip
        async with aiorl.Run(settings, run_dir=run_dir) as run:
            async for event in run:
                if isinstance(event, aiorl.Progress) and len(found) < 3 and event.record["tick"] >= marks[len(found)]:
                    found.append(sample_all(run_dir))
            await run.wait()
    return found


async def over_runs(count: int) -> list[Sample]:
    """Make so many runs, one after another; look at the host after every one."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            settings = small_settings("budget.env_steps=160", algorithm=("sac", "appo")[number % 2])
            async with aiorl.Run(settings, run_dir=Path(folder) / str(number)) as run:
                await run.wait()
            found.append(sample(os.getpid()))
    return found


async def held_up(algorithm: str, *overrides: str, end: Callable[[aiorl.Run], object] | None = None) -> float:
    """Run beside a ticker of 5 ms; return the longest gap between two ticks, in seconds."""
    gap, ticking = 0.0, True

    async def tick() -> None:
        nonlocal gap
        last = time.perf_counter()
        while ticking:
            await asyncio.sleep(0.005)
            now = time.perf_counter()
            gap, last = max(gap, now - last), now

    ticker = asyncio.create_task(tick())
    with tempfile.TemporaryDirectory() as folder:
        settings = small_settings("telemetry.tensorboard=true", *overrides, algorithm=algorithm)
        async with aiorl.Run(settings, run_dir=Path(folder) / "run") as run:
            async for event in run:
                if isinstance(event, aiorl.Progress) and end is not None:
                    end(run)
            await run.wait()
        ticking = False
        await ticker
    return gap


def show(title: str, samples: list[Samples]) -> None:
    """Print how much each process grew."""
    for name in samples[0]:
        print(f"{title}: {name}: {samples[0][name]}  ->  {samples[-1][name]}")


def main() -> None:
    """Measure and print."""
    print(f"threads of this process before: {threading.active_count()}")
    evaluated = ("evaluation.at_end=true", "checkpoint.every_env_steps=160")
    print(f"loop held up, fork server not there yet: {asyncio.run(held_up('sac', *evaluated)) * 1000:.0f} ms")
    for algorithm in ("sac", "appo"):
        print(f"loop held up, {algorithm}: {asyncio.run(held_up(algorithm, *evaluated)) * 1000:.0f} ms")
    wide = ("env.id=aiorl.testing:CountEnv", "env.kwargs.width=512", "env.num_envs=256")
    big = (*wide, "replay.capacity=100000", "budget.env_steps=100000")
    print(f"loop held up, a replay of 410 MB, filled, saved: {asyncio.run(held_up('sac', *big)) * 1000:.0f} ms")
    stopped = asyncio.run(held_up("sac", "budget.env_steps=1e8", end=lambda run: run.stop())) * 1000
    print(f"loop held up, stopped on the way: {stopped:.0f} ms")
    with few_descriptors():
        for algorithm in ("sac", "appo"):
            show(f"5 000 chunks, {algorithm}, tenth -> nine tenths", asyncio.run(over_a_run(algorithm, 5000)))
    runs = asyncio.run(over_runs(50))
    print(f"50 runs, host: after 5: {runs[4]}  ->  after 50: {runs[-1]}")
    one = ("env.id=aiorl.testing:CountEnv", "env.kwargs.length=1")
    for algorithm in ("sac", "appo"):
        found = asyncio.run(over_a_run(algorithm, 400, *one, num_envs=256))
        show(f"episodes of length 1, {algorithm}, tenth -> nine tenths", found)


if __name__ == "__main__":
    main()
