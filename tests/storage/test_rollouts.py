"""Rollout slots: every array its own memory, what a step holds, and a label that says whose rollout is whole."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from aiorl.errors import StorageError
from aiorl.protocol import EnvSpec, Group
from aiorl.settings import RunSettings
from aiorl.storage.rollouts import RolloutSlot, rollout_layout, rollout_slots, step_fields, value_group
from tests.conftest import small_settings

POLICY = (Group("policy", 5),)
BOTH = (Group("policy", 5), Group("critic", 7))
every_group = pytest.mark.parametrize("groups", [POLICY, BOTH], ids=["policy", "both"])


def spec_of(groups: tuple[Group, ...] = POLICY, envs: int = 3) -> EnvSpec:
    return EnvSpec(envs, groups, action_low=(-1.0, -2.0), action_high=(1.0, 2.0), saves_state=False)


def settings_of(steps: int = 4, lag: int = 1, *overrides: str) -> RunSettings:
    """Two collectors with three envs each."""
    return small_settings(
        "env.num_envs=6",
        "collection.collectors=2",
        f"collection.rollout_steps={steps}",
        f"algorithm.max_policy_lag={lag}",
        "algorithm.minibatches=1",
        *overrides,
        algorithm="appo",
    )


def make_slots(
    groups: tuple[Group, ...] = POLICY, steps: int = 4, lag: int = 1, memory: NDArray[np.uint8] | None = None
) -> list[RolloutSlot]:
    settings, spec = settings_of(steps, lag), spec_of(groups)
    if memory is None:
        memory = np.zeros(rollout_layout(settings, spec).nbytes, np.uint8)
    return rollout_slots(memory, settings, spec)


def arrays_of(slot: RolloutSlot) -> dict[str, NDArray]:
    return {**slot.columns, "last": slot.last_obs, "statistics": slot.statistics}


def test_a_step_of_an_env_with_one_group() -> None:
    assert step_fields(spec_of(POLICY)) == {
        "obs": ((5,), "float32"),
        "next_obs": ((5,), "float32"),
        "action": ((2,), "float32"),
        "log_prob": ((), "float32"),
        "reward": ((), "float32"),
        "terminated": ((), "bool"),
        "truncated": ((), "bool"),
        "cut": ((), "bool"),
        "valid": ((), "bool"),
    }
    assert value_group(spec_of(POLICY)) == "policy"


def test_of_a_critic_group_there_is_one_observation_more_and_of_the_policys_none() -> None:
    """The value function alone looks ahead, so the policy's next observation is nowhere."""
    fields = step_fields(spec_of(BOTH))
    assert [name for name in fields if "obs" in name] == ["obs", "critic_obs", "next_critic_obs"]
    assert [fields[name][0] for name in ("obs", "critic_obs", "next_critic_obs")] == [(5,), (7,), (7,)]
    assert value_group(spec_of(BOTH)) == "critic"
    names = [field.name for field in rollout_layout(settings_of(), spec_of(BOTH)).fields]
    assert len(names) == len(set(names))
    assert [name for name in names if name.startswith("last_")] == ["last_critic_obs"]


def test_a_critic_without_a_group_of_its_own_sees_the_policys_which_is_stored_once() -> None:
    names = [field.name for field in rollout_layout(settings_of(), spec_of(POLICY)).fields]
    assert not [name for name in names if "critic" in name]
    assert [name for name in names if name.startswith("last_")] == ["last_obs"]


@pytest.mark.parametrize("lag", [0, 1, 3])
@pytest.mark.parametrize("steps", [1, 4])
@every_group
def test_shapes_and_dtypes(groups: tuple[Group, ...], steps: int, lag: int) -> None:
    """Envs are those of one collector, not of the run."""
    slots = make_slots(groups, steps, lag)
    assert len(slots) == lag + 1
    seen = groups[-1].size
    for slot in slots:
        for name, (tail, dtype) in step_fields(spec_of(groups)).items():
            assert slot.columns[name].shape == (steps, 3, *tail)
            assert slot.columns[name].dtype == np.dtype(dtype)
            assert slot.columns[name].flags.c_contiguous and slot.columns[name].flags.writeable
        assert slot.columns.keys() == step_fields(spec_of(groups)).keys()
        assert (slot.last_obs.shape, slot.last_obs.dtype) == ((3, seen), np.float32)
        numbers = sum(1 + 3 * group.size for group in groups) + (1 + 3)
        assert (slot.statistics.shape, slot.statistics.dtype) == ((numbers,), np.float64)


def test_there_are_as_many_slots_as_asked_for() -> None:
    settings = settings_of(4, 1, "collection.rollout_slots=5")
    memory = np.zeros(rollout_layout(settings, spec_of()).nbytes, np.uint8)
    assert len(rollout_slots(memory, settings, spec_of())) == 5


@pytest.mark.parametrize("steps", [1, 4])
@every_group
def test_no_array_of_any_slot_overlaps_another(groups: tuple[Group, ...], steps: int) -> None:
    settings, spec = settings_of(steps, 3), spec_of(groups)
    memory = np.zeros(rollout_layout(settings, spec).nbytes, np.uint8)
    slots = rollout_slots(memory, settings, spec)
    arrays = [(number, array) for number, slot in enumerate(slots) for array in arrays_of(slot).values()]
    for index, (number, array) in enumerate(arrays):
        assert np.shares_memory(array, memory)
        assert not any(np.shares_memory(array, other) for _, other in arrays[index + 1 :])
        array[...] = True if array.dtype == bool else 100 * index + number
    for number, slot in enumerate(slots):
        slot.label = 1000 + number, 2000 + number

    for index, (number, array) in enumerate(arrays):
        assert (array == (True if array.dtype == bool else 100 * index + number)).all()
    assert [slot.label for slot in slots] == [(1000 + number, 2000 + number) for number in range(4)]


@every_group
def test_flags_of_one_slot_are_not_those_of_another(groups: tuple[Group, ...]) -> None:
    slots = make_slots(groups, lag=2)
    for number, name in enumerate(("terminated", "truncated", "valid")):
        slots[number].columns[name][...] = True
    for number, slot in enumerate(slots):
        for other, name in enumerate(("terminated", "truncated", "valid")):
            assert slot.columns[name].all() == (number == other)
            assert slot.columns[name].any() == (number == other)


@every_group
def test_what_one_process_writes_another_reads(groups: tuple[Group, ...]) -> None:
    settings, spec, random = settings_of(4, 2), spec_of(groups), np.random.default_rng(0)
    memory = np.zeros(rollout_layout(settings, spec).nbytes, np.uint8)
    written = []
    for number, slot in enumerate(rollout_slots(memory, settings, spec)):
        for array in arrays_of(slot).values():
            array[...] = random.integers(0, 2, array.shape).astype(array.dtype)
        slot.label = number + 1, number
        written.append({name: array.copy() for name, array in arrays_of(slot).items()})

    for number, slot in enumerate(rollout_slots(memory, settings, spec)):
        slot.require(number + 1, number)
        for name, array in arrays_of(slot).items():
            np.testing.assert_array_equal(array, written[number][name], err_msg=name)


def test_fresh_slots_hold_no_rollout() -> None:
    for slot in make_slots(lag=2):
        assert slot.label == (0, 0)
        for tick, version in ((1, 0), (1, 1), (2, 0)):
            with pytest.raises(StorageError, match=r"\(0, 0\)"):
                slot.require(tick, version)


def test_a_slot_holds_the_rollout_that_its_label_names() -> None:
    slot, other = make_slots()
    slot.label = 7, 5
    slot.require(7, 5)
    assert other.label == (0, 0)
    for tick, version in ((6, 5), (8, 5), (7, 4), (7, 6), (5, 7), (0, 0)):
        with pytest.raises(StorageError, match=rf"tick and weight version \(7, 5\), not \({tick}, {version}\)"):
            slot.require(tick, version)
    slot.label = 0, 0
    with pytest.raises(StorageError):
        slot.require(7, 5)


def test_a_label_is_as_long_as_a_run() -> None:
    slot = make_slots()[0]
    slot.label = 2**40, 2**41
    assert slot.label == (2**40, 2**41)
    assert all(type(number) is int for number in slot.label)
    slot.require(2**40, 2**41)


def test_memory_of_another_size_is_no_rollouts() -> None:
    settings, spec = settings_of(), spec_of()
    nbytes = rollout_layout(settings, spec).nbytes
    assert nbytes == rollout_layout(settings, spec_of()).nbytes
    assert nbytes < rollout_layout(settings_of(5), spec).nbytes < rollout_layout(settings_of(5, 2), spec).nbytes
    with pytest.raises(ValueError, match=r"reshape|size"):
        rollout_slots(np.zeros(nbytes - 64, np.uint8), settings, spec)
