"""Thousands of chunks, dozens of runs, the shortest episodes: nothing grows, and the loop waits for no disk."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.load import Samples, few_descriptors, over_a_run, over_runs
from tests.conftest import small_settings
from tests.run.helpers import train

SLOW = (pytest.mark.slow, pytest.mark.timeout(600))
GROWTH_MIB = 20.0
ROOT = Path(__file__).parents[2]


def assert_flat(samples: list[Samples]) -> None:
    first, last = samples[0], samples[-1]
    assert first.keys() == last.keys() == {"host", "collector 0", "learner 0"}
    for name, before in first.items():
        after = last[name]
        assert after.descriptors <= before.descriptors + 1, (name, before, after)  # a file is being written, or not
        assert after.threads <= before.threads + 2, (name, before, after)  # pools make theirs when first needed
        assert after.mib < before.mib + GROWTH_MIB, (name, before, after)


@pytest.mark.parametrize("ticks", [300, pytest.param(5000, marks=SLOW)])
def test_chunks_under_a_low_limit_of_descriptors(algorithm: str, ticks: int) -> None:
    with few_descriptors():
        assert_flat(asyncio.run(over_a_run(algorithm, ticks)))


@pytest.mark.parametrize("ticks", [60, pytest.param(400, marks=SLOW)])
def test_episodes_of_one_step_in_many_envs(algorithm: str, ticks: int) -> None:
    one = ("env.id=aiorl.testing:CountEnv", "env.kwargs.length=1")
    assert_flat(asyncio.run(over_a_run(algorithm, ticks, *one, num_envs=256)))


@pytest.mark.parametrize("count", [6, pytest.param(50, marks=SLOW)])
def test_runs_one_after_another(count: int) -> None:
    found = asyncio.run(over_runs(count))
    warm = found[min(4, count // 2)]
    assert found[-1].descriptors <= warm.descriptors + 1 and found[-1].threads <= warm.threads + 1
    assert found[-1].mib < warm.mib + GROWTH_MIB


WATCHED = """
import asyncio, sys, threading
import aiorl.storage.block as block
from pathlib import Path
from aiorl import Run
from tests.conftest import small_settings

KERNEL = ("/sys/fs/cgroup", "/proc/")  # no disk behind them
WAITS = {"open", "subprocess.Popen", "time.sleep", "os.listdir", "os.scandir", "os.rename", "os.mkdir", "os.remove",
         "os.rmdir", "shutil.rmtree", "shutil.copyfile", "os.fork", "os.posix_spawn", "fcntl.flock", "os.symlink"}
loop_thread = threading.get_ident()
is_running = False
give_back = block.Block.close

def close(self):
    if is_running and threading.get_ident() == loop_thread:
        print("memory is given back in the loop's thread:", self.name)
    give_back(self)

block.Block.close = close

def watch(event, arguments):
    if is_running and event in WAITS and threading.get_ident() == loop_thread:
        what = str(arguments[0]) if arguments else ""
        if not what.startswith(KERNEL) and "forkserver" not in what:  # a module, the first time only
            frame = sys._getframe(1)
            while frame and "aiorl" not in frame.f_code.co_filename:
                frame = frame.f_back
            print(event, what, frame and (frame.f_code.co_filename, frame.f_lineno))

async def main():
    global is_running
    more = sys.argv[3:]
    settings = small_settings("evaluation.at_end=true", "checkpoint.every_env_steps=160", "telemetry.tensorboard=true",
                              *more, algorithm=sys.argv[1])
    run = Run(settings, run_dir=sys.argv[2])
    is_running = True
    try:
        async with run:
            async for _ in run:
                pass
    except Exception as error:
        sys.stderr.write(type(error).__name__)
    is_running = False

if __name__ == "__main__":
    sys.addaudithook(watch)
    asyncio.run(main())
"""


@pytest.mark.parametrize("how", ["completes", "fails", "starts from a policy"])
def test_the_loops_thread_waits_for_no_file_and_no_process(tmp_path: Path, algorithm: str, how: str) -> None:
    (tmp_path / "watched.py").write_text(WATCHED)
    more = ["env.id=aiorl.testing:TrapEnv"] if how == "fails" else []
    if how == "starts from a policy":
        asyncio.run(train(small_settings("runtime.kind=inline", algorithm=algorithm), tmp_path / "first"))
        more = [f"checkpoint.warm_start={tmp_path / 'first'}"]
    done = subprocess.run(
        [sys.executable, "watched.py", algorithm, str(tmp_path / "run"), *more],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "", "file and process calls in the loop's thread"
    assert ("WorkerFailedError" in done.stderr) == (how == "fails"), done.stderr
