"""A collector in the place of one that died, in-process, on the same memory: the same request is put to it again.

The first one is killed at each line that it executes, one after the other; what the next one makes of it must
always be the same: every step once, breaks marked, statistics counted once, the promised policy.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from aiorl.algorithms.flat import flatten
from aiorl.algorithms.interface import make_policy
from aiorl.checkpoint.manifest import FORMAT, Manifest, write_manifest
from aiorl.collector.offpolicy import ReplayCollector
from aiorl.collector.onpolicy import RolloutCollector
from aiorl.collector.service import CollectorService
from aiorl.errors import SettingsError
from aiorl.protocol import Attach, CollectChunk, CollectRollout, PackBatch, Restore, Save
from aiorl.service import Assignment, Blocks
from aiorl.settings import RunSettings
from aiorl.storage.batches import BatchSlots, batch_layout
from aiorl.storage.block import Block
from aiorl.storage.layout import Layout
from aiorl.storage.moments import Moments, statistics_slices
from aiorl.storage.replay import ReplayShard, replay_layout
from aiorl.storage.rollouts import rollout_layout, rollout_slots
from aiorl.storage.weights import WeightSlots, weights_layout
from tests.conftest import small_settings, steps_of

COUNT = ("env.id=aiorl.testing:CountEnv", "env.kwargs={number: 0, length: 3}")
STEPS = 2
"""Vector steps of a tick."""
PARTS = 9
EACH_PART = ["marks", 0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, PARTS))]
"""Every ninth line always, the others before a release: all of them are 2,500 deaths."""
MARKS = ("begin_tick", "steps_of", "commit", "begin_pack", "packed_before", "begin")
"""Where it is said how far a collector came: there, every line always."""
FILES = ("policy.py", "service.py", "episodes.py", "packing.py", "replay.py", "rollouts.py", "recent.py")


@cache
def settings_of(algorithm: str, *overrides: str) -> RunSettings:
    ring_of_6 = ("replay.capacity=12", "replay.n_step=3", "learner.batch_size=4", "collection.learning_starts=8")
    own = ring_of_6 if algorithm == "sac" else ("algorithm.minibatches=1", "algorithm.max_policy_lag=1")
    return small_settings("env.num_envs=2", *COUNT, steps_of(algorithm, STEPS), *own, *overrides, algorithm=algorithm)


class Died(BaseException):
    """A collector was killed."""


class Death:
    """Kills whoever works in its block, once, at the n-th line of the collector's own code, or of some functions."""

    def __init__(self, line: int, functions: tuple[str, ...] = ()) -> None:
        self._left, self._functions = line, functions

    def __enter__(self) -> None:
        self._before = sys.gettrace()
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.endswith(FILES):
            return None
        if event == "line" and (not self._functions or frame.f_code.co_name in self._functions):
            self._left -= 1
            if self._left == -1:
                raise Died
        return self._trace


def reserved(block: Block, layout: Layout) -> NDArray[np.uint8]:
    block.reserve(layout.nbytes)
    return block.map(layout.nbytes)


class Place:
    """The memory of a collector, seen from outside, and whoever has the place: one after another."""

    def __init__(self, algorithm: str, *overrides: str) -> None:
        self.settings = settings = settings_of(algorithm, *overrides)
        self._blocks = Blocks.create(1)
        self.incarnation = 0
        self.collector = self._make()
        spec = self.collector.ready().spec
        assert spec is not None
        self.spec = spec
        policy = make_policy(settings, spec)
        self._flat = flatten(policy)
        for parameter in policy.parameters():
            parameter.data.zero_()
        weights = reserved(self._blocks.weights, weights_layout(settings, self._flat.nbytes))
        self._weights = WeightSlots.on(weights, settings, self._flat.nbytes)
        if algorithm == "sac":
            self.batches = BatchSlots.on(reserved(self._blocks.batches, batch_layout(settings, spec)), settings, spec)
            memory = reserved(self._blocks.experience[0], replay_layout(settings, spec))
            self.shard = ReplayShard(memory, settings, spec)
        else:
            memory = reserved(self._blocks.experience[0], rollout_layout(settings, spec))
            self.slots = rollout_slots(memory, settings, spec)
        self.rows_kept = self.attach()

    def _make(self) -> CollectorService:
        kind = RolloutCollector if self.settings.on_policy else ReplayCollector
        blocks, nothing = self._blocks.duplicate(), lambda *_, **__: None
        return kind(Assignment("collector", 0, self.settings, blocks, None, nothing, self.incarnation))

    def attach(self) -> int:
        return self.put(Attach(self._flat.nbytes)).rows_kept  # type: ignore[no-any-return]

    def replace(self) -> None:
        """Have the next one take the place; of the one before nothing is left but the memory."""
        self.collector.close()
        self.incarnation += 1
        self.collector = self._make()
        self.rows_kept = self.attach()

    def put(self, request: Any) -> Any:
        if isinstance(request, CollectChunk | CollectRollout):
            self._weights.write(request.weights, request.weight_version, self._flat.numpy())
        reply = self.collector.handle(request)
        assert type(reply) is request.reply
        return reply

    def until_answered(self, request: Any, *deaths: Death) -> Any:
        """Put a request to one after another, each with a death of its own; the last one lives."""
        for death in deaths:
            try:
                with death:
                    return self.put(request)
            except Died:
                self.replace()
        return self.put(request)

    def close(self) -> None:
        self.collector.close()
        self._blocks.close()


@pytest.fixture
def make() -> Iterator[Callable[..., Place]]:
    made: list[Place] = []

    def make(*arguments: str) -> Place:
        made.append(Place(*arguments))
        return made[-1]

    yield make
    while made:
        made.pop().close()
    gc.collect()  # mappings go with the last array on them


def chunk(tick: int, steps: int = STEPS) -> CollectChunk:
    """Tick 3 acts with version 13, which lies in slot 1."""
    return CollectChunk(tick, steps, weights=tick % 2, weight_version=10 + tick, uniform=False)


def rollout(tick: int) -> CollectRollout:
    return CollectRollout(tick, tick % 2, weights=tick % 2, weight_version=10 + tick)


def moments_of(values: NDArray[Any]) -> NDArray[np.float64]:
    moments = Moments(values.shape[-1])
    moments.add(values)
    return moments.vector


def assert_statistics(place: Place, header: NDArray[np.float64], columns: dict[str, NDArray[Any]]) -> None:
    """A header is that of the valid rows of these columns, `(steps, envs, …)`, each counted once."""
    for name, values in (("policy", columns["obs"]), ("reward", columns["reward"][..., None])):
        given = header[statistics_slices(place.spec)[name]]
        expected = moments_of(values[columns["valid"]])
        assert given[0] == expected[0], f"{name}: {given[0]} rows were counted, not {expected[0]}"
        np.testing.assert_allclose(given, expected, rtol=1e-10, err_msg=name)


def assert_whole(columns: dict[str, NDArray[Any]], breaks: int) -> None:
    """Each next observation is of its own row, and goes on in the next row unless that is marked.

    `breaks` is how many replacements there may be a mark of.
    """
    obs, following, valid = columns["obs"][..., 0], columns["next_obs"][..., 0], columns["valid"]
    assert np.array_equal(following[valid], obs[valid] + 1)
    goes_on = following[:-1] == obs[1:]
    marked = columns["cut"] | columns["truncated"] | columns["terminated"]
    assert np.array_equal(goes_on, ~marked[:-1]), "a break without its mark, or a mark without a break"
    marks = columns["cut"].all(axis=1)
    assert np.array_equal(marks, columns["cut"].any(axis=1)), "all envs start new episodes"
    assert marks.sum() <= breaks


def in_shard(place: Place, first: int = 0) -> dict[str, NDArray[Any]]:
    positions = place.shard.recent(first)
    return {name: place.shard.column(name, positions) for name in place.shard.column_shapes}


def play_off_policy(place: Place, directory: Path, death: Death) -> int:
    """Collect, pack and save, five ticks, and die once; check everything on the way; return who answered last."""
    told = 0  # vector steps whose statistics a pack has brought home
    for tick in range(1, 6):
        reply = place.until_answered(chunk(tick), death)
        assert (reply.tick, reply.rows, reply.weight_version) == (tick, 2 * STEPS, 10 + tick)
        assert place.shard.snapshot.written_steps == tick * STEPS, "a step is missing, or there twice"
        assert_whole(in_shard(place), place.incarnation)
        if tick > 1:  # the warm-up is over
            pack = PackBatch(tick, tick % 2, seed=3)
            packed = place.until_answered(pack, death)
            assert (packed.tick, packed.rows_written) == (tick, 2 * tick * STEPS)
            assert_statistics(place, place.batches.statistics[tick % 2, 0], in_shard(place, told))
            told = tick * STEPS
    versions = in_shard(place)["weight_version"][:, 0]
    assert versions.tolist() == [13, 13, 14, 14, 15, 15]
    saved = place.until_answered(Save(5, str(directory)), death)
    assert {file.name for file in saved.files} == {"collector-0.safetensors", "replay-0.safetensors"}
    file = load_file(directory / "replay-0.safetensors")
    assert (file["written_steps"], file["packed_steps"]) == (10, 10)
    state = load_file(directory / "collector-0.safetensors")
    assert (state["stepper.vector_steps"], state["moments.policy"][0]) == (10, 0), "all statistics have gone with packs"
    assert_whole(file, place.incarnation)
    return place.incarnation


def each_line(play: Callable[[Place, Path, Death], int], algorithm: str, directory: Path, part: Any) -> None:
    """Play again and again, and die some lines later each time, until nobody dies any more."""
    start, stride, functions = (0, 1, MARKS) if part == "marks" else (part, PARTS, ())
    for line in count(start, stride):
        place = Place(algorithm, "env.kwargs.length=4")
        try:
            died = play(place, directory, Death(line, functions))
        except AssertionError as error:
            error.add_note(f"killed at line {line}")
            raise
        finally:
            place.close()
        if not died:
            break
    assert line > (20 if functions else 500), "hardly anything was played"
    gc.collect()


@pytest.mark.parametrize("part", EACH_PART)
def test_killed_at_any_line_of_any_request_nothing_is_lost_and_nothing_twice(tmp_path: Path, part: Any) -> None:
    each_line(play_off_policy, "sac", tmp_path, part)


def play_on_policy(place: Place, directory: Path, death: Death) -> int:
    """Fill slots in turn, and save."""
    for tick in range(1, 5):
        slot = place.slots[tick % 2]
        before = slot.columns["action"].copy()
        reply = place.until_answered(rollout(tick), death)
        assert (reply.tick, reply.rows, reply.weight_version) == (tick, 2 * STEPS, 10 + tick)
        slot.require(tick, 10 + tick)
        assert not np.isin(before, slot.columns["action"]).any(), "rows of the rollout before"
        assert_whole(slot.columns, place.incarnation)
        assert_statistics(place, slot.statistics, slot.columns)
        last, ended = slot.columns["next_obs"][-1, :, 0], slot.columns["truncated"][-1] | slot.columns["cut"][-1]
        assert np.array_equal(slot.last_obs[:, 0] == last, ~ended)
    place.until_answered(Save(4, str(directory)), death)
    assert int(load_file(directory / "collector-0.safetensors")["stepper.vector_steps"][0]) == 8
    return place.incarnation


@pytest.mark.parametrize("part", EACH_PART)
def test_killed_at_any_line_a_rollout_is_continued_and_whole(tmp_path: Path, part: Any) -> None:
    each_line(play_on_policy, "appo", tmp_path, part)


def test_a_pack_that_was_lost_is_repeated_to_the_bit(make: Any) -> None:
    def collected() -> Place:
        place: Place = make("sac")
        for tick in (1, 2, 3, 4):
            place.put(chunk(tick))
        return place

    pack, line, deaths = PackBatch(4, 0, seed=3), 0, 0
    undisturbed = collected()
    undisturbed.put(pack)
    while True:
        place = collected()
        place.batches.rows[:], place.batches.discount[:] = 77, 77
        place.until_answered(pack, Death(line))
        for name in ("rows", "discount"):
            mine, theirs = (getattr(each.batches, name)[0] for each in (place, undisturbed))
            np.testing.assert_array_equal(mine, theirs, err_msg=f"{name}, killed at line {line}")
        if place.incarnation == 0:
            break
        deaths, line = deaths + 1, line + 3
    assert deaths > 20


@pytest.mark.parametrize("algorithm", ["sac", "appo"])
def test_one_death_after_another_over_the_same_request(make: Any, algorithm: str) -> None:
    request = chunk if algorithm == "sac" else rollout
    place = make(algorithm)
    place.put(request(1))
    place.until_answered(request(2), *(Death(line) for line in (60, 0, 35, 60, 5)))
    assert place.incarnation == 5
    columns = in_shard(place) if algorithm == "sac" else place.slots[0].columns
    assert len(columns["valid"]) == (4 if algorithm == "sac" else 2)
    assert_whole(columns, 5)
    if algorithm == "sac":
        place.put(PackBatch(2, 0, seed=3))
        assert_statistics(place, place.batches.statistics[0, 0], columns)
    else:
        assert_statistics(place, place.slots[0].statistics, columns)


@pytest.mark.parametrize("algorithm", ["sac", "appo"])
def test_between_ticks_the_break_is_marked_once_and_no_more(make: Any, algorithm: str) -> None:
    request = chunk if algorithm == "sac" else rollout
    place = make(algorithm, "env.kwargs.length=100")
    for tick in (1, 2, 3):
        if tick == 2:
            place.replace()
        place.put(request(tick))
    if algorithm == "sac":
        assert in_shard(place)["cut"].all(axis=1).tolist() == [False, True, False, False, False, False]
    else:  # between rollouts nothing is carried on
        assert not any(slot.columns["cut"].any() for slot in place.slots)


@pytest.mark.parametrize("algorithm", ["sac", "appo"])
def test_each_incarnation_plays_other_episodes_and_draws_other_actions(
    make: Any, algorithm: str, tmp_path: Path
) -> None:
    folder = tmp_path / "seeds"
    folder.mkdir()
    place = make(algorithm, "env.id=aiorl.testing:SeedEnv", f"env.kwargs={{folder: {folder}, number: 0, length: 50}}")
    request, actions = (chunk if algorithm == "sac" else rollout)(1), []
    for _ in range(4):
        # Nothing is committed, so that each stands where the first one stood.
        stepper = place.collector._stepper

        def step(action: NDArray[np.float32], *_: Any) -> Any:
            actions.append(tuple(action[:, 0].tolist()))
            raise Died

        stepper.step = step
        with pytest.raises(Died):
            place.put(request)
        place.replace()
    seeds = [line.split()[0] for path in folder.iterdir() for line in path.read_text().splitlines()]
    assert len(seeds) == len(set(seeds)) == 8
    assert len(actions) == len(set(actions)) == 4


@pytest.mark.parametrize("algorithm", ["sac", "appo"])
def test_the_last_episodes_are_still_known(make: Any, algorithm: str) -> None:
    request = chunk if algorithm == "sac" else rollout
    place = make(algorithm)  # episodes of three steps
    for tick in (1, 2, 3):
        before = place.put(request(tick)).episodes
    place.replace()
    after = place.put(request(4)).episodes
    assert (before.window, before.window_length_mean) == (4, 3)
    assert (after.window, after.window_length_mean, after.finished) == (4, 3, 0)


def test_rows_that_are_no_transitions_count_for_the_heir_neither(make: Any) -> None:
    kwargs = "{probe: CountEnv, autoreset_mode: NEXT_STEP, number: 0, length: 3}"
    place = make("sac", "env.id=aiorl.testing:probe_vector_env", f"env.kwargs={kwargs}")
    for tick in (1, 2):
        place.put(chunk(tick))
    place.replace()
    place.put(PackBatch(2, 0, seed=3))
    columns = in_shard(place)
    assert columns["valid"].sum() == 6
    assert_statistics(place, place.batches.statistics[0, 0], columns)


def test_rows_that_stay_are_told(make: Any) -> None:
    shard, slots = make("sac"), make("appo")
    assert (shard.rows_kept, slots.rows_kept) == (0, 0)
    for tick in range(1, 6):
        shard.put(chunk(tick))
    shard.replace()
    assert shard.rows_kept == 12, "a full ring"
    slots.put(rollout(1))
    slots.slots[0].begin(2, 12)
    slots.slots[0].commit()
    slots.replace()
    assert slots.rows_kept == 2, "one vector step of the rollout under way"


def test_a_whole_rollout_that_nobody_has_heard_of_stays_too(make: Any) -> None:
    place = make("appo")
    reply = place.put(rollout(1))
    place.replace()
    again = place.put(rollout(1))
    assert (again.tick, again.rows) == (reply.tick, reply.rows)
    assert place.collector._stepper.vector_steps == STEPS, "nothing was collected again"


def test_a_warm_up_longer_than_the_ring_is_refused() -> None:
    """The statistics of what is overwritten could not be counted again."""
    overrides = ("collection.learning_starts=12", "collection.chunk_steps=2", "replay.capacity=12", "env.num_envs=4")
    with pytest.raises(SettingsError, match=r"replay\.capacity: 12 .* in whole chunks 16"):
        small_settings(*overrides, "learner.batch_size=8")


def checkpointed(place: Place, directory: Path, tick: int) -> None:
    """Save what the place has, with a manifest beside it."""
    files = place.put(Save(tick, str(directory))).files
    counters = (tick, 0, 0, 0, (), 0, 0.0)
    write_manifest(directory, Manifest(FORMAT, "run", *counters, "", True, True, True, {}, place.spec, {}, files))


@pytest.mark.parametrize("has_packed", [False, True])
@pytest.mark.parametrize("has_state", [False, True])
@pytest.mark.parametrize("dies", [False, True])
def test_restored_it_counts_again_what_no_pack_has_brought_home(
    make: Any, tmp_path: Path, has_packed: bool, has_state: bool, dies: bool
) -> None:
    first, second = make("sac"), make("sac")
    for tick in (1, 2):
        first.put(chunk(tick))
    if has_packed:
        first.put(PackBatch(2, 0, seed=3))
    checkpointed(first, tmp_path, 2)
    assert load_file(tmp_path / "replay-0.safetensors")["packed_steps"] == (4 if has_packed else 0)
    second.put(Restore(str(tmp_path), has_state=has_state, vector_steps=4))
    if dies:
        second.replace()
    second.until_answered(chunk(3), *([Death(60)] if dies else []))
    second.put(PackBatch(3, 1, seed=3))
    assert second.shard.snapshot.written_steps == 6
    assert_statistics(second, second.batches.statistics[1, 0], in_shard(second, 4 if has_packed else 0))
