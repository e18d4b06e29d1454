"""Cores that a process may use, and their shares."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiorl.runtime.cores import ThreadBudget, thread_budget, usable_cores
from aiorl.settings import RunSettings, load_settings


def settings_for(collectors: int, collector_threads: int | None, learner_threads: int | None) -> RunSettings:
    def text(number: int | None) -> str:
        return "null" if number is None else str(number)

    return load_settings(
        "sac/pendulum",
        overrides=[
            f"collection.collectors={collectors}",
            f"env.num_envs={collectors}",
            f"learner.batch_size={collectors}",
            f"runtime.collector_threads={text(collector_threads)}",
            f"runtime.learner_threads={text(learner_threads)}",
        ],
        environ={},
    )


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("max 100000\n", 8),
        ("800000 100000\n", 8),
        ("1600000 100000\n", 8),
        ("200000 100000\n", 2),
        ("150000 100000\n", 2),
        ("100000 100000\n", 1),
        ("10000 100000\n", 1),
        ("25000 50000\n", 1),
        ("", 8),
        ("garbage\n", 8),
        ("1 2 3\n", 8),
        ("x 100000\n", 8),
    ],
)
def test_the_quota_of_the_cgroup_counts(tmp_path: Path, text: str, cores: int) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert usable_cores(tmp_path) == cores


@pytest.mark.usefixtures("eight_cores")
def test_without_a_cgroup_affinity_counts(tmp_path: Path) -> None:
    assert usable_cores(tmp_path) == usable_cores(tmp_path / "nowhere") == 8


@pytest.mark.usefixtures("eight_cores")
def test_a_quota_that_cannot_be_read_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").mkdir()
    assert usable_cores(tmp_path) == 8


def test_where_there_is_no_affinity_all_cores_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert usable_cores(tmp_path) == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores(tmp_path) == 1


@pytest.mark.parametrize(
    ("cores", "collectors", "budget"),
    [
        (1, 1, ThreadBudget(1, 1)),
        (2, 1, ThreadBudget(1, 1)),
        (4, 1, ThreadBudget(2, 2)),
        (5, 1, ThreadBudget(2, 3)),
        (16, 1, ThreadBudget(8, 8)),
        (16, 4, ThreadBudget(2, 8)),
        (16, 3, ThreadBudget(2, 10)),
        (4, 3, ThreadBudget(1, 1)),
        (2, 4, ThreadBudget(1, 1)),
    ],
)
def test_collectors_get_half_and_the_learner_the_rest(cores: int, collectors: int, budget: ThreadBudget) -> None:
    assert thread_budget(settings_for(collectors, None, None), cores) == budget


threads = st.none() | st.integers(1, 12)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(cores=st.integers(1, 64), collectors=st.integers(1, 16), collector=threads, learner=threads)
def test_explicit_threads_win_and_all_together_fit_if_they_can(
    cores: int, collectors: int, collector: int | None, learner: int | None
) -> None:
    budget = thread_budget(settings_for(collectors, collector, learner), cores)
    assert budget.collector >= 1
    assert budget.learner >= 1
    assert collector in (None, budget.collector)
    assert learner in (None, budget.learner)
    least = collectors * (collector or 1) + (learner or 1)
    assert collectors * budget.collector + budget.learner <= max(cores, least)
