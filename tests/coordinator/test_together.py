"""Several awaits at once: the first failure counts, and none is left running."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from aiorl.coordinator.together import together

Gate = asyncio.Event


class Told(Exception):
    pass


class Work:
    """A coroutine that waits for its gate, then returns or raises; it notes how it went."""

    def __init__(self, result: Any = None, *, is_open: bool = False) -> None:
        self.result, self.gate, self.state = result, Gate(), "new"
        if is_open:
            self.gate.set()

    async def __call__(self) -> Any:
        self.state = "running"
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.state = "cancelled"
            raise
        self.state = "done"
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


async def settle(until: Callable[[], bool] = lambda: False) -> None:
    for _ in range(20):
        await asyncio.sleep(0)
        if until():
            return


def others() -> set[Any]:
    return asyncio.all_tasks() - {asyncio.current_task()}


async def start(coroutine: Coroutine[Any, Any, Any]) -> Any:
    task = asyncio.create_task(coroutine)
    await settle()
    return task


@pytest.fixture(autouse=True)
async def _none_left_running() -> Any:
    before = others()
    yield
    assert others() <= before


async def test_results_come_in_order_whichever_is_first() -> None:
    works = [Work(number) for number in range(3)]
    task = await start(together(work() for work in works))
    assert [work.state for work in works] == ["running"] * 3
    for work in reversed(works):
        assert not task.done()
        work.gate.set()
        await settle()
    assert await task == [0, 1, 2]


async def test_one_alone_is_fine() -> None:
    assert await together([Work("x", is_open=True)()]) == ["x"]


async def test_none_at_all_gives_no_results() -> None:
    assert await together([]) == []


async def test_after_a_failure_the_others_are_awaited() -> None:
    works = [Work(1), Work(Told("second")), Work(3)]
    task = await start(together(work() for work in works))
    works[1].gate.set()
    await settle()
    assert not task.done()
    assert [work.state for work in works] == ["running", "done", "running"]
    works[0].gate.set()
    works[2].gate.set()
    with pytest.raises(Told, match="second"):
        await task
    assert [work.state for work in works] == ["done"] * 3


async def test_the_first_failure_counts_not_the_first_in_line() -> None:
    works = [Work(Told("early in line")), Work(Told("early in time"))]
    task = await start(together(work() for work in works))
    works[1].gate.set()
    await settle()
    works[0].gate.set()
    with pytest.raises(Told, match="early in time"):
        await task


async def test_after_a_failure_the_others_are_cancelled_where_asked_for() -> None:
    works = [Work(1), Work(Told("no")), Work(3)]
    task = await start(together((work() for work in works), cancel_others=True))
    works[1].gate.set()
    with pytest.raises(Told, match="no"):
        await task
    assert [work.state for work in works] == ["cancelled", "done", "cancelled"]


async def test_cancelled_others_may_take_their_time() -> None:
    leave = Gate()
    cleaned = []

    async def careful() -> None:
        try:
            await Gate().wait()
        finally:
            await leave.wait()
            cleaned.append(True)

    failing = Work(Told("no"))
    task = await start(together([careful(), failing()], cancel_others=True))
    failing.gate.set()
    await settle()
    assert not task.done()
    leave.set()
    with pytest.raises(Told, match="no"):
        await task
    assert cleaned == [True]


async def test_a_failure_on_the_way_out_does_not_hide_the_first() -> None:
    async def worse() -> None:
        try:
            await Gate().wait()
        finally:
            raise Told("worse")

    failing = Work(Told("first"))
    task = await start(together([worse(), failing()], cancel_others=True))
    failing.gate.set()
    with pytest.raises(Told, match="first"):
        await task


async def test_one_that_failed_at_once_is_enough() -> None:
    slow = Work(1)
    task = await start(together([slow(), Work(Told("no"), is_open=True)()]))
    assert not task.done()
    slow.gate.set()
    with pytest.raises(Told):
        await task
    assert slow.state == "done"


@pytest.mark.parametrize("cancel_others", [False, True])
async def test_cancelled_from_outside_all_are_cancelled(cancel_others: bool) -> None:
    works = [Work(1), Work(2)]
    task = await start(together((work() for work in works), cancel_others=cancel_others))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [work.state for work in works] == ["cancelled", "cancelled"]


async def test_cancelled_while_it_awaits_the_others_after_a_failure() -> None:
    works = [Work(1), Work(Told("no"))]
    task = await start(together(work() for work in works))
    works[1].gate.set()
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert works[0].state == "cancelled"


async def test_cancelled_twice_still_none_is_left() -> None:
    leave = Gate()
    cleaned = []

    async def stubborn() -> None:
        try:
            await Gate().wait()
        except asyncio.CancelledError:
            while not leave.is_set():
                try:
                    await leave.wait()
                except asyncio.CancelledError:
                    continue
            cleaned.append(True)

    task = await start(together([stubborn()]))
    task.cancel()
    await settle()
    task.cancel()
    await settle()
    assert not task.done()
    leave.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cleaned == [True]


async def test_a_cancelled_one_does_not_hide_a_failure() -> None:
    async def gives_up() -> None:
        raise asyncio.CancelledError

    failing = Work(Told("no"))
    task = await start(together([gives_up(), failing()]))
    failing.gate.set()
    with pytest.raises(Told):
        await task
