"""Layouts: arrays that never overlap, start on cache lines, and keep what is written into them."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from aiorl.storage.layout import Field, Layout, aligned, columns

repeatable = settings(derandomize=True, deadline=None, database=None)

CACHE_LINE = 64
DTYPES = ("bool", "uint8", "int16", "float32", "int64", "float64")
shapes = st.lists(st.integers(0, 7), min_size=0, max_size=3).map(tuple)
layouts = st.lists(st.tuples(shapes, st.sampled_from(DTYPES)), min_size=1, max_size=6).map(
    lambda parts: Layout(tuple(Field(f"f{number}", shape, dtype) for number, (shape, dtype) in enumerate(parts)))
)


def place(memory: np.ndarray, array: np.ndarray) -> range:
    start = array.__array_interface__["data"][0] - memory.__array_interface__["data"][0]
    return range(start, start + array.nbytes)


@repeatable
@given(layouts)
def test_fields_are_aligned_apart_and_inside(layout: Layout) -> None:
    memory = np.zeros(layout.nbytes, np.uint8)

    views = layout.views(memory)

    assert list(views) == [field.name for field in layout.fields]
    end = 0
    for field, array in zip(layout.fields, views.values(), strict=True):
        assert (array.shape, array.dtype) == (field.shape, np.dtype(field.dtype))
        if array.size:  # an empty array lies nowhere
            where = place(memory, array)
            assert where.start % CACHE_LINE == 0
            assert where.start >= end
            end = where.stop
    assert end <= layout.nbytes
    assert layout.nbytes % CACHE_LINE == 0


@repeatable
@given(layouts, st.integers(0, 2**32 - 1))
def test_what_is_written_comes_back_through_a_second_look(layout: Layout, seed: int) -> None:
    random = np.random.default_rng(seed)
    memory = np.zeros(layout.nbytes, np.uint8)
    written = {}
    for name, array in layout.views(memory).items():
        written[name] = random.integers(0, 2, array.shape).astype(array.dtype)
        array[...] = written[name]

    for name, array in layout.views(memory).items():
        np.testing.assert_array_equal(array, written[name])


@repeatable
@given(st.integers(0, 10**9))
def test_aligned_is_the_next_multiple(nbytes: int) -> None:
    assert aligned(nbytes) % CACHE_LINE == 0
    assert nbytes <= aligned(nbytes) < nbytes + CACHE_LINE


@repeatable
@given(st.lists(st.integers(0, 9), min_size=1, max_size=8))
def test_columns_follow_each_other_without_gaps(sizes: list[int]) -> None:
    slices = columns({str(number): size for number, size in enumerate(sizes)})

    covered = [index for part in slices.values() for index in range(part.start, part.stop)]
    assert covered == list(range(sum(sizes)))
    assert [part.stop - part.start for part in slices.values()] == sizes
