"""Who follows a collector that died, how often, and what is put to it again; against scripted handles."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from aiorl.coordinator.replacing import ReplaceableCollector, ReplacementBudget
from aiorl.errors import (
    AiorlError,
    EnvError,
    ProtocolError,
    RemoteTracebackError,
    WorkerCrashedError,
    WorkerFailedError,
    WorkerStalledError,
    WorkerStartupError,
)
from aiorl.events import WorkerReplaced
from aiorl.protocol import (
    Attach,
    Attached,
    BatchPacked,
    CollectChunk,
    EnvSpec,
    Group,
    Message,
    PackBatch,
    Ready,
    Request,
    Restore,
    Restored,
    Save,
    Saved,
)
from aiorl.settings.sections import CollectionSettings

SPEC = EnvSpec(2, (Group("policy", 3),), (-1.0,), (1.0,), saves_state=False)
PACK = PackBatch(7, 0, 0)
PACKED = BatchPacked(7, 0, 10, 10, 0, 0, 0, 0)
DEATHS = [WorkerCrashedError, WorkerStalledError, WorkerFailedError]


def settings(most: int = 3, window_s: float = 60.0) -> CollectionSettings:
    return CollectionSettings(max_replacements=most, replacement_window_s=window_s)


class Scripted:
    """A handle that does what its script says: for each call, an answer or an error; None hangs until it is ended."""

    role, index, name, state = "collector", 2, "collector 2", "running"

    def __init__(self, pid: int, script: list[Any], log: list[str], *, spec: EnvSpec = SPEC, gone: bool = True) -> None:
        self.pid, self._script, self._log, self._spec = pid, script, log, spec
        self.is_gone, self._will_be_gone = False, gone
        self.died: asyncio.Future[AiorlError] = asyncio.get_running_loop().create_future()

    async def start(self) -> Ready:
        self._log.append(f"start {self.pid}")
        if self._script and self._script[0] == "unready":
            raise WorkerStartupError(f"collector 2 (pid {self.pid}) was not ready")
        if self._script and self._script[0] == "slow":
            await asyncio.get_running_loop().create_future()
        return Ready(pid=self.pid, spec=self._spec)

    async def call(self, request: Request) -> Message:
        self._log.append(f"{type(request).__name__} {self.pid}")
        if isinstance(request, Attach):
            return Attached(rows_kept=40)
        answer = self._script.pop(0)
        if answer is None:
            await asyncio.get_running_loop().create_future()
        if isinstance(answer, BaseException):
            raise answer
        return answer  # type: ignore[no-any-return]

    async def death(self) -> AiorlError:
        return await asyncio.shield(self.died)

    def kill(self) -> None:
        self._log.append(f"kill {self.pid}")

    async def stop(self, *, at_once: bool = False) -> None:
        self._log.append(f"stop {self.pid}{' at once' if at_once else ''}")
        self.is_gone = self._will_be_gone


class Place:
    """A replaceable collector, what happened around it, and the handles that had the place."""

    def __init__(self, *makers: Callable[[list[str], int], Scripted], most: int = 3) -> None:
        self.log: list[str] = []
        self.handles: list[Scripted] = []
        self.events: list[WorkerReplaced] = []

        def make(incarnation: int) -> Any:
            assert incarnation == len(self.handles)
            self.handles.append(makers[incarnation](self.log, 100 + incarnation))
            return self.handles[-1]

        async def note(event: WorkerReplaced, _: AiorlError) -> None:
            self.events.append(event)

        self.collector = ReplaceableCollector(2, make, ReplacementBudget(settings(most)), note)

    async def ready(self) -> ReplaceableCollector:
        await self.collector.start()
        await self.collector.call(Attach(1))
        self.log.clear()
        return self.collector


def one(*script: Any, **how: Any) -> Callable[[list[str], int], Scripted]:
    return lambda log, pid: Scripted(pid, list(script), log, **how)


@pytest.mark.parametrize("kind", DEATHS)
async def test_a_lost_request_is_put_to_the_next_one(kind: type[Any]) -> None:
    place = Place(one(kind("it is dead")), one(PACKED))
    collector = await place.ready()
    assert await collector.call(PACK) == PACKED
    assert place.log == ["PackBatch 100", "stop 100 at once", "start 101", "Attach 101", "PackBatch 101"]
    (event,) = place.events
    assert (event.role, event.index, event.pid, event.cause, event.rows_kept) == ("collector", 2, 101, "it is dead", 40)
    assert event.seconds >= 0 and collector.pid == 101


@pytest.mark.parametrize(
    ("request_", "is_repeated"),
    [
        (CollectChunk(1, 4, 0, 0, uniform=True), True),
        (Save(1, "x"), True),
        (Restore("x"), False),
    ],
)
async def test_only_what_can_be_repeated_is(request_: Request, is_repeated: bool) -> None:
    answer: Message = Saved(1, ()) if isinstance(request_, Save) else Restored()
    place = Place(one(WorkerCrashedError("dead")), one(answer))
    collector = await place.ready()
    if is_repeated:
        assert await collector.call(request_) == answer
    else:
        with pytest.raises(WorkerCrashedError):
            await collector.call(request_)
        assert len(place.handles) == 1


@pytest.mark.parametrize("error", [EnvError("NaN"), ProtocolError("garbage"), AiorlError("other")])
async def test_what_would_come_again_is_not_made_good(error: AiorlError) -> None:
    place = Place(one(error))
    collector = await place.ready()
    with pytest.raises(type(error)):
        await collector.call(PACK)
    assert place.events == [] and len(place.handles) == 1


async def test_a_successor_that_dies_at_its_start_counts_and_is_followed() -> None:
    place = Place(one(WorkerCrashedError("dead")), one("unready"), one(PACKED))
    collector = await place.ready()
    assert await collector.call(PACK) == PACKED
    assert "stop 101 at once" in place.log and len(place.events) == 1
    assert "not ready" in place.events[0].cause


async def test_when_the_budget_is_spent_the_last_death_ends_it_with_its_cause_and_the_settings() -> None:
    first, last = WorkerCrashedError("first"), WorkerFailedError("last", role="collector", index=2, pid=9)
    last.__cause__ = RemoteTracebackError("Traceback …")
    place = Place(one(first), one(last), most=1)
    collector = await place.ready()
    with pytest.raises(
        WorkerFailedError, match=r"last; collection\.max_replacements=1 within .*_window_s=60"
    ) as caught:
        await collector.call(PACK)
    assert caught.value.pid == 9 and caught.value.__cause__ is last.__cause__
    assert len(place.events) == 1


async def test_nobody_follows_one_that_may_still_write() -> None:
    place = Place(one(WorkerStalledError("stuck"), gone=False))
    collector = await place.ready()
    with pytest.raises(AiorlError, match="could not be killed"):
        await collector.call(PACK)
    assert len(place.handles) == 1


async def test_a_successor_with_another_env_is_refused() -> None:
    other = EnvSpec(2, (Group("policy", 4),), (-1.0,), (1.0,), saves_state=False)
    place = Place(one(WorkerCrashedError("dead")), one(PACKED, spec=other))
    collector = await place.ready()
    with pytest.raises(EnvError, match="another environment"):
        await collector.call(PACK)


async def test_a_call_that_is_cancelled_in_the_middle_leaves_no_second_writer() -> None:
    place = Place(one(WorkerCrashedError("dead")), one("slow"), one(PACKED))
    collector = await place.ready()
    calling = asyncio.create_task(collector.call(PACK))
    while "start 101" not in place.log:
        await asyncio.sleep(0)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert await collector.call(PACK) == PACKED
    assert place.log.index("stop 101 at once") < place.log.index("start 102")
    assert [event.pid for event in place.events] == [102]


async def test_a_death_that_nobody_asked_over_is_made_good_at_once() -> None:
    place = Place(one(), one(PACKED))
    collector = await place.ready()
    watching = asyncio.create_task(collector.death())
    place.handles[0].died.set_result(WorkerCrashedError("in a pause"))
    while not place.events:
        await asyncio.sleep(0)
    assert not watching.done() and await collector.call(PACK) == PACKED
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def test_a_death_beyond_the_budget_is_told() -> None:
    place = Place(one(), one(), most=1)
    collector = await place.ready()
    watching = asyncio.create_task(collector.death())
    place.handles[0].died.set_result(WorkerCrashedError("once"))
    while not place.events:
        await asyncio.sleep(0)
    place.handles[1].died.set_result(WorkerCrashedError("twice"))
    error = await watching
    assert isinstance(error, WorkerCrashedError) and "twice; collection.max_replacements=1" in str(error)


def test_the_budget_is_one_of_a_sliding_window() -> None:
    budget = ReplacementBudget(settings(2, 10.0))
    assert [budget.spend(now) for now in (0, 1, 2, 9.9, 10, 10.5, 11, 30, 31, 32)] == [
        True, True, False, False, True, False, True, True, True, False,
    ]  # fmt: skip
