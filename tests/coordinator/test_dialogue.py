"""The dialogue by hand: which tick is under way beside which, and how it ends."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from aiorl.coordinator.dialogue import CollectedTick, Dialogue
from aiorl.coordinator.schedule import Position, Schedule
from aiorl.protocol import TrainerDone
from aiorl.telemetry.tick import TickReport
from tests.coordinator.simulation import Side, settings_for
from tests.coordinator.test_together import Gate, Told, Work, others, settle, start


class Gated(Dialogue):
    """A dialogue whose collections and updates wait for the test; there are no workers."""

    def __init__(self, lead: int) -> None:
        chosen = settings_for(Side("appo", lead), 1)
        team: Any = SimpleNamespace(
            collectors=[SimpleNamespace(name="collector 0")], learner=SimpleNamespace(name="learner 0")
        )
        super().__init__(chosen, team, Schedule(chosen, Position()))
        self.weights.written(self.weights.claim(0, ["learner 0"]), "learner 0")
        self.works: dict[tuple[str, int], Any] = {}
        self.reports: list[TickReport] = []
        self.last = 100

    def collection(self, tick: int) -> Any:
        return self.works.setdefault(("collect", tick), Work())

    def update(self, tick: int) -> Any:
        return self.works.setdefault(("update", tick), Work())

    async def go(self) -> Any:
        """Start to advance."""
        return await start(self.advance(lambda tick: tick <= self.last, self.report))

    def report(self, report: TickReport) -> None:
        self.reports.append(report)

    async def open(self, *works: Any) -> None:
        """Let some be done, one after another."""
        for work in works:
            work.gate.set()
            await settle()

    @property
    def under_way(self) -> set[tuple[str, int]]:
        return {key for key, work in self.works.items() if work.state == "running"}

    async def _collect(self, tick: int, weights: int, version: int) -> CollectedTick:
        await self.collection(tick)()
        self.weights.returned(weights, "collector 0")
        return CollectedTick(tick, (), slots=(0,))

    async def _update(self, collected: CollectedTick, weights: int, version: int) -> TrainerDone:
        await self.update(collected.tick)()
        return TrainerDone(collected.tick, version, (), 0, 0, 0, 0)


@pytest.fixture(autouse=True)
async def _none_left_running() -> Any:
    before = others()
    yield
    assert others() <= before


@pytest.mark.parametrize("lead", [0, 1, 2, 3])
async def test_collecting_is_ahead_by_the_lead_and_no_more(lead: int) -> None:
    dialogue = Gated(lead)
    dialogue.last = lead + 3
    task = await dialogue.go()
    for tick in range(1, lead + 1):
        assert ("collect", tick) in dialogue.under_way
        await dialogue.open(dialogue.collection(tick))
    if lead:
        assert dialogue.under_way == {("update", 1), ("collect", lead + 1)}
    await dialogue.open(dialogue.collection(lead + 1))
    assert dialogue.under_way == {("update", 1)}  # and tick lead + 2 has to wait for it
    await dialogue.open(dialogue.update(1))
    assert dialogue.under_way == {("collect", lead + 2), *([("update", 2)] if lead else [])}
    assert dialogue.tick == 1
    for tick in range(2, lead + 4):
        await dialogue.open(dialogue.collection(tick), dialogue.update(tick))
    await task
    assert [report.tick for report in dialogue.reports] == list(range(1, lead + 4))


async def test_ticks_that_wait_are_trained_on_in_their_order_and_counted() -> None:
    dialogue = Gated(3)
    dialogue.last = 4
    task = await dialogue.go()
    await dialogue.open(*(dialogue.collection(tick) for tick in (1, 2, 3, 4)))
    for tick in (1, 2, 3, 4):
        assert dialogue.under_way == {("update", tick)}
        await dialogue.open(dialogue.update(tick))
    await task
    assert [(report.tick, report.waiting) for report in dialogue.reports] == [(1, 3), (2, 2), (3, 1), (4, 0)]


@pytest.mark.parametrize("lead", [0, 1, 3])
async def test_a_stop_finishes_what_is_collected_and_nothing_more(lead: int) -> None:
    dialogue = Gated(lead)
    task = await dialogue.go()
    await dialogue.open(*(dialogue.collection(tick) for tick in range(1, lead + 1)))
    dialogue.last = 0  # asked to stop while tick lead + 1 is collected
    await dialogue.open(dialogue.collection(lead + 1))
    for tick in range(1, lead + 2):
        assert not task.done()
        assert dialogue.under_way == {("update", tick)}
        await dialogue.open(dialogue.update(tick))
    await task
    assert dialogue.tick == lead + 1


async def test_what_is_done_after_a_tick_comes_before_the_next_update() -> None:
    dialogue = Gated(2)
    dialogue.last = 2
    works = {tick: Work() for tick in (1, 2)}

    async def after_tick(tick: int) -> None:
        assert dialogue.tick == tick and [report.tick for report in dialogue.reports] == list(range(1, tick + 1))
        await works[tick]()

    dialogue.after_tick = after_tick
    task = await dialogue.go()
    await dialogue.open(dialogue.collection(1), dialogue.collection(2), dialogue.update(1))
    assert ("update", 2) not in dialogue.works
    await dialogue.open(works[1])
    assert ("update", 2) in dialogue.works
    await dialogue.open(dialogue.update(2))
    assert not task.done()
    await dialogue.open(works[2])
    await task


async def test_when_nothing_may_be_collected_nothing_happens() -> None:
    dialogue = Gated(2)
    dialogue.last = 0
    await dialogue.advance(lambda tick: tick <= 0, dialogue.report)
    assert (dialogue.tick, dialogue.reports, dialogue.works) == (0, [], {})


@pytest.mark.parametrize("lead", [1, 2, 3])
async def test_an_update_under_way_counts_when_collecting_fails(lead: int) -> None:
    dialogue = Gated(lead)
    task = await dialogue.go()
    await dialogue.open(*(dialogue.collection(tick) for tick in range(1, lead + 1)))
    dialogue.collection(lead + 1).result = Told("no more")
    await dialogue.open(dialogue.collection(lead + 1))
    assert not task.done()
    assert dialogue.under_way == {("update", 1)}
    await dialogue.open(dialogue.update(1))
    with pytest.raises(Told, match="no more"):
        await task
    assert dialogue.tick == 1
    assert [report.tick for report in dialogue.reports] == [1]
    assert ("update", 2) not in dialogue.works  # none is begun any more
    assert dialogue.weights.find(dialogue.schedule.version_after(1)) >= 0


@pytest.mark.parametrize("lead", [0, 1, 3])
async def test_collecting_that_fails_alone_ends_it(lead: int) -> None:
    dialogue = Gated(lead)
    task = await dialogue.go()
    await dialogue.open(dialogue.collection(1), dialogue.update(1))
    dialogue.collection(2).result = Told("no more")
    await dialogue.open(dialogue.collection(2))
    with pytest.raises(Told, match="no more"):
        await task
    assert dialogue.tick == 1


async def test_an_update_that_is_done_when_collecting_fails_counts() -> None:
    dialogue = Gated(1)
    task = await dialogue.go()
    await dialogue.open(dialogue.collection(1))
    dialogue.collection(2).result = Told("no more")
    dialogue.update(1).gate.set()
    dialogue.collection(2).gate.set()  # both in the same turn of the loop
    with pytest.raises(Told, match="no more"):
        await task
    assert dialogue.tick == 1


async def test_the_first_failure_counts_where_the_update_under_way_fails_later() -> None:
    dialogue = Gated(1)
    task = await dialogue.go()
    await dialogue.open(dialogue.collection(1))
    dialogue.collection(2).result = Told("collector")
    dialogue.update(1).result = Told("learner")
    await dialogue.open(dialogue.collection(2))
    await dialogue.open(dialogue.update(1))
    with pytest.raises(Told, match="collector") as caught:
        await task
    assert caught.value.__notes__ == ["aiorl: the update under way failed as well: learner"]
    assert dialogue.tick == 0


async def test_the_updates_failure_counts_where_both_fail_at_once() -> None:
    dialogue = Gated(1)
    task = await dialogue.go()
    await dialogue.open(dialogue.collection(1))
    dialogue.collection(2).result = Told("collector")
    dialogue.update(1).result = Told("learner")
    dialogue.collection(2).gate.set()  # both in the same turn of the loop
    dialogue.update(1).gate.set()
    with pytest.raises(Told) as caught:
        await task
    assert str(caught.value) == "learner"
    assert dialogue.tick == 0


@pytest.mark.parametrize("lead", [1, 3])
async def test_when_an_update_fails_collecting_is_cancelled(lead: int) -> None:
    dialogue = Gated(lead)
    task = await dialogue.go()
    await dialogue.open(dialogue.collection(1))
    dialogue.update(1).result = Told("no")
    await dialogue.open(dialogue.update(1))
    with pytest.raises(Told, match="no"):
        await task
    assert dialogue.collection(2).state == "cancelled"
    assert dialogue.tick == 0


class Careful:
    """A collection or an update that takes its time to leave, whatever it is told meanwhile."""

    def __init__(self, last_word: Exception | None = None) -> None:
        self.leave, self.state, self.last_word = Gate(), "new", last_word

    async def __call__(self) -> None:
        self.state = "running"
        try:
            await Gate().wait()
        finally:
            while not self.leave.is_set():
                try:
                    await self.leave.wait()
                except asyncio.CancelledError:
                    continue
            self.state = "left"
            if self.last_word is not None:
                raise self.last_word


async def test_cancelled_collecting_may_take_its_time() -> None:
    dialogue = Gated(1)
    careful = dialogue.works["collect", 2] = Careful(Told("worse"))
    task = await dialogue.go()
    await dialogue.open(dialogue.collection(1))
    dialogue.update(1).result = Told("first")
    await dialogue.open(dialogue.update(1))
    assert not task.done()
    careful.leave.set()
    with pytest.raises(Told, match="first"):
        await task
    assert careful.state == "left"


async def test_cancelled_from_outside_both_are_cancelled() -> None:
    dialogue = Gated(1)
    task = await dialogue.go()
    await dialogue.open(dialogue.collection(1))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (dialogue.collection(2).state, dialogue.update(1).state) == ("cancelled", "cancelled")
    assert dialogue.tick == 0


async def test_cancelled_while_it_awaits_the_update_after_a_failure() -> None:
    dialogue = Gated(1)
    task = await dialogue.go()
    await dialogue.open(dialogue.collection(1))
    dialogue.collection(2).result = Told("no")
    await dialogue.open(dialogue.collection(2))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert dialogue.update(1).state == "cancelled"


@pytest.mark.parametrize("which", [("collect", 2), ("update", 1)])
async def test_cancelled_twice_still_none_is_left(which: tuple[str, int]) -> None:
    dialogue = Gated(1)
    careful = dialogue.works[which] = Careful()
    task = await dialogue.go()
    await dialogue.open(dialogue.collection(1))
    for _ in range(2):
        task.cancel()
        await settle()
        assert not task.done()
    careful.leave.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert careful.state == "left"


async def test_a_report_that_fails_ends_it() -> None:
    dialogue = Gated(1)

    def full(report: TickReport) -> None:
        raise Told("the disk is full")

    dialogue.report = full  # type: ignore[method-assign]
    task = await dialogue.go()
    await dialogue.open(dialogue.collection(1), dialogue.update(1))
    with pytest.raises(Told, match="the disk is full"):
        await task
    assert dialogue.collection(2).state == "cancelled"
    assert dialogue.tick == 1  # the update itself is done
