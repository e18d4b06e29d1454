"""The real dialogues, schedule, ledgers and saver over simulated workers, which finish in any order."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from aiorl.checkpoint.store import CheckpointStore, Found
from aiorl.coordinator.dialogue import Dialogue
from aiorl.coordinator.offpolicy import OffPolicyDialogue
from aiorl.coordinator.onpolicy import OnPolicyDialogue
from aiorl.coordinator.saving import Saver, restore
from aiorl.coordinator.schedule import Position, Schedule
from aiorl.errors import WorkerFailedError
from aiorl.protocol import (
    BatchPacked,
    ChunkCollected,
    CollectChunk,
    CollectRollout,
    EnvSpec,
    EpisodeSums,
    FileRecord,
    Group,
    Message,
    PackBatch,
    PhaseTimes,
    Publish,
    Published,
    Request,
    Restore,
    Restored,
    RolloutReady,
    Save,
    Saved,
    TrainerDone,
    Update,
    UpdateOnRollouts,
)
from aiorl.settings import RunSettings, load_settings
from aiorl.telemetry.tick import TickReport

SPEC = EnvSpec(1, (Group("policy", 1),), (-1.0,), (1.0,), saves_state=True)
Place = tuple[Any, ...]


@dataclass(frozen=True)
class Side:
    """One family of algorithms with one lead, and room for more than it needs."""

    kind: str
    lead: int
    spare: int = 0

    def __str__(self) -> str:
        return f"{self.kind} {self.lead}" + (f" and {self.spare} to spare" if self.spare else "")


SIDES = [
    *(Side("sac", lead) for lead in (0, 1)),
    *(Side("appo", lag) for lag in range(4)),
    *(Side("appo", lag, spare=2) for lag in (0, 2)),
]


@cache
def settings_for(side: Side, collectors: int, learning_starts: int = 0) -> RunSettings:
    """An env for each collector, a step of each in a tick; off-policy training starts at tick `learning_starts`."""
    if side.kind == "sac":
        own = [
            f"collection.lead={side.lead}",
            f"learner.batch_size={collectors}",
            f"collection.learning_starts={learning_starts * collectors}",
            "collection.chunk_steps=1",
        ]
    else:
        own = [
            f"algorithm.max_policy_lag={side.lead}",
            f"collection.rollout_slots={side.lead + 1 + side.spare}",
            "collection.rollout_steps=1",
            "algorithm.minibatches=1",
        ]
    shared = [f"collection.collectors={collectors}", f"env.num_envs={collectors}"]
    return load_settings(f"{side.kind}/pendulum", overrides=[*shared, *own], environ={})


@dataclass(frozen=True)
class Policy:
    """What a weight slot holds: its label, and the tick of the update that it really comes from."""

    version: int
    update: int


class Memory:
    """What the slots hold, and who is at them right now: whoever does there what they must not fails the test.

    `history` is what the updates of earlier parts of the run published, by tick.
    """

    def __init__(self, lead: int, history: dict[int, int]) -> None:
        self.lead = lead
        self.published = history or {0: 0}  # version by the tick of the update that made it
        self.start = 0
        self.policies: dict[int, Policy] = {}  # by weight slot
        self.untrained: dict[Place, tuple[int, ...]] = {}  # batch parts and rollouts that nobody has trained on yet
        self.most_untrained = 0
        self.readers: dict[Place, set[str]] = {}
        self.writers: dict[Place, str] = {}
        self.acted: dict[int, dict[str, Policy]] = {}  # by tick and collector
        self.asked: list[int] = []
        self.trained: list[int] = []

    def promised(self, tick: int) -> Policy:
        """What a tick must act with: the policy of update `tick - 1 - lead`, of the last at or before it, or none's."""
        update = max(at for at in self.published if at <= max(tick - 1 - self.lead, 0))
        return Policy(self.published[update], update)

    @contextmanager
    def reading(self, places: Iterable[Place], who: str) -> Iterator[None]:
        """Read places until the end of the block; whoever does not get there is at them for ever."""
        places = list(places)
        for place in places:
            assert place not in self.writers, f"{who} reads {place} while {self.writers[place]} writes it"
            self.readers.setdefault(place, set()).add(who)
        yield
        for place in places:
            self.readers[place].discard(who)

    @contextmanager
    def writing(self, place: Place, who: str) -> Iterator[None]:
        """Write a place until the end of the block."""
        assert place not in self.writers, f"{who} and {self.writers[place]} write {place}"
        assert not self.readers.get(place), f"{who} writes {place} while {self.readers[place]} read it"
        assert place not in self.untrained, f"{who} writes over {place}, which nobody has trained on"
        self.writers[place] = who
        yield
        del self.writers[place]

    def act(self, tick: int, collector: str, slot: int, version: int) -> None:
        """Note what a collector acted with in a tick."""
        policy = self.policies[slot]
        assert policy.version == version
        assert policy == self.promised(tick), f"tick {tick} acts with {policy}, not {self.promised(tick)}"
        assert collector not in self.acted.setdefault(tick, {}), f"{collector} collects tick {tick} twice"
        self.acted[tick][collector] = policy

    def fill(self, place: Place, *content: int) -> None:
        """Note that experience lies in a place."""
        self.untrained[place] = content
        self.most_untrained = max(self.most_untrained, len(self.untrained))

    def train(self, tick: int, places: list[Place], *content: int) -> None:
        """Note that a tick was trained on: once, after the one before it, from these places."""
        assert not self.trained or tick == self.trained[-1] + 1, f"tick {tick} trained after {self.trained}"
        for place in places:
            assert self.untrained.pop(place, None) == content, f"{place} does not hold {content}"
        self.trained.append(tick)

    def publish(self, slot: int, version: int, tick: int) -> None:
        """Put the policy of an update into a slot."""
        assert version == max(self.published.values()) + 1, f"update {tick} makes version {version}"
        self.policies[slot] = Policy(version, tick)
        self.published[tick] = version

    @property
    def is_quiet(self) -> bool:
        """Whether nobody is at anything."""
        return not self.writers and not any(self.readers.values())


class Worker:
    """A worker that touches the memory from the request on until the test lets it finish."""

    def __init__(self, role: str, index: int, simulation: Simulation) -> None:
        self.role, self.index, self.name = role, index, f"{role} {index}"
        self.simulation, self.memory = simulation, simulation.memory
        self.pid = None
        self.rows = 0
        self.update = 0  # the learner's policy is that of this update
        self.fails_at: int | None = None
        self.is_busy = False

    async def turn(self, tick: int | None = None) -> None:
        """Wait until the test says go on; then fail, if this is the tick for it."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.simulation.waiting.append((self, future))
        await future
        if tick is not None and tick == self.fails_at:
            raise WorkerFailedError(f"{self.name} failed")

    async def call(self, request: Request) -> Message:
        assert not self.is_busy, f"{self.name} is asked for {request} before it has answered"
        self.is_busy = True  # for ever, where it fails or nobody waits for it
        reply = await (self.learn(request) if self.role == "learner" else self.collect(request))
        self.is_busy = False
        assert type(reply) is request.reply
        return reply

    async def collect(self, request: Request) -> Message:
        memory = self.memory
        match request:
            case CollectChunk(tick, _, weights, version):
                self.check_lead(tick)
                with memory.reading([("policy", weights)], self.name):
                    await self.turn(tick)
                    memory.act(tick, self.name, weights, version)
                return ChunkCollected(tick, 1, version, 0, 0, EpisodeSums(), PhaseTimes())
            case PackBatch(tick, slot):
                place = ("batch", self.name, slot)
                with memory.writing(place, self.name):
                    await self.turn()
                memory.fill(place, tick)
                self.rows += 1
                return BatchPacked(tick, slot, self.rows, self.rows, 0, 0, 0, 0)
            case CollectRollout(tick, slot, weights, version):
                self.check_lead(tick)
                place = ("rollout", self.name, slot)
                with memory.reading([("policy", weights)], self.name), memory.writing(place, self.name):
                    await self.turn(tick)
                    memory.act(tick, self.name, weights, version)
                memory.fill(place, tick, version)
                return RolloutReady(tick, 1, version, 0, 0, EpisodeSums(), PhaseTimes())
            case Save(tick, directory):
                assert memory.is_quiet
                await self.turn()
                return Saved(tick, (write(Path(directory) / f"collector-{self.index}.json", {}),))
            case Restore(directory):
                await self.turn()
                return Restored()
        raise AssertionError(request)

    async def learn(self, request: Request) -> Message:
        memory, names = self.memory, [worker.name for worker in self.simulation.collectors]
        match request:
            case Publish(weights):
                with memory.writing(("policy", weights), self.name):
                    await self.turn()
                memory.policies[weights] = Policy(memory.published[self.update], self.update)
                return Published(memory.published[self.update])
            case Update(tick, slot, _, weights, version):
                await self.train(tick, [("batch", name, slot) for name in names], (tick,), weights, version)
            case UpdateOnRollouts(tick, slots, acting, weights, version):
                assert acting == memory.promised(tick).version
                places = [("rollout", name, slot) for name, slot in zip(names, slots, strict=True)]
                await self.train(tick, places, (tick, acting), weights, version)
            case Save(tick, directory, pending):
                assert memory.is_quiet
                await self.turn()
                content = {"update": self.update, "pending": [memory.policies[slot].update for slot in pending]}
                return Saved(tick, (write(Path(directory) / "learner.json", content),))
            case Restore(directory, weights=weights, weight_version=version):
                content = json.loads((Path(directory) / "learner.json").read_text())
                self.update = content["update"]
                memory.policies[weights] = Policy(version, self.update)
                for slot, label, update in zip(
                    request.pending, request.pending_versions, content["pending"], strict=True
                ):
                    memory.policies[slot] = Policy(label, update)
                await self.turn()
                return Restored()
            case _:
                raise AssertionError(request)
        return TrainerDone(tick, version, (), 0, 0, 0, 0)

    async def train(self, tick: int, places: list[Place], content: tuple[int, ...], weights: int, version: int) -> None:
        memory = self.memory
        memory.asked.append(tick)
        with memory.reading(places, self.name), memory.writing(("policy", weights), self.name):
            assert [memory.untrained.get(place) for place in places] == [content] * len(places)
            memory.policies.pop(weights, None)
            await self.turn(tick)
            memory.train(tick, places, *content)
        self.update = tick
        memory.publish(weights, version, tick)

    def check_lead(self, tick: int) -> None:
        done = self.simulation.dialogue.tick
        assert tick - 1 - self.memory.lead <= done, f"tick {tick} is collected when only update {done} is done"


class Simulation:
    """One run, or one part of it; `picks` say whose turn is next, and how far the event loop gets meanwhile."""

    def __init__(
        self,
        settings: RunSettings,
        picks: list[int],
        start: Position | None = None,
        history: dict[int, int] | None = None,
    ) -> None:
        self.settings, self.picks, self.turns = settings, picks, 0
        self.schedule = Schedule(settings, start or Position())
        self.memory = Memory(settings.lead, dict(history or {}))
        self.waiting: list[tuple[Worker, asyncio.Future[None]]] = []
        self.slowest: Worker | None = None  # whose turn comes when nobody else has one
        self.silent: Worker | None = None  # whose turn never comes
        self.collectors = [Worker("collector", index, self) for index in range(settings.collection.collectors)]
        self.learner = Worker("learner", 0, self)
        workers = [*self.collectors, self.learner]
        self.team: Any = SimpleNamespace(
            collectors=self.collectors, learner=self.learner, workers=workers, run_dir=Path("run")
        )
        kind = OnPolicyDialogue if settings.on_policy else OffPolicyDialogue
        self.dialogue: Dialogue = kind(settings, self.team, self.schedule)
        self.reports: list[TickReport] = []
        self.notes: list[str] = []

    def run(self, work: Coroutine[Any, Any, None], *, cancel_at: Iterable[int] = ()) -> None:
        """Carry out some work; cancel it from outside at these turns."""
        asyncio.run(self._run(work, set(cancel_at)))

    async def _run(self, work: Coroutine[Any, Any, None], cancel_at: set[int]) -> None:
        task = asyncio.ensure_future(work)
        stuck = 0
        while not task.done():
            pick = self.picks[self.turns % len(self.picks)]
            for _ in range(1 + 4 * (pick % 8)):
                await asyncio.sleep(0)
            self.forget_the_given_up()
            if self.turns in cancel_at:
                cancel_at.discard(self.turns)
                task.cancel()
            elif ready := [each for each in self.waiting if each[0] is not self.silent]:
                ready = [each for each in ready if each[0] is not self.slowest] or ready
                chosen = ready[pick // 8 % len(ready)]
                self.waiting.remove(chosen)
                chosen[1].set_result(None)
                self.turns, stuck = self.turns + 1, 0
            else:
                stuck += 1
                assert stuck < 200, "everybody waits for somebody else"
        # Nothing is left running, and nobody is left alone with a request.
        assert asyncio.all_tasks() == {asyncio.current_task()}
        self.forget_the_given_up()
        assert self.waiting == []
        await task

    def forget_the_given_up(self) -> None:
        """Requests are given up when they are cancelled."""
        self.waiting[:] = [each for each in self.waiting if not each[1].cancelled()]

    async def start(self) -> None:
        await self.dialogue.publish_first()

    async def to(self, tick: int) -> None:
        await self.advance(lambda next_tick: next_tick <= tick)

    async def advance(self, may_collect: Callable[[int], bool]) -> None:
        await self.dialogue.advance(may_collect, self.reports.append)

    async def save(self, store: CheckpointStore, *, exact: bool = True) -> None:
        """Save by the real saver."""
        saver = Saver(self.settings, store, self.team, SPEC, Desk())  # type: ignore[arg-type]
        await saver.save(self.dialogue, 1.0, is_reproducible=lambda: True, exact=exact)

    async def restore(self, found: Found) -> None:
        """Restore by the real code."""
        log: Any = SimpleNamespace(warning=self.notes.append)
        await restore(found, self.settings.steps_per_tick, self.dialogue, self.team, SPEC, log)

    def check(self, *, finished: bool = True) -> None:
        """Check what must hold of every part of a run; `finished` also of one that was drained."""
        schedule, memory, start, tick = self.schedule, self.memory, self.schedule.start.tick, self.dialogue.tick
        names = {worker.name for worker in self.collectors}
        ticks = range(start + 1, tick + 1)
        assert [report.tick for report in self.reports] == list(ticks)
        for report in self.reports:
            self.check_report(report)
        trained = [each for each in ticks if schedule.trains(each)]
        assert memory.trained[: len(trained)] == trained
        for each, policies in memory.acted.items():
            assert set(policies.values()) == {memory.promised(each)}
            assert each > tick or policies.keys() == names
        assert set(ticks) <= memory.acted.keys()
        if not finished:
            return
        assert memory.trained == memory.asked == trained
        assert memory.acted.keys() == set(ticks)
        assert memory.untrained == {}
        assert memory.is_quiet
        assert not any(worker.is_busy for worker in self.team.workers)
        # A checkpoint finds the policies that ticks to come act with, each in its slot.
        position = schedule.position(tick)
        newest = max(at for at in memory.published if at <= tick)
        for version in (position.weight_version, *position.pending_versions):
            assert memory.policies[self.dialogue.weights.find(version)].version == version
        assert position.weight_version == memory.published[newest]
        to_come = [memory.promised(each).version for each in range(tick + 1, tick + 1 + self.settings.lead)]
        assert {*to_come} <= {position.weight_version, *position.pending_versions}

    def check_report(self, report: TickReport) -> None:
        tick, trains = report.tick, self.schedule.trains(report.tick)
        assert [chunk.tick for chunk in report.chunks] == [tick] * len(self.collectors)
        assert {chunk.weight_version for chunk in report.chunks} == {self.memory.promised(tick).version}
        assert [pack.tick for pack in report.packs] == (
            [tick] * len(self.collectors) if trains and not self.settings.on_policy else []
        )
        assert (report.update is not None) == trains
        assert report.update is None or report.update.tick == tick
        newest = max(at for at in self.memory.published if at <= tick)
        assert report.weight_version == self.memory.published[newest]
        assert 0 <= report.waiting <= self.settings.lead


class Desk:
    """A file writer that writes at once."""

    async def run(self, write: Callable[[], Any]) -> Any:
        return write()


def write(path: Path, content: dict[str, Any]) -> FileRecord:
    path.write_text(json.dumps(content), encoding="utf-8")
    return FileRecord(path.name, path.stat().st_size, 0)


async def refused(work: Awaitable[None], kind: type[BaseException] = WorkerFailedError) -> BaseException:
    """Return the error that some work ends with."""
    try:
        await work
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__} was raised")
