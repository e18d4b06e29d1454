"""The team: collectors and learner from start to end, with the memory that they share."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from aiorl.coordinator.capacity import Sizes, check_disk, check_memory
from aiorl.coordinator.replacing import OnReplaced, ReplaceableCollector, ReplacementBudget
from aiorl.coordinator.together import together
from aiorl.coordinator.workers import WorkerFactory
from aiorl.errors import EnvError, ProtocolError
from aiorl.protocol import Attach, Build, Built, EnvSpec
from aiorl.runtime.handle import WorkerHandle
from aiorl.service import Blocks
from aiorl.settings import RunSettings
from aiorl.shielding import to_the_end
from aiorl.telemetry.log import RunLog

T = TypeVar("T")


class Team:
    """Enter it to create the shared blocks, leave it to end everything; `start` in between."""

    def __init__(
        self, settings: RunSettings, factory: WorkerFactory, run_dir: Path, log: RunLog, on_replaced: OnReplaced
    ) -> None:
        self._settings, self.run_dir, self._log = settings, run_dir, log
        self._factory = factory
        evaluates = settings.evaluation.every_env_steps is not None
        self._blocks = Blocks.create(settings.collection.collectors, evaluates=evaluates)
        self._replacements = ReplacementBudget(settings.collection)
        self._on_replaced = on_replaced
        self.collectors = [self._collector(index) for index in range(settings.collection.collectors)]
        self.learner: WorkerHandle = factory.make("learner", 0, self._blocks)
        self.policy_bytes = 0
        self.stop_at_once = False

    @property
    def workers(self) -> list[WorkerHandle]:
        """All of them."""
        return [*self.collectors, self.learner]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await to_the_end(self.stop(self.workers), on_cancel=self._kill)
        finally:
            # Giving back gigabytes takes the kernel a while.
            await to_the_end(self._factory.run(self._blocks.close))

    async def start(self) -> EnvSpec:
        """Start all workers, size and map the memory; return what the env looks like.

        Raises:
            SettingsError: a worker refused, or the run does not fit into memory or on disk.
            WorkerStartupError: a worker failed or died.

        """
        ready = await together((worker.start() for worker in self.workers), cancel_others=True)
        specs = [each.spec for each in ready[:-1]]
        spec = specs[0]
        if spec is None:
            first = self.collectors[0]
            error = ProtocolError(f"{first.name}: Ready without a spec of its environment")
            raise error.of(first.role, first.index, first.pid)
        if any(other != spec for other in specs):
            raise EnvError(f"the collectors' environments differ: {specs}")
        for note in spec.notes:
            self._log.info(note)
        for warning in spec.warnings:
            self._log.warning(warning)
        built = await self.learner.call(Build(spec))
        assert isinstance(built, Built)
        sizes = Sizes.of(self._settings, spec, built.policy_bytes)
        check_memory(self._settings, sizes)
        check_disk(self._settings, sizes, built.checkpoint_bytes, self.run_dir)
        for block in self._blocks.experience:
            block.reserve(sizes.experience)
        if sizes.batches:
            self._blocks.batches.reserve(sizes.batches)
        self._blocks.weights.reserve(sizes.weights)
        if self._blocks.evaluated is not None:
            self._blocks.evaluated.reserve(sizes.evaluated)
        self.policy_bytes = built.policy_bytes
        await together((worker.call(Attach(built.policy_bytes)) for worker in self.workers), cancel_others=True)
        return spec

    def make_evaluator(self) -> WorkerHandle:
        """Make a worker that shares the slot of the evaluated policy; it belongs to whoever asks for it."""
        return self._factory.make("evaluator", 0, self._blocks.evaluated, in_background=True)

    async def stop(self, workers: list[WorkerHandle]) -> None:
        """End some of the workers, side by side."""
        await together(worker.stop(at_once=self.stop_at_once) for worker in workers)

    async def unless_dead(self, work: Coroutine[Any, Any, T], workers: list[WorkerHandle]) -> T:
        """Do something that the death of one of these workers cuts short.

        Raises:
            WorkerError: one died meanwhile.

        """
        working = asyncio.ensure_future(work)
        deaths = [asyncio.ensure_future(worker.death()) for worker in workers]
        either: list[asyncio.Future[Any]] = [working, *deaths]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            raise next(death.result() for death in deaths if death.done())
        finally:
            for task in either:
                task.cancel()
            await asyncio.gather(*either, return_exceptions=True)

    def _collector(self, index: int) -> WorkerHandle:
        def make(incarnation: int) -> WorkerHandle:
            return self._factory.make("collector", index, self._blocks.for_collector(index), incarnation)

        if self._settings.collection.on_collector_death == "fail":
            return make(0)
        return ReplaceableCollector(index, make, self._replacements, self._on_replaced)

    def _kill(self) -> None:
        for worker in self.workers:
            worker.kill()
