"""Clean-up that a cancellation can hurry, but not tear."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def to_the_end(work: Awaitable[T], on_cancel: Callable[[], None] | None = None) -> T:
    """Await something to its end whatever happens to us; a cancellation is let through afterwards.

    `on_cancel` is called at each cancellation, to hurry the work.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
            if on_cancel is not None:
                on_cancel()
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # retrieved: the cancellation is what comes out
        raise cancelled
    return task.result()
