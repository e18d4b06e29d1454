"""Checkpoints that somebody, or a disk, has changed: a named error before anything is trained, or the whole of it."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from aiorl import AiorlError, CheckpointError, Outcome, Run, SettingsError, load_policy
from tests.checkpoint.conftest import INLINE
from tests.conftest import small_settings
from tests.run.helpers import train

POLICY, LEARNER, COLLECTOR, REPLAY = (
    f"{name}.safetensors" for name in ("policy", "learner", "collector-0", "replay-0")
)


def copy_of(runs: dict[str, Path], algorithm: str, run_dir: Path) -> Path:
    """A run to damage; return its only checkpoint."""
    shutil.copytree(runs[algorithm], run_dir, symlinks=True)
    return (run_dir / "checkpoints" / "latest").resolve()


def declare(checkpoint: Path) -> None:
    """Make the manifest agree with the files, as somebody who knows how would."""
    path = checkpoint / "manifest.json"
    manifest = json.loads(path.read_text())
    for entry in manifest["files"]:
        file = checkpoint / entry["name"]
        if file.is_file():
            entry |= {"nbytes": file.stat().st_size, "crc32": zlib.crc32(file.read_bytes())}
    path.write_text(json.dumps(manifest))


async def gone_on(run_dir: Path) -> Outcome:
    async with Run.reopen(run_dir, overrides=["budget.env_steps=480"], environ={}) as run:
        return await run.wait()


def refused(run_dir: Path, whose: Path) -> AiorlError:
    """Resume; whatever is refused is told with its place, and nothing was trained or written."""
    before = {path: path.lstat().st_mtime_ns for path in (run_dir / "checkpoints").rglob("*")}
    records = (run_dir / "metrics.jsonl").read_bytes()
    with pytest.raises((CheckpointError, SettingsError)) as caught:
        asyncio.run(asyncio.wait_for(gone_on(run_dir), 30))
    if isinstance(caught.value, CheckpointError):
        assert str(whose.parent) in str(caught.value) or str(run_dir) in str(caught.value), caught.value
    assert {path: path.lstat().st_mtime_ns for path in (run_dir / "checkpoints").rglob("*")} == before
    assert (run_dir / "metrics.jsonl").read_bytes() == records
    return caught.value


def names(algorithm: str) -> list[str]:
    return [POLICY, LEARNER, COLLECTOR, *([REPLAY] if algorithm == "sac" else [])]


def flip(path: Path, at: float) -> None:
    data = bytearray(path.read_bytes())
    data[int(at * (len(data) - 1))] ^= 0x41
    path.write_bytes(bytes(data))


CHANGES: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "one byte short": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0" * 8),
    "first byte": lambda path: flip(path, 0),
    "header": lambda path: flip(path, 0.02),
    "middle": lambda path: flip(path, 0.6),
    "last byte": lambda path: flip(path, 1),
    "gone": lambda path: path.unlink(),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "a link to nowhere": lambda path: (path.unlink(), path.symlink_to("nowhere")),
    "text": lambda path: path.write_text("not tensors"),
    "foreign": lambda path: save_file({"x": np.zeros(3, np.float32)}, path),
}


@pytest.mark.parametrize("algorithm", ["sac", "appo"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_file_is_refused(runs: dict[str, Path], tmp_path: Path, algorithm: str, change: str) -> None:
    for number, name in enumerate(names(algorithm)):
        run_dir = tmp_path / str(number)
        path = copy_of(runs, algorithm, run_dir) / name
        CHANGES[change](path)
        assert isinstance(refused(run_dir, path), CheckpointError)
        if name == POLICY:
            with pytest.raises(CheckpointError, match=r"policy\.safetensors"):
                load_policy(run_dir)
        shutil.rmtree(run_dir)


def without(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda tensors: {key: value for key, value in tensors.items() if key != name}


def first_float(tensors: dict[str, Any]) -> str:
    return next(key for key, value in tensors.items() if value.dtype == np.float32 and value.size > 1)


def with_first(change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda tensors: tensors | {(name := first_float(tensors)): change(tensors[name])}


CONTENTS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "one tensor less": lambda tensors: without(first_float(tensors))(tensors),
    "another shape": with_first(lambda values: np.ascontiguousarray(values[..., :-1])),
    "another type": with_first(lambda values: np.zeros(values.shape, np.uint8) if values.ndim > 1 else values[:0]),
    "NaN": with_first(lambda values: np.full_like(values, np.nan)),
    "Inf": with_first(lambda values: np.full_like(values, np.inf)),
    "nothing": lambda _: {"nothing": np.zeros(1, np.float32)},
}


@pytest.mark.parametrize("algorithm", ["sac", "appo"])
@pytest.mark.parametrize("name", [POLICY, LEARNER])
@pytest.mark.parametrize("contents", CONTENTS)
def test_other_tensors_under_a_right_checksum_are_refused(
    runs: dict[str, Path], tmp_path: Path, algorithm: str, name: str, contents: str
) -> None:
    path = copy_of(runs, algorithm, tmp_path / "run") / name
    if contents == "another type" and name == POLICY:
        pytest.skip("torch casts what has the right shape; a policy of zeros is a policy")
    save_file(CONTENTS[contents](load_file(path)), path)
    declare(path.parent)
    refused(tmp_path / "run", path)
    if name == POLICY:
        with pytest.raises(CheckpointError):
            load_policy(tmp_path / "run")


@pytest.mark.parametrize("name", [POLICY, LEARNER, COLLECTOR, REPLAY])
@pytest.mark.parametrize("of", ["appo", "other"])
def test_files_of_another_run_are_refused(runs: dict[str, Path], tmp_path: Path, name: str, of: str) -> None:
    path = copy_of(runs, "sac", tmp_path / "run") / name
    source = (runs[of] / "checkpoints" / "latest").resolve() / name
    if not source.exists():
        pytest.skip("it has no such file")
    shutil.copy(source, path)
    refused(tmp_path / "run", path)
    if of == "appo" and name == COLLECTOR:
        return  # of the same env, so that it would fit if the manifest said it were ours
    declare(path.parent)
    refused(tmp_path / "run", path)


def test_no_pickle_is_ever_read(runs: dict[str, Path], tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "exploded"),)

    for name in names("sac"):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        path = copy_of(runs, "sac", tmp_path / "run") / name
        path.write_bytes(pickle.dumps(Bomb()))
        declare(path.parent)
        refused(tmp_path / "run", path)
        if name == POLICY:
            with pytest.raises(CheckpointError):
                load_policy(tmp_path / "run")
    assert not (tmp_path / "exploded").exists()


def manifest_changes(manifest: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {f"without {key}": without(key)(manifest) for key in manifest}
    for key in manifest:
        for what in (None, "x", -1, [], {"a": 1}):
            if manifest[key] != what and not (what == {"a": 1} and key == "versions"):
                found[f"{key} as {what!r}"] = manifest | {key: what}
    for key in ("tick", "env_steps", "gradient_steps", "weight_version", "format"):
        found[f"{key} one more"] = manifest | {key: manifest[key] + 1}
        found[f"{key} huge"] = manifest | {key: 2**62}
    first, *others = manifest["files"]
    for name in ("../../../metrics.jsonl", "/etc/passwd", "", ".", "..", "a/b", "policy.safetensors\0", "x" * 5000):
        found[f"a file called {name[:9]!r}"] = manifest | {"files": [first | {"name": name}, *others]}
    settings = manifest["settings"]
    found["another seed"] = manifest | {"settings": settings | {"seed": 99}}
    found["another algorithm"] = manifest | {"settings": settings | {"algorithm": {"kind": "td9"}}}
    found["another env"] = manifest | {"spec": manifest["spec"] | {"num_envs": 7}}
    found["other actions"] = manifest | {"spec": manifest["spec"] | {"action_low": [-3.0], "action_high": [3.0]}}
    return found


def harmless(name: str) -> bool:
    """What says nothing about how to go on: names, dates, versions, or how exact the past was."""
    return name.split(" ")[0] in ("run", "created") and name.endswith("'x'")


def test_a_changed_manifest_is_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    checkpoint = copy_of(runs, "sac", tmp_path / "run")
    path = checkpoint / "manifest.json"
    manifest = json.loads(path.read_text())
    changes = {name: changed for name, changed in manifest_changes(manifest).items() if not harmless(name)}
    assert len(changes) > 90
    for name, changed in changes.items():
        path.write_text(json.dumps(changed))
        try:
            error = refused(tmp_path / "run", path)
        except BaseException as other:
            raise AssertionError(name) from other
        assert "Traceback" not in str(error) and len(str(error)) < 20_000, name


@pytest.mark.parametrize(
    "text", ["", "{", "null", "[]", "3", '"x"', "[" * 100_000, '{"format": ' + "9" * 5000 + "}", "\0"]
)
def test_a_manifest_that_is_none_is_refused(runs: dict[str, Path], tmp_path: Path, text: str) -> None:
    path = copy_of(runs, "sac", tmp_path / "run") / "manifest.json"
    path.write_text(text)
    refused(tmp_path / "run", path)
    with pytest.raises(CheckpointError):
        load_policy(tmp_path / "run")


@pytest.mark.parametrize("name", [POLICY, "manifest.json"])
def test_a_warm_start_from_a_changed_checkpoint_is_refused(runs: dict[str, Path], tmp_path: Path, name: str) -> None:
    checkpoint = copy_of(runs, "sac", tmp_path / "source")
    flip(checkpoint / name, 0.6)
    settings = small_settings(INLINE, f"checkpoint.warm_start={tmp_path / 'source'}")
    with pytest.raises(CheckpointError, match="source"):
        asyncio.run(train(settings, tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_an_unchanged_copy_goes_on(runs: dict[str, Path], tmp_path: Path) -> None:
    for algorithm in ("sac", "appo"):
        copy_of(runs, algorithm, tmp_path / algorithm)
        assert asyncio.run(gone_on(tmp_path / algorithm)).state == "completed"
