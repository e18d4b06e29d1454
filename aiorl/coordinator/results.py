"""What becomes of evaluations on the way: a line each, points of a curve, and the best policy so far."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from aiorl.checkpoint.best import BestStore
from aiorl.coordinator.directory import RunDirectory
from aiorl.coordinator.evaluating import evaluation_entry
from aiorl.coordinator.periodic import Save
from aiorl.coordinator.saving import manifest_of
from aiorl.coordinator.schedule import Schedule
from aiorl.errors import CheckpointError, ProtocolError
from aiorl.events import Evaluation
from aiorl.protocol import EnvSpec
from aiorl.settings import RunSettings
from aiorl.telemetry.log import RunLog
from aiorl.telemetry.sinks import MetricsSinks
from aiorl.telemetry.writer import FileWriter

_IN_A_LINE = (
    "return_mean",
    "return_std",
    "return_min",
    "return_max",
    "length_mean",
    "terminated_share",
    "episodes",
    "returns",
)


class EvaluationResults:
    """Keeps the results of one run's evaluations, in the order in which they are added."""

    def __init__(
        self,
        settings: RunSettings,
        schedule: Schedule,
        directory: RunDirectory,
        writer: FileWriter,
        sinks: MetricsSinks,
        log: RunLog,
        is_reproducible: Callable[[], bool],
    ) -> None:
        self._settings, self._schedule, self._writer = settings, schedule, writer
        self._sinks, self._log, self._is_reproducible = sinks, log, is_reproducible
        self._best = BestStore(directory.store.folder)
        self._best_mean: float | None = None
        self._spec: EnvSpec | None = None

    async def open(self, spec: EnvSpec) -> None:
        """Find out what a resumed run has to beat."""
        self._spec = spec
        try:
            self._best_mean = await self._writer.run(self._best.return_mean)
        except CheckpointError as error:
            self._log.warning("the best policy so far is not whole, and the next one takes its place", error=str(error))

    async def add(self, tick: int, seconds: float, evaluation: Evaluation, save: Save) -> None:
        """Write what an evaluation of the policy after a tick gave; `save` writes that policy, if it is the best."""
        entry = evaluation_entry(evaluation)
        record: dict[str, Any] = {
            "time": time.time(),
            "tick": tick,
            "env_steps": evaluation.env_steps,
            "gradient_steps": self._schedule.gradient_steps(tick),
            "seconds": seconds,
        }
        self._sinks.write_evaluation(record | {name: entry[name] for name in _IN_A_LINE})
        if self._best_mean is None or evaluation.return_mean > self._best_mean:
            await self._keep(tick, seconds, evaluation, entry, save)
        await self._writer.flush()  # who hears of it finds it on disk

    def close(self) -> None:
        """Have removed what an evaluation that was given up left."""
        self._writer.submit(self._best.discard_draft)

    async def _keep(self, tick: int, seconds: float, evaluation: Evaluation, entry: dict[str, Any], save: Save) -> None:
        assert self._spec is not None
        draft = await self._writer.run(self._best.begin)
        manifest = manifest_of(
            self._settings,
            self._schedule,
            tick,
            self._spec,
            await save(draft),
            seconds=seconds,
            reproducible=self._is_reproducible(),
            has_replay=False,
        )
        try:
            path = await self._writer.run(lambda: self._best.commit(draft, manifest, entry))
        except CheckpointError as error:
            raise ProtocolError(f"an evaluator did not save what it says: {error}") from error
        self._best_mean = evaluation.return_mean
        self._log.info("best policy so far", path=str(path), **{"return": evaluation.return_mean})
