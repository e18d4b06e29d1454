"""A worker as a process of its own."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Callable
from concurrent.futures import Executor
from multiprocessing.context import BaseContext
from multiprocessing.util import Finalize
from typing import Any

from aiorl.errors import AiorlError, WorkerCrashedError, WorkerError, WorkerStartupError
from aiorl.protocol import Stop
from aiorl.runtime.pipe import Pipe
from aiorl.runtime.worker import Start, process_main
from aiorl.runtime.worker_handle import PipedWorker
from aiorl.settings.sections import RuntimeSettings
from aiorl.shielding import to_the_end
from aiorl.telemetry.log import RunLog
from aiorl.telemetry.trace.slices import CoordinatorTrace

PRELOAD = "aiorl.runtime.preload"
TERMINATE = signal.SIGUSR1
"""Ends a worker that was not stopped by asking; SIGTERM may come from outside, to the whole group, and must not."""
UNGUARDED = (
    ", and before it could say why: it could not import the main module of this program, whose traceback is on stderr;"
    " a script that starts a run does so under `if __name__ == '__main__':`"
)
"""What an exit with code 1 means that no message came before: all of a worker's own code reports what it raises."""
LAST_WORDS_S = 1.0
"""How long to read on after a worker's death: its last frame may still be in the pipe."""


def start_context(settings: RuntimeSettings) -> BaseContext:
    """Return the multiprocessing context that workers start from."""
    method = settings.start_method
    if method == "auto":
        method = "forkserver" if sys.platform.startswith("linux") else "spawn"
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        from multiprocessing import forkserver

        # The server is shared with the host, and so is its list: add to it, never replace it.
        known = list(getattr(forkserver._forkserver, "_preload_modules", []))
        context.set_forkserver_preload([*(name for name in known if name not in ("__main__", PRELOAD)), PRELOAD])
    return context


class ProcessWorker(PipedWorker):
    """A worker process: its own group, a life-line, a pidfd that tells of its death."""

    def __init__(
        self,
        start: Start,
        settings: RuntimeSettings,
        log: RunLog,
        context: BaseContext,
        executor: Executor,
        trace: CoordinatorTrace | None = None,
    ) -> None:
        super().__init__(start, settings, log, trace)
        self._context, self._executor = context, executor
        self._process: Any = None
        self._lifeline: socket.socket | None = None
        self._pidfd: int | None = None
        self._exited: asyncio.Future[None] | None = None
        self.is_gone = False

    async def _launch(self) -> Pipe:
        loop = asyncio.get_running_loop()
        self._exited = loop.create_future()
        ours, theirs = self._context.Pipe(duplex=True)
        self._lifeline, their_lifeline = socket.socketpair()
        # An interpreter that ends with the loop abandoned joins its children: without the life-line, for ever.
        self._at_exit = Finalize(None, self._lifeline.close, exitpriority=100)
        # The loop gets a duplicate: it makes descriptors non-blocking, and Connection expects blocking ones.
        sock = socket.socket(fileno=os.dup(ours.fileno()))
        ours.close()
        self._pipe = Pipe(self.name, sock, self._on_log)
        self._process = self._context.Process(  # type: ignore[attr-defined]
            target=process_main, args=(self._start, theirs, their_lifeline), name=f"aiorl {self.name}"
        )
        try:
            # Started whole or not at all, even when we are cancelled: a half-known process could not be ended.
            await to_the_end(loop.run_in_executor(self._executor, self._process.start))
        finally:
            theirs.close()
            their_lifeline.close()
            if self._process.pid is not None:
                self.pid = self._process.pid
                self._watch(loop)
            await self._pipe.open()
        return self._pipe

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        assert self.pid is not None and self._exited is not None
        if not hasattr(os, "pidfd_open"):
            return  # elsewhere the end of the pipe has to do
        try:
            self._pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            self._exited.set_result(None)
            return
        loop.add_reader(self._pidfd, self._on_exit, loop)

    def _on_exit(self, loop: asyncio.AbstractEventLoop) -> None:
        assert self._pidfd is not None and self._exited is not None
        loop.remove_reader(self._pidfd)
        if not self._exited.done():
            self._exited.set_result(None)

    async def _died(self) -> AiorlError:
        assert self._exited is not None and self._pipe is not None
        await asyncio.wait([self._exited, self._pipe.closed], return_when=asyncio.FIRST_COMPLETED)
        # Both tell of the same death: the pipe may hold a last word, the process its exit code. A grandchild can
        # keep the pipe open, and a process can outlive its pipe, so neither is waited for without end.
        if self._pipe.broken is None:
            await asyncio.wait([self._exited, self._pipe.closed], timeout=LAST_WORDS_S)
        if self._pipe.broken is not None:
            self.kill()
            return self._pipe.broken.of(self.role, self.index, self.pid)
        end, when = await self._how_it_ended(), ""
        kind: type[WorkerError] = WorkerCrashedError
        if self.state == "starting":
            kind, when = WorkerStartupError, " before it was ready"
            if self._process.exitcode == 1:
                when += UNGUARDED
        return kind(
            f"{self.name} (pid {self.pid}) {end}{when}",
            role=self.role,
            index=self.index,
            pid=self.pid,
        )

    async def _how_it_ended(self) -> str:
        code = await self._join(LAST_WORDS_S)
        if code is None:
            return "closed its pipe but runs on"
        if code < 0:
            try:
                return f"was killed by signal {-code} ({signal.Signals(-code).name})"
            except ValueError:
                return f"was killed by signal {-code}"
        return f"exited with code {code}"

    def kill(self) -> None:
        """Kill its process group."""
        self._signal(signal.SIGKILL)

    async def stop(self, *, at_once: bool = False) -> None:
        """End it: ask, terminate, kill, each with its deadline; then give everything back."""
        if self._process is not None:
            # A second order to end hurries this, but a half-done clean-up would leave descriptors.
            await to_the_end(self._stop(at_once), on_cancel=self.kill)

    async def _stop(self, at_once: bool) -> None:
        try:
            if self.pid is not None:
                await self._ladder(at_once)
        finally:
            self._signal(signal.SIGKILL)  # children that it left behind
            await self._stop_watching()
            await self._give_back()

    async def _ladder(self, at_once: bool) -> None:
        if not at_once and self.state == "running" and self._pipe is not None and self._is_alive:
            try:
                await asyncio.wait_for(self._ask_to_stop(), self._settings.stop_ask_s)
            except (TimeoutError, AiorlError):
                self._log.warning("worker did not stop when asked", worker=self.name, pid=self.pid)
        if self._is_alive and not at_once:
            self._signal(TERMINATE)
            await self._wait_exit(self._settings.stop_terminate_s)
        if self._is_alive:
            self.kill()
            await self._wait_exit(self._settings.stop_terminate_s)

    async def _ask_to_stop(self) -> None:
        assert self._pipe is not None and self._exited is not None
        await self._pipe.send(Stop())
        await asyncio.wait([self._exited] if self._pidfd is not None else [self._pipe.closed])

    async def _wait_exit(self, seconds: float) -> None:
        assert self._exited is not None
        if self._pidfd is not None:
            await asyncio.wait([self._exited], timeout=seconds)
        else:
            await self._join(seconds)

    @property
    def _is_alive(self) -> bool:
        if self._pidfd is not None and self._exited is not None:
            return not self._exited.done()
        return bool(self._process is not None and self._process.pid is not None and self._process.exitcode is None)

    def _signal(self, number: signal.Signals) -> None:
        if self.pid is None:
            return
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            # No such group: it is gone, or has not come so far as to lead one.
            if self._pidfd is not None and self._is_alive:
                _quietly(lambda: signal.pidfd_send_signal(self._pidfd, number))  # type: ignore[arg-type]
        except PermissionError:
            return  # the group of a process that is not ours any more

    async def _join(self, seconds: float) -> int | None:
        loop = asyncio.get_running_loop()
        await to_the_end(loop.run_in_executor(self._executor, self._process.join, seconds))
        code: int | None = self._process.exitcode
        return code

    async def _give_back(self) -> None:
        loop = asyncio.get_running_loop()
        if self.pid is not None and await self._join(self._settings.stop_terminate_s) is not None:
            self._process.close()
            self.is_gone = True
        self._process = None
        if self._pidfd is not None:
            loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
        if self._pipe is not None:
            await self._pipe.close()
        if self._lifeline is not None:
            self._at_exit.cancel()
            self._lifeline.close()
            self._lifeline = None
        if self.state != "failed":
            self.state = "stopped"


def _quietly(action: Callable[[], None]) -> None:
    try:
        action()
    except ProcessLookupError:
        return
