"""Every error that aiorl raises.

AiorlError
├── SettingsError      settings, arguments, run directory refused: fix them and start again
├── EnvError           the environment broke its contract or gave a value that is not finite
├── WorkerError        a worker process …
│   ├── WorkerStartupError     failed or died before it was ready
│   ├── WorkerFailedError      raised; `__cause__` carries its own traceback
│   ├── WorkerCrashedError     died: exit code or signal
│   └── WorkerStalledError     did not answer within its deadline
├── ProtocolError      a message that is malformed or out of order: a bug of ours
├── StorageError       shared memory could not be had or used
└── CheckpointError    nothing to resume, or what is there is broken or foreign
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self


class AiorlError(Exception):
    """Base of every error that aiorl raises; `role`, `index` and `pid` name the worker that it came from."""

    role: str = ""
    index: int = 0
    pid: int | None = None

    def of(self, role: str, index: int, pid: int | None = None) -> Self:
        """Say which worker it came from; return it."""
        self.role, self.index, self.pid = role, index, pid
        return self


class SettingsError(AiorlError):
    """Settings, arguments or a run directory were refused; `problems` has one sentence per mistake."""

    def __init__(self, problems: str | Sequence[str]) -> None:
        sentences = (problems,) if isinstance(problems, str) else problems
        self.problems: tuple[str, ...] = tuple(" ".join(sentence.splitlines()) for sentence in sentences)
        super().__init__("\n".join(self.problems))

    def __reduce__(self) -> tuple[Any, ...]:
        return SettingsError, (self.problems,)


class EnvError(AiorlError):
    """The environment broke its contract or gave a value that is not finite."""


class WorkerError(AiorlError):
    """A worker process failed, died or stalled."""

    def __init__(self, message: str, *, role: str = "", index: int = 0, pid: int | None = None) -> None:
        super().__init__(message)
        self.role, self.index, self.pid = role, index, pid


class WorkerStartupError(WorkerError):
    """A worker failed or died before it was ready."""


class WorkerFailedError(WorkerError):
    """A worker raised; its own traceback is the cause of this error."""


class WorkerCrashedError(WorkerError):
    """A worker process died: the message has its exit code or signal."""


class WorkerStalledError(WorkerError):
    """A worker did not answer within its deadline and was killed."""


class ProtocolError(AiorlError):
    """A message was malformed, unknown or out of order."""


class StorageError(AiorlError):
    """Shared memory could not be had, or was used against its layout."""


class CheckpointError(AiorlError):
    """There is nothing to resume, or what is there is broken or belongs to another run."""


class RemoteTracebackError(Exception):
    """The traceback of an exception in a worker, as text; always the `__cause__` of another error."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"
