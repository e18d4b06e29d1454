"""Weight slots: flat policies, each with its version."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from aiorl.errors import StorageError
from aiorl.settings import RunSettings
from aiorl.storage.weights import WeightSlots, weight_slot_count, weights_layout
from tests.conftest import lead_of, small_settings

repeatable = settings(derandomize=True, deadline=None, database=None)

SETTINGS: RunSettings = small_settings()
LAGGING: RunSettings = small_settings("algorithm.max_policy_lag=3", algorithm="appo")


def make_slots(nbytes: int) -> WeightSlots:
    return WeightSlots.on(np.zeros(weights_layout(SETTINGS, nbytes).nbytes, np.uint8), SETTINGS, nbytes)


def policy_bytes(dtype: str, count: int, seed: int = 0) -> NDArray[np.uint8]:
    values = np.random.default_rng(seed).normal(size=count) * 100
    return values.astype(dtype).view(np.uint8)


@pytest.mark.parametrize("count", [1, 15, 16, 17])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int64", "uint8", "bool"])
def test_a_policy_comes_back_byte_for_byte(dtype: str, count: int) -> None:
    flat = policy_bytes(dtype, count)
    slots = make_slots(flat.size)
    slots.write(1, 7, flat)

    read = np.full_like(flat, 255)
    slots.read(1, 7, read)

    assert read.tobytes() == flat.tobytes()


@repeatable
@given(st.binary(min_size=1, max_size=200))
def test_any_bytes_come_back(data: bytes) -> None:
    flat = np.frombuffer(data, np.uint8)
    slots = make_slots(flat.size)
    slots.write(0, 0, flat)

    read = np.zeros_like(flat)
    slots.read(0, 0, read)

    assert read.tobytes() == data


@pytest.mark.parametrize(
    ("algorithm", "lead", "count"),
    [("sac", 0, 2), ("sac", 1, 2), ("appo", 0, 2), ("appo", 1, 2), ("appo", 2, 3), ("appo", 3, 4), ("appo", 9, 10)],
)
def test_there_is_a_slot_for_each_policy_that_is_in_use(algorithm: str, lead: int, count: int) -> None:
    settings = small_settings(lead_of(algorithm, lead), algorithm=algorithm)
    slots = WeightSlots.on(np.zeros(weights_layout(settings, 100).nbytes, np.uint8), settings, 100)
    assert weight_slot_count(settings) == len(slots.policy) == len(slots.version) == count


@pytest.mark.parametrize("settings", [SETTINGS, LAGGING], ids=["sac", "appo"])
def test_slots_are_apart(settings: RunSettings) -> None:
    flats = [policy_bytes("float32", 33, seed) for seed in range(weight_slot_count(settings))]
    nbytes = flats[0].size
    slots = WeightSlots.on(np.zeros(weights_layout(settings, nbytes).nbytes, np.uint8), settings, nbytes)
    for slot, flat in enumerate(flats):
        slots.write(slot, 10 + slot, flat)

    for slot, flat in enumerate(flats):
        read = np.zeros_like(flat)
        slots.read(slot, 10 + slot, read)
        assert read.tobytes() == flat.tobytes()


@pytest.mark.parametrize("asked", [0, 4, 6, -1])
def test_another_version_than_the_slot_holds_is_refused(asked: int) -> None:
    flat = policy_bytes("float32", 8)
    slots = make_slots(flat.size)
    slots.write(0, 5, flat)
    target = np.full_like(flat, 9)

    with pytest.raises(StorageError, match=rf"weight slot 0 holds version 5, not {asked}"):
        slots.read(0, asked, target)
    assert (target == 9).all()


def test_a_slot_holds_what_was_written_last() -> None:
    old, new = policy_bytes("float32", 8, 1), policy_bytes("float32", 8, 2)
    slots = make_slots(old.size)
    slots.write(0, 1, old)
    slots.write(0, 2, new)

    read = np.zeros_like(new)
    slots.read(0, 2, read)

    assert read.tobytes() == new.tobytes()
    with pytest.raises(StorageError):
        slots.read(0, 1, read)
