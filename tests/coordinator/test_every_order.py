"""Both families' dialogues over every order of events: simulated workers finish, fail and are cancelled at any turn.

See `simulation.py` for what the workers and their memory let nobody get away with.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiorl.checkpoint.store import CheckpointStore
from aiorl.coordinator.onpolicy import OnPolicyDialogue
from aiorl.coordinator.saving import start_position
from aiorl.errors import ProtocolError, WorkerFailedError
from aiorl.storage.batches import batch_slot_count
from aiorl.storage.weights import weight_slot_count
from tests.coordinator.simulation import SIDES, Side, Simulation, refused, settings_for

every_side = pytest.mark.parametrize("side", SIDES, ids=str)
orders = st.lists(st.integers(0, 8 * 12 - 1), min_size=1, max_size=60)
counts = st.integers(1, 3)
warm_ups = st.integers(0, 4)
simulated = settings(max_examples=40, deadline=None, derandomize=True)
saved = settings(simulated, max_examples=20)


@every_side
@simulated
@given(collectors=counts, learning_starts=warm_ups, picks=orders)
def test_no_order_of_events_runs_out_of_slots(
    side: Side, collectors: int, learning_starts: int, picks: list[int]
) -> None:
    simulation = Simulation(settings_for(side, collectors, learning_starts), picks)

    async def work() -> None:
        await simulation.start()
        # Stops and goes on, as saves and pauses do.
        for tick in (1, 5, 6, 12):
            await simulation.to(tick)
            assert simulation.dialogue.tick == tick
            simulation.check()

    simulation.run(work())
    if side.kind == "appo":  # more slots than the lead asks for are never full
        assert simulation.memory.most_untrained <= collectors * (side.lead + 1)


@every_side
@simulated
@given(collectors=counts, legs=st.lists(st.integers(0, 30), min_size=1, max_size=4), picks=orders)
def test_a_stop_at_any_turn_leaves_nothing_collected_behind(
    side: Side, collectors: int, legs: list[int], picks: list[int]
) -> None:
    simulation = Simulation(settings_for(side, collectors, 2), picks)

    async def work() -> None:
        await simulation.start()
        for leg in legs:
            until = simulation.turns + leg
            await simulation.advance(lambda tick, until=until: simulation.turns < until)
            simulation.check()

    simulation.run(work())


@every_side
@saved
@given(
    collectors=counts,
    learning_starts=warm_ups,
    legs=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    loses_replay=st.booleans(),
    picks=orders,
)
def test_a_resumed_dialogue_goes_on_as_if_it_had_never_stopped(
    tmp_path_factory: pytest.TempPathFactory,
    side: Side,
    collectors: int,
    learning_starts: int,
    legs: list[int],
    loses_replay: bool,
    picks: list[int],
) -> None:
    chosen = settings_for(side, collectors, learning_starts)
    store = CheckpointStore(tmp_path_factory.mktemp("run") / "checkpoints")
    simulation = Simulation(chosen, picks)

    async def begin() -> None:
        await simulation.start()
        await simulation.to(legs[0])
        simulation.check()
        await simulation.save(store)

    simulation.run(begin())
    acted = dict(simulation.memory.acted)
    for leg in [*legs[1:], 8]:
        simulation = resumed(simulation, store, loses_replay=loses_replay and side.kind == "sac")

        async def go_on(simulation: Simulation = simulation, leg: int = leg) -> None:
            await simulation.restore(store.newest_whole())
            await simulation.to(simulation.schedule.start.tick + leg)
            simulation.check()
            await simulation.save(store)

        simulation.run(go_on())
        acted |= simulation.memory.acted
    if side.kind == "appo" or not loses_replay:
        straight = Simulation(chosen, picks)

        async def through() -> None:
            await straight.start()
            await straight.to(sum(legs) + 8)

        straight.run(through())
        assert acted == straight.memory.acted


def resumed(before: Simulation, store: CheckpointStore, *, loses_replay: bool = False) -> Simulation:
    """Return a simulation that starts from the newest checkpoint of the one before, not restored yet."""
    found = store.newest_whole()
    if loses_replay:
        found = replace(found, manifest=msgspec.structs.replace(found.manifest, has_replay=False))
    position = start_position(found)
    assert position.replay_from_env_steps == (found.manifest.env_steps if loses_replay else 0)
    history = {tick: version for tick, version in before.memory.published.items() if tick <= position.tick}
    return Simulation(before.settings, before.picks[::-1], position, history)


@every_side
@saved
@given(collectors=counts, failing=st.integers(0, 2), tick=st.integers(1, 7), picks=orders)
def test_when_a_collector_fails_the_update_under_way_counts_and_a_save_goes_on(
    tmp_path_factory: pytest.TempPathFactory, side: Side, collectors: int, failing: int, tick: int, picks: list[int]
) -> None:
    store = CheckpointStore(tmp_path_factory.mktemp("run") / "checkpoints")
    simulation = Simulation(settings_for(side, collectors, 2), picks)
    failed = simulation.collectors[failing % collectors]
    failed.fails_at = tick
    memory, dialogue = simulation.memory, simulation.dialogue

    async def work() -> None:
        await simulation.start()
        error = await refused(simulation.to(12))
        assert str(error) == f"{failed.name} failed"

    simulation.run(work())
    simulation.check(finished=False)
    assert memory.asked == memory.trained  # whatever was begun is finished
    assert memory.trained == [each for each in range(1, dialogue.tick + 1) if simulation.schedule.trains(each)]
    assert tick - max(side.lead, 1) <= dialogue.tick <= tick - 1
    assert not simulation.learner.is_busy
    if dialogue.tick == 0:
        return  # there is nothing to save
    # The readers and writers that failed are gone with their processes.
    memory.readers.clear()
    memory.writers.clear()
    simulation.run(simulation.save(store, exact=False))
    after = resumed(simulation, store)

    async def go_on() -> None:
        await after.restore(store.newest_whole())
        await after.to(after.schedule.start.tick + 6)
        after.check()

    after.run(go_on())


@every_side
@pytest.mark.parametrize("failing", [0, 1])
def test_when_a_collector_fails_nobody_waits_for_the_others(side: Side, failing: int) -> None:
    simulation = Simulation(settings_for(side, 2, 2), [7])
    simulation.collectors[failing].fails_at = 1
    simulation.silent = simulation.collectors[1 - failing]

    async def work() -> None:
        await simulation.start()
        await refused(simulation.to(12))

    simulation.run(work())
    simulation.check(finished=False)


@every_side
@simulated
@given(collectors=counts, tick=st.integers(2, 7), picks=orders)
def test_when_the_learner_fails_collecting_is_given_up(
    side: Side, collectors: int, tick: int, picks: list[int]
) -> None:
    simulation = Simulation(settings_for(side, collectors, 2), picks)
    simulation.learner.fails_at = tick

    async def work() -> None:
        await simulation.start()
        assert str(await refused(simulation.to(12))) == "learner 0 failed"

    simulation.run(work())
    simulation.check(finished=False)
    assert simulation.dialogue.tick == tick - 1
    assert simulation.memory.trained == [each for each in range(1, tick) if simulation.schedule.trains(each)]
    assert max(simulation.memory.acted) <= tick + side.lead


@every_side
@simulated
@given(collectors=counts, ticks=st.tuples(st.integers(2, 5), st.integers(2, 5)), picks=orders)
def test_when_both_fail_one_of_them_is_told(
    side: Side, collectors: int, ticks: tuple[int, int], picks: list[int]
) -> None:
    simulation = Simulation(settings_for(side, collectors, 2), picks)
    simulation.learner.fails_at, simulation.collectors[-1].fails_at = ticks

    async def work() -> None:
        await simulation.start()
        await refused(simulation.to(12))

    simulation.run(work())
    simulation.check(finished=False)
    assert simulation.dialogue.tick < min(ticks)


@every_side
@simulated
@given(collectors=counts, at=st.integers(1, 40), again=st.integers(0, 3), picks=orders)
def test_cancelled_at_any_turn_nothing_is_left_running(
    side: Side, collectors: int, at: int, again: int, picks: list[int]
) -> None:
    simulation = Simulation(settings_for(side, collectors, 2), picks)

    async def work() -> None:
        await simulation.start()
        await simulation.to(100)

    with pytest.raises(asyncio.CancelledError):
        simulation.run(work(), cancel_at=(at, at + again))
    simulation.check(finished=False)
    assert len(simulation.memory.asked) <= len(simulation.memory.trained) + 1


# Slots


@pytest.mark.parametrize(
    ("side", "policies"),
    [(Side("sac", 0), 2), (Side("sac", 1), 2), *((Side("appo", lag), max(lag, 1) + 1) for lag in range(4))],
    ids=str,
)
def test_there_are_as_many_weight_slots_as_the_lead_asks_for(side: Side, policies: int) -> None:
    assert weight_slot_count(settings_for(side, 1)) == policies


@pytest.mark.parametrize("lead", [0, 1])
def test_there_is_a_batch_slot_for_each_tick_under_way(lead: int) -> None:
    assert batch_slot_count(settings_for(Side("sac", lead), 1)) == lead + 1


@pytest.mark.parametrize("lag", [1, 2, 3])
@pytest.mark.parametrize("what", ["rollouts", "policies"])
def test_with_one_slot_less_some_order_runs_out(lag: int, what: str) -> None:
    side = Side("appo", lag)
    chosen = settings_for(side, 1)
    simulation = Simulation(chosen, [7])
    simulation.slowest = simulation.learner
    dialogue: Any = simulation.dialogue
    ledger = dialogue.rollouts[0] if what == "rollouts" else dialogue.weights
    for each in ("_content", "_writers", "_readers"):
        getattr(ledger, each).pop()

    async def work() -> None:
        await simulation.start()
        with pytest.raises(ProtocolError, match="no free slot"):
            await simulation.to(12)

    simulation.run(work())


@pytest.mark.parametrize("other", [0, 2])
def test_every_collector_has_slots_of_its_own(other: int) -> None:
    simulation = Simulation(settings_for(Side("appo", 1, spare=1), 3), [7])
    assert isinstance(simulation.dialogue, OnPolicyDialogue)
    assert simulation.dialogue.rollouts[other].claim(-1, ["somebody"]) == 0  # from here on the numbers differ

    async def work() -> None:
        await simulation.start()
        await simulation.to(6)
        simulation.check()

    simulation.run(work())


@pytest.mark.parametrize(("dumps", "folder"), [(False, ""), (True, "run/rollouts")])
def test_rollouts_are_dumped_where_asked_for(dumps: bool, folder: str) -> None:
    chosen = settings_for(Side("appo", 1), 2)
    chosen = chosen.model_copy(update={"telemetry": chosen.telemetry.model_copy(update={"dump_rollouts": dumps})})
    simulation = Simulation(chosen, [0])
    assert isinstance(simulation.dialogue, OnPolicyDialogue)
    asked: list[str] = []
    learn: Callable[[Any], Any] = simulation.learner.learn

    async def listening(request: Any) -> Any:
        asked.extend([request.dump] if hasattr(request, "dump") else [])
        return await learn(request)

    simulation.learner.learn = listening  # type: ignore[method-assign]

    async def work() -> None:
        await simulation.start()
        await simulation.to(3)

    simulation.run(work())
    assert asked == [folder] * 3


def test_a_collector_whose_rows_do_not_grow_is_refused() -> None:
    simulation = Simulation(settings_for(Side("sac", 1), 2), [0])

    async def work() -> None:
        await simulation.start()
        await simulation.to(2)
        simulation.collectors[1].rows -= 1
        with pytest.raises(ProtocolError, match="collector 1: its rows went from 2 to 2"):
            await simulation.to(3)

    simulation.run(work())


def test_the_simulation_itself_raises_what_a_worker_raises() -> None:
    simulation = Simulation(settings_for(Side("appo", 0), 1), [0])
    simulation.learner.fails_at = 1

    async def work() -> None:
        await simulation.start()
        await simulation.to(1)

    with pytest.raises(WorkerFailedError, match="learner 0 failed"):
        simulation.run(work())
