"""One run from start to outcome: team, dialogue, saves, evaluation, and what is written on the way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import perf_counter_ns, thread_time_ns
from typing import Any

from aiorl.checkpoint.store import Found
from aiorl.coordinator.control import Control
from aiorl.coordinator.dialogue import Dialogue
from aiorl.coordinator.directory import RunDirectory
from aiorl.coordinator.evaluating import EVALUATION_FILE, Evaluator, write_evaluation
from aiorl.coordinator.offpolicy import OffPolicyDialogue
from aiorl.coordinator.onpolicy import OnPolicyDialogue, cut_back_dumps
from aiorl.coordinator.periodic import Due, PeriodicEvaluation, Save
from aiorl.coordinator.results import EvaluationResults
from aiorl.coordinator.saving import Saver, restore, start_position, warm_start
from aiorl.coordinator.schedule import Position, Schedule
from aiorl.coordinator.team import Team
from aiorl.coordinator.together import together
from aiorl.coordinator.workers import WorkerFactory
from aiorl.errors import AiorlError
from aiorl.events import Evaluated, Evaluation, Event, Outcome, Progress, Saved, Started, State, WorkerReplaced
from aiorl.protocol import EnvSpec
from aiorl.settings import RunSettings
from aiorl.telemetry.log import RunLog, jsonl_sink
from aiorl.telemetry.metrics import MetricsInterval
from aiorl.telemetry.sinks import MetricsSinks
from aiorl.telemetry.status import StatusFile, error_entry, worker_entries
from aiorl.telemetry.tick import TickReport
from aiorl.telemetry.trace.session import RunTrace
from aiorl.telemetry.writer import FileWriter


class Training:
    """Drives one run; everything that it opens is closed again when `drive` returns or raises."""

    def __init__(
        self,
        settings: RunSettings,
        directory: RunDirectory,
        writer: FileWriter,
        control: Control,
        emit: Callable[[Event], None],
        env_factory: bytes | None,
        found: Found | None,
    ) -> None:
        self._settings, self._directory, self._writer = settings, directory, writer
        self._control, self._emit, self._found = control, emit, found
        self._log = RunLog(jsonl_sink(directory.path / "log.jsonl", writer))
        self._status = StatusFile(directory.path, writer)
        self._sinks = MetricsSinks(directory.path, writer, tensorboard=settings.telemetry.tensorboard)
        self._metrics = MetricsInterval(settings)
        self._trace = RunTrace(directory.path, settings.telemetry, writer) if settings.telemetry.trace else None
        self._factory = WorkerFactory(settings, env_factory, self._log, self._trace)
        start = Position() if found is None else start_position(found)
        self._schedule = Schedule(settings, start)
        self._clock = TrainingClock(0.0 if found is None else found.manifest.seconds)
        self._autosave = Autosave(settings, self._schedule.env_steps(start.tick))
        self._tick = start.tick
        self._checkpoint: Path | None = None if found is None else found.path
        self._saved_tick = start.tick if found is not None else -1
        self._evaluation: Evaluation | None = None
        self._reproducible = found is None or found.manifest.reproducible
        self._results = EvaluationResults(
            settings, self._schedule, directory, writer, self._sinks, self._log, lambda: self._reproducible
        )
        self.has_started = False
        self._team: Team | None = None
        self._periodic: PeriodicEvaluation | None = None

    async def drive(self) -> Outcome:
        """Run to the end; raise what ended it otherwise."""
        try:
            self._status.update(now=True, state="starting", reproducible=self._reproducible, **self._counters())
            if self._trace is not None:
                await self._writer.run(self._trace.prepare)
            state, reason = await self._train()
            self._status.update(now=True, workers=[], **self._counters())
            self._control.finish(self._checkpoint)
            if state == "completed" and self._settings.evaluation.at_end and self._control.stop_reason is None:
                await self._evaluate()
            self._end_trace()
            outcome = self._outcome(state, reason)
            self._log.info(f"run {state}", reason=reason, env_steps=outcome.env_steps)
            self._status.update(now=True, state=state, **self._counters())
            self._sinks.close()
            await self._writer.flush()  # a success that is not on disk is none
            return outcome
        except asyncio.CancelledError:
            self._log.warning("run aborted", **self._lost())
            if self._trace is not None:
                self._trace.coordinator.close()
            self._status.update(now=True, state="interrupted", workers=[], **self._counters())
            raise
        except BaseException as error:
            entry, workers = error_entry(error), self._worker_entries()
            self._status.update(now=True, state="failed", error=entry, workers=workers, **self._counters())
            self._log.keep("run failed", error=str(error), cause=str(error.__cause__ or ""))
            self._end_trace()
            raise
        finally:
            self._sinks.close()
            self._results.close()
            self._factory.close()

    async def _train(self) -> tuple[State, str]:
        settings = self._settings
        self._team = Team(settings, self._factory, self._directory.path, self._log, self._on_replaced)
        self._periodic = PeriodicEvaluation(
            settings,
            self._team,
            self._schedule,
            self._log,
            lambda: self._clock.seconds,
            self._on_played,
            lambda: self._status.update(now=True, workers=self._worker_entries(), **self._counters()),
        )
        async with self._team as team, self._periodic as periodic:
            try:
                spec = await self._control.unless_stopped(self._start(team, periodic))
                if spec is None:
                    team.stop_at_once = True
                    return "interrupted", f"{self._control.stop_reason} during start-up"
                kind = OnPolicyDialogue if settings.on_policy else OffPolicyDialogue
                dialogue: Dialogue = kind(settings, team, self._schedule)
                dialogue.after_tick = periodic.consider
                saver = Saver(settings, self._directory.store, team, spec, self._writer)
                if self._found is not None:
                    manifest = self._found.manifest
                    await restore(self._found, settings.steps_per_tick, dialogue, team, spec, self._log)
                    self._sinks.cut_back(manifest.tick, manifest.env_steps)
                    await self._writer.run(lambda: cut_back_dumps(self._directory.path, manifest.tick))
                elif settings.checkpoint.warm_start is not None:
                    source = Path(settings.checkpoint.warm_start)
                    await warm_start(source, settings, dialogue, team, spec, self._writer)
                else:
                    await dialogue.publish_first()
                self.has_started = True
                self._clock.start()
                self._metrics.start()
                self._status.update(now=True, state="running", workers=self._worker_entries(), **self._counters())
                await self._writer.flush()  # who hears that it started finds it so on disk
                self._emit(Started(self._directory.path, dialogue.tick, self._schedule.env_steps(dialogue.tick)))
                try:
                    state, reason = await self._until_end(dialogue, saver, team, periodic)
                except AiorlError as error:
                    self._log.keep("failure noticed", error=str(error))
                    self._status.update(workers=self._worker_entries())
                    await self._save_after_failure(error, dialogue, saver, team)
                    raise
                if state == "completed":
                    await self._finish_evaluation(periodic)
                return state, reason
            except BaseException:
                team.stop_at_once = True
                raise
            finally:
                self._clock.pause()

    async def _start(self, team: Team, periodic: PeriodicEvaluation) -> EnvSpec:
        started: list[EnvSpec | None] = await together((team.start(), periodic.start()), cancel_others=True)
        spec = started[0]
        assert spec is not None
        await periodic.attach(spec)
        if self._settings.evaluation.every_env_steps is not None:
            await self._results.open(spec)
        return spec

    async def _until_end(
        self, dialogue: Dialogue, saver: Saver, team: Team, periodic: PeriodicEvaluation
    ) -> tuple[State, str]:
        def may_collect(tick: int) -> bool:
            return periodic.failure is None and self._may_collect(tick)

        while True:
            # A learner that dies between updates ends the chunks under way: nothing will come of them.
            await team.unless_dead(dialogue.advance(may_collect, self._report), [team.learner])
            # Drained: every collected tick is finished, so this is where saves, pauses and ends belong.
            saves = self._control.take_saves()
            ending, failure = self._ending(dialogue.tick), periodic.failure
            try:
                if saves or ending or failure or self._autosave.is_due(self._schedule.env_steps(dialogue.tick)):
                    await self._save(dialogue, saver)
            except Exception as error:
                for save in saves:
                    _settle(save, error)
                raise
            for save in saves:
                _settle(save, self._checkpoint)
            if failure:
                raise failure
            if ending:
                self._flush_metrics()
                return ending
            if self._control.is_paused:
                self._clock.pause()
                await team.unless_dead(periodic.unless_failed(self._control.while_paused()), team.workers)
                self._clock.start()

    def _may_collect(self, tick: int) -> bool:
        return not (
            self._control.wants_drain
            or self._ending(tick - 1)
            or self._autosave.is_due(self._schedule.env_steps(tick - 1))
        )

    def _ending(self, tick: int) -> tuple[State, str] | None:
        if (reached := self._schedule.budget_reached(tick)) is not None:
            return "completed", f"{reached} reached"
        seconds = self._settings.budget.seconds
        if seconds is not None and self._clock.seconds >= seconds:
            return "completed", f"budget.seconds={seconds:g} reached"
        if self._control.stop_reason is not None:
            return "interrupted", self._control.stop_reason
        return None

    def _end_trace(self) -> None:
        """Have one trace made of what all processes recorded; one of an aborted run is left in its parts."""
        if self._trace is not None:
            self._trace.finish()
            if (failure := self._trace.failure) is not None:
                self._log.warning("the trace is not whole: it could not be written", error=str(failure))

    def _report(self, report: TickReport) -> None:
        begin_ns, begin_cpu_ns = perf_counter_ns(), thread_time_ns()
        self._note(report)
        if self._trace is not None:
            self._trace.coordinator.add("report", "", report.tick, begin_ns, begin_cpu_ns, "loop")

    def _note(self, report: TickReport) -> None:
        is_first_update = report.update is not None and not self._schedule.trains(report.tick - 1)
        self._tick = report.tick
        self._metrics.add(report)
        if self._metrics.is_due:
            self._flush_metrics()
        self._status.update(now=is_first_update, **self._counters())
        self._writer.raise_failure()

    def _flush_metrics(self) -> None:
        if not self._metrics.is_empty:
            record = self._metrics.take(self._clock.seconds)
            self._sinks.write(record)
            self._emit(Progress(record))

    async def _save(self, dialogue: Dialogue, saver: Saver, *, exact: bool = True) -> None:
        if dialogue.tick in (0, self._saved_tick):
            return  # nothing that is not on disk already
        self._flush_metrics()  # a resume goes on from here, and so do its curves
        self._checkpoint = await saver.save(
            dialogue, self._clock.seconds, is_reproducible=lambda: self._reproducible, exact=exact
        )
        self._saved_tick = dialogue.tick
        env_steps = self._schedule.env_steps(dialogue.tick)
        self._autosave.saved(env_steps)
        self._log.info("checkpoint saved", path=str(self._checkpoint), env_steps=env_steps)
        self._emit(Saved(self._checkpoint, dialogue.tick, env_steps))

    async def _on_replaced(self, event: WorkerReplaced, cause: AiorlError) -> None:
        assert self._team is not None
        self._reproducible = False
        self._log.warning(
            f"{event.role} {event.index} was replaced: the run goes on, but its seed will not repeat it",
            cause=str(cause),
            pid=event.pid,
            rows_kept=event.rows_kept,
        )
        if cause.__cause__ is not None:
            self._log.keep("traceback of the collector that was replaced", cause=str(cause.__cause__))
        workers = self._worker_entries()
        self._status.update(now=True, workers=workers, reproducible=False, **self._counters())
        try:
            await self._writer.flush()  # who hears of it finds it so on disk
        finally:
            self._emit(event)

    async def _save_after_failure(self, error: AiorlError, dialogue: Dialogue, saver: Saver, team: Team) -> None:
        """Save what the learner still has; the collectors' shards are memory that anyone can write out."""
        self._flush_metrics()
        if team.learner.state != "running":
            return
        team.stop_at_once = True
        try:
            async with asyncio.timeout(self._settings.runtime.save_timeout_s):
                await team.stop(team.collectors)
                await self._save(dialogue, saver, exact=False)
        except (AiorlError, TimeoutError, OSError) as second:
            self._log.warning("could not save after the failure", failure=str(error), error=str(second))

    async def _on_played(self, due: Due, evaluation: Evaluation, save: Save) -> None:
        self._evaluation = evaluation
        await self._results.add(due.tick, due.seconds, evaluation, save)
        self._emit(Evaluated(evaluation))

    async def _finish_evaluation(self, periodic: PeriodicEvaluation) -> None:
        """Let an evaluation under way come to its end, unless somebody asks for the run's end meanwhile."""
        if self._settings.evaluation.every_env_steps is not None:
            self._clock.pause()
            self._control.finish(self._checkpoint)
            await self._writer.flush()
            # The final evaluation draws the curve, too.
            draw_into = None if self._settings.evaluation.at_end else self._directory.path
            await self._control.unless_stopped(periodic.finish(draw_into))

    async def _evaluate(self) -> None:
        """Evaluate the final checkpoint, unless somebody asks for the end meanwhile."""
        if self._checkpoint is None:
            return
        if await self._control.unless_stopped(self._play_and_draw(self._checkpoint)) is None:
            self._log.warning("evaluation given up", reason=self._control.stop_reason)

    async def _play_and_draw(self, checkpoint: Path) -> Evaluation:
        path = self._directory.path
        async with Evaluator(self._settings, self._factory) as evaluator:
            if self._evaluation is not None and self._evaluation.env_steps == self._schedule.env_steps(self._tick):
                # On the way, this very policy has played the same episodes.
                evaluation = replace(self._evaluation, checkpoint=checkpoint)
            else:
                evaluation = await evaluator.play(checkpoint, self._schedule.env_steps(self._tick))
                if self._settings.evaluation.every_env_steps is not None:
                    await self._results.add(self._tick, self._clock.seconds, evaluation, evaluator.save_policy)
                self._emit(Evaluated(evaluation))
            self._evaluation = evaluation
            await self._writer.run(lambda: write_evaluation(path / EVALUATION_FILE, evaluation))
            await evaluator.draw(path, EVALUATION_FILE)
        return evaluation

    def _lost(self) -> dict[str, Any]:
        """Return what is not saved, for the log."""
        saved = max(self._saved_tick, 0)
        return {"env_steps_lost": self._schedule.env_steps(self._tick) - self._schedule.env_steps(saved)}

    def _worker_entries(self) -> list[dict[str, Any]]:
        sides = (self._team, self._periodic)
        return worker_entries([worker for side in sides if side is not None for worker in side.workers])

    def _counters(self) -> dict[str, Any]:
        return {
            "tick": self._tick,
            "env_steps": self._schedule.env_steps(self._tick),
            "gradient_steps": self._schedule.gradient_steps(self._tick),
            "seconds": self._clock.seconds,
        }

    def _outcome(self, state: State, reason: str) -> Outcome:
        return Outcome(
            state=state,
            reason=reason,
            run_dir=self._directory.path,
            checkpoint=self._checkpoint,
            evaluation=self._evaluation,
            reproducible=self._reproducible,
            **self._counters(),
        )


class TrainingClock:
    """Seconds of training, over all parts of a run; pauses do not count."""

    def __init__(self, before: float) -> None:
        self._before = before
        self._since: float | None = None

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        return self._before + (0.0 if self._since is None else time.monotonic() - self._since)

    def start(self) -> None:
        """Count from now on."""
        self._since = time.monotonic()

    def pause(self) -> None:
        """Stop counting."""
        self._before, self._since = self.seconds, None


class Autosave:
    """When the settings ask for a checkpoint."""

    def __init__(self, settings: RunSettings, env_steps: int) -> None:
        self._settings = settings.checkpoint
        self.saved(env_steps)

    def saved(self, env_steps: int) -> None:
        """Note a checkpoint."""
        self._env_steps, self._at = env_steps, time.monotonic()

    def is_due(self, env_steps: int) -> bool:
        """Whether the next one is due."""
        if env_steps == self._env_steps:
            return False
        steps, seconds = self._settings.every_env_steps, self._settings.every_seconds
        by_steps = steps is not None and env_steps // steps > self._env_steps // steps
        return by_steps or (seconds is not None and time.monotonic() - self._at >= seconds)


def _settle(future: asyncio.Future[object], result: object) -> None:
    if future.done():
        return
    if isinstance(result, BaseException):
        future.set_exception(result)
    else:
        future.set_result(result)
