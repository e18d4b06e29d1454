"""A run that does not fit is refused with need, what there is, and the settings that drive it."""

from __future__ import annotations

import gc
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from aiorl import SettingsError
from aiorl.coordinator import capacity
from aiorl.coordinator.capacity import Sizes, check_disk, check_memory, memory_available, size_text
from aiorl.learner.onpolicy import OnPolicyLearnerService
from aiorl.protocol import Attach, Build, EnvSpec, Group, Save, UpdateOnRollouts
from aiorl.service import Assignment, Blocks
from aiorl.storage.layout import aligned
from aiorl.storage.rollouts import rollout_slots
from tests.conftest import small_settings

SPEC = EnvSpec(2, (Group("policy", 3),), (-1.0,), (1.0,), saves_state=False)
MIB = 1 << 20
EPISODES = aligned(101 * 2 * 8)


def test_sizes_are_those_of_the_layouts() -> None:
    """Two collectors, 500 vector steps of 2 envs: rows of 3 + 1 + 1 + 3 floats, 4 flags, version, marks; episodes."""
    sizes = Sizes.of(small_settings("collection.collectors=2"), SPEC, policy_bytes=1000)
    assert sizes.experience == 500 * 2 * 8 * 4 + 4 * 1024 + 4032 + 3 * 64 + EPISODES
    assert sizes.batches == 2 * 2 * 2 * 16 * 8 * 4 + 2 * 2 * 2 * 16 * 4 + 2 * 2 * (10 + 4) * 8
    assert sizes.weights == 2 * 1024 + 64
    assert sizes.total == 2 * sizes.experience + sizes.batches + sizes.weights


@pytest.mark.parametrize(("lag", "given", "slots"), [(0, None, 1), (1, None, 2), (3, None, 4), (1, 5, 5)])
def test_on_policy_sizes_are_those_of_the_rollouts(lag: int, given: int | None, slots: int) -> None:
    """Two collectors; a slot has 100 steps of 2 envs: 3 + 3 + 1 + 1 + 1 floats, 4 flags; a last obs, statistics."""
    settings = small_settings(
        "collection.collectors=2",
        "collection.rollout_steps=100",
        f"algorithm.max_policy_lag={lag}",
        f"collection.rollout_slots={'null' if given is None else given}",
        algorithm="appo",
    )
    sizes = Sizes.of(settings, SPEC, policy_bytes=1000)
    columns = (3 * 4, 3 * 4, 1 * 4, 4, 4, 1, 1, 1, 1)
    expected = sum(aligned(slots * 200 * nbytes) for nbytes in columns)
    expected += aligned(slots * 2 * 3 * 4) + aligned(slots * (10 + 4) * 8) + 2 * aligned(slots * 8)
    expected += aligned(slots * 3 * 8) + EPISODES
    assert sizes.experience == expected
    assert sizes.batches == 0
    assert sizes.weights == (max(lag, 1) + 1) * 1024 + 64
    assert sizes.total == 2 * expected + sizes.weights


@pytest.mark.parametrize(
    ("limit", "used", "expected"),
    [("max", "1", None), (str(300 * MIB), str(100 * MIB), 200 * MIB), (str(100 * MIB), str(200 * MIB), 0)],
)
def test_a_cgroup_limit_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, used: str, expected: int | None
) -> None:
    (tmp_path / "max").write_text(limit)
    (tmp_path / "current").write_text(used)
    monkeypatch.setattr(capacity, "_CGROUPS", ((tmp_path / "max", tmp_path / "current"), (tmp_path / "no", tmp_path)))
    available, reason = memory_available()
    if expected is None:
        assert reason == "RAM" and available > 0
    else:
        assert (available, reason) == (expected, "cgroup limit")


def test_too_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "memory_available", lambda: (10 * MIB, "cgroup limit"))
    settings = small_settings()
    check_memory(settings, Sizes(experience=10 * MIB, batches=0, weights=0, collectors=1))
    with pytest.raises(SettingsError) as caught:
        check_memory(settings, Sizes(experience=10 * MIB, batches=MIB, weights=0, collectors=1))
    (problem,) = caught.value.problems
    assert problem.startswith("replay.capacity: the run needs 11.0 MiB")
    assert "replay.capacity=2000" in problem and "10.0 MiB are available (cgroup limit)" in problem


def test_too_little_memory_for_rollouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "memory_available", lambda: (20 * MIB, "cgroup limit"))
    settings = small_settings("collection.collectors=2", "algorithm.max_policy_lag=2", algorithm="appo")
    check_memory(settings, Sizes(experience=10 * MIB, batches=0, weights=0, collectors=2))
    with pytest.raises(SettingsError) as caught:
        check_memory(settings, Sizes(experience=10 * MIB, batches=0, weights=MIB, collectors=2))
    (problem,) = caught.value.problems
    assert problem.startswith("collection.rollout_steps: the run needs 21.0 MiB")
    assert "3 rollout slots of collection.rollout_steps=4 x env.num_envs=4: 20.0 MiB" in problem
    assert "20.0 MiB are available (cgroup limit)" in problem
    assert "replay" not in problem and "batch" not in problem


def test_too_little_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(capacity.shutil, "disk_usage", lambda path: usage(100 * MIB, 0, 24 * MIB))
    settings, sizes = small_settings(), Sizes(experience=10 * MIB, batches=0, weights=0, collectors=1)
    check_disk(settings, sizes, checkpoint_bytes=MIB, run_dir=tmp_path)
    with pytest.raises(SettingsError, match=r"checkpoint\.keep: checkpoints need up to 28\.0 MiB .* 24\.0 MiB free"):
        check_disk(settings, sizes, checkpoint_bytes=2 * MIB, run_dir=tmp_path)


def test_rollouts_need_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(capacity.shutil, "disk_usage", lambda path: usage(100 * MIB, 0, 8 * MIB))
    settings = small_settings("checkpoint.keep=3", algorithm="appo")
    sizes = Sizes(experience=10 * MIB, batches=0, weights=0, collectors=2)
    check_disk(settings, sizes, checkpoint_bytes=2 * MIB, run_dir=tmp_path)
    with pytest.raises(SettingsError, match=r"checkpoint\.keep: checkpoints need up to 12\.0 MiB .* 8\.0 MiB free"):
        check_disk(settings, sizes, checkpoint_bytes=3 * MIB, run_dir=tmp_path)


@pytest.mark.parametrize("lag", [0, 1, 8])
def test_a_checkpoint_is_no_larger_than_the_learner_said(tmp_path: Path, lag: int) -> None:
    """All policies that ticks to come act with are in it, too."""
    overrides = f"algorithm.max_policy_lag={lag}", "algorithm.actor_hidden=[64, 64]", "learner.device=cpu"
    settings = small_settings(*overrides, algorithm="appo")
    blocks = Blocks.create(1)
    assignment = Assignment("learner", 0, settings, blocks.duplicate(), None, lambda level, event, **fields: None)
    learner = OnPolicyLearnerService(assignment)
    built: Any = learner.handle(Build(SPEC))
    sizes = Sizes.of(settings, SPEC, built.policy_bytes)
    blocks.experience[0].reserve(sizes.experience)
    blocks.weights.reserve(sizes.weights)
    learner.handle(Attach(built.policy_bytes))
    slot = rollout_slots(blocks.experience[0].map(sizes.experience), settings, SPEC)[0]
    blocks.close()
    slot.columns["valid"][...] = True
    slot.label = 1, 0
    learner.handle(UpdateOnRollouts(1, (0,), 0, 0, 1))  # now the optimiser has a state, too

    saved: Any = learner.handle(Save(1, str(tmp_path), pending=tuple(range(lag))))

    del learner, slot
    gc.collect()  # mappings go with the last array on them
    assert sum(file.nbytes for file in saved.files) <= built.checkpoint_bytes


@pytest.mark.parametrize(
    ("nbytes", "text"), [(5, "5 B"), (2048, "2.0 KiB"), (3.5 * MIB, "3.5 MiB"), (5000 * MIB, "4.9 GiB")]
)
def test_sizes_as_a_person_reads_them(nbytes: float, text: str) -> None:
    assert size_text(nbytes) == text
