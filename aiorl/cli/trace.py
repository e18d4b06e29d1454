"""`aiorl trace`."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from aiorl.coordinator.directory import require_run
from aiorl.errors import SettingsError, StorageError
from aiorl.telemetry.trace.cycles import Cycles
from aiorl.telemetry.trace.drawing import PICTURE_FILE, draw_cycle
from aiorl.telemetry.trace.merging import TRACE_FILE, merge, read_trace
from aiorl.telemetry.trace.report import report, typical

WIDTH = 110


def show_trace(run_dir: Path, tick: int | None) -> int:
    """Print what a run's trace says of its cycles, and draw one of them."""
    require_run(run_dir)
    try:
        merge(run_dir)  # a run that is going on, or was killed, has left it in parts
        recorded = read_trace(run_dir / TRACE_FILE)
        cycles = Cycles(recorded)
        console = Console()
        Console(width=None if console.is_terminal else WIDTH).print(report(cycles))
        drawn = typical(cycles) if tick is None else tick
        draw_cycle(cycles, recorded, drawn, run_dir / PICTURE_FILE)
    except (OSError, StorageError) as error:  # a directory without such a trace, not a run that failed
        raise SettingsError(str(error)) from error
    print(f"aiorl: drew the cycle of tick {drawn} into {run_dir / PICTURE_FILE}", file=sys.stderr)
    print(f"aiorl: all of it: open {run_dir / TRACE_FILE} in https://ui.perfetto.dev", file=sys.stderr)
    return 0
