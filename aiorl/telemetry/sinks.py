"""Where metrics records go: metrics.jsonl and TensorBoard, written off the loop."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aiorl.errors import StorageError
from aiorl.telemetry.metrics import Record
from aiorl.telemetry.writer import FileWriter

METRICS_FILE, EVALUATIONS_FILE = "metrics.jsonl", "evaluations.jsonl"
_AXES = ("time", "tick", "env_steps")


class MetricsSinks:
    """One writer for all of a run's metrics, and of its evaluations on the way, on one axis: env steps."""

    def __init__(self, run_dir: Path, writer: FileWriter, *, tensorboard: bool) -> None:
        self._path, self._evaluations, self._writer = run_dir / METRICS_FILE, run_dir / EVALUATIONS_FILE, writer
        self._tensorboard_dir = run_dir / "tensorboard" if tensorboard else None
        self._events: Any = None

    def write(self, record: Record) -> None:
        """Have a record written."""
        self._writer.submit(lambda: self._write(record))

    def write_evaluation(self, record: Mapping[str, Any]) -> None:
        """Have the record of an evaluation written, which names its own axes as a metrics record does."""
        self._writer.submit(lambda: self._write_evaluation(record))

    def cut_back(self, tick: int, env_steps: int) -> None:
        """Drop records after a tick: a resumed run writes them again."""
        self._writer.submit(lambda: self._cut_back(tick, env_steps))

    def close(self) -> None:
        """Have the files closed."""
        self._writer.submit(self._close)

    def _write(self, record: Record) -> None:
        _append(self._path, record)
        self._write_scalars(record, {name: value for name, value in record.items() if name not in _AXES})

    def _write_evaluation(self, record: Mapping[str, Any]) -> None:
        _append(self._evaluations, record)
        self._write_scalars(record, {f"evaluation/{name}": record[name] for name in ("return_mean", "length_mean")})

    def _write_scalars(self, record: Mapping[str, Any], scalars: Mapping[str, float]) -> None:
        if events := self._event_writer():
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.compat.proto.summary_pb2 import Summary

            values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
            events.add_event(
                Event(wall_time=record["time"], step=int(record["env_steps"]), summary=Summary(value=values))
            )
            events.flush()

    def _cut_back(self, tick: int, env_steps: int) -> None:
        _cut_back(self._path, tick)
        if self._evaluations.exists():
            _cut_back(self._evaluations, tick)
        if events := self._event_writer():
            import time

            from tensorboard.compat.proto.event_pb2 import Event, SessionLog

            # TensorBoard drops what earlier files have from this step on.
            start = SessionLog(status=SessionLog.START)
            events.add_event(Event(wall_time=time.time(), step=env_steps + 1, session_log=start))

    def _event_writer(self) -> Any:
        if self._tensorboard_dir is not None and self._events is None:
            from tensorboard.summary.writer.event_file_writer import EventFileWriter

            self._events = EventFileWriter(str(self._tensorboard_dir))
        return self._events

    def _close(self) -> None:
        if self._events is not None:
            self._events.close()
            self._events = None


def _append(path: Path, record: Mapping[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def _cut_back(path: Path, tick: int) -> None:
    kept = [record for record in read_metrics(path) if record["tick"] <= tick]
    draft = path.with_name(f".{path.name}")
    draft.write_text("".join(json.dumps(record) + "\n" for record in kept), encoding="utf-8")
    draft.replace(path)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read a file of records, metrics or evaluations; a last line that a kill cut short is left out.

    Raises:
        StorageError: another line is broken.

    """
    records: list[dict[str, Any]] = []
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            records.append({**record, "tick": record["tick"]})
        except (ValueError, KeyError, TypeError):
            if number < len(lines):
                raise StorageError(f"{path}:{number}: is no metrics record") from None
    return records
