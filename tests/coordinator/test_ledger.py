"""One owner per slot, whatever is asked of the ledger; and slots enough for every order of events in the dialogue."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from aiorl.coordinator.ledger import SlotLedger
from aiorl.coordinator.offpolicy import OffPolicyDialogue
from aiorl.coordinator.schedule import Position, Schedule
from aiorl.errors import ProtocolError, WorkerFailedError
from aiorl.protocol import (
    BatchPacked,
    ChunkCollected,
    CollectChunk,
    EpisodeSums,
    Message,
    PackBatch,
    PhaseTimes,
    Publish,
    Published,
    Request,
    TrainerDone,
    Update,
)
from aiorl.settings import RunSettings, load_settings
from aiorl.storage.batches import batch_slot_count
from aiorl.storage.weights import weight_slot_count
from aiorl.telemetry.tick import TickReport

# The ledger against a model of it

WORKERS = ("a", "b", "c")
SLOTS = 3
workers = st.sampled_from(WORKERS)
groups = st.sets(workers, min_size=1)
slots = st.integers(0, SLOTS - 1)
contents = st.integers(0, 6)


@dataclass
class Held:
    content: int
    writers: set[str]
    readers: set[str] = field(default_factory=set)

    @property
    def is_idle(self) -> bool:
        return not self.writers and not self.readers


class LedgerMachine(RuleBasedStateMachine):
    """Every call is tried, allowed or not: it does what it should, or raises and changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = SlotLedger("batch", SLOTS)
        self.held: dict[int, Held] = {}

    def attempt(self, is_allowed: bool, action: Callable[[], Any]) -> Any:
        if is_allowed:
            return action()
        with pytest.raises(ProtocolError, match="batch"):
            action()
        return None

    def is_held(self, content: int) -> bool:
        return any(held.content == content for held in self.held.values())

    @rule(content=contents, writers=groups)
    def claim(self, content: int, writers: set[str]) -> None:
        is_allowed = len(self.held) < SLOTS and not self.is_held(content)
        slot = self.attempt(is_allowed, lambda: self.ledger.claim(content, iter(writers)))
        if is_allowed:
            assert slot in set(range(SLOTS)) - self.held.keys()
            self.held[slot] = Held(content, set(writers))

    @rule(slot=slots, writer=workers)
    def written(self, slot: int, writer: str) -> None:
        is_allowed = slot in self.held and writer in self.held[slot].writers
        self.attempt(is_allowed, lambda: self.ledger.written(slot, writer))
        if is_allowed:
            self.held[slot].writers.discard(writer)

    @rule(slot=slots)
    def written_by_all(self, slot: int) -> None:
        if slot in self.held:
            for writer in sorted(self.held[slot].writers):
                self.written(slot, writer)

    @rule(slot=slots, readers=groups)
    def lend(self, slot: int, readers: set[str]) -> None:
        held = self.held.get(slot)
        is_allowed = held is not None and not held.writers and not held.readers & readers
        self.attempt(is_allowed, lambda: self.ledger.lend(slot, iter(readers)))
        if is_allowed and held is not None:
            held.readers |= readers

    @rule(slot=slots, reader=workers)
    def returned(self, slot: int, reader: str) -> None:
        is_allowed = slot in self.held and reader in self.held[slot].readers
        self.attempt(is_allowed, lambda: self.ledger.returned(slot, reader))
        if is_allowed:
            self.held[slot].readers.discard(reader)

    @rule(slot=slots)
    def free(self, slot: int) -> None:
        is_allowed = slot not in self.held or self.held[slot].is_idle
        self.attempt(is_allowed, lambda: self.ledger.free(slot))
        if is_allowed:
            self.held.pop(slot, None)

    @rule(content=contents)
    def free_below(self, content: int) -> None:
        older = {slot: held for slot, held in self.held.items() if held.content < content}
        is_allowed = all(held.is_idle for held in older.values())
        self.attempt(is_allowed, lambda: self.ledger.free_below(content))
        for slot, held in older.items():
            if is_allowed:
                del self.held[slot]
            elif held.is_idle and not self.is_found(held.content):
                del self.held[slot]  # freed before it came to the busy one

    def is_found(self, content: int) -> bool:
        try:
            return self.ledger.find(content) >= 0
        except ProtocolError:
            return False

    @invariant()
    def what_is_claimed_is_found_and_nothing_else(self) -> None:
        for content in range(7):
            expected = [slot for slot, held in self.held.items() if held.content == content]
            if expected:
                assert [self.ledger.find(content)] == expected
            else:
                with pytest.raises(ProtocolError, match=f"batch {content} is in no slot"):
                    self.ledger.find(content)


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=100, stateful_step_count=40, deadline=None, derandomize=True)


@pytest.fixture
def ledger() -> SlotLedger:
    return SlotLedger("policy", 2)


def test_a_slot_is_lent_only_when_all_parts_are_written(ledger: SlotLedger) -> None:
    slot = ledger.claim(7, ["collector 0", "collector 1"])
    for writer in ("collector 0", "collector 1"):
        with pytest.raises(ProtocolError, match=f"policy slot {slot} is not full"):
            ledger.lend(slot, ["learner 0"])
        ledger.written(slot, writer)
    ledger.lend(slot, ["learner 0"])


def test_a_slot_that_is_read_is_not_freed(ledger: SlotLedger) -> None:
    slot = ledger.claim(7, ["learner 0"])
    ledger.written(slot, "learner 0")
    ledger.lend(slot, ["collector 0", "collector 1"])
    ledger.returned(slot, "collector 0")
    with pytest.raises(ProtocolError, match="is still with collector 1"):
        ledger.free(slot)
    with pytest.raises(ProtocolError, match="is still with collector 1"):
        ledger.free_below(8)
    ledger.free_below(7)
    assert ledger.find(7) == slot


def test_nothing_is_given_back_that_was_not_had(ledger: SlotLedger) -> None:
    slot = ledger.claim(7, ["learner 0"])
    with pytest.raises(ProtocolError, match="collector 0 gave back policy slot"):
        ledger.written(slot, "collector 0")
    ledger.written(slot, "learner 0")
    for give_back in (ledger.written, ledger.returned):
        with pytest.raises(ProtocolError, match="learner 0 gave back policy slot"):
            give_back(slot, "learner 0")


def test_when_no_slot_is_free_none_is_claimed(ledger: SlotLedger) -> None:
    ledger.claim(1, ["a"])
    ledger.claim(2, ["a"])
    with pytest.raises(ProtocolError, match="no free slot for policy 3"):
        ledger.claim(3, ["a"])


# The dialogue, with workers that finish in any order


class Memory:
    """What the slots hold, and who is at them right now: whoever meets another there fails the test."""

    def __init__(self, settings: RunSettings) -> None:
        self.policies: dict[int, int] = {}  # version by weight slot
        self.batches: dict[tuple[int, str], int] = {}  # tick by (batch slot, collector)
        self.readers: dict[Any, set[str]] = {}
        self.writers: dict[Any, str] = {}
        self.acted: dict[int, set[int]] = {}  # versions by tick
        self.trained: list[int] = []

    def read(self, place: Any, who: str) -> None:
        assert place not in self.writers, f"{who} reads {place} while {self.writers[place]} writes it"
        self.readers.setdefault(place, set()).add(who)

    def has_read(self, place: Any, who: str) -> None:
        self.readers[place].discard(who)

    def write(self, place: Any, who: str) -> None:
        assert place not in self.writers, f"{who} and {self.writers[place]} write {place}"
        assert not self.readers.get(place), f"{who} writes {place} while {self.readers[place]} read it"
        self.writers[place] = who

    def has_written(self, place: Any) -> None:
        del self.writers[place]


class Worker:
    """A worker that touches the memory from the request on until the test lets it finish."""

    def __init__(self, role: str, index: int, memory: Memory, waiting: "list[asyncio.Future[None]]") -> None:
        self.role, self.index, self.name = role, index, f"{role} {index}"
        self.memory, self.waiting = memory, waiting
        self.rows = 0
        self.fails_at: int | None = None
        self.is_busy = False

    async def turn(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        await future

    async def call(self, request: Request) -> Message:
        assert not self.is_busy, f"{self.name} is asked two things at once"
        self.is_busy = True
        memory = self.memory
        match request:
            case Publish(slot):
                await self.publish(slot, 0, self.turn())
                reply: Message = Published(0)
            case CollectChunk(tick, _, slot, version):
                memory.read(("policy", slot), self.name)
                await self.turn()
                assert memory.policies[slot] == version
                memory.has_read(("policy", slot), self.name)
                memory.acted.setdefault(tick, set()).add(version)
                if self.fails_at == tick:
                    raise WorkerFailedError(f"{self.name} failed")
                reply = ChunkCollected(tick, 1, version, 0, 0, EpisodeSums(), PhaseTimes())
            case PackBatch(tick, slot):
                memory.write(("batch", slot, self.name), self.name)
                await self.turn()
                memory.has_written(("batch", slot, self.name))
                memory.batches[slot, self.name] = tick
                self.rows += 1
                reply = BatchPacked(tick, slot, self.rows, self.rows, 0, 0, 0, 0)
            case Update(tick, slot, _, weights, version):
                parts = [part for part in memory.batches if part[0] == slot]
                for part in parts:
                    memory.read(("batch", *part), self.name)
                await self.publish(weights, version, self.turn())
                assert parts
                assert {memory.batches[part] for part in parts} == {tick}
                for part in parts:
                    memory.has_read(("batch", *part), self.name)
                memory.trained.append(tick)
                reply = TrainerDone(tick, version, (), 0, 0, 0, 0)
            case _:
                raise AssertionError(request)
        self.is_busy = False
        return reply

    async def publish(self, slot: int, version: int, work: Awaitable[None]) -> None:
        self.memory.write(("policy", slot), self.name)
        self.memory.policies.pop(slot, None)
        await work
        self.memory.policies[slot] = version
        self.memory.has_written(("policy", slot))


class Simulation:
    """The real dialogue, schedule and ledgers over simulated workers."""

    def __init__(self, settings: RunSettings, start: Position, picks: list[int]) -> None:
        self.memory, self.waiting, self.picks = Memory(settings), [], picks
        self.collectors = [
            Worker("collector", index, self.memory, self.waiting) for index in range(settings.collection.collectors)
        ]
        self.learner = Worker("learner", 0, self.memory, self.waiting)
        team: Any = SimpleNamespace(
            collectors=self.collectors, learner=self.learner, workers=[*self.collectors, self.learner]
        )
        self.schedule = Schedule(settings, start)
        self.dialogue = OffPolicyDialogue(settings, team, self.schedule)
        self.reports: list[TickReport] = []

    def put(self, version: int) -> None:
        """Have a policy published already, as a restore does."""
        slot = self.dialogue.weights.claim(version, ["learner 0"])
        self.memory.policies[slot] = version
        self.dialogue.weights.written(slot, "learner 0")

    def run(self, work: Awaitable[None]) -> None:
        asyncio.run(self._run(work))

    async def _run(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        turns = 0
        while not task.done():
            for _ in range(8):
                await asyncio.sleep(0)
            # A collector's request is given up when another collector has failed.
            self.waiting[:] = [each for each in self.waiting if not each.cancelled()]
            if self.waiting:
                pick = self.picks[turns % len(self.picks)]
                self.waiting.pop(pick % len(self.waiting)).set_result(None)
                turns += 1
        await task

    async def start(self) -> None:
        await self.dialogue.publish_first()

    async def to(self, tick: int) -> None:
        await self.dialogue.advance(lambda next_tick: next_tick <= tick, self.reports.append)


def settings_for(lead: int, collectors: int, learning_starts: int) -> RunSettings:
    return load_settings(
        overrides=[
            f"collection.lead={lead}",
            f"collection.collectors={collectors}",
            f"env.num_envs={collectors}",
            f"learner.batch_size={collectors}",
            f"collection.learning_starts={learning_starts * collectors}",
            "collection.chunk_steps=1",
        ],
        environ={},
    )


leads = st.sampled_from([0, 1])
orders = st.lists(st.integers(0, 5), min_size=1, max_size=40)
simulated = settings(max_examples=60, deadline=None, derandomize=True)


def check(simulation: Simulation, ticks: range) -> None:
    schedule, memory = simulation.schedule, simulation.memory
    assert simulation.dialogue.tick == ticks[-1]
    assert [report.tick for report in simulation.reports] == list(ticks)
    assert memory.trained == [tick for tick in ticks if schedule.trains(tick)]
    assert memory.acted == {tick: {schedule.acting_version(tick)} for tick in ticks}
    assert not memory.writers
    assert not any(memory.readers.values())
    # Drained: a checkpoint finds the policies that the next chunks act with.
    for version in (schedule.acting_version(ticks[-1] + 1), schedule.version_after(ticks[-1])):
        assert memory.policies[simulation.dialogue.weights.find(version)] == version


@simulated
@given(lead=leads, collectors=st.integers(1, 3), learning_starts=st.integers(0, 4), picks=orders)
def test_no_order_of_events_runs_out_of_slots(
    lead: int, collectors: int, learning_starts: int, picks: list[int]
) -> None:
    simulation = Simulation(settings_for(lead, collectors, learning_starts), Position(), picks)

    async def work() -> None:
        await simulation.start()
        # Stops and goes on, as saves and pauses do.
        for tick in (1, 5, 6, 12):
            await simulation.to(tick)
            check(simulation, range(1, tick + 1))

    simulation.run(work())


@simulated
@given(
    lead=leads,
    collectors=st.integers(1, 3),
    learning_starts=st.integers(0, 4),
    stop=st.integers(1, 6),
    loses_replay=st.booleans(),
    picks=orders,
)
def test_a_resumed_dialogue_does_not_either(
    lead: int, collectors: int, learning_starts: int, stop: int, loses_replay: bool, picks: list[int]
) -> None:
    chosen = settings_for(lead, collectors, learning_starts)
    position = Schedule(chosen, Position()).position(stop)
    start = Position(
        tick=stop,
        weight_version=position.weight_version,
        previous_version=position.previous_version if lead else position.weight_version,
        replay_from_env_steps=collectors * stop if loses_replay else 0,
    )
    simulation = Simulation(chosen, start, picks)
    for version in dict.fromkeys((start.weight_version, start.previous_version)):
        simulation.put(version)

    async def work() -> None:
        for tick in (stop + 1, stop + 8):
            await simulation.to(tick)
            check(simulation, range(stop + 1, tick + 1))

    simulation.run(work())


@simulated
@given(lead=leads, collectors=st.integers(1, 3), failing=st.integers(0, 2), tick=st.integers(1, 7), picks=orders)
def test_when_a_collector_fails_the_update_under_way_still_counts(
    lead: int, collectors: int, failing: int, tick: int, picks: list[int]
) -> None:
    simulation = Simulation(settings_for(lead, collectors, 2), Position(), picks)
    simulation.collectors[failing % collectors].fails_at = tick

    async def work() -> None:
        await simulation.start()
        with pytest.raises(WorkerFailedError):
            await simulation.to(12)

    simulation.run(work())
    assert [each for each in simulation.waiting if not each.cancelled()] == []  # nobody was left alone with a request
    assert simulation.dialogue.tick == tick - 1
    assert [report.tick for report in simulation.reports] == list(range(1, tick))
    assert simulation.memory.trained == [each for each in range(1, tick) if simulation.schedule.trains(each)]
    assert not simulation.learner.is_busy
    simulation.dialogue.weights.find(simulation.schedule.version_after(tick - 1))


@pytest.mark.parametrize(("lead", "batches", "policies"), [(0, 1, 2), (1, 2, 2)])
def test_there_are_no_more_slots_than_needed(lead: int, batches: int, policies: int) -> None:
    chosen = settings_for(lead, 1, 0)
    assert (batch_slot_count(chosen), weight_slot_count(chosen)) == (batches, policies)
