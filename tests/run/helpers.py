"""What the tests of whole runs share."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from aiorl import Event, Outcome, Run
from aiorl.settings import RunSettings


async def train(settings: RunSettings, run_dir: Path, **arguments: Any) -> Outcome:
    """Run to the end; nothing of ours may be left in the loop."""
    async with Run(settings, run_dir=run_dir, **arguments) as run:
        outcome = await run.wait()
    assert_no_tasks()
    return outcome


async def events_of(run: Run) -> list[Event]:
    async with run:
        events = [event async for event in run]
    assert_no_tasks()
    return events


def assert_no_tasks() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, left


def files(checkpoint: Path) -> dict[str, bytes]:
    """The tensor files of a checkpoint, by name."""
    return {path.name: path.read_bytes() for path in sorted(checkpoint.glob("*.safetensors"))}


def assert_same_checkpoint(one: Path, other: Path) -> None:
    left, right = files(one), files(other)
    assert list(left) == list(right)
    assert [name for name in left if left[name] != right[name]] == []


def replay(checkpoint: Path, index: int = 0) -> dict[str, NDArray[Any]]:
    return dict(load_file(checkpoint / f"replay-{index}.safetensors"))


def rollouts(run_dir: Path, index: int = 0) -> dict[str, NDArray[Any]]:
    """All rollouts of a collector that were trained on, one after another, with the columns of a replay."""
    paths = sorted((run_dir / "rollouts").glob(f"*-{index}.safetensors"), key=lambda path: int(path.stem.split("-")[0]))
    parts = [dict(load_file(path)) for path in paths]
    columns = {
        name: np.concatenate([part[name] for part in parts]) for name in parts[0] if not name.startswith("last_")
    }
    return columns | {"written_steps": np.array([len(columns["valid"])])}


def experience(algorithm: str, run_dir: Path, index: int = 0) -> dict[str, NDArray[Any]]:
    """What a collector's steps became: its replay, or (with telemetry.dump_rollouts) its rollouts."""
    if algorithm == "appo":
        return rollouts(run_dir, index)
    return replay(run_dir / "checkpoints" / "latest", index)


def valid_rows(columns: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Valid rows of each env in time order, one after another: `(rows, …)`."""
    valid = columns["valid"].T
    return {name: np.swapaxes(values, 0, 1)[valid] for name, values in columns.items() if "_steps" not in name}
