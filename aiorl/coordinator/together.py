"""Several awaits at once, where the first failure counts and none is left running."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")
U = TypeVar("U")


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


async def both(vital: Coroutine[Any, Any, T], other: Coroutine[Any, Any, U]) -> tuple[T, U]:
    """Run two coroutines side by side; when `vital` fails the other is cancelled, but never the other way round."""
    first, second = asyncio.ensure_future(vital), asyncio.ensure_future(other)
    either: list[asyncio.Future[Any]] = [first, second]
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_EXCEPTION)
        if second.done() and not first.done():
            await asyncio.wait([first])
        if not second.done():
            second.cancel()
            await asyncio.wait([second])
        return first.result(), second.result()
    finally:
        for task in either:
            task.cancel()
        await asyncio.gather(*either, return_exceptions=True)
