"""Replacements that are broken off, shared budgets, and whose errors pass through."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aiorl.coordinator.replacing import ReplaceableCollector, ReplacementBudget
from aiorl.errors import (
    RemoteTracebackError,
    SettingsError,
    StorageError,
    WorkerCrashedError,
    WorkerStalledError,
    WorkerStartupError,
)
from aiorl.protocol import CollectRollout, EpisodeSums, PhaseTimes, RolloutReady
from tests.coordinator.test_replacing import PACK, PACKED, SPEC, Place, one, settings


async def until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0)


async def ended(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_successor_that_dies_at_its_start_beyond_the_budget_says_so_once() -> None:
    place = Place(one(WorkerCrashedError("dead")), one("unready"), most=1)
    collector = await place.ready()
    with pytest.raises(WorkerStartupError) as caught:
        await collector.call(PACK)
    assert str(caught.value).count("collection.max_replacements=1") == 1, caught.value


async def test_a_watch_that_is_broken_off_in_a_replacement_and_set_again_goes_on_with_it() -> None:
    """Pause, death, save(), still paused: the second watch must not wait for one that nobody started to the end."""
    place = Place(one(), one("slow"), one(PACKED))
    collector = await place.ready()
    watching = asyncio.create_task(collector.death())
    place.handles[0].died.set_result(WorkerCrashedError("in a pause"))
    await until(lambda: "start 101" in place.log)
    await ended(watching)
    watching = asyncio.create_task(collector.death())
    for _ in range(20):
        await asyncio.sleep(0)
    await ended(watching)
    assert [event.pid for event in place.events] == [102]


async def test_a_watch_that_is_broken_off_in_a_replacement_is_made_good_by_the_next_call_for_one_death() -> None:
    place = Place(one(), one("slow"), one(PACKED), most=1)
    collector = await place.ready()
    watching = asyncio.create_task(collector.death())
    place.handles[0].died.set_result(WorkerCrashedError("in a pause"))
    await until(lambda: "start 101" in place.log)
    await ended(watching)
    assert await collector.call(PACK) == PACKED, "one death is paid for once"
    assert place.log.index("stop 101 at once") < place.log.index("start 102")
    assert [(event.pid, event.cause) for event in place.events] == [(102, "in a pause")]


async def test_a_rollout_is_repeated() -> None:
    ready = RolloutReady(1, 8, 0, 0, 0, EpisodeSums(), PhaseTimes())
    place = Place(one(WorkerStalledError("stuck")), one(ready))
    collector = await place.ready()
    assert await collector.call(CollectRollout(1, 0, 0, 0)) == ready


@pytest.mark.parametrize("error", [StorageError("full"), SettingsError("env.id: unknown"), RuntimeError("ours")])
async def test_errors_of_others_pass_through(error: Exception) -> None:
    place = Place(one(error))
    collector = await place.ready()
    with pytest.raises(type(error)):
        await collector.call(PACK)
    assert len(place.handles) == 1 and place.events == []


async def test_the_first_one_is_not_followed_before_the_run_is_under_way() -> None:
    place = Place(one("unready"))
    with pytest.raises(WorkerStartupError):
        await place.collector.start()
    assert len(place.handles) == 1


async def test_budgets_are_shared_and_the_traceback_stays() -> None:
    budget = ReplacementBudget(settings(1))
    places = [Place(one(WorkerCrashedError("dead")), one(PACKED)) for _ in range(2)]
    for place in places:
        place.collector._budget = budget
    assert await (await places[0].ready()).call(PACK) == PACKED
    cause = RemoteTracebackError("Traceback")
    last = WorkerCrashedError("dead", role="collector", index=2, pid=7)
    last.__cause__ = cause
    places[1].handles[0]._script[0] = last
    with pytest.raises(WorkerCrashedError, match=r"within collection\.replacement_window_s=60 are used up") as caught:
        await (await places[1].ready()).call(PACK)
    assert (caught.value.role, caught.value.index, caught.value.pid) == ("collector", 2, 7)
    assert caught.value.__cause__ is cause


async def test_stop_and_kill_are_for_whoever_has_the_place() -> None:
    place = Place(one(WorkerCrashedError("dead")), one(PACKED))
    collector = await place.ready()
    await collector.call(PACK)
    place.log.clear()
    collector.kill()
    await collector.stop()
    assert place.log == ["kill 101", "stop 101"] and collector.is_gone
    assert isinstance(collector, ReplaceableCollector) and collector.pid == 101


async def test_what_an_env_only_has_to_say_may_differ() -> None:
    import msgspec

    talkative = msgspec.structs.replace(SPEC, notes=("a note",), warnings=("a warning",))
    place = Place(one(WorkerCrashedError("dead")), one(PACKED, spec=talkative))
    assert await (await place.ready()).call(PACK) == PACKED
