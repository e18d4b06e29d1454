"""status.json: how a run is doing, replaced in one step."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aiorl.errors import AiorlError
from aiorl.telemetry.writer import FileWriter

STATUS_FILE = "status.json"


class StatusFile:
    """Written on every change of state and otherwise at most once a second."""

    def __init__(self, run_dir: Path, writer: FileWriter) -> None:
        self._path, self._writer = run_dir / STATUS_FILE, writer
        self._written_at = -float("inf")
        self._content: dict[str, Any] = {
            "state": "starting",
            "env_steps": 0,
            "gradient_steps": 0,
            "tick": 0,
            "seconds": 0.0,
            "workers": [],
            "reproducible": True,
            "error": None,
        }

    def update(self, *, now: bool = False, **content: Any) -> None:
        """Change some of the content; `now` for what cannot wait."""
        self._content |= content
        if now or time.monotonic() - self._written_at >= 1.0:
            self._written_at = time.monotonic()
            text = json.dumps(self._content, indent=2) + "\n"
            self._writer.submit(lambda: self._replace(text))

    def _replace(self, text: str) -> None:
        draft = self._path.with_name(f".{STATUS_FILE}.{os.getpid()}")
        draft.write_text(text, encoding="utf-8")
        draft.replace(self._path)


def worker_entries(workers: Sequence[Any]) -> list[dict[str, Any]]:
    """Return what status.json says of workers."""
    return [{"role": each.role, "index": each.index, "pid": each.pid, "state": each.state} for each in workers]


def error_entry(error: BaseException) -> dict[str, Any]:
    """Return what status.json says of the error that ended a run."""
    worker = None
    if isinstance(error, AiorlError) and error.role:
        worker = {"role": error.role, "index": error.index, "pid": error.pid}
    kind = type(error).__name__ if isinstance(error, AiorlError) else f"bug: {type(error).__name__}"
    return {"type": kind, "message": str(error), "worker": worker}
