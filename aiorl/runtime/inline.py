"""A worker as a thread of this process, over the same pipe: for tests and debugging."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import socket
import threading
from concurrent.futures import Executor
from multiprocessing.connection import Connection

from aiorl.errors import AiorlError, WorkerCrashedError
from aiorl.protocol import Stop
from aiorl.runtime.pipe import Pipe
from aiorl.runtime.worker import Start, WorkerChannel, serve
from aiorl.runtime.worker_handle import PipedWorker
from aiorl.settings.sections import RuntimeSettings
from aiorl.shielding import to_the_end
from aiorl.telemetry.log import RunLog
from aiorl.telemetry.trace.slices import CoordinatorTrace


class InlineWorker(PipedWorker):
    """A worker thread; it cannot be killed, only asked, so a stalled one outlives its run until it answers."""

    def __init__(
        self,
        start: Start,
        settings: RuntimeSettings,
        log: RunLog,
        executor: Executor,
        trace: CoordinatorTrace | None = None,
    ) -> None:
        super().__init__(start, settings, log, trace)
        self._executor = executor
        self._thread: threading.Thread | None = None

    @property
    def is_gone(self) -> bool:
        """Whether the thread has ended."""
        return self._thread is None or not self._thread.is_alive()

    async def _launch(self) -> Pipe:
        ours, theirs = socket.socketpair()
        with theirs:
            self._pipe = Pipe(self.name, ours, self._on_log)
            await self._pipe.open()
            channel = WorkerChannel(Connection(os.dup(theirs.fileno())))
        # Processes get descriptors of their own when they start; so does a thread.
        blocks = self._start.blocks and self._start.blocks.duplicate()
        start = dataclasses.replace(self._start, blocks=blocks)
        self._thread = threading.Thread(target=serve, args=(start, channel), name=f"aiorl {self.name}")
        self._thread.start()
        self.pid = os.getpid()
        return self._pipe

    async def _died(self) -> AiorlError:
        assert self._pipe is not None
        await asyncio.wait([self._pipe.closed])
        error = self._pipe.broken or WorkerCrashedError(f"{self.name} ended")
        return error.of(self.role, self.index, self.pid)

    def kill(self) -> None:
        """Do nothing: a thread cannot be killed, and its end of the pipe closes in `stop`."""

    async def stop(self, *, at_once: bool = False) -> None:
        """Ask it to end and wait for it."""
        if self._pipe is not None:
            await to_the_end(self._stop())

    async def _stop(self) -> None:
        assert self._pipe is not None
        if self.state == "running" and not self._pipe.closed.done():
            try:
                await self._pipe.send(Stop())
                await asyncio.wait([self._pipe.closed], timeout=self._settings.stop_ask_s)
            except AiorlError:
                self._log.warning("worker is busy at stop", worker=self.name)
        await self._stop_watching()
        await self._pipe.close()
        if self._thread is not None:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._executor, self._thread.join, self._settings.stop_ask_s)
        if self.state != "failed":
            self.state = "stopped"
