"""Moments: however a stream is cut and merged, they are those of the whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from aiorl.protocol import EnvSpec, Group
from aiorl.storage.moments import Moments, fresh_moments, statistics_size, statistics_slices

repeatable = settings(derandomize=True, deadline=None, database=None)

RELATIVE = 1e-9


@st.composite
def streams(draw: st.DrawFn) -> tuple[NDArray[np.float64], list[int]]:
    """Return vectors (n, size), columns of very different place and scale, and where to cut them."""
    count, size = draw(st.integers(1, 60)), draw(st.integers(1, 4))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    centre = 10.0 ** random.integers(-3, 4, size) * random.choice([-1, 1], size)
    spread = np.abs(centre) * 10.0 ** random.integers(-2, 3, size)
    cuts = draw(st.lists(st.integers(0, count), max_size=6))
    return centre + spread * random.normal(size=(count, size)), sorted(cuts)


def moments_of(values: NDArray[np.float64]) -> Moments:
    moments = Moments(values.shape[1])
    moments.add(values)
    return moments


def assert_moments(moments: Moments, values: NDArray[np.float64]) -> None:
    assert moments.count == len(values)
    scale = np.abs(values).max(axis=0)  # a mean near 0 of large values is only as exact as those
    np.testing.assert_array_less(np.abs(moments.mean - values.mean(axis=0)), RELATIVE * scale + 1e-300)
    np.testing.assert_allclose(moments.m2, values.var(axis=0) * len(values), rtol=RELATIVE, atol=1e-300)
    np.testing.assert_array_equal(moments.max_abs, np.abs(values).max(axis=0))


@repeatable
@given(streams())
def test_added_in_pieces(stream: tuple[NDArray[np.float64], list[int]]) -> None:
    values, cuts = stream
    moments = Moments(values.shape[1])
    for piece in np.split(values, cuts):  # empty pieces too
        moments.add(piece)

    assert_moments(moments, values)


@repeatable
@given(streams(), st.randoms(use_true_random=False))
def test_merged_in_any_order(stream: tuple[NDArray[np.float64], list[int]], random) -> None:
    values, cuts = stream
    parts = [moments_of(piece) for piece in np.split(values, cuts)]
    random.shuffle(parts)
    while len(parts) > 1:  # a random tree of merges
        taken = parts.pop(random.randrange(len(parts)))
        parts[random.randrange(len(parts))].merge(taken.vector)

    assert_moments(parts[0], values)


def test_hand_computed() -> None:
    moments = moments_of(np.array([[1.0, -5.0], [3.0, 1.0]]))
    moments.merge(moments_of(np.array([[8.0, 1.0]])).vector)

    assert moments.count == 3
    assert moments.mean.tolist() == [4.0, -1.0]
    assert moments.m2.tolist() == [26.0, 24.0]
    assert moments.max_abs.tolist() == [8.0, 5.0]


def test_float32_rows_are_summed_in_double_precision() -> None:
    values = (100 + np.random.default_rng(0).normal(size=(5000, 1))).astype(np.float32)

    moments = moments_of(values)

    assert moments.mean.item() == pytest.approx(values.astype(np.float64).mean(), rel=1e-13)
    assert moments.m2.item() == pytest.approx(values.astype(np.float64).var() * 5000, rel=1e-12)


def test_a_small_spread_far_from_zero_is_not_lost() -> None:
    values = 1e6 + np.random.default_rng(0).normal(size=(500, 1)) * 1e-2
    moments = Moments(1)
    for piece in np.split(values, 50):
        moments.add(piece)

    np.testing.assert_allclose(moments.m2, values.var(axis=0) * len(values), rtol=1e-6)


@pytest.mark.parametrize("change", [lambda m: m.add(np.zeros((0, 2))), lambda m: m.merge(Moments(2).vector)])
def test_nothing_added_changes_nothing(change) -> None:
    moments = moments_of(np.array([[1.0, 2.0], [4.0, -6.0]]))
    before = moments.vector.copy()

    change(moments)

    np.testing.assert_array_equal(moments.vector, before)


def test_merging_into_empty_is_a_copy_and_leaves_the_other_alone() -> None:
    other = moments_of(np.array([[1.0, 2.0], [4.0, -6.0]]))
    before = other.vector.copy()
    moments = Moments(2)

    moments.merge(other.vector)

    np.testing.assert_array_equal(moments.vector, before)
    moments.add(np.ones((1, 2)))
    np.testing.assert_array_equal(other.vector, before)


def test_clear_forgets_everything() -> None:
    moments = moments_of(np.array([[1.0, 2.0], [4.0, -6.0]]))

    moments.clear()

    np.testing.assert_array_equal(moments.vector, Moments(2).vector)
    moments.add(np.array([[0.5, 0.5]]))
    assert moments.count == 1
    assert moments.max_abs.tolist() == [0.5, 0.5]


# The moments of one slot, side by side in its header

ONE = EnvSpec(4, (Group("policy", 3),), (-1.0,), (1.0,), saves_state=False)
TWO = EnvSpec(4, (Group("policy", 3), Group("critic", 5)), (-1.0,), (1.0,), saves_state=False)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (ONE, {"policy": slice(0, 10), "reward": slice(10, 14)}),
        (TWO, {"policy": slice(0, 10), "critic": slice(10, 26), "reward": slice(26, 30)}),
    ],
    ids=["one group", "two groups"],
)
def test_a_header_has_a_part_for_each_group_and_the_reward(spec: EnvSpec, expected: dict[str, slice]) -> None:
    assert statistics_slices(spec) == expected
    assert statistics_size(spec) == max(part.stop for part in expected.values())
    fresh = fresh_moments(spec)
    assert list(fresh) == list(expected)
    for name, part in expected.items():
        assert fresh[name].vector.size == part.stop - part.start
        assert fresh[name].count == 0


def test_moments_travel_through_a_header() -> None:
    random, header = np.random.default_rng(0), np.full(statistics_size(TWO), np.nan)
    written, read = fresh_moments(TWO), fresh_moments(TWO)
    for name, part in statistics_slices(TWO).items():
        written[name].add(random.normal(size=(6, written[name].size)))
        header[part] = written[name].vector
    assert np.isfinite(header).all()

    for name, part in statistics_slices(TWO).items():
        read[name].merge(header[part])
        np.testing.assert_array_equal(read[name].vector, written[name].vector)
