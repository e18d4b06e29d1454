"""Where metrics records go: metrics.jsonl and TensorBoard, written off the loop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from aiorl.errors import StorageError
from aiorl.telemetry.metrics import Record
from aiorl.telemetry.writer import FileWriter

METRICS_FILE = "metrics.jsonl"
_AXES = ("time", "tick", "env_steps")


class MetricsSinks:
    """One writer for all of a run's metrics, on one axis: env steps."""

    def __init__(self, run_dir: Path, writer: FileWriter, *, tensorboard: bool) -> None:
        self._path, self._writer = run_dir / METRICS_FILE, writer
        self._tensorboard_dir = run_dir / "tensorboard" if tensorboard else None
        self._events: Any = None

    def write(self, record: Record) -> None:
        """Have a record written."""
        self._writer.submit(lambda: self._write(record))

    def cut_back(self, tick: int, env_steps: int) -> None:
        """Drop records after a tick: a resumed run writes them again."""
        self._writer.submit(lambda: self._cut_back(tick, env_steps))

    def close(self) -> None:
        """Have the files closed."""
        self._writer.submit(self._close)

    def _write(self, record: Record) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        if events := self._event_writer():
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.compat.proto.summary_pb2 import Summary

            values = [
                Summary.Value(tag=name, simple_value=value) for name, value in record.items() if name not in _AXES
            ]
            events.add_event(
                Event(wall_time=record["time"], step=int(record["env_steps"]), summary=Summary(value=values))
            )
            events.flush()

    def _cut_back(self, tick: int, env_steps: int) -> None:
        records = read_metrics(self._path)
        kept = [record for record in records if record["tick"] <= tick]
        draft = self._path.with_name(f".{METRICS_FILE}")
        draft.write_text("".join(json.dumps(record) + "\n" for record in kept), encoding="utf-8")
        draft.replace(self._path)
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


def read_metrics(path: Path) -> list[Record]:
    """Read a metrics file; a last line that a kill cut short is left out.

    Raises:
        StorageError: another line is broken.

    """
    records: list[Record] = []
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            records.append({**record, "tick": record["tick"]})
        except (ValueError, KeyError, TypeError):
            if number < len(lines):
                raise StorageError(f"{path}:{number}: is no metrics record") from None
    return records
