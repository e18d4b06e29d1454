"""Episodes: the env's own rewards, summed exactly as a plain loop sums them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from aiorl.collector.episodes import EpisodeTracker
from aiorl.envs.stepper import Step, VectorStepper
from aiorl.protocol import EpisodeSums, TermSum
from aiorl.settings.sections import EnvSettings
from aiorl.storage.recent import WINDOW
from aiorl.testing import CountEnv


def make_step(
    reward: Iterable[float],
    terminated: Iterable[bool] | None = None,
    truncated: Iterable[bool] | None = None,
    valid: Iterable[bool] | None = None,
    info: dict[str, Any] | None = None,
) -> Step:
    rewards = np.asarray(list(reward))
    never, always = [False] * len(rewards), [True] * len(rewards)
    flags = (never if terminated is None else terminated, never if truncated is None else truncated)
    ends = [np.array(flag, bool) for flag in flags]
    return Step(rewards, *ends, np.array(always if valid is None else valid, bool), 0, info or {})


def random_steps(count: int, envs: int, seed: int, dtype: str = "float64") -> list[Step]:
    random = np.random.default_rng(seed)

    def flag(share: float) -> np.ndarray:
        return random.random(envs) < share

    return [
        make_step(
            (random.normal(size=envs) * 10.0 ** random.integers(-8, 8)).astype(dtype), flag(0.1), flag(0.1), ~flag(0.05)
        )
        for _ in range(count)
    ]


def plain_loop(steps: list[Step], envs: int) -> list[tuple[float, int, bool]]:
    """Return (return, length, terminated) of every whole episode, in the order in which they ended."""
    running = [[0.0, 0] for _ in range(envs)]
    episodes = []
    for step in steps:
        for env in range(envs):
            if step.valid[env]:
                running[env][0] += float(step.reward[env])
                running[env][1] += 1
                if step.terminated[env] or step.truncated[env]:
                    episodes.append((*running[env], bool(step.terminated[env])))
                    running[env] = [0.0, 0]
            else:
                running[env] = [0.0, 0]
    return episodes


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("seed", [0, 1])
def test_returns_are_those_of_a_plain_loop_bit_for_bit(seed: int, dtype: str) -> None:
    envs = 3
    steps = random_steps(300, envs, seed, dtype)
    expected = plain_loop(steps, envs)
    assert len(expected) > WINDOW
    tracker = EpisodeTracker(envs)

    for step in steps:
        tracker.add(step)

    window = tracker.get_state()["window"]
    assert window.tolist() == [[total, length] for total, length, _ in expected[-WINDOW:]]
    sums = tracker.take()
    assert (sums.finished, sums.window) == (len(expected), WINDOW)
    assert sums.terminated == sum(terminated for *_, terminated in expected)
    assert sums.terminated + sums.truncated == sums.finished
    assert sums.return_sum == pytest.approx(sum(total for total, *_ in expected), rel=1e-12)
    assert sums.return_min == min(total for total, *_ in expected)
    assert sums.return_max == max(total for total, *_ in expected)
    assert sums.window_return_mean == pytest.approx(np.mean([total for total, *_ in expected[-WINDOW:]]), rel=1e-12)
    assert sums.window_length_mean == pytest.approx(np.mean([length for _, length, _ in expected[-WINDOW:]]), rel=1e-12)


@pytest.mark.parametrize(
    ("terminated", "truncated", "counts"), [(True, False, (1, 0)), (False, True, (0, 1)), (True, True, (1, 0))]
)
def test_both_flags_at_once_count_as_terminated(terminated: bool, truncated: bool, counts: tuple[int, int]) -> None:
    tracker = EpisodeTracker(1)
    tracker.add(make_step([1.5]))
    tracker.add(make_step([2.0], [terminated], [truncated]))

    sums = tracker.take()

    assert (sums.terminated, sums.truncated) == counts
    assert (sums.finished, sums.window_return_mean, sums.window_length_mean) == (1, 3.5, 2)


@pytest.mark.parametrize("end", [False, True])
def test_an_invalid_row_counts_nowhere_and_voids_its_episode(end: bool) -> None:
    tracker = EpisodeTracker(2)
    tracker.add(make_step([1.0, 10.0]))
    tracker.add(make_step([1e9, 10.0], truncated=[end, False], valid=[False, True]))
    tracker.add(make_step([2.0, 10.0]))
    assert tracker.take() == EpisodeSums()  # not even where the invalid row ended it
    tracker.add(make_step([3.0, 10.0], truncated=[True, True]))

    sums = tracker.take()

    assert tracker.get_state()["window"].tolist() == [[5.0, 2], [40.0, 4]]
    assert (sums.return_min, sums.return_max, sums.finished) == (5.0, 40.0, 2)


def test_a_window_holds_the_last_hundred_and_taking_keeps_it() -> None:
    tracker = EpisodeTracker(1)
    for number in range(WINDOW + 50):
        tracker.add(make_step([number], [True]))

    first, second = tracker.take(), tracker.take()

    assert (first.finished, first.window) == (WINDOW + 50, WINDOW)
    assert first.window_return_mean == np.mean(range(50, WINDOW + 50))
    assert (first.return_min, first.return_max) == (0, WINDOW + 49)
    assert (second.finished, second.terminated, second.truncated) == (0, 0, 0)
    assert (second.return_min, second.return_max) == (0, 0)
    assert (second.window, second.window_return_mean) == (first.window, first.window_return_mean)


def test_nothing_is_reported_before_the_first_end() -> None:
    tracker = EpisodeTracker(2)
    tracker.add(make_step([5.0, 6.0]))

    assert tracker.take() == EpisodeSums()


def test_forgotten_episodes_start_anew_and_the_window_stays() -> None:
    tracker = EpisodeTracker(2)
    tracker.add(make_step([1.0, 2.0], [True, False]))
    tracker.add(make_step([100.0, 100.0]))

    tracker.forget_running()
    tracker.add(make_step([7.0, 8.0], [True, True]))

    assert tracker.get_state()["window"].tolist() == [[1.0, 1], [7.0, 1], [8.0, 1]]


def test_a_restored_tracker_goes_on_like_the_first() -> None:
    steps = random_steps(200, 3, seed=5)
    first, second = EpisodeTracker(3), EpisodeTracker(3)
    for step in steps[:120]:
        first.add(step)
    first.take()

    state = first.get_state()
    kept = {name: values.copy() for name, values in state.items()}
    second.set_state(state)
    for step in steps[120:]:
        first.add(step)
    for name, values in state.items():  # a copy, not a view
        np.testing.assert_array_equal(values, kept[name])
    for step in steps[120:]:
        second.add(step)

    assert second.take() == first.take()


def test_a_fresh_tracker_has_a_state_too() -> None:
    tracker = EpisodeTracker(2)

    tracker.set_state(EpisodeTracker(2).get_state())

    assert tracker.take() == EpisodeSums()


def means(sums: EpisodeSums) -> dict[str, float]:
    return {term.name: term.total / term.rows for term in sums.reward_terms}


@pytest.mark.parametrize("place", ["log", "info"])
def test_reward_terms_are_averaged_over_the_steps(place: str) -> None:
    tracker = EpisodeTracker(2)
    for alive, energy in [([1.0, 3.0], -0.5), ([5.0, 7.0], -1.5)]:
        terms = {"reward/alive": np.array(alive), "reward/energy": energy, "_reward/alive": np.ones(2, bool), "x": 1}
        tracker.add(make_step([0.0, 0.0], info={"log": terms} if place == "log" else terms))

    sums = tracker.take()

    assert [type(term) for term in sums.reward_terms] == [TermSum, TermSum]
    assert means(sums) == {"reward/alive": 4.0, "reward/energy": -1.0}
    assert tracker.take().reward_terms == ()
    assert tracker.take().reward_terms == ()


def test_infos_without_terms_are_no_steps_of_them() -> None:
    tracker = EpisodeTracker(1)
    tracker.add(make_step([0.0], info={"reward/x": np.array([2.0])}))
    for info in ({}, {"log": None}, {"log": "text"}, {7: 1.0}):
        tracker.add(make_step([0.0], info=info))

    assert means(tracker.take()) == {"reward/x": 2.0}


def test_reward_terms_of_invalid_rows_count_nowhere() -> None:
    tracker = EpisodeTracker(3)
    terms = {"reward/x": np.array([2.0, np.nan, 4.0])}

    tracker.add(make_step([0.0, 0.0, 0.0], valid=[True, False, True], info={"log": terms}))

    assert means(tracker.take()) == {"reward/x": 3.0}


class TermEnv(CountEnv):
    """Reports the same reward term in every step, as a single env does."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated, truncated, {"log": {"reward/x": 2.0}}


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_reward_terms_of_single_envs_are_not_diluted_by_resets(mode: AutoresetMode) -> None:
    # SAME_STEP has the terms of a finished row in final_info; a NEXT_STEP reset row has none.
    fns = [lambda number=number: TermEnv(length=2 + number, number=number) for number in range(2)]
    envs: gymnasium.vector.VectorEnv = SyncVectorEnv(fns, autoreset_mode=mode)
    stepper = VectorStepper(envs, EnvSettings(), ("policy",))
    tracker = EpisodeTracker(2)
    stepper.reset([0, 1])
    next_obs = {"policy": np.zeros((2, 3), np.float32)}
    for _ in range(12):
        tracker.add(stepper.step(np.zeros((2, 1), np.float32), next_obs))
    stepper.close()

    assert means(tracker.take()) == {"reward/x": 2.0}
