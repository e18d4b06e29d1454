"""Leaks fail every test; async tests run on both event loops; runs in tests are small and quiet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvloop

from aiorl.settings import RunSettings, load_settings
from aiorl.testing import no_leftovers


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
def _no_leftovers(request: pytest.FixtureRequest) -> Iterator[None]:
    if "leaks_allowed" in request.keywords:
        yield
        return
    with no_leftovers():
        yield


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


SMALL = (
    "env.num_envs=4",
    "collection.chunk_steps=4",
    "collection.learning_starts=64",
    "replay.capacity=2000",
    "algorithm.actor_hidden=[16]",
    "algorithm.critic_hidden=[16]",
    "learner.batch_size=32",
    "learner.gradient_steps=2",
    "budget.env_steps=400",
    "evaluation.at_end=false",
    "evaluation.episodes=4",
    "telemetry.tensorboard=false",
    "telemetry.interval_ticks=5",
    "runtime.learner_threads=1",
    "runtime.collector_threads=1",
)
"""A run of seconds: the swing-up with tiny networks."""


def small_settings(*overrides: str) -> RunSettings:
    return load_settings("sac/pendulum", overrides=[*SMALL, *overrides], environ={})
