"""The trace of one run while it goes on."""

from __future__ import annotations

import shutil
from pathlib import Path

from aiorl.settings.sections import TelemetrySettings
from aiorl.telemetry.trace.merging import PARTS_FOLDER, merge, part_stem
from aiorl.telemetry.trace.slices import CoordinatorTrace, SliceFile
from aiorl.telemetry.writer import FileWriter


class RunTrace:
    """Says where each process records its slices, and makes one trace of them at the end."""

    def __init__(self, run_dir: Path, settings: TelemetrySettings, writer: FileWriter) -> None:
        self._run_dir, self._most, self._writer = run_dir, settings.trace_slices, writer
        self._own = self.file("coordinator", 0, 0)
        self.coordinator = CoordinatorTrace(self._own, writer.submit)

    def file(self, role: str, index: int, incarnation: int) -> SliceFile:
        """Return where a process records its slices."""
        return SliceFile(part_stem(self._run_dir, role, index, incarnation), self._most)

    @property
    def failure(self) -> OSError | None:
        """Why slices could not be written, if so."""
        return self._own.failure

    def prepare(self) -> None:
        """Make room for a new trace; what an aborted run left goes."""
        shutil.rmtree(self._run_dir / PARTS_FOLDER, ignore_errors=True)
        (self._run_dir / PARTS_FOLDER).mkdir()

    def finish(self) -> None:
        """Have all slices merged, once every process has ended."""
        self.coordinator.close()
        self._writer.submit(self._merge)

    def _merge(self) -> None:
        try:
            merge(self._run_dir)
            shutil.rmtree(self._run_dir / PARTS_FOLDER)
        except OSError as error:  # the parts stay, for `aiorl trace` to make something of
            self._own.failure = self._own.failure or error
