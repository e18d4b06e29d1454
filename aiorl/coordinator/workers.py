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
from aiorl.telemetry.log import RunLog
from aiorl.telemetry.trace.session import RunTrace

SERVICES = {
    ("off_policy", "collector"): "aiorl.collector.offpolicy:ReplayCollector",
    ("off_policy", "learner"): "aiorl.learner.offpolicy:OffPolicyLearnerService",
    ("on_policy", "collector"): "aiorl.collector.onpolicy:RolloutCollector",
    ("on_policy", "learner"): "aiorl.learner.onpolicy:OnPolicyLearnerService",
}
EVALUATOR = "aiorl.evaluation:EvaluatorService"


class WorkerFactory:
    """Makes workers; owns the threads in which blocking calls on processes run."""

    def __init__(
        self, settings: RunSettings, env_factory: bytes | None, log: RunLog, trace: RunTrace | None = None
    ) -> None:
        self._settings, self._log, self._trace = settings, log, trace
        self._env_factory = env_factory
        self._text = settings.model_dump_json()
        self._budget = thread_budget(settings, usable_cores())
        workers = settings.collection.collectors + 2
        self._executor = ThreadPoolExecutor(workers, thread_name_prefix="aiorl processes")

    def make(self, role: str, index: int, blocks: Blocks | None, incarnation: int = 0) -> WorkerHandle:
        """Make a worker, not started yet."""
        threads = self._budget.learner if role == "learner" else self._budget.collector
        service = EVALUATOR if role == "evaluator" else SERVICES[self._settings.algorithm.family, role]
        file, ours = None, None
        if self._trace is not None:
            file, ours = self._trace.file(role, index, incarnation), self._trace.coordinator
        start = Start(role, index, service, self._text, threads, blocks, self._env_factory, incarnation, file)
        runtime = self._settings.runtime
        if runtime.kind == "inline":
            return InlineWorker(start, runtime, self._log, self._executor, ours)
        return ProcessWorker(start, runtime, self._log, start_context(runtime), self._executor, ours)

    async def run(self, call: Callable[[], None]) -> None:
        """Do something that may block in a thread."""
        await asyncio.get_running_loop().run_in_executor(self._executor, call)

    def close(self) -> None:
        """End the threads; every worker has been stopped before."""
        self._executor.shutdown(wait=True)
