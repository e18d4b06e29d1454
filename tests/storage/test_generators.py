"""Generators as arrays: a restored one goes on exactly where the saved one was."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiorl.storage.generators import get_generator, set_generator

repeatable = settings(derandomize=True, deadline=None, database=None)


def sample(generator: np.random.Generator) -> list[float]:
    return [
        *generator.uniform(size=3).tolist(),
        *generator.integers(0, 100, 3, dtype=np.int32).tolist(),
        *generator.standard_normal(3).tolist(),
    ]


@repeatable
@given(seed=st.integers(0, 2**64 - 1), ahead=st.integers(0, 20))
def test_a_restored_generator_goes_on_identically(seed: int, ahead: int) -> None:
    one, other = np.random.default_rng(seed), np.random.default_rng(0)
    one.uniform(size=ahead)

    set_generator(other, get_generator(one))

    assert sample(other) == sample(one)


@pytest.mark.parametrize("drawn", [1, 2])
def test_half_a_drawn_word_is_kept(drawn: int) -> None:
    # 32-bit draws leave the other half of a word behind.
    one, other = np.random.default_rng(3), np.random.default_rng(4)
    one.integers(0, 2**31, drawn, dtype=np.int32)

    set_generator(other, get_generator(one))

    assert one.bit_generator.state == other.bit_generator.state
    assert one.integers(0, 2**31, 5, dtype=np.int32).tolist() == other.integers(0, 2**31, 5, dtype=np.int32).tolist()


def test_the_state_is_a_copy_and_looking_changes_nothing() -> None:
    generator, same = np.random.default_rng(5), np.random.default_rng(5)

    words = get_generator(generator)
    kept = words.copy()
    generator.uniform(size=10)
    same.uniform(size=10)

    assert (words.shape, words.dtype) == ((6,), np.uint64)
    np.testing.assert_array_equal(words, kept)
    assert sample(generator) == sample(same)
