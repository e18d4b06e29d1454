"""A run as an asyncio object: entered, iterated, awaited, paused, saved, stopped, cancelled."""

from __future__ import annotations

import asyncio
import multiprocessing
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import cloudpickle

from aiorl.checkpoint.store import Found
from aiorl.coordinator.control import Control
from aiorl.coordinator.directory import RunDirectory
from aiorl.coordinator.resuming import resumed_settings
from aiorl.coordinator.training import Training
from aiorl.errors import AiorlError, CheckpointError, SettingsError
from aiorl.event_stream import EventStream
from aiorl.events import Event, Finished, Outcome
from aiorl.settings import RunSettings
from aiorl.shielding import to_the_end
from aiorl.telemetry.writer import FileWriter

CANCELLED_SAVE_S = 3.0


class Run:
    """One training run.

        async with Run(settings) as run:
            async for event in run:
                ...
        outcome = await run.wait()

    Leaving the block early stops the run and saves it. A failure is raised by the iterator or by leaving the
    block, once, and by every `wait`.
    """

    def __init__(
        self,
        settings: RunSettings,
        *,
        run_dir: str | Path | None = None,
        env_factory: Callable[..., Any] | None = None,
    ) -> None:
        if env_factory is not None:
            name = f"{env_factory.__module__}:{getattr(env_factory, '__qualname__', type(env_factory).__qualname__)}"
            settings = settings.model_copy(update={"env": settings.env.model_copy(update={"id": name})})
        self.settings = settings
        self._directory = RunDirectory(settings, None if run_dir is None else Path(run_dir))
        self._env_factory = pickled(env_factory)
        self._found: Found | None = None
        self._driver: asyncio.Task[Outcome] | None = None
        self._failure_raised = False

    @classmethod
    def reopen(
        cls,
        run_dir: str | Path,
        *,
        overrides: Iterable[str] = (),
        environ: Mapping[str, str] | None = None,
        env_factory: Callable[..., Any] | None = None,
    ) -> Self:
        """Return a run that goes on from the newest whole checkpoint of `run_dir`.

        Raises:
            SettingsError: it is no run directory, or an override changes what must stay.
            CheckpointError: there is nothing to go on from.

        """
        settings, found = resumed_settings(Path(run_dir), overrides, environ)
        run = cls(settings, run_dir=run_dir)
        run._found, run._env_factory = found, pickled(env_factory)
        return run

    @property
    def run_dir(self) -> Path:
        """The run's directory; one that aiorl names itself is settled when the run is entered."""
        return self._directory.path

    @property
    def resumes_from(self) -> str:
        """Which checkpoint a reopened run goes on from, and what was skipped, as a sentence."""
        if self._found is None:
            return "the beginning"
        skipped = "".join(f"; skipped: {sentence}" for sentence in self._found.skipped)
        return f"{self._found.path} ({self._found.manifest.env_steps} env steps){skipped}"

    async def __aenter__(self) -> Self:
        refuse_unsupported(self.settings)
        if self._driver is not None:
            raise AiorlError("a Run is entered once; make another one, or Run.reopen its directory")
        self._control, self._events = Control(), EventStream()
        self._writer = FileWriter()
        try:
            await self._writer.run(self._directory.create if self._found is None else self._directory.reopen)
            training = Training(
                self.settings,
                self._directory,
                self._writer,
                self._control,
                self._events.put,
                self._env_factory,
                self._found,
            )
        except BaseException:
            await self._close()
            raise
        self._driver = asyncio.create_task(self._drive(training), name=f"aiorl run {self.settings.name}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        driver = self._driver
        assert driver is not None
        timeout_s = self.settings.runtime.save_timeout_s
        if isinstance(error, asyncio.CancelledError):
            timeout_s = min(timeout_s, CANCELLED_SAVE_S)
        self._control.resume()
        if not driver.done():
            self._control.stop("the block was left")
            try:
                await asyncio.wait([driver], timeout=timeout_s)
            finally:
                # Too slow, or we are cancelled ourselves: the last whole checkpoint stands.
                driver.cancel()
                await to_the_end(asyncio.wait([driver]))
        failure = None if driver.cancelled() else driver.exception()
        if failure is None or self._failure_raised:
            return
        if error is None:
            self._raise_failure()
        else:
            error.add_note(f"aiorl: the run failed as well: {failure}")

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        driver = self._require_driver()
        while (event := self._events.take()) is None:
            if driver.done():
                if driver.cancelled():
                    raise AiorlError("the run was aborted")
                if driver.exception() is not None and not self._failure_raised:
                    self._raise_failure()
                raise StopAsyncIteration
            arrived = asyncio.create_task(self._events.arrived())
            try:
                await asyncio.wait([arrived, driver], return_when=asyncio.FIRST_COMPLETED)
            finally:
                arrived.cancel()
                await asyncio.gather(arrived, return_exceptions=True)
        return event

    async def wait(self) -> Outcome:
        """Wait for the end and return the outcome; cancelling this await leaves the run going.

        Raises:
            AiorlError: what the run failed of.

        """
        driver = self._require_driver()
        await asyncio.wait([driver])
        if driver.cancelled():
            raise AiorlError("the run was aborted")
        if driver.exception() is not None:
            self._raise_failure()
        return driver.result()

    def stop(self, reason: str = "stop was called") -> None:
        """Finish the newest collected tick, save, end; `wait` gives the outcome."""
        self._require_driver()
        self._control.stop(reason)

    def abort(self) -> None:
        """End at once without a save; the last whole checkpoint stands."""
        self._require_driver().cancel()

    async def save(self) -> Path | None:
        """Write a checkpoint after the newest collected tick and return its path; None before the first tick.

        Raises:
            AiorlError: the run ended first.

        """
        driver = self._require_driver()
        if driver.done():
            raise AiorlError("the run has ended; its last checkpoint is in the outcome")
        saved = self._control.request_save()
        either: list[asyncio.Future[Any]] = [saved, driver]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not saved.done():
            failure = None if driver.cancelled() else driver.exception()
            if failure is not None:
                raise AiorlError(f"the run failed before it could be saved as asked: {failure}") from failure
            raise AiorlError("the run ended before it could be saved")
        path = saved.result()
        assert path is None or isinstance(path, Path)
        return path

    def pause(self) -> None:
        """Start no new chunk; workers wait without using the CPU."""
        self._require_driver()
        self._control.pause()

    def resume(self) -> None:
        """Go on after a pause."""
        self._require_driver()
        self._control.resume()

    async def _drive(self, training: Training) -> Outcome:
        try:
            outcome = await training.drive()
            self._events.put(Finished(outcome))
            return outcome
        except (SettingsError, CheckpointError):
            if self._found is None and not training.has_started:
                # Refused before anything was trained: leave no directory that blocks the next try.
                await self._writer.run(lambda: shutil.rmtree(self.run_dir))
            raise
        finally:
            await self._close()

    async def _close(self) -> None:
        try:
            await self._writer.close()
        finally:
            self._directory.close()

    def _require_driver(self) -> asyncio.Task[Outcome]:
        if self._driver is None:
            raise AiorlError("enter the run first: `async with run:`")
        return self._driver

    def _raise_failure(self) -> None:
        assert self._driver is not None
        self._failure_raised = True
        error = self._driver.exception()
        assert error is not None
        raise error


def train(
    settings: RunSettings, *, run_dir: str | Path | None = None, env_factory: Callable[..., Any] | None = None
) -> Outcome:
    """Run to the end, blocking; inside a running event loop use `Run`.

    Raises:
        AiorlError: what the run failed of.

    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass  # as it should be
    else:
        raise AiorlError(
            "aiorl.train blocks, and an event loop is running here: use `async with aiorl.Run(settings) as run`"
        )
    return asyncio.run(_train(Run(settings, run_dir=run_dir, env_factory=env_factory)))


async def _train(run: Run) -> Outcome:
    async with run:
        return await run.wait()


def refuse_unsupported(settings: RunSettings | None = None) -> None:
    """Refuse what cannot work, in one sentence, before any process starts.

    Raises:
        SettingsError: this is Windows.
        AiorlError: a child process is importing a script that starts a run at its top level, or there is no script
            that a child process could import.

    """
    if sys.platform == "win32":
        raise SettingsError("aiorl runs on Linux (and, best effort, macOS), not on Windows; WSL works")
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise AiorlError(
            "this script starts a run while a worker imports it: put the start under `if __name__ == '__main__':`"
        )
    main = sys.modules.get("__main__")
    path = getattr(main, "__file__", None)
    if settings is None or settings.runtime.kind == "inline" or path is None or getattr(main, "__spec__", None):
        return  # a module has a name to import it by, and a notebook or `python -c` has nothing to import
    started_in = getattr(multiprocessing.process, "ORIGINAL_DIR", None) or Path()
    if not Path(started_in, path).exists():
        raise AiorlError(
            f"this program's main file is {path}, which is not there, and worker processes have to import it:"
            " run it from a file (not from standard input), or take runtime.kind=inline"
        )


def pickled(env_factory: Callable[..., Any] | None) -> bytes | None:
    """Return a factory as workers get it.

    Raises:
        SettingsError: it holds something that cannot be passed to another process.

    """
    if env_factory is None:
        return None
    try:
        data: bytes = cloudpickle.dumps(env_factory)
    except Exception as error:  # whatever its objects raise
        raise SettingsError(f"env_factory: cannot be passed to a worker: {error}") from error
    return data
