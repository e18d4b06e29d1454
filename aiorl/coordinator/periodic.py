"""Evaluation on the way: a worker of its own plays the newest policy now and then, and training does not wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from aiorl.coordinator.dialogue import call
from aiorl.coordinator.evaluating import episodes_per_env, play_on, save_policy
from aiorl.coordinator.ledger import SlotLedger
from aiorl.coordinator.replacing import DEATHS
from aiorl.coordinator.schedule import Schedule
from aiorl.coordinator.team import Team
from aiorl.errors import AiorlError, ProtocolError, SettingsError
from aiorl.events import Evaluation
from aiorl.protocol import (
    Attach,
    Attached,
    CurveDrawn,
    DrawCurve,
    EnvSpec,
    EvaluatePolicy,
    EvaluationBegun,
    FileRecord,
    Published,
    PublishEvaluated,
    Ready,
)
from aiorl.runtime.handle import WorkerHandle
from aiorl.settings import RunSettings
from aiorl.shielding import to_the_end
from aiorl.telemetry.log import RunLog

NAME = "evaluator 0"
"""Whom the slot is lent to, whoever bears the name."""


@dataclass(frozen=True)
class Due:
    """The policy after a tick, to be evaluated; `seconds` of training until then."""

    tick: int
    weight_version: int
    seconds: float


Save = Callable[[Path], Awaitable[tuple[FileRecord, ...]]]
"""Has the policy that was played written into a folder."""
OnPlayed = Callable[[Due, Evaluation, Save], Awaitable[None]]


class PeriodicEvaluation:
    """Enter it beside the team, `start` and `attach` its worker with the team's; off, it does nothing.

    After a tick in which a multiple of `evaluation.every_env_steps` is reached, the learner copies its policy into a
    slot of its own, and one task has it played. What comes due meanwhile is skipped.
    """

    def __init__(
        self,
        settings: RunSettings,
        team: Team,
        schedule: Schedule,
        log: RunLog,
        seconds: Callable[[], float],
        on_played: OnPlayed,
        on_change: Callable[[], None],
    ) -> None:
        self._settings, self._team, self._schedule, self._log = settings, team, schedule, log
        self._seconds, self._on_played, self._on_change = seconds, on_played, on_change
        self._every = settings.evaluation.every_env_steps
        self._slots = SlotLedger("evaluated policy", 1)
        self._lent: int | None = None
        self._due: asyncio.Queue[Due] = asyncio.Queue()
        self._idle = asyncio.Event()
        self._idle.set()
        self._worker: WorkerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._skipped = 0

    @property
    def workers(self) -> list[WorkerHandle]:
        """Its worker, where there is one now."""
        return [] if self._worker is None else [self._worker]

    @property
    def failure(self) -> BaseException | None:
        """What it failed of for good: that ends the run."""
        if self._task is None or not self._task.done() or self._task.cancelled():
            return None
        return self._task.exception()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await to_the_end(self._close(at_once=error is not None), on_cancel=self._kill)

    async def start(self) -> None:
        """Start the worker.

        Raises:
            SettingsError: it refused its environment.
            WorkerStartupError: it failed or died.

        """
        if self._every is not None:
            self._worker = self._team.make_evaluator()
            self._ready = await self._worker.start()

    async def attach(self, spec: EnvSpec) -> None:
        """Map the memory, which now has its size; go on by itself from then on.

        Raises:
            SettingsError: its environment is not one that this run's policy can act in.

        """
        self._spec = spec
        if self._worker is not None:
            await self._attach(self._worker, self._ready)
            self._task = asyncio.create_task(self._serve(), name="aiorl evaluation on the way")

    async def consider(self, tick: int) -> None:
        """Have the policy after this tick evaluated if one is due and none is being played."""
        if self._every is None or not self._schedule.crosses(tick, self._every) or self.failure is not None:
            return
        env_steps = self._schedule.env_steps(tick)
        if not self._idle.is_set():
            self._skipped += 1
            self._log.info("evaluation skipped: one is still being played", env_steps=env_steps, skipped=self._skipped)
            return
        self._idle.clear()
        learner, version = self._team.learner, self._schedule.version_after(tick)
        slot = self._slots.claim(version, [learner.name])
        published = await call(learner, PublishEvaluated(), Published)
        if published.weight_version != version:
            error = ProtocolError(f"{learner.name}: published version {published.weight_version}, not {version}")
            raise error.of(learner.role, learner.index, learner.pid)
        self._slots.written(slot, learner.name)
        self._slots.lend(slot, [NAME])
        self._lent = slot
        self._due.put_nowait(Due(tick, version, self._seconds()))

    async def unless_failed(self, work: Coroutine[Any, Any, object]) -> None:
        """Do something that is broken off when this fails; `failure` tells."""
        working = asyncio.ensure_future(work)
        either: list[asyncio.Future[Any]] = [working, *([] if self._task is None else [self._task])]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

    async def finish(self, draw_into: Path | None) -> None:
        """Wait for an evaluation under way; then draw the run's learning curve, where a directory is given.

        Raises:
            AiorlError: what it failed of.

        """
        await self.unless_failed(self._idle.wait())
        if self.failure is not None:
            raise self.failure
        if draw_into is not None and self._worker is not None:
            await call(self._worker, DrawCurve(str(draw_into), ""), CurveDrawn)

    async def _serve(self) -> None:
        while True:
            try:
                await self._play_next()
            except DEATHS as error:
                if self._settings.collection.on_collector_death == "fail":
                    raise
                await self._bury(error)

    async def _play_next(self) -> None:
        due = await self._team.unless_dead(self._due.get(), self.workers)
        worker = self._worker or await self._bring_up()
        begin = EvaluatePolicy(due.weight_version, episodes_per_env(self._settings), self._settings.seed)
        await call(worker, begin, EvaluationBegun)
        self._free_slot()
        evaluation = await play_on(worker, None, self._schedule.env_steps(due.tick))
        await self._on_played(due, evaluation, lambda directory: save_policy(worker, directory))
        self._idle.set()

    async def _bring_up(self) -> WorkerHandle:
        self._worker = worker = self._team.make_evaluator()
        await self._attach(worker, await worker.start())
        self._on_change()
        return worker

    async def _attach(self, worker: WorkerHandle, ready: Ready) -> None:
        own, spec = ready.spec, self._spec
        if own is None:
            raise ProtocolError(f"{worker.name}: Ready without a spec of its environment")
        if (own.groups, own.action_low, own.action_high) != (spec.groups, spec.action_low, spec.action_high):
            raise SettingsError(
                f"evaluation.kwargs: make an environment in which this run's policy cannot act: {own.bare}, where the"
                f" collectors have {spec.bare}"
            )
        await call(worker, Attach(self._team.policy_bytes), Attached)

    async def _bury(self, error: AiorlError) -> None:
        self._log.warning("evaluator lost: the next evaluation that is due starts another one", cause=str(error))
        if error.__cause__ is not None:
            self._log.keep("traceback of the evaluator that was lost", cause=str(error.__cause__))
        if self._worker is not None:
            await self._worker.stop(at_once=True)
            if not self._worker.is_gone:  # it may still read the slot
                raise AiorlError(f"{NAME} could not be killed, so it cannot be replaced: {error}") from error
        self._worker = None
        self._free_slot()
        self._idle.set()
        self._on_change()

    def _free_slot(self) -> None:
        if self._lent is not None:
            self._slots.returned(self._lent, NAME)
            self._slots.free(self._lent)
            self._lent = None

    async def _close(self, *, at_once: bool) -> None:
        is_playing = self._task is None or not self._idle.is_set()
        if self._task is not None:
            if is_playing and self.failure is None:
                self._log.info("evaluation given up: the run ends", skipped=self._skipped)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._worker is not None:
            await self._worker.stop(at_once=at_once or is_playing)

    def _kill(self) -> None:
        if self._worker is not None:
            self._worker.kill()
