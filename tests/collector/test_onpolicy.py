"""What a rollout collector writes into a slot: every step once, in time order, under one policy; and nothing else."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from aiorl.algorithms.flat import flatten
from aiorl.algorithms.interface import make_policy
from aiorl.checkpoint.manifest import FORMAT, Manifest, write_manifest
from aiorl.collector.offpolicy import ReplayCollector
from aiorl.collector.onpolicy import RolloutCollector
from aiorl.collector.service import CollectorService
from aiorl.errors import EnvError, ProtocolError, StorageError
from aiorl.protocol import Attach, CollectChunk, CollectRollout, PackBatch, Restore, RolloutReady, Save
from aiorl.service import Assignment, Blocks
from aiorl.settings import RunSettings
from aiorl.storage.moments import Moments, statistics_slices
from aiorl.storage.rollouts import RolloutSlot, rollout_layout, rollout_slots
from aiorl.storage.weights import WeightSlots, weights_layout
from aiorl.testing import EPISODE_UNIT
from tests.conftest import small_settings

COUNT = ("env.id=aiorl.testing:CountEnv", "env.kwargs={number: 0, length: 5}")
VECTOR = "env.id=aiorl.testing:probe_vector_env"


def settings_of(*overrides: str, steps: int = 4) -> RunSettings:
    return small_settings(
        "env.num_envs=2",
        f"collection.rollout_steps={steps}",
        "algorithm.max_policy_lag=2",
        "algorithm.minibatches=1",
        *overrides,
        algorithm="appo",
    )


class Bench:
    """A collector over memory that the test holds too; its policy is the standard Gaussian, whatever it sees."""

    def __init__(self, settings: RunSettings, index: int = 0) -> None:
        self.settings = settings
        blocks = Blocks.create(1)
        self.collector = RolloutCollector(
            Assignment("collector", index, settings, blocks.duplicate(), None, lambda level, event, **fields: None)
        )
        self.spec = self.collector.ready().spec
        policy = make_policy(settings, self.spec)
        flat = flatten(policy)
        for parameter in policy.parameters():
            parameter.data.zero_()
        nbytes = {
            "experience": rollout_layout(settings, self.spec).nbytes,
            "weights": weights_layout(settings, flat.nbytes).nbytes,
        }
        blocks.experience[0].reserve(nbytes["experience"])
        blocks.weights.reserve(nbytes["weights"])
        self.slots = rollout_slots(blocks.experience[0].map(nbytes["experience"]), settings, self.spec)
        self.weights = WeightSlots.on(blocks.weights.map(nbytes["weights"]), settings, flat.nbytes)
        self.weights.write(1, 6, flat.numpy())
        blocks.close()
        self.collector.handle(Attach(flat.nbytes))

    def collect(self, tick: int, slot: int = 0, version: int = 6) -> RolloutReady:
        reply = self.collector.handle(CollectRollout(tick, slot, weights=1, weight_version=version))
        assert isinstance(reply, RolloutReady)
        return reply

    def close(self) -> None:
        self.collector.close()


@pytest.fixture
def make() -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(*overrides: str, steps: int = 4, index: int = 0) -> Bench:
        made.append(Bench(settings_of(*overrides, steps=steps), index))
        return made[-1]

    yield make
    while made:
        made.pop().close()
    gc.collect()  # mappings go with the last array on them


def copy_of(slot: RolloutSlot) -> dict[str, NDArray[Any]]:
    arrays = {**slot.columns, "last": slot.last_obs, "statistics": slot.statistics, "label": np.array(slot.label)}
    return {name: values.copy() for name, values in arrays.items()}


def assert_equal(one: dict[str, NDArray[Any]], other: dict[str, NDArray[Any]]) -> None:
    assert one.keys() == other.keys()
    for name, values in one.items():
        np.testing.assert_array_equal(values, other[name], err_msg=name)


def counted(steps: range, length: int = 5) -> list[int]:
    """What a CountEnv shows before each of these steps of a run."""
    return [step // length * EPISODE_UNIT + step % length for step in steps]


@pytest.mark.parametrize("steps", [1, 4, 7])
def test_rollouts_follow_each_other_without_a_gap(make: Any, steps: int) -> None:
    bench = make(*COUNT, steps=steps)
    for tick in range(1, 6):
        slot = bench.slots[tick % 3]
        reply = bench.collect(tick, tick % 3)
        taken = range((tick - 1) * steps, tick * steps)
        for env in range(2):
            columns = {name: values[:, env] for name, values in slot.columns.items()}
            assert columns["obs"][:, 0].tolist() == counted(taken)
            # Where an episode ended this is its final observation, not the first one of the next.
            assert columns["next_obs"][:, 0].tolist() == [before + 1 for before in counted(taken)]
            assert columns["truncated"].tolist() == [step % 5 == 4 for step in taken]
            assert not columns["terminated"].any()
            assert columns["valid"].all()
            assert (columns["reward"] == 1).all()
            assert slot.last_obs[env, 0] == counted(range(tick * steps, tick * steps + 1))[0]
        assert slot.label == (tick, 6)
        assert (reply.tick, reply.rows, reply.weight_version) == (tick, 2 * steps, 6)
        assert (reply.invalid_rows, reply.nonfinite) == (0, 0)
        assert reply.episodes.finished == 2 * sum(step % 5 == 4 for step in taken)


@pytest.mark.parametrize(
    ("end", "terminated", "truncated"),
    [("terminated", True, False), ("truncated", False, True), ("both", True, True)],
)
def test_an_episode_ends_as_the_env_says(make: Any, end: str, terminated: bool, truncated: bool) -> None:
    bench = make("env.id=aiorl.testing:CountEnv", f"env.kwargs={{number: 0, length: 3, end: {end}}}", steps=3)
    bench.collect(1)
    columns = bench.slots[0].columns
    assert columns["terminated"][:, 0].tolist() == [False, False, terminated]
    assert columns["truncated"][:, 0].tolist() == [False, False, truncated]


def test_the_step_that_only_resets_is_invalid(make: Any) -> None:
    kwargs = "{probe: CountEnv, autoreset_mode: NEXT_STEP, number: 0, length: 3}"
    bench = make(VECTOR, f"env.kwargs={kwargs}", steps=8)
    reply = bench.collect(1)
    columns = {name: values[:, 0] for name, values in bench.slots[0].columns.items()}
    assert columns["valid"].tolist() == [True, True, True, False, True, True, True, False]
    assert columns["truncated"].tolist() == [False, False, True, False, False, False, True, False]
    assert columns["next_obs"][columns["valid"], 0].tolist() == [1, 2, 3, 1001, 1002, 1003]
    assert bench.slots[0].last_obs[0, 0] == 2000
    assert (reply.rows, reply.invalid_rows) == (16, 4)
    seen = Moments(3)
    seen.vector[:] = bench.slots[0].statistics[statistics_slices(bench.spec)["policy"]]
    assert seen.count == 12  # of the invalid ones nothing is learned


def test_actions_are_the_policys_with_their_own_probabilities(make: Any) -> None:
    bench = make("env.id=aiorl.testing:BoxEnv", "env.kwargs={number: 0, length: 100}", steps=64)
    bench.collect(1)
    columns = bench.slots[0].columns
    action = columns["action"].astype(np.float64)
    expected = (-0.5 * action**2 - 0.5 * math.log(2 * math.pi)).sum(axis=-1)
    np.testing.assert_allclose(columns["log_prob"], expected, rtol=1e-5)
    assert (np.abs(action) > 1).any()  # stored as they were drawn
    assert len(np.unique(action)) == action.size
    # The env, in [-2, 6], sees them in its own units and within its bounds.
    np.testing.assert_allclose(columns["next_obs"][..., 1:], np.clip(2 + 4 * action, -2, 6), rtol=1e-5)


def test_a_critic_group_is_stored_beside_the_policys(make: Any) -> None:
    bench = make("env.id=aiorl.testing:CountEnv", "env.kwargs={number: 0, length: 3, groups: [policy, critic]}")
    bench.collect(1)
    slot, envs = bench.slots[0], [0, 1]
    for env in envs:
        assert slot.columns["obs"][:, env, 0].tolist() == [0, 1, 2, 1000]
        assert slot.columns["critic_obs"][:, env, 0].tolist() == [0, -1, -2, -1000]
        assert slot.columns["next_critic_obs"][:, env, 0].tolist() == [-1, -2, -3, -1001]
        assert slot.last_obs[env, 0] == -1001
    assert "next_obs" not in slot.columns


def test_statistics_are_those_of_this_rollout_alone(make: Any) -> None:
    bench = make(*COUNT)
    for tick in (1, 2, 3):
        bench.collect(tick, 0)
        slot = bench.slots[0]
        for name, column in (("policy", "obs"), ("reward", "reward")):
            values = slot.columns[column].reshape(8, -1)
            expected = Moments(values.shape[1])
            expected.add(values)
            np.testing.assert_array_equal(slot.statistics[statistics_slices(bench.spec)[name]], expected.vector)


def test_a_slot_is_written_whole_whatever_it_held_and_no_other_is_touched(make: Any) -> None:
    clean, dirty = make("seed=3"), make("seed=3")
    for slot in dirty.slots:
        for values in (*slot.columns.values(), slot.last_obs, slot.statistics):
            values[...] = 77
        slot.label = 7, 7
    before = [copy_of(slot) for slot in dirty.slots]
    for bench in (clean, dirty):
        bench.collect(1, 1)
    assert_equal(copy_of(dirty.slots[1]), copy_of(clean.slots[1]))
    for number in (0, 2):
        assert_equal(copy_of(dirty.slots[number]), before[number])


def test_a_rollout_that_was_broken_off_is_nobodys(make: Any) -> None:
    bench = make("env.id=aiorl.testing:TrapEnv", "env.kwargs={number: 0, trap: nan_obs, at: 7}")
    bench.collect(1, 0)
    bench.slots[0].require(1, 6)
    with pytest.raises(EnvError, match="not finite"):
        bench.collect(2, 0)
    assert bench.slots[0].label == (0, 0)
    with pytest.raises(StorageError):
        bench.slots[0].require(1, 6)


def test_it_acts_with_the_policy_that_it_is_told_or_not_at_all(make: Any) -> None:
    bench = make(*COUNT)
    with pytest.raises(StorageError, match="weight slot 1 holds version 6, not 5"):
        bench.collect(1, version=5)
    assert bench.slots[0].label == (0, 0)


def test_collectors_act_apart_and_the_same_one_acts_alike(make: Any) -> None:
    first, again, other = make(), make(), make(index=1)
    for bench in (first, again, other):
        bench.collect(1)
    assert_equal(copy_of(first.slots[0]), copy_of(again.slots[0]))
    assert not np.array_equal(first.slots[0].columns["action"], other.slots[0].columns["action"])


def test_saved_and_restored_it_goes_on_as_it_would_have(make: Any, tmp_path: Path) -> None:
    first, second = make(steps=6), make(steps=6)
    for tick in (1, 2):
        first.collect(tick, 0)
    saved = first.collector.handle(Save(2, str(tmp_path)))
    assert [file.name for file in saved.files] == ["collector-0.safetensors"]  # rollouts are not saved
    counters = (2, 0, 0, 0, (), 0, 0.0)
    manifest = Manifest(FORMAT, "run", *counters, "", True, True, True, {}, first.spec, {}, saved.files)
    write_manifest(tmp_path, manifest)
    assert second.collector.handle(Restore(str(tmp_path), vector_steps=12)).note == ""
    for bench in (first, second):
        bench.collect(3, 2)
    assert_equal(copy_of(first.slots[2]), copy_of(second.slots[2]))


def test_restored_without_its_state_it_starts_its_episodes_afresh(make: Any, tmp_path: Path) -> None:
    first, second, third = make(), make(), make()
    first.collect(1, 0)
    note = second.collector.handle(Restore(str(tmp_path), has_state=False, vector_steps=4)).note
    assert note == "environments restart their episodes"
    second.collect(2, 0)
    third.collect(1, 0)
    assert_equal(copy_of(first.slots[0]), copy_of(third.slots[0]))
    assert not np.array_equal(second.slots[0].columns["action"], first.slots[0].columns["action"])
    assert not np.array_equal(second.slots[0].columns["obs"][0], first.slots[0].columns["obs"][0])


@pytest.mark.parametrize("request_", [CollectChunk(1, 1, 0, 0, False), PackBatch(1, 0, 0)], ids=["chunk", "pack"])
def test_what_the_other_kind_of_collector_does_is_refused(make: Any, request_: Any) -> None:
    with pytest.raises(ProtocolError, match=f"a RolloutCollector does not answer {type(request_).__name__}"):
        make().collector.handle(request_)


def test_a_replay_collector_collects_no_rollouts() -> None:
    settings = small_settings()
    collector: CollectorService = ReplayCollector(
        Assignment("collector", 0, settings, None, None, lambda level, event, **fields: None)
    )
    try:
        with pytest.raises(ProtocolError, match="a ReplayCollector does not answer CollectRollout"):
            collector.handle(CollectRollout(1, 0, 0, 0))
    finally:
        collector.close()
