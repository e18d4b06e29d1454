"""What process and inline workers share: calls with deadlines, and replies that are failures as exceptions."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from time import perf_counter_ns, thread_time_ns

from aiorl import errors
from aiorl.errors import (
    AiorlError,
    CheckpointError,
    EnvError,
    RemoteTracebackError,
    SettingsError,
    StorageError,
    WorkerFailedError,
    WorkerStalledError,
    WorkerStartupError,
)
from aiorl.protocol import Failed, LogLine, Message, Ready, Refused, Request
from aiorl.runtime.deadlines import Countdown, Deadlines
from aiorl.runtime.pipe import Pipe
from aiorl.runtime.worker import Start
from aiorl.settings.sections import RuntimeSettings
from aiorl.telemetry.log import RunLog
from aiorl.telemetry.trace.slices import CoordinatorTrace

# Errors that keep their class on the way up: the user's env, disk or memory is at fault, not the worker.
_OWN_CLASS: dict[str, type[AiorlError]] = {
    kind.__name__: kind for kind in (EnvError, CheckpointError, StorageError, errors.ProtocolError)
}


class PipedWorker(ABC):
    """A worker behind a pipe."""

    def __init__(
        self, start: Start, settings: RuntimeSettings, log: RunLog, trace: CoordinatorTrace | None = None
    ) -> None:
        self._start, self._settings, self._log, self._trace = start, settings, log, trace
        self.role, self.index = start.role, start.index
        self.state = "starting"
        self.pid: int | None = None
        self._deadlines = Deadlines(settings)
        self._pipe: Pipe | None = None
        self._death: asyncio.Task[AiorlError] | None = None
        self._awaited: asyncio.Future[Message] | None = None

    @property
    def name(self) -> str:
        """Role and index."""
        return self._start.name

    async def start(self) -> Ready:
        """Start the worker and wait until it is ready."""
        try:
            pipe = await self._launch()
            self._death = asyncio.create_task(self._died(), name=f"aiorl watch of {self.name}")
            self._death.add_done_callback(self._give_death)
            reply = await self._wait(pipe.first(), self._settings.startup_deadline_s, "start")
        except WorkerStalledError as error:
            raise WorkerStartupError(
                f"{self.name} was not ready after runtime.startup_deadline_s={self._settings.startup_deadline_s:g}",
                role=self.role,
                index=self.index,
                pid=self.pid,
            ) from error
        if isinstance(reply, Refused):
            raise SettingsError(f"{reply.key}: {reply.sentence}")
        if isinstance(reply, Failed):
            self.state = "failed"
            raise self._as_error(reply, WorkerStartupError, "failed at start")
        assert isinstance(reply, Ready)
        if not reply.preloaded and self._settings.start_method != "spawn":
            self._log.warning(
                "worker started without preloaded modules; a fork server of the host's own was running already",
                worker=self.name,
            )
        self.state = "running"
        return reply

    async def call(self, request: Request) -> Message:
        """Send a request and wait for its reply, the worker's death or the deadline."""
        assert self._pipe is not None
        kind = type(request).__name__
        loop = asyncio.get_running_loop()
        begin, begin_ns, begin_cpu_ns = loop.time(), perf_counter_ns(), thread_time_ns()
        answer = await self._pipe.send(request)
        reply = await self._wait(answer, self._deadlines.deadline_s(kind), kind)
        self._deadlines.answered(kind, loop.time() - begin)
        if self._trace is not None:
            self._trace.called(self.name, request, begin_ns, begin_cpu_ns)
        if isinstance(reply, Failed):
            self.state = "failed"
            raise self._as_error(reply, WorkerFailedError, "failed")
        return reply

    async def death(self) -> AiorlError:
        """Wait until the worker dies; return how it did. Where a call of ours failed first, that one reports it."""
        assert self._death is not None
        await asyncio.wait([self._death])
        if self.state == "failed":
            await asyncio.get_running_loop().create_future()
        self.state = "failed"
        return self._death.result()

    async def _stop_watching(self) -> None:
        if self._death is not None:
            self._death.cancel()
            await asyncio.gather(self._death, return_exceptions=True)

    @abstractmethod
    async def _launch(self) -> Pipe:
        """Start it and return its open pipe."""

    @abstractmethod
    async def _died(self) -> AiorlError:
        """Wait for its death; return what to raise."""

    @abstractmethod
    def kill(self) -> None:
        """End it at once, with all that it started."""

    @abstractmethod
    async def stop(self, *, at_once: bool = False) -> None:
        """End it."""

    async def _wait(self, answer: asyncio.Future[Message], deadline_s: float, kind: str) -> Message:
        """Wait for an answer; the worker's death and the deadline are put into the same future, if they come first."""
        death = self._death
        assert death is not None
        self._awaited = answer
        if death.done():
            self._give_death(death)

        def stall() -> None:
            if not answer.done():
                self.kill()
                answer.set_exception(
                    WorkerStalledError(
                        f"{self.name} (pid {self.pid}) did not answer {kind} within {deadline_s:g} s and was killed",
                        role=self.role,
                        index=self.index,
                        pid=self.pid,
                    )
                )

        countdown = Countdown(deadline_s, stall, asyncio.get_running_loop())
        try:
            return await answer
        except AiorlError:
            self.state = "failed"
            raise
        finally:
            countdown.cancel()

    def _give_death(self, death: asyncio.Task[AiorlError]) -> None:
        answer = self._awaited
        if answer is not None and not answer.done() and not death.cancelled():
            failure = death.exception()
            answer.set_exception(death.result() if failure is None else failure)

    def _as_error(self, failed: Failed, kind: type[errors.WorkerError], verb: str) -> AiorlError:
        own = _OWN_CLASS.get(failed.error)
        error: AiorlError
        if own is not None:
            error = own(f"{self.name} (pid {self.pid}): {failed.message}")
        else:
            error = kind(
                f"{self.name} (pid {self.pid}) {verb}: {failed.error}: {failed.message}",
            )
        error.of(self.role, self.index, self.pid)
        error.__cause__ = RemoteTracebackError(failed.traceback)
        return error

    def _on_log(self, line: LogLine) -> None:
        self._log.from_worker(self.role, self.index, self.pid, line)
