"""Logging: structlog over the standard library's loggers, never a global configuration.

A host sees ordinary records of the loggers below `aiorl`; the command line formats them (`configure_cli`),
and every run also keeps them in its own log.jsonl.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, WrappedLogger

from aiorl.protocol import LogLine
from aiorl.telemetry.writer import FileWriter

_LEVELS = logging.getLevelNamesMapping()
_RESERVED = {"event", "level", "worker", "pid", "self", "method_name"}
"""Names that a worker's own fields cannot have as they are."""


class RunLog:
    """The log of one run; what its workers say is rendered alike, with role and pid."""

    def __init__(self, sink: Callable[[EventDict], None] | None = None, **context: Any) -> None:
        def keep(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
            if sink is not None:
                sink(dict(event))
            return event

        self._sink = sink
        self._logger: Any = structlog.wrap_logger(
            logging.getLogger("aiorl.run"),
            processors=[structlog.stdlib.add_log_level, keep, _to_record],
            wrapper_class=structlog.stdlib.BoundLogger,
            **context,
        )

    def info(self, event: str, **fields: Any) -> None:
        """Say what happened."""
        self._logger.info(event, **fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Say what somebody should look at."""
        self._logger.warning(event, **fields)

    def keep(self, event: str, **fields: Any) -> None:
        """Write to the run's own file only: for what reaches the host in another way."""
        if self._sink is not None:
            self._sink({"event": event, "level": "error", **fields})

    def from_worker(self, role: str, index: int, pid: int | None, line: LogLine) -> None:
        """Pass a worker's line on."""
        level = _LEVELS.get(line.level.upper()) or logging.INFO
        fields = {f"{name}_" if name in _RESERVED else name: value for name, value in line.fields}
        self._logger.log(level, line.event, worker=f"{role} {index}", pid=pid, **fields)


def jsonl_sink(path: Path, writer: FileWriter) -> Callable[[EventDict], None]:
    """Return a sink that appends each event to a file, off the loop."""

    def append(event: EventDict) -> None:
        line = json.dumps({"time": datetime.now(UTC).isoformat(), **event}, default=str)

        def write() -> None:
            with path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")

        writer.submit(write)

    return append


class _CurrentStderr(logging.StreamHandler[TextIO]):
    """Writes to whatever stderr is now: the live view redirects it to keep its panel whole."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def configure_cli(level: int = logging.WARNING) -> None:
    """Format the records of `aiorl` for a person at a terminal; the command line's process only."""
    formatter = structlog.stdlib.ProcessorFormatter(
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=0),
        ],
        foreign_pre_chain=[structlog.stdlib.add_log_level, _fields_of_record],
    )
    handler = _CurrentStderr()
    handler.setFormatter(formatter)
    logger = logging.getLogger("aiorl")
    logger.handlers[:] = [handler]
    logger.setLevel(level)
    logger.propagate = False


def _to_record(_: WrappedLogger, __: str, event: EventDict) -> Any:
    """Make a plain record: its message readable by any formatter, the fields beside it."""
    fields = {name: value for name, value in event.items() if name not in ("event", "level")}
    text = " ".join([str(event["event"]), *(f"{name}={value}" for name, value in fields.items())])
    return (text,), {"extra": {"aiorl_event": event["event"], "aiorl_fields": fields}}


def _fields_of_record(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    record = event.get("_record")
    if record is not None and hasattr(record, "aiorl_event"):
        event["event"] = record.aiorl_event
        event |= record.aiorl_fields
    return event
