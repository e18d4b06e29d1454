"""File writing off the event loop: one thread, in order, the first failure reported."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from aiorl.errors import StorageError
from aiorl.shielding import to_the_end

T = TypeVar("T")


class FileWriter:
    """Carries out writes in a thread of its own, one after another."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="aiorl writer")
        self._failure: BaseException | None = None

    def submit(self, write: Callable[[], object]) -> None:
        """Have something written soon."""
        self._executor.submit(write).add_done_callback(self._note)

    async def run(self, write: Callable[[], T]) -> T:
        """Do something in the same thread, after all that was submitted, and return its result.

        Raises:
            StorageError: the disk said no.

        """
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, write)
        except OSError as error:
            raise StorageError(f"the run directory cannot be written: {error}") from error

    async def flush(self) -> None:
        """Wait for what was submitted.

        Raises:
            StorageError: some of it failed.

        """
        await self.run(lambda: None)
        self.raise_failure()

    def raise_failure(self) -> None:
        """Raise the first failure of a write.

        Raises:
            StorageError: such as a full disk.

        """
        if self._failure is not None:
            raise StorageError(f"the run directory cannot be written: {self._failure}") from self._failure

    async def close(self) -> None:
        """Wait for what was submitted and end the thread."""
        await to_the_end(asyncio.get_running_loop().run_in_executor(self._executor, lambda: None))
        self._executor.shutdown(wait=True)

    def _note(self, future: Future[object]) -> None:
        if self._failure is None:
            self._failure = future.exception()
