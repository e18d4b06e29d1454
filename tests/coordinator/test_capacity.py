"""A run that does not fit is refused with need, what there is, and the settings that drive it."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path

import pytest

from aiorl import SettingsError
from aiorl.coordinator import capacity
from aiorl.coordinator.capacity import Sizes, check_disk, check_memory, memory_available, size_text
from aiorl.protocol import EnvSpec, Group
from tests.conftest import small_settings

SPEC = EnvSpec(2, (Group("policy", 3),), (-1.0,), (1.0,), saves_state=False)
MIB = 1 << 20


def test_sizes_are_those_of_the_layouts() -> None:
    """Two collectors, 500 vector steps of 2 envs: rows of 3 + 1 + 1 + 3 floats, 4 flags, version and counter."""
    sizes = Sizes.of(small_settings("collection.collectors=2"), SPEC, policy_bytes=1000)
    assert sizes.shard == 500 * 2 * 8 * 4 + 4 * 1024 + 4032 + 64
    assert sizes.weights == 2 * 1024 + 64
    assert sizes.total == 2 * sizes.shard + sizes.batches + sizes.weights


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
    check_memory(settings, Sizes(shard=10 * MIB, batches=0, weights=0, collectors=1))
    with pytest.raises(SettingsError) as caught:
        check_memory(settings, Sizes(shard=10 * MIB, batches=MIB, weights=0, collectors=1))
    (problem,) = caught.value.problems
    assert problem.startswith("replay.capacity: the run needs 11.0 MiB")
    assert "replay.capacity=2000" in problem and "10.0 MiB are available (cgroup limit)" in problem


def test_too_little_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(capacity.shutil, "disk_usage", lambda path: usage(100 * MIB, 0, 24 * MIB))
    settings, sizes = small_settings(), Sizes(shard=10 * MIB, batches=0, weights=0, collectors=1)
    check_disk(settings, sizes, checkpoint_bytes=MIB, run_dir=tmp_path)
    with pytest.raises(SettingsError, match=r"checkpoint\.keep: checkpoints need up to 28\.0 MiB .* 24\.0 MiB free"):
        check_disk(settings, sizes, checkpoint_bytes=2 * MIB, run_dir=tmp_path)


@pytest.mark.parametrize(
    ("nbytes", "text"), [(5, "5 B"), (2048, "2.0 KiB"), (3.5 * MIB, "3.5 MiB"), (5000 * MIB, "4.9 GiB")]
)
def test_sizes_as_a_person_reads_them(nbytes: float, text: str) -> None:
    assert size_text(nbytes) == text
