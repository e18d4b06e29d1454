"""One trace of a run out of what its processes recorded, in the Trace Event Format that Perfetto and Chrome open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from aiorl.errors import StorageError
from aiorl.telemetry.trace.slices import SUFFIX, Slice, read_slices

TRACE_FILE = "trace.json"
PARTS_FOLDER = "trace"
_RANK = {"coordinator": 1, "learner": 2, "evaluator": 3, "collector": 10}


class Event(msgspec.Struct, omit_defaults=True):
    """One entry of a trace file; times in microseconds, `tdur` is the thread's CPU time."""

    name: str
    ph: str
    pid: int
    tid: int = 0
    ts: float | None = None
    dur: float = 0.0
    tdur: float = 0.0
    cat: str = ""
    id: str = ""
    bp: str = ""
    args: dict[str, Any] = {}


class TraceFile(msgspec.Struct):
    """A whole trace file."""

    traceEvents: list[Event]  # noqa: N815  # the format's own word
    displayTimeUnit: str = "ms"  # noqa: N815


class Recorded(NamedTuple):
    """Slices of one thread of one process: `process` such as `collector 0`, `thread` what tells its threads apart."""

    process: str
    thread: str
    slices: list[Slice]


def part_stem(run_dir: Path, role: str, index: int, incarnation: int) -> Path:
    """Return where a process keeps its slices, without what tells its files apart."""
    return run_dir / PARTS_FOLDER / f"{role}-{index}-{incarnation}"


def merge(run_dir: Path) -> bool:
    """Write `trace.json` from what the processes have recorded so far; return whether there was something.

    Half-written frames of processes that were killed are left out.
    """
    parts = sorted((run_dir / PARTS_FOLDER).glob(f"*{SUFFIX}"), key=_order)
    first = min((slices[0].begin_ns for part in parts for slices in _first_frame(part)), default=None)
    if first is None:
        return False
    path = run_dir / TRACE_FILE
    draft = path.with_name(f".{TRACE_FILE}")
    encoder = msgspec.json.Encoder()
    with draft.open("wb") as file:
        file.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
        separator = b""
        for events in _events(parts, first):
            file.write(separator + b",\n".join(encoder.encode(event) for event in events))
            separator = b",\n"
        file.write(b"\n]}\n")
    draft.replace(path)
    return True


def read_trace(path: Path) -> list[Recorded]:
    """Read a trace file back; times count from its first slice.

    Raises:
        StorageError: it is none, or broken.

    """
    try:
        events = msgspec.json.decode(path.read_bytes(), type=TraceFile).traceEvents
    except FileNotFoundError:
        raise StorageError(f"{path}: no such trace; a run records one with telemetry.trace=true") from None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StorageError(f"{path}: is no trace: {error}") from error
    names = {(e.name, e.pid, e.tid): str(e.args.get("name")) for e in events if e.ph == "M"}
    found: dict[tuple[int, int], Recorded] = {}
    for event in events:
        if event.ph != "X":
            continue
        key, ts = (event.pid, event.tid), event.ts or 0.0
        if key not in found:
            process = names.get(("process_name", event.pid, 0), str(event.pid))
            found[key] = Recorded(process, names.get(("thread_name", *key), ""), [])
        begin, end = round(ts * 1000), round((ts + event.dur) * 1000)
        request, tick = str(event.args.get("request", "")), event.args.get("tick", 0)
        found[key].slices.append(Slice(event.name, request, int(tick), begin, end, round(event.tdur * 1000)))
    return list(found.values())


def _events(parts: list[Path], first: int) -> Iterator[list[Event]]:
    """Yield the events of all processes, in pieces."""
    threads: dict[tuple[int, str], int] = {}
    for part in parts:
        role, index, incarnation = _whose(part)
        pid = _RANK.get(role, 9) + (index if role == "collector" else 0)
        process = role if role == "coordinator" else f"{role} {index}"
        yield [
            Event("process_name", "M", pid, args={"name": process}),
            Event("process_sort_index", "M", pid, args={"sort_index": pid}),
        ]
        for slices in read_slices(part):
            events: list[Event] = []
            for each in slices:
                thread = each.track or ("main" if incarnation == 0 else f"replacement {incarnation}")
                if (tid := threads.get((pid, thread))) is None:
                    tid = threads[pid, thread] = len([key for key in threads if key[0] == pid]) + 1
                    events.append(Event("thread_name", "M", pid, tid, args={"name": thread}))
                events += _of_slice(each, pid, tid, process, first)
            yield events


def _of_slice(each: Slice, pid: int, tid: int, process: str, first: int) -> Iterator[Event]:
    ts, end = (each.begin_ns - first) / 1000, (each.end_ns - first) / 1000
    args = {"request": each.request, "tick": each.tick}
    yield Event(
        each.name, "X", pid, tid, ts, (each.end_ns - each.begin_ns) / 1000, each.cpu_ns / 1000, each.request, args=args
    )
    # An arrow from the coordinator's request to where the worker takes it up.
    whose = f"/{each.request}/{each.tick}"
    if each.tick and each.track and each.name == each.request:
        yield Event("request", "s", pid, tid, ts, cat="request", id=each.track + whose)
    elif each.tick and each.name == "wait":
        yield Event("request", "f", pid, tid, end + 0.001, cat="request", id=process + whose, bp="e")


def _first_frame(part: Path) -> Iterable[list[Slice]]:
    return [slices for slices in [next(read_slices(part), [])] if slices]


def _whose(part: Path) -> tuple[str, int, int]:
    role, index, incarnation = part.name.split(".")[0].split("-")
    return role, int(index), int(incarnation)


def _order(part: Path) -> tuple[int, int, int, int]:
    role, index, incarnation = _whose(part)
    return _RANK.get(role, 9), index, incarnation, int(part.name.split(".")[1])
