"""Which tick does what, by hand; and that a resumed run goes on exactly as if it had never stopped."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiorl.coordinator.schedule import Position, Schedule
from aiorl.settings import RunSettings, load_settings


def settings_with(**values: Any) -> RunSettings:
    """Four envs, chunks of four steps: 16 env steps a tick, unless told otherwise."""
    keys = {
        "num_envs": "env.num_envs",
        "chunk_steps": "collection.chunk_steps",
        "lead": "collection.lead",
        "learning_starts": "collection.learning_starts",
        "random_steps": "collection.random_steps",
        "gradient_steps": "learner.gradient_steps",
        "env_budget": "budget.env_steps",
        "gradient_budget": "budget.gradient_steps",
    }
    wanted = {
        "num_envs": 4,
        "chunk_steps": 4,
        "lead": 1,
        "learning_starts": 64,
        "gradient_steps": 2,
        "env_budget": 10**6,
    } | values
    overrides = [f"{keys[name]}={'null' if value is None else value}" for name, value in wanted.items()]
    return load_settings(overrides=["learner.batch_size=8", *overrides], environ={})


def schedule(start: Position | None = None, **values: Any) -> Schedule:
    return Schedule(settings_with(**values), start or Position())


def table(plan: Schedule, ticks: range) -> list[tuple[Any, ...]]:
    """(tick, trains, is uniform, acts with, version after) of some ticks."""
    return [
        (tick, plan.trains(tick), plan.is_uniform(tick), plan.acting_version(tick), plan.version_after(tick))
        for tick in ticks
    ]


# 64 env steps are there after tick 4, so it is the first to train; the fifth is the first to act by policy.


def test_strict_every_chunk_acts_with_the_update_before_it() -> None:
    assert table(schedule(lead=0), range(1, 9)) == [
        (1, False, True, 0, 0),
        (2, False, True, 0, 0),
        (3, False, True, 0, 0),
        (4, True, True, 0, 1),
        (5, True, False, 1, 2),
        (6, True, False, 2, 3),
        (7, True, False, 3, 4),
        (8, True, False, 4, 5),
    ]


def test_overlapped_every_chunk_acts_with_the_update_before_the_last() -> None:
    assert table(schedule(lead=1), range(1, 9)) == [
        (1, False, True, 0, 0),
        (2, False, True, 0, 0),
        (3, False, True, 0, 0),
        (4, True, True, 0, 1),
        (5, True, False, 0, 2),
        (6, True, False, 1, 3),
        (7, True, False, 2, 4),
        (8, True, False, 3, 5),
    ]


def test_counters_follow_from_the_tick() -> None:
    plan = schedule()
    assert [plan.env_steps(tick) for tick in range(7)] == [0, 16, 32, 48, 64, 80, 96]
    assert [plan.gradient_steps(tick) for tick in range(7)] == [0, 0, 0, 0, 2, 4, 6]


@pytest.mark.parametrize(
    ("num_envs", "chunk_steps", "first", "env_steps"),
    [
        (1, 1, 1000, 1000),
        (16, 1, 63, 1008),
        (300, 1, 4, 1200),
        (16, 4, 16, 1024),
        (1000, 1, 1, 1000),
        (1001, 1, 1, 1001),
    ],
)
@pytest.mark.parametrize("lead", [0, 1])
def test_the_first_update_is_at_the_first_tick_with_enough_steps(
    num_envs: int, chunk_steps: int, first: int, env_steps: int, lead: int
) -> None:
    plan = schedule(num_envs=num_envs, chunk_steps=chunk_steps, learning_starts=1000, lead=lead)
    assert [plan.trains(tick) for tick in (first - 1, first, first + 1)] == [False, True, True]
    assert plan.env_steps(first) == env_steps
    assert (plan.version_after(first - 1), plan.version_after(first)) == (0, 1)


@pytest.mark.parametrize("learning_starts", [0, 1, 16])
def test_without_warm_up_the_first_tick_trains(learning_starts: int) -> None:
    plan = schedule(learning_starts=learning_starts, lead=0)
    assert table(plan, range(1, 4)) == [
        (1, True, learning_starts > 0, 0, 1),
        (2, True, False, 1, 2),
        (3, True, False, 2, 3),
    ]
    assert not plan.trains(0)
    assert plan.version_after(0) == 0


@pytest.mark.parametrize(
    ("random_steps", "last"), [(None, 4), (0, 0), (1, 1), (16, 1), (17, 2), (64, 4), (65, 5), (160, 10)]
)
def test_random_steps_are_whole_chunks_rounded_up(random_steps: int | None, last: int) -> None:
    plan = schedule(random_steps=random_steps)
    assert [tick for tick in range(1, 20) if plan.is_uniform(tick)] == list(range(1, last + 1))


# Budgets


def last_tick(plan: Schedule) -> int:
    return next(tick for tick in range(1, 10**5) if plan.budget_reached(tick))


@pytest.mark.parametrize(("env_budget", "last"), [(64, 4), (65, 5), (79, 5), (80, 5), (81, 6), (1000, 63)])
def test_an_env_budget_ends_on_a_whole_tick(env_budget: int, last: int) -> None:
    plan = schedule(env_budget=env_budget)
    assert last_tick(plan) == last
    assert plan.budget_reached(last) == f"budget.env_steps={env_budget}"
    assert plan.budget_reached(0) is None


@pytest.mark.parametrize(("gradient_budget", "last"), [(1, 4), (2, 4), (3, 5), (4, 5), (5, 6)])
def test_a_gradient_budget_ends_on_a_whole_update(gradient_budget: int, last: int) -> None:
    plan = schedule(env_budget=None, gradient_budget=gradient_budget)
    assert last_tick(plan) == last
    assert plan.budget_reached(last) == f"budget.gradient_steps={gradient_budget}"


def test_the_budget_that_is_reached_first_counts() -> None:
    assert last_tick(schedule(env_budget=1000, gradient_budget=3)) == 5
    assert last_tick(schedule(env_budget=70, gradient_budget=1000)) == 5


# Resumed


def test_resumed_overlapped_the_next_chunk_acts_with_the_policy_before_the_last_update() -> None:
    position = schedule(lead=1).position(6)
    assert position == Position(tick=6, weight_version=3, previous_version=2)
    assert table(schedule(position, lead=1), range(7, 11)) == [
        (7, True, False, 2, 4),
        (8, True, False, 3, 5),
        (9, True, False, 4, 6),
        (10, True, False, 5, 7),
    ]


def test_resumed_strict_the_next_chunk_acts_with_the_last_update() -> None:
    position = schedule(lead=0).position(6)
    # A checkpoint of a strict run may hold no policy but the last.
    for start in (position, replace(position, previous_version=position.weight_version)):
        assert table(schedule(start, lead=0), range(7, 9)) == [(7, True, False, 3, 4), (8, True, False, 4, 5)]


def test_resumed_within_the_warm_up_it_goes_on() -> None:
    position = schedule().position(2)
    assert position == Position(tick=2)
    assert table(schedule(position), range(3, 7)) == [
        (3, False, True, 0, 0),
        (4, True, True, 0, 1),
        (5, True, False, 0, 2),
        (6, True, False, 1, 3),
    ]


def test_without_its_replay_a_resumed_run_refills_it_first() -> None:
    # Tick 10 is 160 env steps; 64 more are there after tick 14.
    start = Position(tick=10, weight_version=7, previous_version=6, replay_from_env_steps=160)
    assert table(schedule(start, lead=1), range(11, 18)) == [
        (11, False, False, 6, 7),
        (12, False, False, 7, 7),
        (13, False, False, 7, 7),
        (14, True, False, 7, 8),
        (15, True, False, 7, 9),
        (16, True, False, 8, 10),
        (17, True, False, 9, 11),
    ]
    assert table(schedule(replace(start, previous_version=7), lead=0), range(11, 17)) == [
        (11, False, False, 7, 7),
        (12, False, False, 7, 7),
        (13, False, False, 7, 7),
        (14, True, False, 7, 8),
        (15, True, False, 8, 9),
        (16, True, False, 9, 10),
    ]
    assert [schedule(start).gradient_steps(tick) for tick in (10, 13, 14, 15)] == [14, 14, 16, 18]


def test_a_lost_replay_refills_in_whole_ticks() -> None:
    start = Position(tick=10, weight_version=7, previous_version=6, replay_from_env_steps=160)
    plan = schedule(start, learning_starts=65)
    assert [plan.trains(tick) for tick in (14, 15)] == [False, True]
    plan = schedule(start, learning_starts=0)
    assert plan.trains(11)


def test_a_second_stop_in_a_refill_does_not_start_it_again() -> None:
    start = Position(tick=10, weight_version=7, previous_version=6, replay_from_env_steps=160)
    position = schedule(start).position(12)
    assert position == Position(tick=12, weight_version=7, previous_version=7, replay_from_env_steps=160)
    assert [schedule(position).trains(tick) for tick in (13, 14)] == [False, True]


# Always

plans = st.fixed_dictionaries(
    {
        "num_envs": st.integers(1, 40),
        "chunk_steps": st.integers(1, 8),
        "lead": st.sampled_from([0, 1]),
        "learning_starts": st.integers(0, 400),
        "random_steps": st.none() | st.integers(0, 600),
        "gradient_steps": st.integers(1, 5),
        "env_budget": st.integers(400, 4000),
        "gradient_budget": st.none() | st.integers(1, 200),
    }
)
always = settings(max_examples=150, deadline=None, derandomize=True)


@st.composite
def starts(draw: Any) -> tuple[RunSettings, Position]:
    """Settings, and a position that a run with them may start from: new, stopped, or with its replay lost."""
    chosen = settings_with(**draw(plans))
    position = Position()
    for _ in range(draw(st.integers(0, 2))):
        position = Schedule(chosen, position).position(position.tick + draw(st.integers(1, 60)))
        if draw(st.booleans()):
            position = replace(position, replay_from_env_steps=Schedule(chosen, position).env_steps(position.tick))
    return chosen, position


def answers(plan: Schedule, tick: int) -> tuple[Any, ...]:
    return (
        plan.env_steps(tick),
        plan.gradient_steps(tick),
        plan.trains(tick),
        plan.is_uniform(tick),
        plan.version_after(tick),
        plan.acting_version(tick),
        plan.budget_reached(tick),
        plan.position(tick),
    )


@always
@given(starts(), st.lists(st.integers(1, 50), min_size=1, max_size=3))
def test_stopped_and_resumed_is_straight_through(start: tuple[RunSettings, Position], legs: list[int]) -> None:
    chosen, position = start
    straight = resumed = Schedule(chosen, position)
    tick = position.tick
    for leg in legs:
        tick += leg
        resumed = Schedule(chosen, resumed.position(tick))
        for later in range(tick + 1, tick + 60):
            assert answers(resumed, later) == answers(straight, later)


@always
@given(starts())
def test_versions_never_go_back_and_never_lag_by_more_than_the_lead(start: tuple[RunSettings, Position]) -> None:
    chosen, position = start
    plan = Schedule(chosen, position)
    assert plan.version_after(position.tick) == position.weight_version
    for tick in range(position.tick + 1, position.tick + 120):
        newest = plan.version_after(tick - 1)
        assert plan.version_after(tick) - newest == plan.trains(tick)
        assert plan.acting_version(tick) <= plan.acting_version(tick + 1)
        assert newest - chosen.collection.lead <= plan.acting_version(tick) <= newest
        assert plan.trains(tick) <= plan.trains(tick + 1)
        assert plan.is_uniform(tick) >= plan.is_uniform(tick + 1)


@always
@given(starts())
def test_nothing_is_trained_before_the_replay_holds_enough(start: tuple[RunSettings, Position]) -> None:
    chosen, position = start
    plan = Schedule(chosen, position)
    for tick in range(position.tick + 1, position.tick + 120):
        held = plan.env_steps(tick) - position.replay_from_env_steps
        assert plan.trains(tick) == (held >= chosen.collection.learning_starts)
