"""Drawing and packing, against a plain loop over the whole history of a small ring."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from aiorl.collector.packing import draw, pack
from aiorl.errors import StorageError
from aiorl.storage.replay import ReplayShard
from tests.storage.test_replay import BOTH, POLICY, make_shard, write_steps

repeatable = settings(derandomize=True, deadline=None, database=None)


@dataclass(frozen=True)
class Window:
    """What the transition of a row is by the rules, as plain Python sees it."""

    last: int
    reward: float
    discount: float


def window(shard: ReplayShard, age: int, env: int, n_step: int, gamma: float) -> Window:
    """Walk from a row, one step after the other, in time order."""
    reward, last, taken = 0.0, age, 0
    columns = {name: shard.column(name, shard.ages())[:, env] for name in shard.column_shapes}
    while True:
        reward += gamma**taken * float(columns["reward"][last])
        taken += 1
        if columns["terminated"][last]:
            return Window(last, reward, 0.0)
        if columns["truncated"][last] or columns["cut"][last] or taken == n_step:
            break
        if last + 1 == len(columns["reward"]) or not columns["valid"][last + 1]:
            break
        last += 1
    return Window(last, reward, gamma**taken)


def valid_rows(shard: ReplayShard) -> NDArray[np.int64]:
    return np.flatnonzero(shard.valid[shard.ages()].reshape(-1))


def packed(
    shard: ReplayShard, rows: NDArray[np.int64], n_step: int, gamma: float
) -> tuple[dict[str, NDArray[np.float32]], NDArray[np.float32]]:
    out = np.full((len(rows), shard.layout.width), np.nan, np.float32)
    discount = np.full(len(rows), np.nan, np.float32)
    pack(shard, rows, n_step, gamma, out, discount)
    return {name: out[:, part] for name, part in shard.layout.slices.items()}, discount


def assert_packed_by_the_rules(shard: ReplayShard, n_step: int, gamma: float) -> None:
    rows = valid_rows(shard)
    columns, discount = packed(shard, rows, n_step, gamma)
    history = {name: shard.column(name, shard.ages()) for name in shard.column_shapes}
    for index, row in enumerate(rows):
        age, env = divmod(int(row), shard.num_envs)
        expected = window(shard, age, env, n_step, gamma)
        for name, values in columns.items():
            if name == "reward":
                assert values[index, 0] == pytest.approx(expected.reward, rel=1e-6, abs=1e-6)
            else:
                whence = expected.last if name.startswith("next_") else age
                np.testing.assert_array_equal(values[index], history[name][whence, env], err_msg=name)
        assert discount[index] == pytest.approx(expected.discount, rel=1e-6, abs=0)


@pytest.mark.parametrize("groups", [POLICY, BOTH], ids=["policy", "policy+critic"])
@pytest.mark.parametrize("n_step", [1, 2, 3, 4, 5])
@repeatable
@given(
    seed=st.integers(0, 2**32 - 1),
    written=st.integers(1, 40),
    steps=st.sampled_from([5, 8, 11]),
    envs=st.integers(1, 3),
    noise=st.sampled_from([0.0, 0.1, 0.3]),
    gamma=st.sampled_from([0.9, 0.99, 1.0, 0.0]),
)
def test_every_valid_row_is_packed_by_the_rules(
    n_step: int, groups: tuple, seed: int, written: int, steps: int, envs: int, noise: float, gamma: float
) -> None:
    shard = make_shard(steps, envs, groups)
    write_steps(shard, written, np.random.default_rng(seed), noise=noise)

    assert_packed_by_the_rules(shard, n_step, gamma)


def plain_shard(steps: int, written: int) -> ReplayShard:
    """One env whose step t observes t, earns 10^t and goes on for ever."""
    shard = make_shard(steps, 1)
    for t in range(written):
        row, slices = shard.rows[shard.head, 0], shard.layout.slices
        row[slices["obs"]], row[slices["next_obs"]], row[slices["reward"]] = t, t + 1, 10.0**t
        shard.valid[shard.head] = True
        shard.commit(0)
    return shard


@pytest.mark.parametrize(
    ("flag", "value", "reward", "next_obs", "discount"),
    [
        (None, None, 1 + 0.5 * 10 + 0.25 * 100, 3, 0.125),
        ("terminated", True, 1 + 0.5 * 10, 2, 0),
        ("truncated", True, 1 + 0.5 * 10, 2, 0.25),
        ("cut", True, 1 + 0.5 * 10, 2, 0.25),
        ("valid", False, 1, 1, 0.5),
    ],
)
def test_a_flag_on_the_second_of_three_steps(flag, value, reward, next_obs, discount) -> None:
    shard = plain_shard(steps=5, written=5)
    if flag:
        getattr(shard, flag)[1] = value

    columns, got = packed(shard, np.array([0]), n_step=3, gamma=0.5)

    assert columns["reward"].item() == reward
    assert columns["next_obs"].tolist() == [[next_obs, next_obs]]
    assert columns["obs"].tolist() == [[0, 0]]
    assert got.item() == discount


@pytest.mark.parametrize("n_step", [1, 3])
def test_both_ends_at_once_count_as_terminated(n_step: int) -> None:
    shard = plain_shard(steps=5, written=5)
    shard.terminated[0] = shard.truncated[0] = True

    columns, discount = packed(shard, np.array([0]), n_step, gamma=0.5)

    assert discount.item() == 0
    assert columns["reward"].item() == 1
    assert columns["next_obs"][0].tolist() == [1, 1]


@pytest.mark.parametrize("written", range(4, 13))
def test_no_window_crosses_the_write_head(written: int) -> None:
    # Behind the newest step lies, in the ring, the oldest: its rewards are smaller by powers of ten.
    shard = plain_shard(steps=4, written=written)

    columns, discount = packed(shard, np.arange(4), n_step=3, gamma=0.5)

    first = written - 4
    taken = [3, 3, 2, 1]
    assert columns["obs"][:, 0].tolist() == [first, first + 1, first + 2, first + 3]
    assert columns["next_obs"][:, 0].tolist() == [first + age + k for age, k in enumerate(taken)]
    assert discount.tolist() == [0.5**k for k in taken]
    expected = [sum(0.5**k * 10.0 ** (first + age + k) for k in range(taken[age])) for age in range(4)]
    assert columns["reward"][:, 0].tolist() == pytest.approx(expected, rel=1e-6)


def test_packing_leaves_the_shard_as_it_is() -> None:
    shard = make_shard(8, 2, BOTH)
    write_steps(shard, 13, np.random.default_rng(0))
    before = {name: shard.column(name, shard.ages()) for name in shard.column_shapes}

    packed(shard, valid_rows(shard), 3, 0.9)

    for name, values in before.items():
        np.testing.assert_array_equal(shard.column(name, shard.ages()), values)
    assert shard.snapshot.written_steps == 13


@pytest.mark.parametrize("written", [1, 4, 5, 7, 12])
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_every_valid_row_is_drawn_and_no_other(written: int, noise: float) -> None:
    shard = make_shard(5, 3)
    write_steps(shard, written, np.random.default_rng(written), noise=noise)
    shard.valid[shard.ages()[0], 0] = True  # at least one

    rows = draw(shard, 2_000, np.random.default_rng(0))

    assert rows.shape == (2_000,)
    assert set(rows.tolist()) == set(valid_rows(shard).tolist())


def test_no_valid_row_is_favoured() -> None:
    shard = make_shard(5, 3)
    write_steps(shard, 12, np.random.default_rng(1), noise=0)
    shard.valid[:2] = False  # 6 rows in a block, which a search for the next valid row would favour a neighbour of

    drawn = Counter(draw(shard, 9_000, np.random.default_rng(0)).tolist())

    assert len(drawn) == 9
    assert all(850 < count < 1_150 for count in drawn.values())  # 1000 each, standard deviation 30


def test_equal_seeds_draw_equal_rows_and_others_do_not() -> None:
    shard = make_shard(8, 3)
    write_steps(shard, 20, np.random.default_rng(1))

    rows = [draw(shard, 50, np.random.default_rng(seed)).tolist() for seed in (7, 7, 8)]

    assert rows[0] == rows[1]
    assert rows[0] != rows[2]


def test_a_single_valid_row_is_all_there_is() -> None:
    shard = make_shard(8, 3)
    write_steps(shard, 20, np.random.default_rng(1))
    shard.valid[:] = False
    shard.valid[shard.ages()[5], 2] = True

    assert draw(shard, 20, np.random.default_rng(0)).tolist() == [5 * 3 + 2] * 20


@pytest.mark.parametrize("written", [0, 1, 12])
def test_without_a_valid_row_drawing_is_refused(written: int) -> None:
    shard = make_shard(5, 3)
    write_steps(shard, written, np.random.default_rng(0))
    shard.valid[:] = False

    with pytest.raises(StorageError, match="no valid row"):
        draw(shard, 4, np.random.default_rng(0))


def test_rows_of_steps_not_yet_written_are_never_drawn() -> None:
    shard = make_shard(8, 2)
    shard.valid[:] = True  # whatever lies beyond the head
    write_steps(shard, 3, np.random.default_rng(0), noise=0)

    assert max(draw(shard, 500, np.random.default_rng(0))) == 3 * 2 - 1
