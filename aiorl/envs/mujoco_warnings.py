"""MuJoCo's warnings: by default it writes them to MUJOCO_LOG.TXT in the working directory."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import mujoco

_warning_lock = threading.Lock()
_warning_depth = 0


def _ignore(_message: str) -> None:
    """Drop a warning: `info["unstable"]` reports the event."""


@contextmanager
def no_warning_file() -> Iterator[None]:
    """Keep MuJoCo from writing MUJOCO_LOG.TXT, and the process's own warning handler, if any, in place."""
    global _warning_depth
    with _warning_lock:
        # The handler is the process's: batches that step in several threads share one installation.
        if _warning_depth == 0 and mujoco.get_mju_user_warning() is None:
            mujoco.set_mju_user_warning(_ignore)
        _warning_depth += 1
    try:
        yield
    finally:
        with _warning_lock:
            _warning_depth -= 1
            if _warning_depth == 0 and mujoco.get_mju_user_warning() is _ignore:
                mujoco.set_mju_user_warning(None)
