"""The interface of a worker as the coordinator sees it; a process, a thread, later an actor elsewhere."""

from __future__ import annotations

from typing import Protocol

from aiorl.errors import AiorlError
from aiorl.protocol import Message, Ready, Request


class WorkerHandle(Protocol):
    """One worker; every await of it also ends when the worker dies."""

    role: str
    index: int

    @property
    def name(self) -> str:
        """Role and index, such as `collector 0`."""

    @property
    def pid(self) -> int | None:
        """Its process, once started."""

    @property
    def state(self) -> str:
        """`starting`, `running`, `failed` or `stopped`."""

    @property
    def is_gone(self) -> bool:
        """Whether it was stopped, and nothing of it runs any more that could write to shared memory."""

    async def start(self) -> Ready:
        """Start it and wait until it is ready.

        Raises:
            SettingsError: it refused the settings.
            WorkerStartupError: it failed, died or took too long.

        """

    async def call(self, request: Request) -> Message:
        """Send a request and wait for its reply.

        Raises:
            WorkerError, EnvError, CheckpointError: what happened to it instead.

        """

    async def death(self) -> AiorlError:
        """Wait until it dies, asked for something or not; return how it did."""

    def kill(self) -> None:
        """End it at once, with all that it started."""

    async def stop(self, *, at_once: bool = False) -> None:
        """End it and all that it started: ask, terminate, kill; never raises because of the worker."""
