"""Evaluation while training goes on: one policy at a time, in a worker beside the team."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from aiorl.coordinator.dialogue import call
from aiorl.coordinator.evaluating import episodes_per_env, play_to_the_end
from aiorl.coordinator.ledger import SlotLedger
from aiorl.coordinator.schedule import Schedule
from aiorl.coordinator.team import Team
from aiorl.errors import AiorlError
from aiorl.events import Evaluation
from aiorl.protocol import EvaluatePolicy, EvaluationBegun, Publish, Published
from aiorl.runtime.handle import WorkerHandle
from aiorl.settings import RunSettings
from aiorl.storage.weights import evaluated_slot
from aiorl.telemetry.log import RunLog

OnEvaluated = Callable[[Evaluation, int, float, WorkerHandle], Awaitable[None]]
"""Told of an evaluation, of the tick and the seconds of training after which it is, and of who has its policy."""


class PeriodicEvaluation:
    """Entered while a team trains. Nothing waits for it: what comes due too early is left out, and said.

    A failure of the evaluator ends the run as that of any worker does; where collectors are replaced it does not,
    and another one takes up the next evaluation.
    """

    def __init__(
        self,
        settings: RunSettings,
        team: Team,
        schedule: Schedule,
        log: RunLog,
        seconds: Callable[[], float],
        on_evaluated: OnEvaluated,
    ) -> None:
        self._settings, self._team, self._schedule, self._log = settings, team, schedule, log
        self._seconds, self._on_evaluated = seconds, on_evaluated
        self._policy = SlotLedger("evaluated policy", 1)
        self._playing: asyncio.Task[None] | None = None
        self._is_broken = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._playing is not None:
            self._playing.cancel()
            await asyncio.gather(self._playing, return_exceptions=True)

    def is_due(self, tick: int) -> bool:
        """Whether the policy after a tick's update is to be evaluated."""
        every = self._settings.evaluation.every_env_steps
        before, now = self._schedule.env_steps(tick - 1), self._schedule.env_steps(tick)
        return every is not None and self._schedule.trains(tick) and before // every < now // every

    async def consider(self, tick: int) -> None:
        """Begin an evaluation of the policy after a tick's update, if one is due and none is under way.

        The learner copies its policy once more, into a slot of the evaluator's own; that is all that training notices.
        """
        self.raise_failure()
        if not self.is_due(tick):
            return
        env_steps = self._schedule.env_steps(tick)
        if self._playing is not None and not self._playing.done():
            self._log.info("evaluation left out: the one before is still being played", env_steps=env_steps)
            return
        learner = self._team.learner
        # Content is the slot's, not a version's: the same version may be evaluated again after a failure.
        slot = self._policy.claim(tick, [learner.name])
        published = await call(learner, Publish(evaluated_slot(self._settings)), Published)
        self._policy.written(slot, learner.name)
        self._playing = asyncio.create_task(self._play(tick, self._seconds(), slot, published.weight_version))

    async def finish(self) -> None:
        """Wait for the evaluation under way."""
        if self._playing is not None:
            await asyncio.wait([self._playing])
        self.raise_failure()

    def raise_failure(self) -> None:
        """Raise what the evaluation under way has failed of, where that ends the run."""
        if self._playing is not None and self._playing.done():
            playing, self._playing = self._playing, None
            playing.result()

    async def _play(self, tick: int, seconds: float, slot: int, version: int) -> None:
        try:
            evaluator = await self._team.another_evaluator() if self._is_broken else self._team.evaluator
            assert evaluator is not None
            self._is_broken = False
            self._policy.lend(slot, [evaluator.name])
            settings = self._settings
            begin = EvaluatePolicy(evaluated_slot(settings), version, episodes_per_env(settings), settings.seed)
            await call(evaluator, begin, EvaluationBegun)
            evaluation = await play_to_the_end(evaluator, self._schedule.env_steps(tick), None)
            await self._on_evaluated(evaluation, tick, seconds, evaluator)
        except AiorlError as error:
            if self._settings.collection.on_collector_death == "fail":
                raise
            self._is_broken = True
            self._log.warning("an evaluation failed; the next one has another evaluator", error=str(error))
        finally:
            self._policy = SlotLedger("evaluated policy", 1)  # whoever read it has it, or is gone
