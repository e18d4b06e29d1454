"""`aiorl run` and `aiorl resume` as a user meets them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from aiorl.telemetry.sinks import read_metrics
from tests.cli.helpers import aiorl, finish, run_small, small, start
from tests.conftest import steps_of


def first_lines(process: subprocess.Popen[str], wanted: str) -> None:
    """Read its output until a line with `wanted` comes."""
    assert process.stdout is not None
    for line in process.stdout:
        if wanted in line:
            return
    raise AssertionError(f"no line with {wanted!r}: {process.stderr and process.stderr.read()}")


@pytest.mark.parametrize("algorithm", ["sac", pytest.param("appo", marks=pytest.mark.slow)])
def test_a_run_explains_itself(tmp_path: Path, algorithm: str) -> None:
    code, out, err = run_small(
        "evaluation.at_end=true", "telemetry.tensorboard=true", cwd=tmp_path, algorithm=algorithm
    )
    assert code == 0, err
    assert "env steps 400" in out and "Traceback" not in err
    assert err.splitlines()[-1] == "aiorl: look at run, or `aiorl evaluate run`"
    run_dir = tmp_path / "run"
    steps = 44 if algorithm == "sac" else 50
    status = json.loads((run_dir / "status.json").read_text())
    assert status["state"] == "completed" and status["env_steps"] == 400 and status["tick"] == 25
    assert status["gradient_steps"] == steps and status["error"] is None
    records = read_metrics(run_dir / "metrics.jsonl")
    assert [record["tick"] for record in records] == [5, 10, 15, 20, 25]
    assert records[-1]["env_steps"] == 400 and records[-1]["gradient_steps"] == steps
    for record in records:
        assert sum(value for name, value in record.items() if name.startswith("share/")) == pytest.approx(1)
    environment = json.loads((run_dir / "environment.json").read_text())
    assert environment["versions"]["mujoco"] and environment["command"]
    assert json.loads((run_dir / "evaluation.json").read_text())["episodes"] == 4
    assert (run_dir / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert list((run_dir / "tensorboard").glob("events.out.tfevents.*"))
    latest = run_dir / "checkpoints" / "latest"
    assert latest.is_symlink() and os.readlink(latest) == "25"
    assert [line for line in (run_dir / "log.jsonl").read_text().splitlines() if json.loads(line)]

    # The same settings from the resolved file; and an existing directory is never written over.
    code, _, err = aiorl("run", "run/settings.yaml", "--run-dir", "run", cwd=tmp_path)
    assert code == 2 and "exists already" in err and "aiorl resume run" in err
    code, _, err = aiorl("run", "run/settings.yaml", "--run-dir", "again", cwd=tmp_path)
    assert code == 0, err
    name = "checkpoints/25/learner.safetensors"
    assert (tmp_path / "again" / name).read_bytes() == (run_dir / name).read_bytes()

    code, _, err = aiorl("resume", "run", cwd=tmp_path)
    assert code == 2 and "raise the budget" in err
    code, out, err = aiorl("resume", "run", "budget.env_steps=500", "evaluation.at_end=false", cwd=tmp_path)
    assert code == 0, err
    ticks = [record["tick"] for record in read_metrics(run_dir / "metrics.jsonl")]
    assert ticks == sorted(set(ticks)) and ticks[-1] == 32
    code, _, err = aiorl("resume", "run", "algorithm.gamma=0.5", "budget.env_steps=600", cwd=tmp_path)
    assert code == 2 and err.startswith("aiorl: algorithm.gamma: 0.5 is not what this run was started with (0.99)")

    code, out, err = aiorl("evaluate", "run", "--episodes", "3", cwd=tmp_path)
    assert code == 0 and json.loads(out)["episodes"] == 3, err
    before = (run_dir / "checkpoints" / "32" / "policy.safetensors").read_bytes()
    code, out, err = aiorl("evaluate", "run/checkpoints/25", cwd=tmp_path)
    assert code == 0 and json.loads(out)["env_steps"] == 400, err
    assert (run_dir / "checkpoints" / "32" / "policy.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("algorithm", "number", "code", "to_group"),
    [
        ("sac", signal.SIGINT, 130, True),
        ("appo", signal.SIGINT, 130, False),
        ("appo", signal.SIGTERM, 143, True),
        ("sac", signal.SIGHUP, 129, False),
    ],
)
def test_a_signal_saves_and_says_how_to_go_on(
    tmp_path: Path, algorithm: str, number: int, code: int, to_group: bool
) -> None:
    process = start("run", *small(algorithm), "budget.env_steps=1e8", "--run-dir", "run", cwd=tmp_path)
    first_lines(process, "env steps")
    (os.killpg if to_group else os.kill)(process.pid, number)
    returned, _, err = finish(process, 20)
    assert returned == code, err
    assert "Traceback" not in err and "resource_tracker" not in err
    assert err.splitlines()[-1].endswith("go on with `aiorl resume run`")
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["state"] == "interrupted"
    returned, out, err = aiorl("resume", "run", f"budget.env_steps={status['env_steps'] + 100}", cwd=tmp_path)
    assert returned == 0, err
    assert f"{status['env_steps']:,} env steps" in out


def test_a_second_signal_ends_at_once(tmp_path: Path, algorithm: str) -> None:
    slow = ["env.id=aiorl.testing:SlowEnv", "env.kwargs.seconds=0.2", steps_of(algorithm, 50)]
    process = start("run", *small(algorithm), *slow, "--run-dir", "run", cwd=tmp_path)
    first_lines(process, "training in run")
    os.killpg(process.pid, signal.SIGINT)
    assert process.stderr is not None
    assert "once more stops at once" in process.stderr.readline()
    os.killpg(process.pid, signal.SIGINT)
    code, _, err = finish(process, 10)
    assert code == 130 and "Traceback" not in err, err
    assert "no checkpoint was written yet" in err.splitlines()[-1]


def test_a_signal_during_start_up(tmp_path: Path) -> None:
    process = start("run", *small(), "--run-dir", "run", cwd=tmp_path)
    while not (tmp_path / "run" / "status.json").exists():
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    code, _, err = finish(process, 20)
    assert code == 130 and "Traceback" not in err, err


@pytest.mark.parametrize(
    ("algorithm", "where", "code"), [("sac", "init", 3), ("appo", "reset", 4), ("sac", "step", 4), ("appo", "step", 4)]
)
def test_an_env_that_raises(tmp_path: Path, algorithm: str, where: str, code: int) -> None:
    returned, _, err = run_small(
        "env.id=aiorl.testing:TrapEnv", f"env.kwargs.where={where}", cwd=tmp_path, algorithm=algorithm
    )
    assert returned == code, err
    assert err.count("Traceback (most recent call last)") == 1
    assert err.count("RuntimeError: the trap env has sprung") == 2, "in the traceback and in our line"
    assert "collector 0" in err and "EOFError" not in err and "aiorl/testing/traps.py" in err


def test_a_worker_killed_from_outside(tmp_path: Path, algorithm: str) -> None:
    process = start("run", *small(algorithm), "budget.env_steps=1e8", "--run-dir", "run", cwd=tmp_path)
    first_lines(process, "env steps")
    workers = json.loads((tmp_path / "run" / "status.json").read_text())["workers"]
    os.kill(next(each["pid"] for each in workers if each["role"] == "learner"), signal.SIGKILL)
    code, _, err = finish(process, 20)
    assert code == 4, err
    assert "learner 0" in err and "signal 9 (SIGKILL)" in err and "Traceback" not in err
    for each in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(each["pid"], 0)


def test_workers_die_with_a_killed_coordinator(tmp_path: Path, algorithm: str) -> None:
    process = start("run", *small(algorithm), "budget.env_steps=1e8", "--run-dir", "run", cwd=tmp_path)
    first_lines(process, "env steps")
    workers = json.loads((tmp_path / "run" / "status.json").read_text())["workers"]
    pidfds = [os.pidfd_open(each["pid"]) for each in workers]
    process.kill()
    finish(process, 20)
    import select

    for fd in pidfds:
        assert select.select([fd], [], [], 10)[0], "a worker outlived its coordinator"
        os.close(fd)
    # What it was writing is no checkpoint, and the run goes on from the last whole one, or says there is none.
    code, _, err = aiorl("resume", "run", cwd=tmp_path)
    assert code == 2 and "no whole checkpoint" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "learner.batchsize=3"], ["learner.batchsize", "did you mean learner.batch_size"]),
        (["run", "learner.batch_size=0", "seed=-1"], ["learner.batch_size: 0", "seed: -1"]),
        (["run", "sac/pendulun"], ["did you mean sac/pendulum"]),
        (["run", "nothing.yaml"], ["nothing.yaml: no such settings file"]),
        (["run", "env.id=Nope-v0"], ["env.id", "Nope"]),
        (["runn"], ["runn"]),
        (["run", "--run-dri", "x"], ["--run-dri"]),
        (["resume", "nowhere"], ["nowhere: no such run directory"]),
        (["resume", "."], ["is no run directory"]),
        (["evaluate", "nowhere"], ["nowhere: no such run directory"]),
        (["evaluate", ".", "--episodes", "0"], ["--episodes"]),
        (["settings", "show", "sac/nothing"], ["sac/nothing"]),
    ],
)
def test_mistakes_get_a_sentence_each(tmp_path: Path, arguments: list[str], words: list[str]) -> None:
    code, out, err = aiorl(*arguments, cwd=tmp_path)
    assert code == 2 and out == "" and "Traceback" not in err, err
    assert all(word in err for word in words), err
    assert len(err.splitlines()) == (2 if len(arguments) == 3 and "seed=-1" in arguments else 1), err
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())


def test_a_misspelt_environment_variable_is_refused(tmp_path: Path) -> None:
    code, _, err = aiorl("run", cwd=tmp_path, AIORL_LEARNER__BATCHSIZE="3")
    assert code == 2 and "AIORL_LEARNER__BATCHSIZE" in err and "did you mean learner.batch_size" in err


def test_doctor_and_settings(tmp_path: Path) -> None:
    code, out, err = aiorl("doctor", cwd=tmp_path)
    assert code == 0 and "shared memory needed" in out and "cores" in out, err
    code, out, err = aiorl("settings", "list", cwd=tmp_path)
    assert code == 0 and "sac/pendulum" in out and "sac/half_cheetah" in out, err
    code, out, err = aiorl("settings", "show", "sac/pendulum", "seed=7", cwd=tmp_path)
    assert code == 0 and "override seed=7" in out and "sac/pendulum.yaml:" in out and "# default" in out, err
    (tmp_path / "shown.yaml").write_text(out)
    code, again, err = aiorl("settings", "show", "shown.yaml", cwd=tmp_path)
    assert code == 0 and "seed: 7" in again, err
    code, out, err = aiorl("settings", "schema", cwd=tmp_path)
    assert code == 0 and json.loads(out)["properties"]["learner"], err


def test_training_outlives_whoever_reads_its_output(tmp_path: Path) -> None:
    process = start("run", *small(), "budget.env_steps=4000", "--run-dir", "run", cwd=tmp_path)
    first_lines(process, "training in run")
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    process.stdout = None
    code, _, err = finish(process, 60)
    assert code == 0 and "completed" in err and "Traceback" not in err, err


def test_a_signal_is_obeyed_when_nobody_can_read_of_it(tmp_path: Path) -> None:
    process = start("run", *small(), "budget.env_steps=1e8", "--run-dir", "run", cwd=tmp_path)
    first_lines(process, "env steps")
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    process.stderr.close()
    process.stdout = process.stderr = None
    process.terminate()
    assert process.wait(timeout=20) == 143
    assert (tmp_path / "run" / "checkpoints" / "latest" / "manifest.json").exists()


def test_sigterm_to_everyone_still_saves(tmp_path: Path) -> None:
    """As service managers and schedulers do it: to each process of the group."""
    process = start("run", *small(), "budget.env_steps=1e8", "--run-dir", "run", cwd=tmp_path)
    first_lines(process, "env steps")
    workers = json.loads((tmp_path / "run" / "status.json").read_text())["workers"]
    for pid in [*(each["pid"] for each in workers), process.pid]:
        os.kill(pid, signal.SIGTERM)
    code, _, err = finish(process, 20)
    assert code == 143 and "second signal" not in err, err
    assert (tmp_path / "run" / "checkpoints" / "latest" / "manifest.json").exists()


def test_an_interpreter_that_abandons_its_loop_ends_all_the_same(tmp_path: Path) -> None:
    script = """
import asyncio, sys
from tests.conftest import small_settings
from aiorl import Run

async def main():
    run = Run(small_settings("budget.env_steps=1e8"), run_dir=sys.argv[1])
    await run.__aenter__()
    await anext(run)
    asyncio.get_running_loop().stop()
    await asyncio.sleep(60)

if __name__ == "__main__":
    loop = asyncio.new_event_loop()
    loop.create_task(main())
    loop.run_forever()
"""
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "script.py", "run"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        timeout=40,
    )
    assert done.returncode == 0, done.stderr
