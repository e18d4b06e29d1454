"""Several awaits at once, where the first failure counts and none is left running."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def together(coroutines: Iterable[Coroutine[Any, Any, T]], *, cancel_others: bool = False) -> list[T]:
    """Run coroutines side by side; return their results in order, or raise the first failure.

    After a failure the others are awaited to their end (a reply that is under way must not be torn), or
    cancelled where the caller says so.
    """
    tasks = [asyncio.ensure_future(each) for each in coroutines]
    if not tasks:
        return []
    try:
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        failed = [task for task in tasks if task in done and not task.cancelled() and task.exception() is not None]
        if pending and cancel_others:
            for task in pending:
                task.cancel()
        if pending:
            await asyncio.wait(pending)
        if failed:
            error = failed[0].exception()
            assert error is not None
            raise error
        return [task.result() for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
