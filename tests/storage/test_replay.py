"""Replay shards: rings of vector steps, read in time order, put back as they were."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from aiorl.errors import StorageError
from aiorl.protocol import EnvSpec, Group
from aiorl.settings import RunSettings
from aiorl.storage.replay import FLAGS, ReplayShard, Snapshot, replay_layout
from tests.conftest import small_settings

POLICY = (Group("policy", 2),)
BOTH = (Group("policy", 2), Group("critic", 3))


@cache
def shard_settings(steps: int, envs: int) -> RunSettings:
    return small_settings(
        f"env.num_envs={envs}",
        f"replay.capacity={steps * envs + envs - 1}",  # rounded down to whole vector steps
        "collection.learning_starts=0",
        "collection.chunk_steps=1",
        "learner.batch_size=1",
    )


def make_shard(steps: int, envs: int = 3, groups: tuple[Group, ...] = POLICY) -> ReplayShard:
    settings = shard_settings(steps, envs)
    spec = EnvSpec(envs, groups, action_low=(-1.0,), action_high=(1.0,), saves_state=False)
    return ReplayShard(np.zeros(replay_layout(settings, spec).nbytes, np.uint8), settings, spec)


def write_steps(shard: ReplayShard, count: int, random: np.random.Generator, *, noise: float = 0.2) -> None:
    """Write vector steps of random rows and flags; the weight version is the number of the step."""
    for _ in range(count):
        head = shard.head
        shard.rows[head] = random.normal(size=shard.rows[head].shape)
        for flag in FLAGS:
            getattr(shard, flag)[head] = random.random(shard.num_envs) < noise
        shard.valid[head] = ~shard.valid[head]  # most rows are valid
        shard.commit(shard.snapshot.written_steps)


def columns_of(shard: ReplayShard) -> dict[str, NDArray]:
    return {name: shard.column(name, shard.ages()) for name in shard.column_shapes}


def assert_columns_equal(one: dict[str, NDArray], other: dict[str, NDArray]) -> None:
    assert one.keys() == other.keys()
    for name, values in one.items():
        assert values.dtype == other[name].dtype, name
        np.testing.assert_array_equal(values, other[name], err_msg=name)


def test_capacity_is_rounded_down_to_whole_vector_steps() -> None:
    shard = make_shard(steps=5, envs=3)  # capacity 17

    assert (shard.steps, shard.num_envs) == (5, 3)
    assert shard.rows.shape == (5, 3, 2 + 1 + 1 + 2)


def test_a_fresh_shard_is_empty() -> None:
    shard = make_shard(steps=5)

    assert shard.snapshot == Snapshot(0, 0)
    assert shard.ages().size == 0
    assert shard.head == 0
    assert not shard.valid.any()


@pytest.mark.parametrize("written", [1, 4, 5, 6, 10, 13])
def test_a_ring_keeps_the_newest_steps_in_order(written: int) -> None:
    shard = make_shard(steps=5)
    write_steps(shard, written, np.random.default_rng(written))

    present = min(written, 5)
    assert shard.snapshot == Snapshot(written, present)
    assert shard.head == written % 5
    assert shard.weight_version[shard.ages()].tolist() == list(range(written - present, written))


def test_a_commit_counts_the_step_at_the_head_only() -> None:
    shard = make_shard(steps=2)

    for number, version in enumerate([4, 4, 9]):
        assert shard.head == number % 2
        shard.rows[shard.head] = number
        assert shard.snapshot.written_steps == number  # nothing counts before it is committed
        shard.commit(version)

    assert shard.weight_version.tolist() == [9, 4]
    assert shard.rows[:, 0, 0].tolist() == [2, 1]


def test_all_views_of_the_memory_see_a_commit() -> None:
    settings = shard_settings(4, 2)
    spec = EnvSpec(2, POLICY, action_low=(-1.0,), action_high=(1.0,), saves_state=False)
    memory = np.zeros(replay_layout(settings, spec).nbytes, np.uint8)
    writer, reader = (ReplayShard(memory, settings, spec) for _ in range(2))

    write_steps(writer, 6, np.random.default_rng(0))

    assert reader.snapshot == Snapshot(6, 4)
    assert_columns_equal(columns_of(writer), columns_of(reader))


@pytest.mark.parametrize("groups", [POLICY, BOTH])
def test_columns_have_the_shapes_and_types_they_declare(groups: tuple[Group, ...]) -> None:
    shard = make_shard(steps=5, envs=3, groups=groups)
    write_steps(shard, 7, np.random.default_rng(0))

    columns = columns_of(shard)

    names = {"obs", "action", "reward", "next_obs", *FLAGS, "weight_version"}
    names |= {"critic_obs", "next_critic_obs"} if groups is BOTH else set()
    assert columns.keys() == shard.column_shapes.keys() == names
    for name, (tail, dtype) in shard.column_shapes.items():
        assert (columns[name].shape, columns[name].dtype) == ((5, 3, *tail), np.dtype(dtype)), name
    assert columns["reward"].shape == (5, 3)
    assert columns["weight_version"][:, 0].tolist() == columns["weight_version"][:, 2].tolist() == [2, 3, 4, 5, 6]


def test_columns_are_the_parts_of_the_rows_and_copies() -> None:
    shard = make_shard(steps=2, envs=2, groups=BOTH)
    shard.rows[0] = np.arange(24).reshape(2, 12)
    shard.commit(0)

    columns = columns_of(shard)

    assert columns["obs"][0, 1].tolist() == [12, 13]
    assert columns["critic_obs"][0, 1].tolist() == [14, 15, 16]
    assert columns["action"][0, 1].tolist() == [17]
    assert columns["reward"][0, 1] == 18
    assert columns["next_obs"][0, 1].tolist() == [19, 20]
    assert columns["next_critic_obs"][0, 1].tolist() == [21, 22, 23]
    assert not any(np.shares_memory(values, shard.rows) for values in columns.values())
    assert not np.shares_memory(columns["valid"], shard.valid)


@pytest.mark.parametrize("groups", [POLICY, BOTH])
@pytest.mark.parametrize("written", [1, 5, 8, 12])
def test_filling_an_equal_shard_gives_the_same_shard(written: int, groups: tuple[Group, ...]) -> None:
    source, target = (make_shard(steps=5, groups=groups) for _ in range(2))
    write_steps(source, written, np.random.default_rng(written))

    target.fill(columns_of(source), written - source.snapshot.present_steps, written)

    assert target.snapshot == source.snapshot
    assert target.head == source.head
    assert_columns_equal(columns_of(target), columns_of(source))
    np.testing.assert_array_equal(target.rows, source.rows)  # at the same place in the ring, too


@pytest.mark.parametrize("steps", [1, 3, 4])
def test_filling_a_smaller_shard_keeps_the_newest(steps: int) -> None:
    source, target = make_shard(steps=5), make_shard(steps=steps)
    write_steps(source, 13, np.random.default_rng(1))
    newest = {name: values[-steps:] for name, values in columns_of(source).items()}

    target.fill(newest, 13 - steps, 13)

    assert target.snapshot == Snapshot(13, steps)
    assert_columns_equal(columns_of(target), newest)


def test_filling_in_pieces_is_filling_at_once() -> None:
    source, target = make_shard(steps=6), make_shard(steps=6)
    write_steps(source, 9, np.random.default_rng(2))
    columns = columns_of(source)

    for start in range(0, 6, 4):
        target.fill({name: values[start : start + 4] for name, values in columns.items()}, 3 + start, 9)

    assert_columns_equal(columns_of(target), columns)


def test_a_filled_shard_goes_on_like_the_first() -> None:
    source, target = make_shard(steps=5), make_shard(steps=5)
    write_steps(source, 8, np.random.default_rng(3))
    target.fill(columns_of(source), 3, 8)

    for shard in (source, target):
        write_steps(shard, 3, np.random.default_rng(4))

    assert_columns_equal(columns_of(target), columns_of(source))


@pytest.mark.parametrize("name", ["obs", "reward", "terminated", "weight_version"])
def test_columns_of_another_shape_are_refused_by_name(name: str) -> None:
    shard = make_shard(steps=5)
    write_steps(shard, 5, np.random.default_rng(0))
    columns = columns_of(shard)
    columns[name] = columns[name][:, :2]  # one env fewer

    with pytest.raises(StorageError, match=rf"replay column {name} has shape \(2.*expected \(3"):
        make_shard(steps=5).fill(columns, 0, 5)


@pytest.mark.parametrize("written", [1, 5, 7])
def test_a_cut_marks_the_newest_row_of_those_envs(written: int) -> None:
    shard = make_shard(steps=5)
    write_steps(shard, written, np.random.default_rng(0), noise=0)

    shard.mark_cut(np.array([True, False, True]))
    shard.mark_cut(np.array([False, False, True]))  # marks add up

    cut = shard.cut[shard.ages()]
    assert cut[-1].tolist() == [True, False, True]
    assert not cut[:-1].any()


def test_a_cut_of_an_empty_shard_marks_nothing() -> None:
    shard = make_shard(steps=5)

    shard.mark_cut(np.ones(3, bool))

    assert not shard.cut.any()
