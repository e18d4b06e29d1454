"""Failures as exit codes and words: the remote traceback once, then one line that says what to do."""

from __future__ import annotations

import contextlib
import sys

from aiorl.errors import (
    AiorlError,
    CheckpointError,
    EnvError,
    ProtocolError,
    RemoteTracebackError,
    SettingsError,
    StorageError,
    WorkerError,
    WorkerStartupError,
)

OK, BUG, REFUSED, STARTUP, WORKER = 0, 1, 2, 3, 4


def say(text: str) -> None:
    """Write a line to stderr, if it is still there."""
    try:
        print(f"aiorl: {text}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        return


def exit_code(error: BaseException) -> int:
    """Return the exit code for an error."""
    if isinstance(error, (SettingsError, CheckpointError)):
        return REFUSED
    if isinstance(error, WorkerStartupError):
        return STARTUP
    if isinstance(error, (WorkerError, EnvError, StorageError)):
        return WORKER
    return BUG


def report_failure(error: AiorlError, advice: str = "") -> int:
    """Write to stderr what failed; return the exit code."""
    if isinstance(error.__cause__, RemoteTracebackError) and not isinstance(error, (SettingsError, CheckpointError)):
        with contextlib.suppress(OSError, ValueError):
            print(error.__cause__.text.rstrip(), file=sys.stderr)
    for line in str(error).splitlines() or [type(error).__name__]:
        say(line)
    if isinstance(error, ProtocolError):
        advice = "this is a bug of aiorl's; please report it with the lines above"
    if advice:
        say(advice)
    return exit_code(error)
