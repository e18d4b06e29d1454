"""Train robot policies by reinforcement learning, as an asyncio object.

Names are imported when they are first used, so that `import aiorl` costs nothing and never imports torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aiorl.errors import (
        AiorlError,
        CheckpointError,
        EnvError,
        ProtocolError,
        RemoteTracebackError,
        SettingsError,
        StorageError,
        WorkerCrashedError,
        WorkerError,
        WorkerFailedError,
        WorkerStalledError,
        WorkerStartupError,
    )
    from aiorl.events import Evaluated, Evaluation, Event, Finished, Outcome, Progress, Saved, Started, WorkerReplaced
    from aiorl.policy import LoadedPolicy, load_policy
    from aiorl.run import Run, train
    from aiorl.settings import AlgorithmSettings, RunSettings, load_settings

__version__ = "0.1.0"

_HOMES = {
    "aiorl.errors": (
        "AiorlError",
        "CheckpointError",
        "EnvError",
        "ProtocolError",
        "RemoteTracebackError",
        "SettingsError",
        "StorageError",
        "WorkerCrashedError",
        "WorkerError",
        "WorkerFailedError",
        "WorkerStalledError",
        "WorkerStartupError",
    ),
    "aiorl.events": (
        "Evaluated",
        "Evaluation",
        "Event",
        "Finished",
        "Outcome",
        "Progress",
        "Saved",
        "Started",
        "WorkerReplaced",
    ),
    "aiorl.policy": ("LoadedPolicy", "load_policy"),
    "aiorl.run": ("Run", "train"),
    "aiorl.settings": ("AlgorithmSettings", "RunSettings", "load_settings"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "AiorlError",
    "AlgorithmSettings",
    "CheckpointError",
    "EnvError",
    "Evaluated",
    "Evaluation",
    "Event",
    "Finished",
    "LoadedPolicy",
    "Outcome",
    "Progress",
    "ProtocolError",
    "RemoteTracebackError",
    "Run",
    "RunSettings",
    "Saved",
    "SettingsError",
    "Started",
    "StorageError",
    "WorkerCrashedError",
    "WorkerError",
    "WorkerFailedError",
    "WorkerReplaced",
    "WorkerStalledError",
    "WorkerStartupError",
    "load_policy",
    "load_settings",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'aiorl' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value
