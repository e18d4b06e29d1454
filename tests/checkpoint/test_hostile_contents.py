"""Checkpoints whose sums are right and whose contents are not: refused with their place, before anything is trained."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from aiorl import CheckpointError, load_policy
from tests.checkpoint.conftest import INLINE
from tests.checkpoint.test_hostile_checkpoints import (
    COLLECTOR,
    LEARNER,
    POLICY,
    REPLAY,
    copy_of,
    declare,
    gone_on,
    refused,
)
from tests.conftest import small_settings
from tests.run.helpers import train

Change = Callable[[NDArray[Any]], Any]
HUGE = 2**62


def with_value(value: float) -> Change:
    return lambda values: np.full_like(values, value)


SAC: dict[tuple[str, str], dict[str, Change]] = {
    (LEARNER, "moments.policy"): {
        "NaN": with_value(np.nan),
        "negative": np.negative,
        "short": lambda values: values[:1],
    },
    (LEARNER, "learner.generator"): {"short": lambda values: values[:10], "a float": lambda v: v.astype(np.float32)},
    (LEARNER, "learner.log_temperature"): {"of three": lambda _: np.zeros(3, np.float32)},
    (LEARNER, "learner.extra"): {"unknown": lambda _: np.zeros(3, np.float32)},
    (LEARNER, "learner.optimiser.actor.99.exp_avg"): {"unknown": lambda _: np.zeros(3, np.float32)},
    (LEARNER, "learner.optimiser.actor.0.exp_avg"): {"short": lambda values: values.reshape(-1)[:1]},
    (COLLECTOR, "stepper.obs.policy"): {"NaN": with_value(np.nan), "short": lambda values: values[:1]},
    (COLLECTOR, "stepper.vector_steps"): {"negative": with_value(-5), "empty": lambda values: values[:0]},
    (COLLECTOR, "stepper.env.simulation"): {"NaN": with_value(np.nan)},
    (COLLECTOR, "episodes.window"): {
        "NaN": lambda _: np.full((4, 2), np.nan),
        "three wide": lambda _: np.zeros((4, 3)),
        "flat": lambda _: np.zeros(4),
    },
    (COLLECTOR, "episodes.return"): {"short": lambda values: values[:1]},
    (COLLECTOR, "actor.noise"): {"short": lambda values: values[:9]},
    (COLLECTOR, "moments.policy"): {"short": lambda values: values[:1]},
    (REPLAY, "written_steps"): {
        "empty": lambda values: values[:0],
        "negative": with_value(-3),
        "too few": with_value(1),
        "huge": with_value(HUGE),
        "Inf": lambda _: np.array([np.inf]),
    },
    (REPLAY, "packed_steps"): {"huge": with_value(2**40), "negative": with_value(-1)},
    (REPLAY, "obs"): {"NaN": with_value(np.nan), "short": lambda values: values[:-3]},
    (REPLAY, "reward"): {"Inf": with_value(np.inf)},
    (REPLAY, "valid"): {"numbers": lambda values: values.astype(np.int64) * 9},
}
APPO: dict[tuple[str, str], dict[str, Change]] = {
    (LEARNER, "pending.0"): {"short": lambda values: values[:1], "NaN": with_value(255)},
    (LEARNER, "learner.learning_rate"): {"negative": with_value(-1), "NaN": with_value(np.nan)},
    (LEARNER, "learner.updates"): {"negative": with_value(-5), "a half": lambda _: np.array(1.5)},
}
CASES = [
    pytest.param(algorithm, file, tensor, change, id=f"{algorithm}: {tensor} {name}")
    for algorithm, cases in (("sac", SAC), ("appo", APPO))
    for (file, tensor), changes in cases.items()
    for name, change in changes.items()
]


@pytest.mark.parametrize(("algorithm", "file", "tensor", "change"), CASES)
def test_contents_that_cannot_be_are_refused(
    runs: dict[str, Path], tmp_path: Path, algorithm: str, file: str, tensor: str, change: Change
) -> None:
    path = copy_of(runs, algorithm, tmp_path / "run") / file
    tensors = load_file(path)
    tensors[tensor] = np.ascontiguousarray(change(tensors.get(tensor, np.zeros(1))))
    save_file(tensors, path)
    declare(path.parent)
    assert isinstance(refused(tmp_path / "run", path), CheckpointError)


@pytest.mark.parametrize("dtype", ["BF16", "F8_E4M3", "F32X"])
@pytest.mark.parametrize("file", [POLICY, LEARNER, COLLECTOR, REPLAY])
def test_tensors_of_types_that_are_none_of_ours_are_refused(
    runs: dict[str, Path], tmp_path: Path, file: str, dtype: str
) -> None:
    path = copy_of(runs, "sac", tmp_path / "run") / file
    size = 2 if dtype == "BF16" else 1
    header = json.dumps({"x": {"dtype": dtype, "shape": [4], "data_offsets": [0, 4 * size]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 4 * size)
    declare(path.parent)
    assert isinstance(refused(tmp_path / "run", path), CheckpointError)
    if file == POLICY:
        with pytest.raises(CheckpointError, match=r"policy\.safetensors"):
            load_policy(tmp_path / "run")


@pytest.mark.parametrize("algorithm", [None, "x", {}, {"kind": 3}])
def test_a_warm_start_from_settings_that_are_none_is_refused(
    runs: dict[str, Path], tmp_path: Path, algorithm: Any
) -> None:
    path = copy_of(runs, "sac", tmp_path / "source") / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["settings"] |= {"algorithm": algorithm}
    path.write_text(json.dumps(manifest))
    settings = small_settings(INLINE, f"checkpoint.warm_start={tmp_path / 'source'}")
    with pytest.raises(CheckpointError, match="source"):
        asyncio.run(train(settings, tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_folders_of_strangers_are_no_checkpoints(runs: dict[str, Path], tmp_path: Path) -> None:
    checkpoint = copy_of(runs, "sac", tmp_path / "run")
    (checkpoint.parent / ".replaced-abc").mkdir()
    assert load_policy(tmp_path / "run").checkpoint == checkpoint
    assert asyncio.run(gone_on(tmp_path / "run")).state == "completed"
    shutil.rmtree(tmp_path / "run")
