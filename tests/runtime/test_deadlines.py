"""How long a worker may take, and time in which nobody looked at the clock."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiorl.runtime.deadlines import SLICES, SLOWNESS, Countdown, Deadlines
from aiorl.settings.sections import RuntimeSettings


class FakeTimer:
    def __init__(self, due: float, callback: Callable[[], None]) -> None:
        self.due, self.callback, self.is_cancelled = due, callback, False

    def cancel(self) -> None:
        self.is_cancelled = True


class FakeLoop:
    """A loop whose time the test moves: `run` lets timers end `late` seconds after they are due."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[FakeTimer] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], None], *args: Any) -> FakeTimer:
        assert delay > 0
        self.timers.append(FakeTimer(self.now + delay, lambda: callback(*args)))
        return self.timers[-1]

    def call_at(self, when: float, callback: Callable[[], None], *args: Any) -> FakeTimer:
        return self.call_later(when - self.now, callback, *args)

    @property
    def waiting(self) -> list[FakeTimer]:
        self.timers = [timer for timer in self.timers if not timer.is_cancelled]
        return self.timers

    def run_next(self, late: float = 0.0) -> None:
        timer = min(self.waiting, key=lambda timer: timer.due)
        self.timers.remove(timer)
        self.now = max(self.now, timer.due) + late
        timer.callback()


class Counted:
    """A countdown on a fake loop, and when it expired."""

    def __init__(self, seconds: float) -> None:
        self.loop = FakeLoop()
        self.expired_at: list[float] = []
        self.countdown = Countdown(seconds, lambda: self.expired_at.append(self.loop.now), self.loop)  # type: ignore[arg-type]


@pytest.mark.parametrize("seconds", [120.0, 10.0, 1.0, 0.1, 0.03, 0.01, 0.001])
def test_a_countdown_expires_once_after_its_time(seconds: float) -> None:
    counted = Counted(seconds)
    while counted.loop.waiting:
        assert counted.expired_at == []
        assert len(counted.loop.waiting) == 1
        counted.loop.run_next()
    assert counted.expired_at == [pytest.approx(seconds)]


def test_a_pause_costs_a_worker_little_of_its_time() -> None:
    counted = Counted(80.0)
    counted.loop.run_next(late=3600.0)
    woken_at = counted.loop.now
    while counted.loop.waiting:
        counted.loop.run_next()
    assert counted.expired_at[0] - woken_at >= 0.75 * 80.0


@pytest.mark.parametrize("paused", range(SLICES - 1))
def test_time_in_which_the_process_was_stopped_does_not_count(paused: int) -> None:
    counted = Counted(8.0)
    for slice_number in range(SLICES - 1):
        counted.loop.run_next(late=3600.0 if slice_number == paused else 0.0)
    assert counted.loop.now > 3600
    assert counted.expired_at == []
    counted.loop.run_next()
    assert counted.expired_at == [pytest.approx(3608.0)]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.floats(0.05, 1e4), st.lists(st.floats(0, 1e5), min_size=SLICES + 2))
def test_however_late_the_slices_end_the_whole_time_is_counted(seconds: float, lateness: list[float]) -> None:
    counted = Counted(seconds)
    total = 0.0
    for late in lateness:
        if not counted.loop.waiting:
            break
        counted.loop.run_next(late)
        total += late
    assert not counted.loop.waiting
    # All lateness is given back: what counts is the time asked for, neither less nor more.
    assert counted.expired_at == [pytest.approx(seconds + total)]


@pytest.mark.parametrize("after", range(SLICES))
def test_a_cancelled_countdown_never_expires(after: int) -> None:
    counted = Counted(8.0)
    for _ in range(after):
        counted.loop.run_next()
    counted.countdown.cancel()
    counted.countdown.cancel()
    assert counted.loop.waiting == []
    assert counted.expired_at == []


def test_an_expired_countdown_may_be_cancelled() -> None:
    counted = Counted(8.0)
    while counted.loop.waiting:
        counted.loop.run_next()
    counted.countdown.cancel()
    assert len(counted.expired_at) == 1


# Deadlines


@pytest.fixture
def deadlines() -> Deadlines:
    return Deadlines(RuntimeSettings(first_deadline_s=100.0, deadline_s=5.0))


def test_the_first_request_of_a_kind_has_a_generous_deadline(deadlines: Deadlines) -> None:
    assert deadlines.deadline_s("Update") == 100.0
    deadlines.answered("Update", 90.0)
    assert deadlines.deadline_s("Update") == 100.0  # the first one warms things up: it says nothing of the rest
    deadlines.answered("Update", 0.1)
    assert deadlines.deadline_s("Update") == 5.0
    assert deadlines.deadline_s("PackBatch") == 100.0


def test_later_ones_get_a_multiple_of_the_slowest(deadlines: Deadlines) -> None:
    for seconds, expected in [(90.0, 100.0), (0.1, 5.0), (0.5, 5.0), (2.0, 20.0), (0.1, 20.0), (3.0, 30.0)]:
        deadlines.answered("Update", seconds)
        assert deadlines.deadline_s("Update") == expected
    assert SLOWNESS == 10.0
    deadlines.answered("PackBatch", 1.0)
    assert deadlines.deadline_s("PackBatch") == 100.0


def test_steadily_slow_work_is_never_called_stalled(deadlines: Deadlines) -> None:
    for _ in range(5):
        assert deadlines.deadline_s("Save") > 2 * 12.0
        deadlines.answered("Save", 12.0)
