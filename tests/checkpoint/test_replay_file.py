"""Replay files: plain safetensors in time order, and a shard that comes back as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from numpy.typing import NDArray

from aiorl.checkpoint import replay_file
from aiorl.checkpoint.replay_file import load_replay, save_replay
from aiorl.checkpoint.tensors import record, save_arrays
from aiorl.errors import CheckpointError
from aiorl.protocol import Group
from aiorl.storage.replay import ReplayShard
from tests.storage.test_replay import BOTH, POLICY, assert_columns_equal, columns_of, make_shard, write_steps

WRITTEN = [0, 1, 4, 6, 7, 15]  # of 6 steps: empty, partly full, exactly full, wrapped
pieces = pytest.mark.parametrize("piece_bytes", [1, 200, 16 << 20], ids=["a step at a time", "some steps", "at once"])


def filled(written: int, steps: int = 6, groups: tuple[Group, ...] = BOTH, seed: int = 0) -> ReplayShard:
    shard = make_shard(steps, 3, groups)
    write_steps(shard, written, np.random.default_rng(seed))
    return shard


@pieces
@pytest.mark.parametrize("written", WRITTEN)
def test_a_replay_file_is_plain_safetensors_in_time_order(
    tmp_path: Path, monkeypatch, written: int, piece_bytes: int
) -> None:
    monkeypatch.setattr(replay_file, "PIECE_BYTES", piece_bytes)
    shard = filled(written)

    save_replay(tmp_path / "replay-0.safetensors", shard, tick=1)

    columns = safetensors.numpy.load_file(tmp_path / "replay-0.safetensors")
    present = min(written, 6)
    assert columns.pop("written_steps").tolist() == [written]
    assert columns.pop("packed_steps").tolist() == [0]
    assert {name: (values.dtype.name, values.shape[2:]) for name, values in columns.items()} == {
        "obs": ("float32", (2,)),
        "critic_obs": ("float32", (3,)),
        "action": ("float32", (1,)),
        "reward": ("float32", ()),
        "next_obs": ("float32", (2,)),
        "next_critic_obs": ("float32", (3,)),
        "terminated": ("bool", ()),
        "truncated": ("bool", ()),
        "cut": ("bool", ()),
        "valid": ("bool", ()),
        "weight_version": ("int64", ()),
    }
    assert all(values.shape[:2] == (present, 3) for values in columns.values())
    assert columns["weight_version"][:, 0].tolist() == list(range(written - present, written))
    assert_columns_equal(columns, columns_of(shard))


@pieces
@pytest.mark.parametrize("groups", [POLICY, BOTH], ids=["policy", "policy+critic"])
@pytest.mark.parametrize("written", WRITTEN)
def test_a_shard_comes_back(
    tmp_path: Path, monkeypatch, written: int, groups: tuple[Group, ...], piece_bytes: int
) -> None:
    monkeypatch.setattr(replay_file, "PIECE_BYTES", piece_bytes)
    source, target = filled(written, groups=groups), make_shard(6, 3, groups)

    save_replay(tmp_path / "r", source, tick=1)
    load_replay(tmp_path / "r", target)

    assert target.snapshot == source.snapshot
    assert target.head == source.head
    assert_columns_equal(columns_of(target), columns_of(source))
    for shard in (source, target):
        write_steps(shard, 4, np.random.default_rng(1))
    assert_columns_equal(columns_of(target), columns_of(source))


@pieces
@pytest.mark.parametrize("steps", [1, 3, 5])
@pytest.mark.parametrize("written", [2, 6, 15])
def test_a_smaller_shard_keeps_the_newest_steps(
    tmp_path: Path, monkeypatch, written: int, steps: int, piece_bytes: int
) -> None:
    monkeypatch.setattr(replay_file, "PIECE_BYTES", piece_bytes)
    source, target = filled(written), make_shard(steps, 3, BOTH)

    save_replay(tmp_path / "r", source, tick=1)
    load_replay(tmp_path / "r", target)

    assert target.snapshot.written_steps == written
    assert target.snapshot.present_steps == min(written, steps)
    assert_columns_equal(columns_of(target), {name: values[-steps:] for name, values in columns_of(source).items()})


def test_what_is_recorded_is_the_file_and_saving_changes_nothing(tmp_path: Path) -> None:
    shard = filled(15)
    before, rows = columns_of(shard), shard.rows.copy()

    written = save_replay(tmp_path / "replay-0.safetensors", shard, tick=1)

    assert written == record(tmp_path / "replay-0.safetensors")
    assert_columns_equal(columns_of(shard), before)
    np.testing.assert_array_equal(shard.rows, rows)


@pytest.mark.parametrize("written", WRITTEN)
def test_equal_shards_give_equal_files(tmp_path: Path, monkeypatch, written: int) -> None:
    save_replay(tmp_path / "a", filled(written), tick=1)
    again = make_shard(6, 3, BOTH)
    again.rows[:] = 99  # what lies beyond the committed steps is no state
    load_replay(tmp_path / "a", again)
    monkeypatch.setattr(replay_file, "PIECE_BYTES", 200)

    save_replay(tmp_path / "b", again, tick=1)

    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("written", [1, 3, 5, 15])
def test_every_column_is_aligned_in_the_file(tmp_path: Path, written: int) -> None:
    save_replay(tmp_path / "a", filled(written), tick=1)
    data = (tmp_path / "a").read_bytes()
    length = int.from_bytes(data[:8], "little")

    assert length % 8 == 0
    end = 0
    for tensor in sorted(json.loads(data[8 : 8 + length]).values(), key=lambda each: each["data_offsets"]):
        start, stop = tensor["data_offsets"]
        assert start == end
        assert start % {"I64": 8, "F32": 4, "BOOL": 1}[tensor["dtype"]] == 0
        end = stop
    assert 8 + length + end == len(data)


def broken(path: Path, change: str) -> None:
    columns: dict[str, NDArray[Any]] = safetensors.numpy.load_file(path)
    match change:
        case "missing":
            path.unlink()
        case "empty":
            path.write_bytes(b"")
        case "truncated":
            path.write_bytes(path.read_bytes()[:-10])
        case "foreign":
            path.write_bytes(b"not a file of tensors at all")
        case "no column":
            save_arrays(path, {name: values for name, values in columns.items() if name != "cut"})
        case "no counter":
            save_arrays(path, {name: values for name, values in columns.items() if name != "written_steps"})
        case "other envs":
            save_arrays(path, {name: v if "_steps" in name else v[:, :2] for name, v in columns.items()})
        case "other obs":
            save_arrays(path, columns | {"obs": columns["obs"][..., :1]})
        case "uneven":
            save_arrays(path, columns | {"reward": columns["reward"][:-1]})


@pytest.mark.parametrize(
    "change",
    ["missing", "empty", "truncated", "foreign", "no column", "no counter", "other envs", "other obs", "uneven"],
)
def test_a_broken_or_foreign_replay_is_refused_by_name(tmp_path: Path, change: str) -> None:
    path = tmp_path / "replay-0.safetensors"
    save_replay(path, filled(15), tick=1)
    broken(path, change)

    with pytest.raises(CheckpointError, match=r"replay-0\.safetensors: cannot be restored"):
        load_replay(path, make_shard(6, 3, BOTH))


def test_a_replay_of_another_env_is_refused(tmp_path: Path) -> None:
    save_replay(tmp_path / "r", filled(15, groups=POLICY), tick=1)

    with pytest.raises(CheckpointError, match="cannot be restored"):
        load_replay(tmp_path / "r", make_shard(6, 3, BOTH))
