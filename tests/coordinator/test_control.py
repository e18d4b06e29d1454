"""Stop, save, pause: what is asked from outside, and what it wakes."""

import asyncio
from typing import Any

import pytest

from aiorl.coordinator.control import Control


class Told(Exception):
    pass


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def others() -> set[Any]:
    return asyncio.all_tasks() - {asyncio.current_task()}


@pytest.fixture(autouse=True)
async def _none_left_running() -> Any:
    before = others()
    yield
    assert others() <= before


@pytest.fixture
async def control() -> Control:
    return Control()


def state(control: Control) -> tuple[bool, bool, str | None]:
    return control.wants_drain, control.is_paused, control.stop_reason


async def test_at_first_nothing_is_asked(control: Control) -> None:
    assert state(control) == (False, False, None)
    assert control.take_saves() == []
    await control.while_paused()


async def test_the_first_reason_to_stop_counts(control: Control) -> None:
    control.stop("SIGTERM")
    control.stop("SIGINT")
    assert state(control) == (True, False, "SIGTERM")


async def test_a_pause_holds_until_it_is_taken_back(control: Control) -> None:
    control.pause()
    assert state(control) == (True, True, None)
    waiting = asyncio.create_task(control.while_paused())
    await settle()
    assert not waiting.done()
    control.resume()
    assert state(control) == (False, False, None)
    await waiting


@pytest.mark.parametrize("order", ["stop", "save"])
@pytest.mark.parametrize("comes_first", [True, False])
async def test_orders_are_carried_out_in_a_pause(control: Control, order: str, comes_first: bool) -> None:
    def give() -> None:
        if order == "stop":
            control.stop("SIGINT")
        else:
            control.request_save()

    if comes_first:
        give()
    control.pause()
    waiting = asyncio.create_task(control.while_paused())
    await settle()
    assert waiting.done() == comes_first
    give()
    await waiting
    assert not control.is_paused
    assert control.wants_drain


async def test_after_a_save_in_a_pause_it_is_paused_again(control: Control) -> None:
    control.pause()
    asked = control.request_save()
    assert not control.is_paused
    assert control.take_saves() == [asked]
    assert state(control) == (True, True, None)
    waiting = asyncio.create_task(control.while_paused())
    await settle()
    assert not waiting.done()
    control.resume()
    await waiting


async def test_an_order_before_the_wait_is_not_forgotten(control: Control) -> None:
    control.pause()
    control.resume()
    control.pause()
    waiting = asyncio.create_task(control.while_paused())
    control.resume()
    await waiting


async def test_a_pause_that_is_taken_back_and_renewed_at_once_holds(control: Control) -> None:
    control.pause()
    waiting = asyncio.create_task(control.while_paused())
    await settle()
    control.resume()
    control.pause()
    await settle()
    assert not waiting.done()
    control.stop("end")
    await waiting


async def test_saves_are_taken_once_in_order(control: Control) -> None:
    asked = [control.request_save(), control.request_save()]
    assert state(control) == (True, False, None)
    assert control.take_saves() == asked
    assert control.take_saves() == []
    assert not control.wants_drain
    assert [future.done() for future in asked] == [False, False]


async def test_two_may_wait_in_one_pause(control: Control) -> None:
    control.pause()
    waiting = [asyncio.create_task(control.while_paused()) for _ in range(2)]
    await settle()
    control.resume()
    await asyncio.gather(*waiting)


# What an order to end cuts short


async def test_work_that_ends_by_itself_gives_its_result(control: Control) -> None:
    async def work() -> int:
        await settle()
        return 5

    assert await control.unless_stopped(work()) == 5


async def test_work_that_fails_raises(control: Control) -> None:
    async def work() -> None:
        await settle()
        raise Told("no")

    with pytest.raises(Told, match="no"):
        await control.unless_stopped(work())


async def test_other_orders_do_not_cut_it_short(control: Control) -> None:
    gate = asyncio.Event()
    task = asyncio.create_task(control.unless_stopped(gate.wait()))
    await settle()
    control.pause()
    control.request_save()
    control.resume()
    await settle()
    assert not task.done()
    gate.set()
    assert await task is True


@pytest.mark.parametrize("comes_first", [True, False])
async def test_a_stop_cancels_it_and_waits_for_its_end(control: Control, comes_first: bool) -> None:
    leave = asyncio.Event()
    ended = []

    async def work() -> int:
        try:
            await asyncio.Event().wait()
        finally:
            await leave.wait()
            ended.append(True)
        return 5

    if comes_first:
        control.stop("SIGINT")
    task = asyncio.create_task(control.unless_stopped(work()))
    await settle()
    control.stop("SIGINT")
    await settle()
    assert not task.done()
    leave.set()
    assert await task is None
    assert ended == [True]


async def test_cancelled_from_outside_it_cancels_the_work(control: Control) -> None:
    ended = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    task = asyncio.create_task(control.unless_stopped(work()))
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [True]


async def test_done_and_stopped_at_once_it_is_done(control: Control) -> None:
    gate = asyncio.Event()
    task = asyncio.create_task(control.unless_stopped(gate.wait()))
    await settle()
    gate.set()
    control.stop("SIGINT")
    assert await task is True
