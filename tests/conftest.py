"""Leaks fail every test; async tests run on both event loops; runs in tests are small and quiet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import uvloop

from aiorl.settings import RunSettings, load_settings
from aiorl.testing import no_leftovers

torch.set_num_threads(1)  # inline workers compute in this process: as many threads as the processes of other tests


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.path.name.startswith("test_replacement"):  # the matrix of tests/endings has the same on asyncio
        return {"uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def _is_one_more(file: str, name: str, parameters: dict[str, object]) -> bool:
    algorithm = parameters.get("algorithm")
    match file:
        case "test_faults.py" | "test_hosts.py" | "test_trace.py" | "test_rollouts.py":
            return "uvloop" in name
        case "test_evaluation_on_the_way.py":
            kind = algorithm, parameters.get("lead"), parameters.get("kind")
            is_same = "training_is_the_same" in name
            kept = (("sac", 1, "process"), ("appo", 0, "process"), ("appo", 1, "inline"))
            return "uvloop" in name or parameters.get("normalise") == "false" or (is_same and kind not in kept)
        case "test_determinism.py":
            is_second = parameters.get("collectors") == 2 and "twice" not in name
            return is_second or (algorithm, parameters.get("lead")) == ("appo", 2)
        case "test_probes.py":
            return "uvloop" in name or (parameters.get("probe") == "ScratchEnv" and parameters.get("end") == "both")
        case "test_run.py":
            is_another_signal = "a_signal_saves" in name and ("[sac-1-" in name or "[appo-2-" in name)
            is_second = algorithm == "appo" and ("second_signal" in name or "killed" in name or "raises" in name)
            return is_another_signal or is_second
        case "test_load.py":
            return "waits_for" in name and (algorithm, parameters.get("how")) in (
                ("appo", "completes"),
                ("sac", "fails"),
                ("appo", "starts from a policy"),
            )
    return False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A fault on the other loop, or a second tick of lag, is one more of a kind: before a release is soon enough."""
    for item in items:
        parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        if _is_one_more(item.path.name, item.name, parameters):
            item.add_marker(pytest.mark.slow)


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


_SMALL_RUN = (
    "env.num_envs=4",
    "algorithm.actor_hidden=[16]",
    "algorithm.critic_hidden=[16]",
    "budget.env_steps=400",
    "evaluation.at_end=false",
    "evaluation.episodes=4",
    "telemetry.tensorboard=false",
    "telemetry.interval_ticks=5",
    "runtime.learner_threads=1",
    "runtime.collector_threads=1",
)
SMALL = {
    "sac": (
        *_SMALL_RUN,
        "collection.chunk_steps=4",
        "collection.learning_starts=64",
        "replay.capacity=2000",
        "learner.batch_size=32",
        "learner.gradient_steps=2",
    ),
    "appo": (*_SMALL_RUN, "collection.rollout_steps=4", "algorithm.epochs=1", "algorithm.minibatches=2"),
}
"""A run of seconds, 16 env steps and 2 gradient steps a tick: the swing-up with tiny networks."""
ALGORITHMS = tuple(SMALL)


@pytest.fixture(params=ALGORITHMS)
def algorithm(request: pytest.FixtureRequest) -> str:
    """One algorithm of each family: the same rules hold for both."""
    assert isinstance(request.param, str)
    return request.param


def small_settings(*overrides: str, algorithm: str = "sac") -> RunSettings:
    return load_settings(f"{algorithm}/pendulum", overrides=[*SMALL[algorithm], *overrides], environ={})


def lead_of(algorithm: str, lead: int) -> str:
    return f"collection.lead={lead}" if algorithm == "sac" else f"algorithm.max_policy_lag={lead}"


def steps_of(algorithm: str, steps: int) -> str:
    return f"collection.{'chunk' if algorithm == 'sac' else 'rollout'}_steps={steps}"
