"""The examples run as they stand."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import psutil
import pytest
import uvicorn

from tests.cli.helpers import _hear_signals
from tests.conftest import SMALL

EXAMPLES = Path(__file__).parents[1] / "examples"
FOREVER = [*SMALL["sac"], "budget.env_steps=1e8", "telemetry.interval_ticks=20"]
INLINE = "runtime.kind=inline"
TRAP = "env.id=aiorl.testing:TrapEnv"


def run_example(name: str, *arguments: str, cwd: Path) -> str:
    """Run an example to its end; that includes everything that holds its stderr, as its workers do."""
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_embed(tmp_path: Path) -> None:
    assert run_example("embed.py", "run", *SMALL["sac"], cwd=tmp_path).splitlines()[-1].startswith("completed [")


def test_own_env(tmp_path: Path) -> None:
    lines = run_example("own_env.py", "run", *SMALL["sac"], "evaluation.at_end=true", cwd=tmp_path).splitlines()
    assert re.fullmatch(r"evaluation return -\d+\.\d", lines[0])
    assert re.fullmatch(r"completed: (at the goal|not there) after \d+ steps", lines[1])


NOTEBOOK = """
import sys
import nbformat
from nbclient import NotebookClient

path, *overrides = sys.argv[1:]
notebook = nbformat.read(path, 4)
assert not any(cell.get("outputs") for cell in notebook.cells), "outputs are not kept"
first = next(cell for cell in notebook.cells if cell.cell_type == "code")
assert first.source.startswith("overrides = [")
first.source = f"overrides = {overrides}"
NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
nbformat.write(notebook, "done.ipynb")
"""


def test_notebook(tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    own = {"IPYTHONDIR": str(tmp_path / "ipython"), "JUPYTER_RUNTIME_DIR": str(tmp_path / "jupyter"), "MARK": mark}
    command = [sys.executable, "-c", NOTEBOOK, str(EXAMPLES / "notebook.ipynb"), *SMALL["sac"], "env.num_envs=8"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, env=os.environ | own)
    assert done.returncode == 0, done.stderr
    outputs = [
        output
        for cell in json.loads((tmp_path / "done.ipynb").read_text())["cells"]
        for output in cell.get("outputs", [])
    ]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2, "curve and places"
    assert any("'completed'" in "".join(output.get("data", {}).get("text/plain", "")) for output in outputs)
    assert any((tmp_path / "runs").glob("cart-*/metrics.jsonl"))
    assert_all_end(mark)


def assert_all_end(mark: str) -> None:
    """Check that every process with this mark in its environment has ended, or is about to."""

    def has_mark(process: psutil.Process) -> bool:
        try:
            return process.environ().get("MARK") == mark
        except psutil.Error:  # gone, or somebody else's
            return False

    _, alive = psutil.wait_procs(filter(has_mark, psutil.process_iter()), timeout=5)
    assert not alive


@pytest.fixture
def web_app() -> ModuleType:
    spec = importlib.util.spec_from_file_location("web_app", EXAMPLES / "web_app.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@asynccontextmanager
async def served(web_app: ModuleType, directory: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Serve the app in this loop; leave as its main does on Ctrl-C."""
    with socket.create_server(("127.0.0.1", 0)) as listener:  # clients can knock before the server answers
        app = web_app.create_app(str(directory))
        server = web_app.Server(uvicorn.Config(app, lifespan="on", ws="none", log_config=None))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        base = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with httpx.AsyncClient(base_url=base, timeout=60, trust_env=False) as client:
            yield client
            server.should_exit = True
            await serving


async def start(client: httpx.AsyncClient, *overrides: str) -> str:
    answer = await client.post("/runs", json={"overrides": overrides})
    assert answer.status_code == 201, answer.text
    run_id = answer.json()["id"]
    assert isinstance(run_id, str)
    return run_id


async def watched(client: httpx.AsyncClient, run_id: str) -> AsyncIterator[tuple[str, Any]]:
    """Give the events of a run as kind and data."""
    async with client.stream("GET", f"/runs/{run_id}/events") as stream:
        assert stream.status_code == 200 and stream.headers["content-type"].startswith("text/event-stream")
        kind = ""
        async for line in stream.aiter_lines():
            name, _, value = line.partition(": ")
            if name == "event":
                kind = value
            elif name == "data":
                yield kind, json.loads(value)


async def all_of(client: httpx.AsyncClient, run_id: str) -> list[tuple[str, Any]]:
    return [event async for event in watched(client, run_id)]


async def first(client: httpx.AsyncClient, run_id: str, kind: str) -> None:
    """Watch until an event of a kind comes, then go away."""
    async with aclosing(watched(client, run_id)) as events:  # type: ignore[type-var]
        async for each, _ in events:
            if each == kind:
                return
    raise AssertionError(f"the stream ended without {kind}")


async def test_web_watchers_come_go_and_see_the_same(web_app: ModuleType, tmp_path: Path) -> None:
    async with served(web_app, tmp_path) as client:
        assert "<script>" in (await client.get("/")).text
        one, two = await asyncio.gather(start(client, *FOREVER, INLINE), start(client, *FOREVER, INLINE, "seed=1"))
        both = [asyncio.create_task(all_of(client, one)) for _ in range(2)]
        await first(client, one, "progress")
        await first(client, one, "progress")
        late = asyncio.create_task(all_of(client, one))
        states = {status["id"]: status["state"] for status in (await client.get("/runs")).json()}
        assert states == {one: "running", two: "running"}
        ended = await client.delete(f"/runs/{one}")
        assert ended.status_code == 200 and ended.json()["state"] == "interrupted"
        outcome = ended.json()["newest"]["outcome"]
        assert outcome["reason"] == "cancelled by a client" and Path(outcome["checkpoint"], "manifest.json").exists()
        early, other, later = await asyncio.gather(*both, late)
        assert [kind for kind, _ in early][:2] == ["started", "progress"]
        assert [kind for kind, _ in early][-2:] == ["saved", "finished"] and early[-1][1]["outcome"] == outcome
        assert early == other == later == await all_of(client, one)
        assert (await client.delete(f"/runs/{one}")).json() == ended.json(), "it has ended, once"
        assert (await client.get(f"/runs/{two}")).json()["state"] == "running", "the other one goes on"
        again = await start(client, *SMALL["sac"], INLINE)
        assert (await all_of(client, again))[-1][1]["outcome"]["state"] == "completed"
    assert json.loads((tmp_path / two / "status.json").read_text())["state"] == "interrupted", "saved at shutdown"
    assert (tmp_path / two / "checkpoints" / "latest" / "manifest.json").exists()


async def test_web_late_watchers_get_a_bounded_history(web_app: ModuleType, tmp_path: Path) -> None:
    web_app.HISTORY = 4
    async with served(web_app, tmp_path) as client:
        run_id = await start(client, *SMALL["sac"], INLINE, "telemetry.interval_ticks=1")
        await first(client, run_id, "finished")
        events = await all_of(client, run_id)
        assert [kind for kind, _ in events] == ["progress", "progress", "saved", "finished"]
        assert (await client.get(f"/runs/{run_id}")).json()["events"] == 28


async def test_web_refusals_and_failures_are_answers(web_app: ModuleType, tmp_path: Path) -> None:
    async with served(web_app, tmp_path) as client:
        answer = await client.post("/runs", json={"overrides": ["env.idd=x", "budget.env_steps=-1"]})
        assert answer.status_code == 422 and len(answer.json()["problems"]) == 2
        assert "did you mean env.id?" in answer.json()["problems"][0]
        only_a_worker_knows = await client.post("/runs", json={"overrides": [*FOREVER, INLINE, "env.id=HalfCheeta-v5"]})
        assert only_a_worker_knows.status_code == 422 and "HalfCheetah" in only_a_worker_knows.json()["problems"][0]
        for body in ({}, [], {"overrides": 3}, "x"):
            assert (await client.post("/runs", json=body)).status_code == 422, body
        broken = await client.post("/runs", content="{", headers={"Content-Type": "application/json"})
        assert broken.status_code == 422
        foreign: list[dict[str, str]] = [{"Content-Type": "text/plain"}, {"Host": "elsewhere.example"}]
        for headers in foreign:
            answer = await client.post(
                "/runs", content='{"overrides": []}', headers={"Content-Type": "application/json", **headers}
            )
            assert answer.status_code == 415, headers
        assert (await client.get("/runs")).json() == []
        for path in ("/runs/none", "/runs/none/events"):
            assert (await client.get(path)).status_code == 404
        assert (await client.delete("/runs/none")).status_code == 404

        for where in ("step", "init"):
            failing = await start(client, *FOREVER, INLINE, TRAP, f"env.kwargs.where={where}")
            kind, data = (await all_of(client, failing))[-1]
            assert kind == "failed" and "the trap env has sprung" in data["error"]
            status = (await client.get(f"/runs/{failing}")).json()
            assert status["state"] == "failed" and status["newest"] == data
            assert (await client.delete(f"/runs/{failing}")).json() == status
        assert (await all_of(client, await start(client, *SMALL["sac"], INLINE)))[-1][0] == "finished"


def test_web_ctrl_c_with_an_open_stream(tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        [sys.executable, str(EXAMPLES / "web_app.py"), "served", "0"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "MARK": mark},
        preexec_fn=_hear_signals,
    )
    try:
        assert process.stderr is not None
        base = next(found[0] for line in process.stderr if (found := re.search(r"http://127.0.0.1:\d+", line)))
        with httpx.Client(base_url=base, timeout=30, trust_env=False) as client:
            runs = [client.post("/runs", json={"overrides": FOREVER}).json()["id"] for _ in range(2)]
            with client.stream("GET", f"/runs/{runs[0]}/events") as stream:
                lines = stream.iter_lines()
                assert "event: progress" in lines
                process.send_signal(signal.SIGINT)
                end_by = time.monotonic() + 15
                kinds = []
                for line in lines:  # the stream ends by itself, and the server waits for that
                    assert time.monotonic() < end_by, "the stream goes on"
                    kinds += [line] if line.startswith("event") else []
        assert kinds[-1] == "event: cancelled"
        _, err = process.communicate(timeout=10)
        assert process.returncode == 0 and "Traceback" not in err and "ERROR" not in err, err
    finally:
        process.kill()
        process.communicate()
    for run_id in runs:
        assert (tmp_path / "served" / run_id / "checkpoints" / "latest" / "manifest.json").exists()
    assert_all_end(mark)
