"""How far a collector came, in shared memory: a death between any two stores loses nothing and counts nothing twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiorl.protocol import EnvSpec, Group
from aiorl.storage.recent import WINDOW, RecentEpisodes
from aiorl.storage.replay import ReplayShard, replay_layout
from aiorl.storage.rollouts import rollout_layout, rollout_slots
from tests.conftest import small_settings

SPEC = EnvSpec(2, (Group("policy", 3),), (-1.0,), (1.0,), saves_state=False)
STEPS = 3
"""Vector steps of a tick."""


class Died(Exception):
    """A writer was killed."""


class Fragile:
    """An array whose writer is killed after so many stores."""

    def __init__(self, array: Any, stores: list[int]) -> None:
        self._array, self._stores = array, stores

    def __getitem__(self, key: Any) -> Any:
        return self._array[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        if self._stores[0] == 0:
            raise Died
        self._stores[0] -= 1
        self._array[key] = value


class Memory:
    """A shard's memory; each writer that takes it may be killed after so many stores to its marks."""

    def __init__(self, steps: int = 8) -> None:
        few = ("env.num_envs=2", "collection.learning_starts=0", "learner.batch_size=4")
        self._settings = small_settings(f"replay.capacity={steps * 2}", *few)
        self._memory = np.zeros(replay_layout(self._settings, SPEC).nbytes, np.uint8)

    def writer(self, stores: int = -1) -> ReplayShard:
        shard = ReplayShard(self._memory, self._settings, SPEC)
        left = [stores]
        for name in ("_written", "_tick", "_packed", "weight_version"):
            setattr(shard, name, Fragile(getattr(shard, name), left))
        return shard


def collect(shard: ReplayShard, tick: int) -> None:
    for _ in range(STEPS - shard.begin_tick(tick)):
        shard.rows[shard.head] = shard.snapshot.written_steps
        shard.commit(0)


def pack(shard: ReplayShard, tick: int) -> range:
    """Return the steps whose statistics go with this pack."""
    shard.begin_pack(tick)
    return range(shard.packed_before(tick), shard.snapshot.written_steps)


def until_done(memory: Memory, deaths: list[int], work: Callable[[ReplayShard], Any]) -> Any:
    """Put a request to one writer after another until one survives it."""
    while True:
        try:
            return work(memory.writer(deaths.pop() if deaths else -1))
        except Died:
            continue


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(st.lists(st.lists(st.integers(0, 12), max_size=3), min_size=1, max_size=12), st.integers(1, 4))
def test_steps_and_statistics_count_once_whenever_a_writer_dies(deaths: list[list[int]], first_pack: int) -> None:
    memory = Memory()
    counted: list[int] = []
    for tick, plan in enumerate(deaths, 1):
        until_done(memory, plan, lambda shard, tick=tick: collect(shard, tick))  # type: ignore[misc]
        assert memory.writer().snapshot.written_steps == tick * STEPS
        assert memory.writer().steps_of(tick) == STEPS and memory.writer().steps_of(tick + 1) == 0
        if tick >= first_pack:  # there is a warm-up before it
            counted += until_done(memory, plan[::-1], lambda shard, tick=tick: pack(shard, tick))  # type: ignore[misc]
            assert counted == list(range(tick * STEPS))
            assert memory.writer().packed_before(tick + 1) == tick * STEPS


@pytest.mark.parametrize("stores", range(4))
def test_a_pack_that_is_repeated_takes_the_same_steps(stores: int) -> None:
    memory = Memory()
    for tick in (1, 2):
        collect(memory.writer(), tick)
        assert pack(memory.writer(), tick) == range((tick - 1) * STEPS, tick * STEPS)
        try:
            pack(memory.writer(stores), tick)
        except Died:
            pass
        assert pack(memory.writer(), tick) == range((tick - 1) * STEPS, tick * STEPS)


def test_what_is_not_there_any_more_is_not_recent() -> None:
    memory = Memory(steps=4)
    for tick in (1, 2, 3):
        collect(memory.writer(), tick)
    shard = memory.writer()
    assert shard.rows[shard.recent(0)][:, 0, 0].tolist() == [5, 6, 7, 8]
    assert shard.rows[shard.recent(7)][:, 0, 0].tolist() == [7, 8]
    assert len(shard.recent(9)) == 0


def test_a_saved_shard_goes_on_with_its_marks() -> None:
    shard = Memory().writer()
    shard.set_packed(5)
    assert shard.packed_before(1) == shard.packed_before(100) == 5


def slot_of(memory: Any) -> Any:
    settings = small_settings("env.num_envs=2", algorithm="appo")
    if memory is None:
        memory = np.zeros(rollout_layout(settings, SPEC).nbytes, np.uint8)
    return memory, rollout_slots(memory, settings, SPEC)[0]


def test_a_rollout_goes_on_where_it_was_left_and_another_starts_anew() -> None:
    memory, slot = slot_of(None)
    assert slot.begin(4, 3) == 0 and slot.label == (0, 0)
    slot.commit()
    slot.commit()
    _, heir = slot_of(memory)
    assert (heir.steps_begun, heir.steps_of(4), heir.steps_of(5)) == (2, 2, 0)
    assert heir.begin(4, 3) == 2
    heir.commit()
    heir.commit()
    heir.label = 4, 3
    assert heir.steps_begun == 0 and heir.steps_of(4) == 4
    assert heir.begin(4, 3) == 4 and heir.label == (0, 0), "whole, but nobody has heard of it"
    assert heir.begin(6, 5) == 0 and heir.begin(6, 4) == 0


def test_recent_episodes_stay_for_the_next_one() -> None:
    memory = np.zeros((WINDOW + 1, 2))
    episodes = RecentEpisodes(memory)
    for number in range(WINDOW + 30):
        episodes.add(number, number + 0.5)
        assert episodes.rows[-1].tolist() == [number, number + 0.5]
    heir = RecentEpisodes(memory)
    assert heir.rows[:, 0].tolist() == list(range(30, WINDOW + 30))
    heir.add(7, 7)
    assert episodes.rows[-1].tolist() == [7, 7] and len(episodes.rows) == WINDOW
    other = RecentEpisodes()
    other.replace(heir.rows)
    assert np.array_equal(other.rows, heir.rows)
    other.replace(np.zeros((0, 2)))
    assert other.rows.shape == (0, 2)
