"""Making worker handles of the kind that the settings say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from aiorl.runtime.cores import thread_budget, usable_cores
from aiorl.runtime.handle import WorkerHandle
from aiorl.runtime.inline import InlineWorker
from aiorl.runtime.process import ProcessWorker, start_context
from aiorl.runtime.worker import Start
from aiorl.service import Blocks
from aiorl.settings import RunSettings
from aiorl.storage.block import Block
from aiorl.telemetry.log import RunLog
from aiorl.telemetry.trace.session import RunTrace

SERVICES = {
    ("off_policy", "collector"): "aiorl.collector.offpolicy:ReplayCollector",
    ("off_policy", "learner"): "aiorl.learner.offpolicy:OffPolicyLearnerService",
    ("on_policy", "collector"): "aiorl.collector.onpolicy:RolloutCollector",
    ("on_policy", "learner"): "aiorl.learner.onpolicy:OnPolicyLearnerService",
}
EVALUATOR = "aiorl.evaluation:EvaluatorService"
BACKGROUND = 10
"""Niceness of a worker that must not take cores from the others."""


class WorkerFactory:
    """Makes workers; owns the threads in which blocking calls on processes run."""

    def __init__(
        self, settings: RunSettings, env_factory: bytes | None, log: RunLog, trace: RunTrace | None = None
    ) -> None:
        self._settings, self._log, self._trace = settings, log, trace
        self._env_factory = env_factory
        self._text = settings.model_dump_json()
        self._budget = thread_budget(settings, usable_cores())
        workers = settings.collection.collectors + 3
        self._executor = ThreadPoolExecutor(workers, thread_name_prefix="aiorl processes")

    def make(
        self,
        role: str,
        index: int,
        blocks: Blocks | Block | None,
        incarnation: int = 0,
        *,
        in_background: bool = False,
    ) -> WorkerHandle:
        """Make a worker, not started yet; one in the background leaves the cores to the others, and may be slow."""
        threads = self._budget.learner if role == "learner" else self._budget.collector
        service = EVALUATOR if role == "evaluator" else SERVICES[self._settings.algorithm.family, role]
        file, ours = None, None
        if self._trace is not None:
            file, ours = self._trace.file(role, index, incarnation), self._trace.coordinator
        niceness = BACKGROUND if in_background else 0
        start = Start(role, index, service, self._text, threads, blocks, self._env_factory, incarnation, niceness, file)
        runtime = self._settings.runtime
        if in_background:
            # How long it took before, with cores to spare, says little of how long it takes when there are none.
            least_s = max(runtime.deadline_s, runtime.first_deadline_s)
            runtime = runtime.model_copy(update={"deadline_s": least_s})
        if runtime.kind == "inline":
            return InlineWorker(start, runtime, self._log, self._executor, ours)
        return ProcessWorker(start, runtime, self._log, start_context(runtime), self._executor, ours)

    async def run(self, call: Callable[[], None]) -> None:
        """Do something that may block in a thread."""
        await asyncio.get_running_loop().run_in_executor(self._executor, call)

    def close(self) -> None:
        """End the threads; every worker has been stopped before."""
        self._executor.shutdown(wait=True)
