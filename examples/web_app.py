"""Runs behind a web service: `python examples/web_app.py [DIRECTORY PORT]` lets you start, list, watch, cancel.

Settings name environments, and so code: whoever may start runs may run code. It listens to this machine only.
"""

import asyncio
import json
import secrets
import sys
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

import aiorl

HISTORY = 1000  # events of a run that are kept for watchers who come late
PAGE = """<!doctype html><meta charset="utf-8"><title>aiorl</title><p><input id="overrides" size="60"
value="budget.env_steps=20000"> <button onclick="start()">Start</button> <button onclick="if (run)
fetch(run, {method: 'DELETE'})">Cancel</button><p id="state"></p><pre id="log"></pre><script>
const [overrides, state, log] = ['overrides', 'state', 'log'].map(id => document.getElementById(id));
let run, source; async function start() {
  const body = JSON.stringify({overrides: overrides.value.split(' ').filter(Boolean)});
  const answer = await fetch('/runs', {method: 'POST', headers: {'Content-Type': 'application/json'}, body});
  const said = await answer.json(); if (!answer.ok) return state.textContent = said.problems.join(' ');
  source?.close(); [run, source] = [`/runs/${said.id}`, new EventSource(`/runs/${said.id}/events`)];
  source.onopen = () => log.textContent = '';  // each stream begins with what was told so far
  for (const kind of ['started', 'progress', 'saved', 'evaluated', 'workerreplaced', 'finished', 'failed', 'cancelled'])
    source.addEventListener(kind, event => {
      [state.textContent, log.textContent] = [`${run}: ${kind}`, `${kind} ${event.data}\\n` + log.textContent];
      if (['finished', 'failed', 'cancelled'].includes(kind)) source.close(); });
}</script>"""


class WatchedRun:
    """A run and what it has told: watchers read that, each at its own pace, and hold nobody up."""

    def __init__(self, run: aiorl.Run, group: asyncio.TaskGroup) -> None:
        self.run, self.refused = run, None
        self.status = {"id": run.run_dir.name, "state": "starting", "events": 0, "newest": {}}
        self.news = asyncio.Event()  # set, and replaced, by each event; and set by the end
        self._told: deque[tuple[int, str]] = deque(maxlen=HISTORY)
        self.task = group.create_task(self._train())
        self.task.add_done_callback(lambda _: self.news.set())

    async def _train(self) -> None:
        try:
            async with self.run:
                async for event in self.run:
                    state = event.outcome.state if isinstance(event, aiorl.Finished) else "running"
                    self._tell(type(event).__name__.lower(), state, asdict(event))
        except asyncio.CancelledError:
            self._tell("cancelled", "interrupted", {})
            raise
        except Exception as error:  # told, not raised: it is no reason to end the other runs of the group
            self.refused = error if isinstance(error, aiorl.SettingsError) else None
            self._tell("failed", "failed", {"error": str(error)})

    async def watch(self) -> AsyncIterator[str]:
        """Give what was told so far, and then what comes, as Server-Sent Events."""
        seen, is_over = 0, False
        while not is_over:
            news, is_over = self.news, self.task.done()
            for number, text in [each for each in self._told if each[0] > seen]:
                yield text
                seen = number
            await news.wait()

    def _tell(self, kind: str, state: str, data: dict[str, Any]) -> None:
        text = json.dumps(data, default=str)
        self.status |= {"state": state, "events": self.status["events"] + 1, "newest": json.loads(text)}
        self._told.append((self.status["events"], f"event: {kind}\ndata: {text}\n\n"))
        self.news.set()
        self.news = asyncio.Event()


def create_app(directory: str = "runs/web") -> Starlette:
    runs: dict[str, WatchedRun] = {}

    def cancel_all() -> None:
        for watched in runs.values():
            watched.task.cancel()

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.cancel_all = cancel_all
        async with asyncio.TaskGroup() as app.state.group:
            yield
            cancel_all()

    async def all_runs(request: Request) -> Response:
        if request.method != "POST":
            return JSONResponse([watched.status for watched in runs.values()])
        # A page of another site can have a browser post text and forms here, but not this type under this name.
        is_json = request.headers.get("content-type") == "application/json"
        if not is_json or request.url.hostname not in ("127.0.0.1", "localhost"):
            raise HTTPException(415, "send application/json to 127.0.0.1")
        try:
            overrides = [str(text) for text in json.loads(await request.body())["overrides"]]
        except (ValueError, KeyError, TypeError):
            raise aiorl.SettingsError('send {"overrides": ["section.key=value"]}') from None
        settings, name = aiorl.load_settings("sac/pendulum", overrides=overrides), secrets.token_hex(4)
        runs[name] = watched = WatchedRun(aiorl.Run(settings, run_dir=f"{directory}/{name}"), request.app.state.group)
        await watched.news.wait()  # it has started, or ended: some settings only a worker can refuse
        if watched.refused is not None:
            raise runs.pop(name).refused
        return JSONResponse(watched.status, 201)

    async def one_run(request: Request) -> Response:
        if (watched := runs.get(request.path_params["name"])) is None:
            raise HTTPException(404, "no such run")
        if request.url.path.endswith("/events"):
            return StreamingResponse(watched.watch(), media_type="text/event-stream")
        if request.method == "DELETE":
            watched.run.stop("cancelled by a client") if watched.status["events"] else watched.task.cancel()
            await asyncio.wait([watched.task])
        return JSONResponse(watched.status)

    async def refuse(request: Request, error: aiorl.SettingsError) -> Response:
        return JSONResponse({"problems": error.problems}, 422)

    routes = [
        Route("/", HTMLResponse(PAGE)),
        Route("/runs", all_runs, methods=["GET", "POST"]),
        Route("/runs/{name}", one_run, methods=["GET", "DELETE"]),
        Route("/runs/{name}/events", one_run),
    ]
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers={aiorl.SettingsError: refuse})


class Server(uvicorn.Server):  # noqa: D101
    async def shutdown(self, sockets: Any = None) -> None:
        """End the runs, and so the open streams: uvicorn waits for these before it ends the lifespan."""
        self.config.app.state.cancel_all()
        await super().shutdown(sockets)


if __name__ == "__main__":
    directory, port = sys.argv[1:] or ("runs/web", "8000")
    with suppress(KeyboardInterrupt):  # by then all is ended and saved
        Server(uvicorn.Config(create_app(directory), host="127.0.0.1", port=int(port))).run()
