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


def on_policy_with(**values: Any) -> RunSettings:
    """Four envs, rollouts of four steps, 3 x 2 gradient steps an update, unless told otherwise."""
    keys = {
        "num_envs": "env.num_envs",
        "rollout_steps": "collection.rollout_steps",
        "lag": "algorithm.max_policy_lag",
        "epochs": "algorithm.epochs",
        "minibatches": "algorithm.minibatches",
        "env_budget": "budget.env_steps",
        "gradient_budget": "budget.gradient_steps",
    }
    wanted = {"num_envs": 4, "rollout_steps": 4, "lag": 1, "epochs": 3, "minibatches": 2, "env_budget": 10**6} | values
    overrides = [f"{keys[name]}={'null' if value is None else value}" for name, value in wanted.items()]
    return load_settings("appo/pendulum", overrides=overrides, environ={})


def schedule(start: Position | None = None, **values: Any) -> Schedule:
    return Schedule(settings_with(**values), start or Position())


def on_policy(start: Position | None = None, **values: Any) -> Schedule:
    return Schedule(on_policy_with(**values), start or Position())


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
    ("every", "ticks"),
    [
        (1, [1, 2, 3, 4, 5, 6, 7]),
        (16, [1, 2, 3, 4, 5, 6, 7]),
        (17, [2, 3, 4, 5, 6, 7]),  # 17 in 32, 34 in 48, 51 in 64, 68 in 80, 85 in 96, 102 in 112
        (40, [3, 5]),  # 40 in 48, 80 in 80
        (100, [7]),
        (113, []),
    ],
)
def test_a_multiple_is_reached_in_the_first_tick_with_that_many_steps(every: int, ticks: list[int]) -> None:
    assert [tick for tick in range(1, 8) if schedule().crosses(tick, every)] == ticks


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
    assert position == Position(tick=6, weight_version=3, previous_versions=(2,))
    assert table(schedule(position, lead=1), range(7, 11)) == [
        (7, True, False, 2, 4),
        (8, True, False, 3, 5),
        (9, True, False, 4, 6),
        (10, True, False, 5, 7),
    ]


def test_resumed_strict_the_next_chunk_acts_with_the_last_update() -> None:
    position = schedule(lead=0).position(6)
    assert position == Position(tick=6, weight_version=3)
    assert table(schedule(position, lead=0), range(7, 9)) == [(7, True, False, 3, 4), (8, True, False, 4, 5)]


def test_resumed_within_the_warm_up_it_goes_on() -> None:
    position = schedule().position(2)
    assert position == Position(tick=2, previous_versions=(0,))
    assert table(schedule(position), range(3, 7)) == [
        (3, False, True, 0, 0),
        (4, True, True, 0, 1),
        (5, True, False, 0, 2),
        (6, True, False, 1, 3),
    ]


def test_without_its_replay_a_resumed_run_refills_it_first() -> None:
    # Tick 10 is 160 env steps; 64 more are there after tick 14.
    start = Position(tick=10, weight_version=7, previous_versions=(6,), replay_from_env_steps=160)
    assert table(schedule(start, lead=1), range(11, 18)) == [
        (11, False, False, 6, 7),
        (12, False, False, 7, 7),
        (13, False, False, 7, 7),
        (14, True, False, 7, 8),
        (15, True, False, 7, 9),
        (16, True, False, 8, 10),
        (17, True, False, 9, 11),
    ]
    assert table(schedule(replace(start, previous_versions=()), lead=0), range(11, 17)) == [
        (11, False, False, 7, 7),
        (12, False, False, 7, 7),
        (13, False, False, 7, 7),
        (14, True, False, 7, 8),
        (15, True, False, 8, 9),
        (16, True, False, 9, 10),
    ]
    assert [schedule(start).gradient_steps(tick) for tick in (10, 13, 14, 15)] == [14, 14, 16, 18]


def test_a_lost_replay_refills_in_whole_ticks() -> None:
    start = Position(tick=10, weight_version=7, previous_versions=(6,), replay_from_env_steps=160)
    plan = schedule(start, learning_starts=65)
    assert [plan.trains(tick) for tick in (14, 15)] == [False, True]
    plan = schedule(start, learning_starts=0)
    assert plan.trains(11)


def test_a_second_stop_in_a_refill_does_not_start_it_again() -> None:
    start = Position(tick=10, weight_version=7, previous_versions=(6,), replay_from_env_steps=160)
    position = schedule(start).position(12)
    assert position == Position(tick=12, weight_version=7, previous_versions=(7,), replay_from_env_steps=160)
    assert [schedule(position).trains(tick) for tick in (13, 14)] == [False, True]


# On-policy: every tick trains, and acts with the version of the update `lag` before the last


ACTS_WITH = {
    0: [0, 1, 2, 3, 4, 5, 6, 7],
    1: [0, 0, 1, 2, 3, 4, 5, 6],
    2: [0, 0, 0, 1, 2, 3, 4, 5],
    3: [0, 0, 0, 0, 1, 2, 3, 4],
}
every_lag = pytest.mark.parametrize("lag", ACTS_WITH)


@every_lag
def test_on_policy_every_rollout_is_as_old_as_the_lag_says(lag: int) -> None:
    plan = on_policy(lag=lag)
    assert table(plan, range(1, 9)) == [
        (tick, True, False, acts_with, tick) for tick, acts_with in enumerate(ACTS_WITH[lag], 1)
    ]
    assert not plan.trains(0)
    assert (plan.version_after(0), plan.learning_starts) == (0, 0)


def test_on_policy_gradient_steps_are_epochs_times_minibatches() -> None:
    plan = on_policy()
    assert [plan.env_steps(tick) for tick in range(4)] == [0, 16, 32, 48]
    assert [plan.gradient_steps(tick) for tick in range(4)] == [0, 6, 12, 18]
    assert [on_policy(epochs=1, minibatches=1).gradient_steps(tick) for tick in range(4)] == [0, 1, 2, 3]
    assert [on_policy(epochs=5, minibatches=8).gradient_steps(tick) for tick in range(3)] == [0, 40, 80]


@pytest.mark.parametrize(("num_envs", "rollout_steps", "env_steps"), [(1, 1, 1), (16, 24, 384), (3, 7, 21)])
def test_on_policy_a_tick_is_a_rollout_of_every_env(num_envs: int, rollout_steps: int, env_steps: int) -> None:
    plan = on_policy(num_envs=num_envs, rollout_steps=rollout_steps, minibatches=1)
    assert [plan.env_steps(tick) for tick in (0, 1, 5)] == [0, env_steps, 5 * env_steps]


@pytest.mark.parametrize(
    ("budgets", "last", "reason"),
    [
        ({"env_budget": 48}, 3, "budget.env_steps=48"),
        ({"env_budget": 49}, 4, "budget.env_steps=49"),
        ({"env_budget": None, "gradient_budget": 12}, 2, "budget.gradient_steps=12"),
        ({"env_budget": None, "gradient_budget": 13}, 3, "budget.gradient_steps=13"),
        ({"env_budget": 160, "gradient_budget": 6}, 1, "budget.gradient_steps=6"),
    ],
)
@every_lag
def test_on_policy_a_budget_ends_on_a_whole_tick(budgets: dict[str, Any], last: int, reason: str, lag: int) -> None:
    plan = on_policy(lag=lag, **budgets)
    assert last_tick(plan) == last
    assert plan.budget_reached(last) == reason


# Where ticks 1, 2, 3 and 9 leave a run: the versions before the newest, and those of them that are to come.
POSITIONS = {
    0: {1: ((), ()), 2: ((), ()), 3: ((), ()), 9: ((), ())},
    1: {1: ((0,), (0,)), 2: ((1,), (1,)), 3: ((2,), (2,)), 9: ((8,), (8,))},
    2: {1: ((0, 0), (0,)), 2: ((0, 1), (0, 1)), 3: ((1, 2), (1, 2)), 9: ((7, 8), (7, 8))},
    3: {1: ((0, 0, 0), (0,)), 2: ((0, 0, 1), (0, 1)), 3: ((0, 1, 2), (0, 1, 2)), 9: ((6, 7, 8), (6, 7, 8))},
}


@every_lag
def test_on_policy_a_position_names_the_policies_that_ticks_to_come_act_with(lag: int) -> None:
    for tick, (previous, pending) in POSITIONS[lag].items():
        position = on_policy(lag=lag).position(tick)
        assert position == Position(tick=tick, weight_version=tick, previous_versions=previous)
        assert position.pending_versions == pending


@every_lag
def test_at_the_very_start_nothing_is_pending(lag: int) -> None:
    position = on_policy(lag=lag).position(0)
    assert position == Position(previous_versions=(0,) * lag)
    assert position.pending_versions == ()


@every_lag
@pytest.mark.parametrize("stop", [1, 2, 3, 5])
def test_on_policy_a_resumed_run_acts_with_what_was_pending(lag: int, stop: int) -> None:
    resumed = on_policy(on_policy(lag=lag).position(stop), lag=lag)
    acts_with = ACTS_WITH[lag][stop:]
    assert table(resumed, range(stop + 1, 9)) == [
        (tick, True, False, version, tick) for tick, version in enumerate(acts_with, stop + 1)
    ]
    assert [resumed.gradient_steps(tick) for tick in (stop, stop + 1)] == [6 * stop, 6 * (stop + 1)]


@every_lag
def test_on_policy_stopped_again_sooner_than_the_lag_nothing_is_forgotten(lag: int) -> None:
    plan = on_policy(lag=lag)
    for tick in range(1, 8):  # stopped after each tick
        plan = on_policy(plan.position(tick), lag=lag)
        assert plan.acting_version(tick + 1) == ACTS_WITH[lag][tick]
        assert plan.position(tick) == on_policy(lag=lag).position(tick)


def test_pending_versions_are_each_named_once_and_never_the_newest() -> None:
    assert Position(9, 4, (2, 2, 3, 4)).pending_versions == (2, 3)
    assert Position(9, 4, (4, 4)).pending_versions == ()
    assert Position(9, 4).pending_versions == ()


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
on_policy_plans = st.fixed_dictionaries(
    {
        "num_envs": st.integers(1, 40),
        "rollout_steps": st.integers(1, 8),
        "lag": st.integers(0, 6),
        "epochs": st.integers(1, 5),
        "minibatches": st.just(1),
        "env_budget": st.integers(400, 4000),
        "gradient_budget": st.none() | st.integers(1, 200),
    }
)
always = settings(max_examples=150, deadline=None, derandomize=True)


@st.composite
def stopped_runs(draw: Any) -> tuple[RunSettings, Position, list[int]]:
    """Settings, a position that a run with them may start from, and the versions after each tick until there.

    The run is new, or was stopped once or twice, or lost its replay.
    """
    chosen = draw(plans.map(lambda plan: settings_with(**plan)) | on_policy_plans.map(lambda p: on_policy_with(**p)))
    position, versions = Position(), [0]
    for _ in range(draw(st.integers(0, 2))):
        plan = Schedule(chosen, position)
        for tick in range(position.tick + 1, position.tick + 1 + draw(st.integers(1, 60))):
            versions.append(versions[-1] + plan.trains(tick))
        position = plan.position(len(versions) - 1)
        if not chosen.on_policy and draw(st.booleans()):
            position = replace(position, replay_from_env_steps=plan.env_steps(position.tick))
    return chosen, position, versions


def starts() -> st.SearchStrategy[tuple[RunSettings, Position]]:
    return stopped_runs().map(lambda run: run[:2])


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
@given(stopped_runs())
def test_a_tick_acts_with_the_update_that_is_the_lead_before_the_last(
    run: tuple[RunSettings, Position, list[int]],
) -> None:
    chosen, position, versions = run
    plan = Schedule(chosen, position)
    for tick in range(position.tick + 1, position.tick + 80):
        wanted = max(tick - 1 - chosen.lead, 0)
        assert plan.acting_version(tick) == versions[wanted]
        versions.append(versions[-1] + plan.trains(tick))
        assert plan.version_after(tick) == versions[tick]
        to_come = {versions[max(each - 1 - chosen.lead, 0)] for each in range(tick + 1, tick + 2 + chosen.lead)}
        assert {*plan.position(tick).pending_versions, versions[tick]} == to_come | {versions[tick]}


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
        assert newest - chosen.lead <= plan.acting_version(tick) <= newest
        assert plan.trains(tick) <= plan.trains(tick + 1)
        assert plan.is_uniform(tick) >= plan.is_uniform(tick + 1)


@always
@given(starts())
def test_nothing_is_trained_before_the_replay_holds_enough(start: tuple[RunSettings, Position]) -> None:
    chosen, position = start
    plan = Schedule(chosen, position)
    for tick in range(position.tick + 1, position.tick + 120):
        held = plan.env_steps(tick) - position.replay_from_env_steps
        assert plan.trains(tick) == (held >= chosen.learning_starts)
