"""The checkpoints folder: whole or absent, the newest with its replay, the rest in order."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from aiorl.checkpoint.manifest import FORMAT, MANIFEST, Manifest, read_manifest, write_manifest
from aiorl.checkpoint.store import CheckpointStore
from aiorl.checkpoint.tensors import load_arrays, save_arrays
from aiorl.errors import CheckpointError
from aiorl.protocol import EnvSpec, FileRecord, Group

FILES = ("policy", "learner", "collector-0", "replay-0", "replay-1")
ON_POLICY = ("policy", "learner", "collector-0", "collector-1")


def make_manifest(tick: int, files: tuple[FileRecord, ...], **changes: Any) -> Manifest:
    manifest = Manifest(
        format=FORMAT,
        run="test",
        tick=tick,
        env_steps=16 * tick,
        gradient_steps=2 * tick,
        weight_version=tick,
        previous_versions=(max(0, tick - 1),),
        replay_from_env_steps=0,
        seconds=1.5,
        created="2026-01-01T00:00:00+00:00",
        exact=True,
        reproducible=True,
        has_replay=True,
        settings={"seed": 0, "env": {"id": "x"}},
        spec=EnvSpec(2, (Group("policy", 3),), (-1.0,), (1.0,), saves_state=True),
        versions={"aiorl": "0"},
        files=files,
    )
    return msgspec.structs.replace(manifest, **changes)


def write_draft(
    store: CheckpointStore, tick: int, value: float | None = None, wanted: tuple[str, ...] = FILES
) -> tuple[Path, tuple[FileRecord, ...]]:
    draft = store.begin(tick)
    content = np.array([tick if value is None else value])
    return draft, tuple(save_arrays(draft / f"{name}.safetensors", {"x": content}) for name in wanted)


def save(
    store: CheckpointStore,
    tick: int,
    keep: int = 3,
    value: float | None = None,
    wanted: tuple[str, ...] = FILES,
    **changes: Any,
) -> Path:
    draft, files = write_draft(store, tick, value, wanted)
    return store.commit(draft, make_manifest(tick, files, **changes), keep)


def content(path: Path, name: str = "policy") -> float:
    return float(load_arrays(path / f"{name}.safetensors")["x"][0])


def names(store: CheckpointStore) -> list[str]:
    return sorted(os.listdir(store.folder))


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "run" / "checkpoints")


def test_a_committed_draft_is_the_newest_whole_checkpoint(store: CheckpointStore) -> None:
    path = save(store, 12)

    found = store.newest_whole()
    assert path == store.folder / "12"
    assert (found.path, found.is_newest, found.skipped) == (path, True, ())
    assert found.manifest == read_manifest(path)
    assert (found.manifest.tick, found.manifest.has_replay) == (12, True)
    assert sorted(os.listdir(path)) == sorted([MANIFEST, *(f"{name}.safetensors" for name in FILES)])
    assert names(store) == ["12", "latest"]


def test_a_manifest_comes_back_as_it_was(tmp_path: Path) -> None:
    manifest = make_manifest(3, (), settings={"a": [1, 2.5, None, True], "b": {"c": "d"}}, exact=False)

    write_manifest(tmp_path, manifest)

    assert read_manifest(tmp_path) == manifest
    assert os.listdir(tmp_path) == [MANIFEST]
    assert json.loads((tmp_path / MANIFEST).read_text())["tick"] == 3  # for people and other programs, too


def test_latest_is_a_relative_link_to_the_newest(store: CheckpointStore) -> None:
    link = store.folder / "latest"
    for tick in (2, 10, 11):
        save(store, tick)
        assert os.readlink(link) == str(tick)
    moved = store.folder.parent.rename(store.folder.parent.with_name("moved"))

    assert content(moved / "checkpoints" / "latest") == 11


def test_keep_counts_ticks_as_numbers(store: CheckpointStore) -> None:
    for tick in (8, 9, 10, 100, 101):
        save(store, tick, keep=3)

    assert [path.name for path in store.paths()] == ["10", "100", "101"]
    assert names(store) == ["10", "100", "101", "latest"]


def test_keeping_one_keeps_the_newest(store: CheckpointStore) -> None:
    for tick in (1, 2, 3):
        save(store, tick, keep=1)
        assert names(store) == sorted([str(tick), "latest"])
        assert store.newest_whole().manifest.tick == tick


def test_only_the_newest_holds_the_replay_and_the_others_say_so(store: CheckpointStore) -> None:
    for tick in (1, 2, 3):
        save(store, tick)

    for tick in (1, 2):
        path = store.folder / str(tick)
        manifest = read_manifest(path)  # still whole
        assert manifest.has_replay is False
        assert not list(path.glob("replay-*"))
        assert [file.name for file in manifest.files] == [f"{name}.safetensors" for name in FILES[:3]]
        assert content(path) == tick
    newest = store.newest_whole()
    assert newest.manifest.has_replay is True
    assert [content(newest.path, name) for name in ("replay-0", "replay-1")] == [3, 3]


@pytest.mark.parametrize("exact", [True, False])
def test_a_checkpoint_without_a_replay_of_its_own_stays_as_it_was(store: CheckpointStore, exact: bool) -> None:
    versions = {"previous_versions": (1, 2, 3), "weight_version": 4, "exact": exact}
    path = save(store, 4, wanted=ON_POLICY, **versions)
    before = {file.name: file.read_bytes() for file in path.iterdir()}

    for tick in (5, 6):
        save(store, tick, wanted=ON_POLICY)

    assert {file.name: file.read_bytes() for file in path.iterdir()} == before
    manifest = read_manifest(path)
    assert (manifest.has_replay, manifest.exact, manifest.previous_versions) == (True, exact, (1, 2, 3))
    assert [file.name for file in manifest.files] == [f"{name}.safetensors" for name in ON_POLICY]
    shutil.rmtree(store.folder / "6")
    shutil.rmtree(store.folder / "5")
    assert store.newest_whole().manifest == manifest  # whoever goes on from it misses nothing


def test_a_folder_that_is_not_there_holds_nothing(store: CheckpointStore) -> None:
    assert store.paths() == []
    store.discard_drafts()
    with pytest.raises(CheckpointError, match=r"no whole checkpoint to go on from$"):
        store.newest_whole()


# Killed saves


def test_a_draft_is_never_taken_for_a_checkpoint(store: CheckpointStore) -> None:
    save(store, 1)
    draft, files = write_draft(store, 2)  # killed before its manifest
    assert store.newest_whole().manifest.tick == 1
    write_manifest(draft, make_manifest(2, files))  # killed just before the last step

    found = store.newest_whole()

    assert (found.manifest.tick, found.is_newest, found.skipped) == (1, True, ())
    assert [path.name for path in store.paths()] == ["1"]
    assert os.readlink(store.folder / "latest") == "1"


def test_drafts_of_killed_saves_vanish_with_the_next(store: CheckpointStore) -> None:
    for tick in (1, 2, 3):
        write_draft(store, tick)  # begun, never committed
        assert len(names(store)) == 1

    save(store, 4)

    assert names(store) == ["4", "latest"]


def test_drafts_can_be_discarded_by_hand(store: CheckpointStore) -> None:
    save(store, 1)
    write_draft(store, 2)

    store.discard_drafts()

    assert names(store) == ["1", "latest"]


def test_a_draft_starts_empty(store: CheckpointStore) -> None:
    write_draft(store, 5)

    assert os.listdir(store.begin(5)) == []


def test_saving_a_tick_again_replaces_it(store: CheckpointStore) -> None:
    save(store, 6)
    save(store, 7, value=1.0)

    save(store, 7, value=2.0)

    assert names(store) == ["6", "7", "latest"]
    assert content(store.folder / "7") == 2
    assert store.newest_whole().manifest.has_replay
    assert os.readlink(store.folder / "latest") == "7"


class Killed(BaseException):
    """What a SIGKILL would be, at a place of our choice."""


def kill_at(monkeypatch: pytest.MonkeyPatch, nth: int) -> list[str]:
    """Let the nth call that changes the folder never return, nor any later one; list the calls."""
    calls: list[str] = []

    def guard(name: str, real: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            calls.append(name)
            if len(calls) >= nth:
                raise Killed(name)
            return real(*arguments, **options)

        return call

    for name in ("rename", "replace", "symlink_to", "unlink"):
        monkeypatch.setattr(Path, name, guard(name, getattr(Path, name)))
    monkeypatch.setattr(shutil, "rmtree", guard("rmtree", shutil.rmtree))
    return calls


def killed_save(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, tick: int, keep: int, nth: int) -> None:
    draft, files = write_draft(store, tick, value=2.0)
    with monkeypatch.context() as patch:
        calls = kill_at(patch, nth)
        try:
            store.commit(draft, make_manifest(tick, files), keep)
        except Killed:
            assert len(calls) == nth


@pytest.mark.parametrize("again", [False, True], ids=["a new tick", "the same tick again"])
@pytest.mark.parametrize("keep", [1, 2])
@pytest.mark.parametrize("nth", range(1, 12))
def test_a_kill_at_any_step_of_a_commit_leaves_a_whole_checkpoint(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, nth: int, keep: int, again: bool
) -> None:
    save(store, 1, keep, value=1.0)
    killed_save(store, monkeypatch, 1 if again else 2, keep, nth)

    found = store.newest_whole()  # now, as `resume` would look for it
    assert found.manifest.has_replay
    assert content(found.path) in (1.0, 2.0)
    assert content(found.path, "replay-1") == content(found.path)
    store.begin(9)  # and after the next save has begun
    assert store.newest_whole().manifest == found.manifest
    save(store, 9, keep=1)
    assert names(store) == ["9", "latest"]


@pytest.mark.parametrize("nth", range(1, 12))
def test_replays_that_a_killed_save_did_not_remove_go_with_the_next(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    save(store, 1)
    killed_save(store, monkeypatch, 2, keep=3, nth=nth)

    save(store, 3)

    assert {path.parent.name for path in store.folder.glob("*/replay-*") if path.parent.name != "latest"} == {"3"}


# Broken ones


def break_it(path: Path, how: str) -> None:
    manifest, file = path / MANIFEST, path / "learner.safetensors"
    data = json.loads(manifest.read_bytes())
    match how:
        case "truncated file":
            file.write_bytes(file.read_bytes()[:-1])
        case "longer file":
            file.write_bytes(file.read_bytes() + b"x")
        case "missing file":
            file.unlink()
        case "no manifest":
            manifest.unlink()
        case "empty manifest":
            manifest.write_bytes(b"")
        case "truncated manifest":
            manifest.write_bytes(manifest.read_bytes()[:-30])
        case "no JSON":
            manifest.write_bytes(b"\x80\xff not JSON")
        case "a list":
            manifest.write_bytes(b"[1, 2]")
        case "a number":
            manifest.write_bytes(b"7")
        case "foreign":
            manifest.write_text(json.dumps({"name": "somebody else's manifest", "version": 3}))
        case "older format":
            manifest.write_text(json.dumps(data | {"format": FORMAT - 1, "previous_version": 2}))
        case "newer format":
            manifest.write_text(json.dumps(data | {"format": FORMAT + 1, "something": "new"}))
        case "unknown key":
            manifest.write_text(json.dumps(data | {"surprise": 1}))
        case "missing key":
            del data["weight_version"]
            manifest.write_text(json.dumps(data))
        case "wrong type":
            manifest.write_text(json.dumps(data | {"tick": "three"}))
        case "one previous version":
            manifest.write_text(json.dumps(data | {"previous_versions": 2}))
        case "a file":
            for each in path.iterdir():
                each.unlink()
            path.rmdir()
            path.write_text("not even a folder")


SENTENCES = {
    "truncated file": r"learner\.safetensors: has \d+ bytes, not \d+",
    "longer file": r"learner\.safetensors: has \d+ bytes, not \d+",
    "missing file": r"learner\.safetensors: missing",
    "no manifest": r"no checkpoint: manifest\.json cannot be read",
    "empty manifest": r"manifest\.json: is no manifest",
    "truncated manifest": r"manifest\.json: is no manifest",
    "no JSON": r"manifest\.json: is no manifest",
    "a list": r"manifest\.json: is no manifest",
    "a number": r"manifest\.json: is no manifest",
    "foreign": r"manifest\.json: has format None; this version reads 3",
    "older format": r"manifest\.json: has format 2; this version reads 3",
    "newer format": r"manifest\.json: has format 4; this version reads 3",
    "unknown key": r"manifest\.json: is no manifest.*surprise",
    "missing key": r"manifest\.json: is no manifest.*weight_version",
    "wrong type": r"manifest\.json: is no manifest.*tick",
    "one previous version": r"manifest\.json: is no manifest.*previous_versions",
    "a file": r"no checkpoint: manifest\.json cannot be read",
}


@pytest.mark.parametrize("how", SENTENCES)
def test_a_broken_checkpoint_is_refused_in_a_sentence(store: CheckpointStore, how: str) -> None:
    path = save(store, 3)
    break_it(path, how)

    with pytest.raises(CheckpointError, match=SENTENCES[how]) as caught:
        read_manifest(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("how", SENTENCES)
def test_a_broken_newest_is_skipped_with_a_sentence(store: CheckpointStore, how: str) -> None:
    save(store, 2)
    break_it(save(store, 3), how)

    found = store.newest_whole()

    assert (found.manifest.tick, found.is_newest) == (2, False)
    assert len(found.skipped) == 1
    assert found.skipped[0].startswith(str(store.folder / "3"))


def test_only_broken_ones_are_no_checkpoint_and_each_is_named(store: CheckpointStore) -> None:
    for tick in (2, 3):
        save(store, tick)
    for tick, how in ((2, "missing file"), (3, "no JSON")):
        break_it(store.folder / str(tick), how)

    with pytest.raises(CheckpointError, match=r"no whole checkpoint to go on from .*3/manifest.*2/learner"):
        store.newest_whole()


@pytest.mark.parametrize("keep", [1, 2])
def test_a_run_that_went_on_from_before_a_broken_one_keeps_what_it_saves(store: CheckpointStore, keep: int) -> None:
    save(store, 10)
    break_it(save(store, 20), "truncated file")
    assert store.newest_whole().manifest.tick == 10

    path = save(store, 15, keep=keep)  # resumed from 10, and stopped before 20

    found = store.newest_whole()
    assert (found.path, found.manifest.has_replay) == (path, True)
    assert content(store.folder / "latest") == 15
    save(store, 16, keep=keep)
    assert store.newest_whole().manifest.tick == 16


def test_saving_over_a_broken_checkpoint_of_the_same_tick(store: CheckpointStore) -> None:
    save(store, 2)
    break_it(save(store, 3, value=1.0), "missing file")

    save(store, 3, value=2.0)

    assert store.newest_whole().is_newest
    assert content(store.folder / "3") == 2


def test_a_broken_older_checkpoint_does_not_stop_a_save(store: CheckpointStore) -> None:
    break_it(save(store, 1), "no JSON")

    save(store, 2)

    assert store.newest_whole().manifest.tick == 2


def test_equal_states_give_equal_files(tmp_path: Path) -> None:
    paths = [save(CheckpointStore(tmp_path / run), 4) for run in ("a", "b")]

    for name in os.listdir(paths[0]):
        assert (paths[0] / name).read_bytes() == (paths[1] / name).read_bytes(), name


def test_strangers_in_the_folder_are_left_alone(store: CheckpointStore) -> None:
    save(store, 1)
    (store.folder / "notes.txt").write_text("mine")
    (store.folder / "best").mkdir()
    (store.folder / "-5").mkdir()

    for tick in (2, 3):
        save(store, tick, keep=1)

    assert names(store) == sorted(["-5", "3", "best", "latest", "notes.txt"])
