"""`checkpoints/best`: whole or absent at every moment, and no checkpoint to go on from."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from aiorl.checkpoint.best import STATISTICS_FILE, BestStore
from aiorl.checkpoint.manifest import read_manifest
from aiorl.checkpoint.store import CheckpointStore
from aiorl.checkpoint.tensors import load_arrays, save_arrays
from aiorl.errors import CheckpointError
from tests.checkpoint.test_store import make_manifest, save

POLICY = "policy.safetensors"


@pytest.fixture
def store(tmp_path: Path) -> BestStore:
    return BestStore(tmp_path / "checkpoints")


def keep(store: BestStore, tick: int, mean: float) -> Path:
    draft = store.begin()
    files = tuple(save_arrays(draft / name, {"x": np.array([tick])}) for name in (POLICY, STATISTICS_FILE))
    return store.commit(draft, make_manifest(tick, files, has_replay=False), {"return_mean": mean})


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def content(store: BestStore) -> tuple[int, int, float]:
    values = load_arrays(store.path / POLICY)["x"]
    return (
        read_manifest(store.path).tick,
        int(values[0]),
        json.loads((store.path / "evaluation.json").read_text())["return_mean"],
    )


def test_one_takes_the_place_of_the_other(store: BestStore) -> None:
    assert store.return_mean() is None
    for tick, mean in ((3, -2.5), (9, 4.0)):
        assert keep(store, tick, mean) == store.path
        assert content(store) == (tick, tick, mean) and store.return_mean() == mean
        assert names(store.path.parent) == {"best"}
        assert names(store.path) == {POLICY, STATISTICS_FILE, "manifest.json", "evaluation.json"}


def test_checkpoints_and_it_leave_each_other_alone(store: BestStore) -> None:
    checkpoints = CheckpointStore(store.path.parent)
    keep(store, 1, 1.0)
    draft = store.begin()
    for tick in (2, 3, 4):
        save(checkpoints, tick, keep=1)
    assert draft.is_dir() and content(store) == (1, 1, 1.0)
    assert checkpoints.newest_whole().path.name == "4"
    store.discard_draft()
    store.discard_draft()
    assert names(store.path.parent) == {"4", "latest", "best"}
    for path in (store.path.parent / "4").iterdir():
        path.unlink()
    with pytest.raises(CheckpointError, match="no whole checkpoint to go on from"):
        checkpoints.newest_whole()


def test_killed_between_the_old_and_the_new_the_old_one_stands(
    store: BestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(store, 3, 2.0)
    rename = Path.rename

    def killed(self: Path, target: Path) -> Path:
        if self.name.endswith("-draft"):
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        keep(store, 4, 5.0)
    monkeypatch.undo()
    assert not store.path.exists()
    assert store.return_mean() == 2.0 and content(store) == (3, 3, 2.0)
    keep(store, 5, 6.0)
    assert content(store) == (5, 5, 6.0) and names(store.path.parent) == {"best"}


def test_killed_before_the_old_one_is_gone_the_new_one_stands(
    store: BestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(store, 3, 2.0)

    def killed(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            keep(store, 4, 5.0)
    assert content(store) == (4, 4, 5.0)
    assert store.return_mean() == 5.0 and names(store.path.parent) == {"best"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("evaluation.json", "{}"),
        ("evaluation.json", '{"return_mean": NaN}'),
        ("evaluation.json", "[1"),
        ("evaluation.json", '{"return_mean": [1]}'),
        ("manifest.json", "{}"),
        (POLICY, ""),
    ],
)
def test_what_is_broken_is_named(store: BestStore, name: str, text: str) -> None:
    keep(store, 3, 2.0)
    (store.path / name).write_text(text)
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        store.return_mean()


def test_a_file_that_a_worker_did_not_write_is_no_best(store: BestStore) -> None:
    keep(store, 3, 2.0)
    draft = store.begin()
    record = save_arrays(draft / POLICY, {"x": np.array([4])})
    (draft / POLICY).unlink()
    with pytest.raises(CheckpointError, match="missing"):
        store.commit(draft, make_manifest(4, (record,)), {"return_mean": 5.0})
    assert content(store) == (3, 3, 2.0)
