from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from aiorl.errors import StorageError
from aiorl.protocol import CollectChunk, Stop
from aiorl.telemetry.trace import slices as module
from aiorl.telemetry.trace.merging import merge, part_stem, read_trace
from aiorl.telemetry.trace.slices import CoordinatorTrace, Slice, SliceFile, WorkerTrace, read_slices


def numbered(first: int, count: int) -> list[Slice]:
    return [Slice("env_step", "CollectChunk", 1, n, n + 1, 1) for n in range(first, first + count)]


def kept(folder: Path) -> list[int]:
    return sorted(each.begin_ns for path in folder.glob("*.slices") for slices in read_slices(path) for each in slices)


def test_the_newest_slices_are_kept_and_the_oldest_go(tmp_path: Path) -> None:
    file = SliceFile(tmp_path / "collector-0-0", most=20)
    for first in range(0, 100, 5):
        file.append(numbered(first, 5))
        assert len(kept(tmp_path)) <= 20
    assert kept(tmp_path) == list(range(80, 100))
    assert len(list(tmp_path.iterdir())) == 2


def test_half_a_frame_at_the_end_is_left_out(tmp_path: Path) -> None:
    file = SliceFile(tmp_path / "collector-0-0", most=100)
    file.append(numbered(0, 3))
    file.append(numbered(3, 3))
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    for length in range(len(whole) // 2, len(whole)):
        path.write_bytes(whole[:length])
        assert kept(tmp_path) == [0, 1, 2]


def test_a_disk_that_is_full_ends_the_trace_and_nothing_else(tmp_path: Path) -> None:
    file = SliceFile(tmp_path / "gone" / "collector-0-0", most=100)
    file.append(numbered(0, 3))
    assert isinstance(file.failure, FileNotFoundError)
    (tmp_path / "gone").mkdir()
    file.append(numbered(3, 3))
    assert kept(tmp_path / "gone") == []


def test_every_moment_of_a_worker_is_in_one_slice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, cpu = itertools.count(100, 10), itertools.count(0, 3)
    monkeypatch.setattr(module, "perf_counter_ns", lambda: next(clock))
    monkeypatch.setattr(module, "thread_time_ns", lambda: next(cpu))
    trace = WorkerTrace(SliceFile(tmp_path / "collector-0-0", most=100))
    trace.replied()  # the start
    trace.received(CollectChunk(tick=7, steps=1, weights=0, weight_version=3, uniform=False))
    trace.mark("env_step")
    trace.replied()
    trace.received(Stop())
    trace.replied()
    trace.close()
    (slices,) = read_slices(tmp_path / "collector-0-0.0.slices")
    assert slices == [
        Slice("start", "Start", 0, 100, 110, 3),
        Slice("wait", "CollectChunk", 7, 110, 120, 3),
        Slice("env_step", "CollectChunk", 7, 120, 130, 3),
        Slice("reply", "CollectChunk", 7, 130, 140, 3),
        Slice("wait", "Stop", 0, 140, 150, 3),
        Slice("stop", "Stop", 0, 150, 160, 3),
    ]


def test_a_merged_trace_is_what_its_format_says(tmp_path: Path) -> None:
    (tmp_path / "trace").mkdir()
    own = CoordinatorTrace(SliceFile(part_stem(tmp_path, "coordinator", 0, 0), 100), lambda write: write())
    own._slices.append(Slice("CollectChunk", "CollectChunk", 7, 1_000_000, 1_009_000, 500, "collector 1"))
    own.close()
    worker = SliceFile(part_stem(tmp_path, "collector", 1, 0), 100)
    worker.append([Slice("wait", "CollectChunk", 7, 1_000_500, 1_002_000, 250)])
    worker.append([Slice("env_step", "CollectChunk", 7, 1_002_000, 1_008_000, 5_999)])
    SliceFile(part_stem(tmp_path, "collector", 1, 1), 100).append([Slice("start", "Start", 0, 1_010_000, 1_012_000, 1)])
    assert merge(tmp_path)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert spans[0] | {"args": None} == {
        "name": "CollectChunk", "ph": "X", "pid": 1, "tid": 1, "ts": 0.0, "dur": 9.0, "tdur": 0.5,
        "cat": "CollectChunk", "args": None,
    }  # fmt: skip
    assert [(event["name"], event["ts"], event["dur"], event["tdur"]) for event in spans[1:]] == [
        ("wait", 0.5, 1.5, 0.25),
        ("env_step", 2.0, 6.0, 5.999),
        ("start", 10.0, 2.0, 0.001),
    ]
    assert spans[2]["args"] == {"request": "CollectChunk", "tick": 7}
    arrow = [(event["ph"], event["pid"], event["id"]) for event in events if event["ph"] in "sf"]
    assert arrow == [("s", 1, "collector 1/CollectChunk/7"), ("f", 11, "collector 1/CollectChunk/7")]
    names = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert names == {(1, 1): "collector 1", (11, 1): "main", (11, 2): "replacement 1"}
    read = {(each.process, each.thread): each.slices for each in read_trace(tmp_path / "trace.json")}
    assert read["collector 1", "main"] == [
        Slice("wait", "CollectChunk", 7, 500, 2_000, 250),
        Slice("env_step", "CollectChunk", 7, 2_000, 8_000, 5_999),
    ]


def test_nothing_recorded_gives_no_trace(tmp_path: Path) -> None:
    (tmp_path / "trace").mkdir()
    (tmp_path / "trace" / "collector-0-0.0.slices").write_bytes(b"\x01")
    assert not merge(tmp_path)
    assert not (tmp_path / "trace.json").exists()


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"traceEvents": 3}', b"\xff", b'{"traceEvents": [{"ph": 1}]}'])
def test_a_broken_trace_is_a_storage_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "trace.json").write_bytes(content)
    with pytest.raises(StorageError, match=r"trace\.json"):
        read_trace(tmp_path / "trace.json")
