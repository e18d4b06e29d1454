"""The slot of the policy that is evaluated: policy and statistics go together, under one version."""

from __future__ import annotations

import numpy as np
import pytest

from aiorl.errors import StorageError
from aiorl.protocol import EnvSpec, Group
from aiorl.storage.evaluated import EvaluatedSlot, evaluated_layout
from aiorl.storage.moments import Moments, fresh_moments

SPEC = EnvSpec(2, (Group("policy", 3), Group("critic", 5)), (-1.0,), (1.0,), saves_state=False)


def make_slot(nbytes: int) -> EvaluatedSlot:
    memory = np.zeros(evaluated_layout(SPEC, nbytes).nbytes, np.uint8)
    return EvaluatedSlot.on(memory, SPEC, nbytes)


def some_moments(seed: int) -> dict[str, Moments]:
    generator, moments = np.random.default_rng(seed), fresh_moments(SPEC)
    for each in moments.values():
        each.add(generator.normal(size=(4, each.size)))
    return moments


@pytest.mark.parametrize("nbytes", [1, 63, 64, 65, 1000])
def test_both_come_back_byte_for_byte(nbytes: int) -> None:
    slot, moments = make_slot(nbytes), some_moments(0)
    flat = np.random.default_rng(1).integers(0, 256, nbytes, np.uint8)
    slot.write(7, flat, moments)
    read = np.zeros(nbytes, np.uint8)
    statistics = slot.read(7, read)
    assert (read == flat).all() and list(statistics) == ["policy", "critic", "reward"]
    assert all((statistics[name] == moments[name].vector).all() for name in moments)


def test_what_was_read_is_a_copy() -> None:
    slot, read = make_slot(8), np.zeros(8, np.uint8)
    slot.write(1, np.full(8, 1, np.uint8), some_moments(1))
    statistics = slot.read(1, read)
    slot.write(2, np.full(8, 2, np.uint8), some_moments(2))
    assert (read == 1).all() and (statistics["policy"] == some_moments(1)["policy"].vector).all()


@pytest.mark.parametrize("asked", [0, 4, 6, -1])
def test_another_version_than_it_holds_is_refused(asked: int) -> None:
    slot, read = make_slot(8), np.full(8, 9, np.uint8)
    slot.write(5, np.zeros(8, np.uint8), some_moments(0))
    with pytest.raises(StorageError, match=rf"holds version 5, not {asked}"):
        slot.read(asked, read)
    assert (read == 9).all()
