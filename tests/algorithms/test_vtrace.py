"""V-trace: numbers by hand, and a sum over each env's future written down from the papers' formulas."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from aiorl.algorithms.vtrace import ONE, Limits, VTrace, goes_on, next_values, vtrace

repeatable = settings(derandomize=True, deadline=None, database=None)


@dataclass(frozen=True)
class Case:
    """A rollout as V-trace sees it, `(T, N)` each but `last_value`, `(N,)`; float64."""

    reward: NDArray[np.float64]
    value: NDArray[np.float64]
    last_value: NDArray[np.float64]
    final_value: NDArray[np.float64]
    log_ratio: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_]

    def env(self, n: int) -> Case:
        return Case(**{name: column[..., n : n + 1].copy() for name, column in vars(self).items()})


def judge(case: Case, gamma: float, trace_lambda: float, limits: Limits = ONE) -> VTrace:
    """Call what is tested, in float64."""
    tensors = {name: torch.from_numpy(column.copy()) for name, column in vars(case).items()}
    flags = tensors["terminated"], tensors["truncated"]
    following = next_values(tensors["value"], tensors["last_value"], tensors["final_value"], *flags)
    is_followed = goes_on(*flags, tensors["valid"])
    columns = tensors["reward"], tensors["value"], following, is_followed, tensors["log_ratio"]
    return vtrace(*columns, gamma, trace_lambda, limits)


def next_value(case: Case, t: int, n: int) -> float:
    if case.terminated[t, n]:
        return 0.0
    if case.truncated[t, n]:
        return case.final_value[t, n]
    return case.last_value[n] if t == len(case.value) - 1 else case.value[t + 1, n]


def is_followed(case: Case, t: int, n: int) -> bool:
    ended = case.terminated[t, n] or case.truncated[t, n]
    return t + 1 < len(case.value) and bool(case.valid[t + 1, n]) and not ended


def forward_sum(
    case: Case, gamma: float, trace_lambda: float, limits: Limits = ONE
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return targets and advantages as IMPALA's (1) has it: `vs_t = V_t + Σ_k γ^(k−t) (Π_(i<k) c_i) δ_k`."""
    steps, envs = case.value.shape
    target, advantage = np.zeros((steps, envs)), np.zeros((steps, envs))
    for n in range(envs):
        ratio = [math.exp(each) for each in case.log_ratio[:, n]]

        def error(t: int, n: int = n) -> float:
            return case.reward[t, n] + gamma * next_value(case, t, n) - case.value[t, n]

        for t in range(steps):
            total, weight, k = case.value[t, n], 1.0, t
            while True:
                total += weight * min(limits.rho, ratio[k]) * error(k)
                if not is_followed(case, k, n):
                    break
                weight *= gamma * trace_lambda * min(limits.c, ratio[k])
                k += 1
            target[t, n] = total
        for t in range(steps):
            later = target[t + 1, n] - case.value[t + 1, n] if is_followed(case, t, n) else 0.0
            rho = min(limits.rho, ratio[t])
            advantage[t, n] = rho * (error(t) + gamma * trace_lambda * later)
    return target, advantage


# By hand: γ = ½, r = 1, 2, 3, 4, V = 2, 4, 6, 8, then 10; every error r + γ n − V is 1 where nothing ends.
# Final observations are worth 20.


def by_hand(steps: int = 4, envs: int = 1) -> Case:
    def column(values: list[float]) -> NDArray[np.float64]:
        return np.tile(np.array(values)[:steps, None], (1, envs))

    return Case(
        reward=column([1.0, 2, 3, 4]),
        value=column([2.0, 4, 6, 8]),
        last_value=np.full(envs, 2.0 * steps + 2),
        final_value=np.full((steps, envs), 20.0),
        log_ratio=np.zeros((steps, envs)),
        terminated=np.zeros((steps, envs), bool),
        truncated=np.zeros((steps, envs), bool),
        valid=np.ones((steps, envs), bool),
    )


def flagged(case: Case, *, terminated=(), truncated=(), invalid=()) -> Case:
    copy = Case(**{name: column.copy() for name, column in vars(case).items()})
    for t in terminated:
        copy.terminated[t] = True
    for t in truncated:
        copy.truncated[t] = True
    for t in invalid:
        copy.valid[t] = False
    return copy


NOTHING = float("nan")  # of rows that are none


@pytest.mark.parametrize(
    ("flags", "advantage"),
    [
        # γ λ = 1/4: 1; 1 + 1/4; 1 + 5/16; 1 + 21/64
        ({}, [1 + 21 / 64, 1 + 5 / 16, 1 + 1 / 4, 1]),
        # row 1: 2 + ½ 20 − 4 = 8; row 0: 1 + ¼ 8
        ({"truncated": [1]}, [3, 8, 1 + 1 / 4, 1]),
        # row 1: 2 + 0 − 4 = −2; row 0: 1 − ¼ 2
        ({"terminated": [1]}, [1 / 2, -2, 1 + 1 / 4, 1]),
        # both count as terminated
        ({"terminated": [1], "truncated": [1]}, [1 / 2, -2, 1 + 1 / 4, 1]),
        # row 1 is still worth V_2 after its reward, but nothing comes back to it; row 0: 1 + ¼ 1
        ({"invalid": [2]}, [1 + 1 / 4, 1, NOTHING, 1]),
        # an episode ends, the next step only resets
        ({"terminated": [1], "invalid": [2]}, [1 / 2, -2, NOTHING, 1]),
        ({"truncated": [1], "invalid": [2]}, [3, 8, NOTHING, 1]),
        # the first step only resets
        ({"invalid": [0]}, [NOTHING, 1 + 5 / 16, 1 + 1 / 4, 1]),
        # at the end: 4 + ½ 20 − 8 = 6; 1 + 6/4; 1 + 10/16; 1 + 26/64
        ({"truncated": [3]}, [1 + 26 / 64, 1 + 10 / 16, 1 + 6 / 4, 6]),
        # at the end: 4 − 8 = −4; 1 − 4/4 = 0; 1 + 0; 1 + 1/4
        ({"terminated": [3]}, [1 + 1 / 4, 1, 0, -4]),
        # at the end, only a reset: row 2 is worth ½ V_3 and gets nothing back
        ({"invalid": [3]}, [1 + 5 / 16, 1 + 1 / 4, 1, NOTHING]),
        # every step an end: −1, 8, 3 + 10 − 6 = 7, 4 − 8 = −4
        ({"terminated": [0, 3], "truncated": [1, 2]}, [-1, 8, 7, -4]),
    ],
)
def test_ends_of_episodes(flags: dict[str, list[int]], advantage: list[float]) -> None:
    case = flagged(by_hand(), **flags)

    judged = judge(case, gamma=0.5, trace_lambda=0.5)

    rows = case.valid[:, 0]
    assert judged.advantage[rows, 0].tolist() == np.array(advantage)[rows].tolist()
    # on-policy vs = V + A
    assert judged.target[rows, 0].tolist() == (case.value[:, 0] + advantage)[rows].tolist()


@pytest.mark.parametrize(
    ("trace_lambda", "advantage"),
    [
        (0.0, [1, 1, 1, 1]),
        # vs_0 = 2 + 15/8 = 1 + 2/2 + 3/4 + 4/8 + 10/16, the 4-step return
        (1.0, [1 + 7 / 8, 1 + 3 / 4, 1 + 1 / 2, 1]),
        # γ λ = 0.475: 1; 1.475; 1 + 0.475 · 1.475 = 1.700625; 1 + 0.475 · 1.700625 = 1.807796875
        (0.95, [1.807796875, 1.700625, 1.475, 1]),
    ],
)
def test_lambda(trace_lambda: float, advantage: list[float]) -> None:
    judged = judge(by_hand(), gamma=0.5, trace_lambda=trace_lambda)

    assert judged.advantage[:, 0].tolist() == pytest.approx(advantage, rel=1e-14)
    assert judged.target[:, 0].tolist() == pytest.approx([a + v for a, v in zip(advantage, [2, 4, 6, 8], strict=True)])


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        ({}, 1 + 0.5 * 4 - 2),  # V of the last observation
        ({"truncated": [0]}, 1 + 0.5 * 20 - 2),
        ({"terminated": [0]}, 1 - 2),
        ({"terminated": [0], "truncated": [0]}, 1 - 2),
    ],
)
def test_a_rollout_of_one_step(flags: dict[str, list[int]], error: float) -> None:
    judged = judge(flagged(by_hand(steps=1), **flags), gamma=0.5, trace_lambda=0.5)

    assert judged.advantage.tolist() == [[error]]
    assert judged.target.tolist() == [[2 + error]]


def test_each_env_has_ends_of_its_own() -> None:
    case = by_hand(envs=2)
    case.terminated[1, 0] = True
    case.truncated[2, 1] = True

    judged = judge(case, gamma=0.5, trace_lambda=0.5)

    assert judged.advantage[:, 0].tolist() == [1 / 2, -2, 1 + 1 / 4, 1]
    # row 2: 3 + ½ 20 − 6 = 7; 1 + 7/4 = 11/4; 1 + 11/16
    assert judged.advantage[:, 1].tolist() == [1 + 11 / 16, 1 + 7 / 4, 7, 1]


def test_ratios_below_and_above_limits_of_one() -> None:
    case = by_hand(steps=3)
    case.log_ratio[:, 0] = np.log([1 / 2, 4, 1 / 4])

    judged = judge(case, gamma=0.5, trace_lambda=0.5)

    # ρ = 1/2, 1, 1/4; c = 1/4, 1/2, 1/8; every r + γ n − V is 1.
    # row 2: 1/4. row 1: 1 + ½ ½ ¼ = 17/16. row 0: ½ + ½ ¼ 17/16 = 81/128
    assert judged.target[:, 0].tolist() == pytest.approx([2 + 81 / 128, 4 + 17 / 16, 6 + 1 / 4], rel=1e-14)
    # row 2: 1/4. row 1: 1 (1 + ½ ½ ¼) = 17/16. row 0: ½ (1 + ½ ½ 17/16) = 81/128
    assert judged.advantage[:, 0].tolist() == pytest.approx([81 / 128, 17 / 16, 1 / 4], rel=1e-14)


def test_the_two_limits_are_not_one() -> None:
    case = by_hand(steps=3)
    case.log_ratio[:, 0] = np.log([4, 4, 1 / 4])

    judged = judge(case, gamma=0.5, trace_lambda=0.5, limits=Limits(rho=2.0, c=0.5))

    # ρ = 2, 2, 1/4; c = λ ½, λ ½, λ ¼ = 1/4, 1/4, 1/8
    # row 2: 1/4. row 1: 2 + ½ ¼ ¼ = 65/32. row 0: 2 + ½ ¼ 65/32 = 577/256
    assert judged.target[:, 0].tolist() == pytest.approx([2 + 577 / 256, 4 + 65 / 32, 6 + 1 / 4], rel=1e-14)
    # λ without c̄ on the way into A: row 1: 2 (1 + ½ ½ ¼) = 17/8. row 0: 2 (1 + ½ ½ 65/32) = 193/64
    assert judged.advantage[:, 0].tolist() == pytest.approx([193 / 64, 17 / 8, 1 / 4], rel=1e-14)


def test_a_policy_that_never_acts_so_learns_nothing_and_carries_nothing() -> None:
    case = by_hand(steps=2)
    case.log_ratio[0] = -np.inf

    judged = judge(case, gamma=0.5, trace_lambda=0.5)

    assert judged.target[:, 0].tolist() == [2, 5]
    assert judged.advantage[:, 0].tolist() == [0, 1]


def test_ratios_that_no_float_holds_count_as_the_limits() -> None:
    case = by_hand()
    case.log_ratio[:] = 1e6

    judged = judge(case, gamma=0.5, trace_lambda=0.5)

    assert judged.advantage[:, 0].tolist() == [1 + 21 / 64, 1 + 5 / 16, 1 + 1 / 4, 1]


def test_what_a_step_is_worth_after_its_reward() -> None:
    value, last = torch.tensor([[1.0], [2], [3], [4], [5]]), torch.tensor([6.0])
    final = torch.tensor([[10.0], [20], [30], [40], [50]])
    terminated = torch.tensor([[False], [True], [False], [True], [False]])
    truncated = torch.tensor([[False], [False], [True], [True], [False]])

    assert next_values(value, last, final, terminated, truncated).flatten().tolist() == [2, 0, 30, 0, 6]
    assert next_values(value, last, final, terminated, terminated)[-1].tolist() == [6]
    ends = torch.ones(5, 1, dtype=torch.bool)
    assert next_values(value, last, final, ~ends, ends).flatten().tolist() == [10, 20, 30, 40, 50]


def test_a_final_value_that_is_not_finite_counts_only_where_it_is_used() -> None:
    value, nan = torch.ones(2, 1), torch.full((2, 1), math.nan)
    terminated, truncated = torch.tensor([[False], [True]]), torch.tensor([[False], [True]])

    assert next_values(value, nan[0], nan, terminated, truncated).flatten().tolist() == [1, 0]


def test_where_the_next_row_is_the_same_episodes_next_step() -> None:
    terminated = torch.tensor([[False, True], [False, False], [False, False], [False, False]])
    truncated = torch.tensor([[False, True], [True, False], [False, False], [False, False]])
    valid = torch.tensor([[False, True], [True, True], [True, False], [True, True]])

    # env 0: a row that is none itself; an end; a plain step; the last row
    # env 1: an end; a row before one that is none; that one, itself followed; the last row
    assert goes_on(terminated, truncated, valid).tolist() == [[True, False], [False, False], [True, True], [False] * 2]


def test_arguments_are_left_as_they_are() -> None:
    case = flagged(by_hand(), truncated=[1])
    flags = torch.from_numpy(case.terminated), torch.from_numpy(case.truncated)
    value, final = torch.from_numpy(case.value.copy()), torch.from_numpy(case.final_value.copy())

    next_values(value, torch.from_numpy(case.last_value), final, *flags)

    assert value.tolist() == case.value.tolist()
    assert final.tolist() == case.final_value.tolist()


# Against the sum over the future


def random_case(seed: int, steps: int, envs: int, noise: float, off_policy: float) -> Case:
    """Make a rollout with ends and invalid rows of every kind; after an end often comes a row that only resets."""
    random = np.random.default_rng(seed)
    shape = steps, envs
    terminated, truncated, invalid = (random.random(shape) < noise for _ in range(3))
    ended = terminated | truncated
    invalid[1:] |= ended[:-1] & (random.random((steps - 1, envs)) < 0.5)
    resets = invalid & (random.random(shape) < 0.7)
    return Case(
        reward=random.normal(size=shape),
        value=random.normal(size=shape) * 3,
        last_value=random.normal(size=envs) * 3,
        final_value=random.normal(size=shape) * 3,
        log_ratio=random.normal(size=shape) * off_policy,
        terminated=terminated & ~resets,
        truncated=truncated & ~resets,
        valid=~invalid,
    )


cases = st.builds(
    random_case,
    seed=st.integers(0, 2**32 - 1),
    steps=st.integers(1, 12),
    envs=st.integers(1, 4),
    noise=st.sampled_from([0.0, 0.1, 0.3]),
    off_policy=st.sampled_from([0.0, 0.3, 2.0]),
)
on_policy_cases = cases.map(lambda case: replace(case, log_ratio=np.zeros_like(case.log_ratio)))
gammas = st.sampled_from([0.0, 0.5, 0.99, 1.0])
lambdas = st.sampled_from([0.0, 0.5, 0.95, 1.0])
limits = st.sampled_from([ONE, Limits(2.0, 0.5), Limits(0.5, 2.0), Limits(1e9, 1e9)])


def assert_close(found: torch.Tensor, expected: NDArray[np.float64], rows: NDArray[np.bool_]) -> None:
    np.testing.assert_allclose(found.numpy()[rows], expected[rows], rtol=1e-9, atol=1e-9)


@repeatable
@given(cases, gammas, lambdas, limits)
def test_the_sum_over_the_future(case: Case, gamma: float, trace_lambda: float, limits: Limits) -> None:
    judged = judge(case, gamma, trace_lambda, limits)

    target, advantage = forward_sum(case, gamma, trace_lambda, limits)
    assert_close(judged.target, target, case.valid)
    assert_close(judged.advantage, advantage, case.valid)


@repeatable
@given(on_policy_cases, gammas, lambdas)
def test_on_policy_advantages_are_those_of_gae(case: Case, gamma: float, trace_lambda: float) -> None:
    judged = judge(case, gamma, trace_lambda)

    expected = np.zeros_like(case.value)
    for t, n in np.ndindex(case.value.shape):
        k, length = t, 0
        while True:  # Σ (γλ)^l δ_(t+l)
            error = case.reward[k, n] + gamma * next_value(case, k, n) - case.value[k, n]
            expected[t, n] += (gamma * trace_lambda) ** length * error
            if not is_followed(case, k, n):
                break
            k, length = k + 1, length + 1
    assert_close(judged.advantage, expected, case.valid)
    assert_close(judged.target, expected + case.value, case.valid)


@repeatable
@given(on_policy_cases, gammas)
def test_on_policy_targets_with_lambda_1_are_returns(case: Case, gamma: float) -> None:
    judged = judge(case, gamma, trace_lambda=1.0)

    expected = np.zeros_like(case.value)
    for t, n in np.ndindex(case.value.shape):
        k = t
        while is_followed(case, k, n):
            k += 1
        rewards = case.reward[t : k + 1, n]
        expected[t, n] = sum(gamma**power * reward for power, reward in enumerate(rewards))
        expected[t, n] += gamma ** len(rewards) * next_value(case, k, n)
    assert_close(judged.target, expected, case.valid)


@repeatable
@given(cases, gammas, lambdas, st.integers(0, 2**32 - 1))
def test_nothing_outside_of_its_episode_reaches_a_row(case: Case, gamma: float, trace_lambda: float, seed: int) -> None:
    """Change all that is behind a cut, in an invalid row, of the past, of other envs: the rest is the same bits."""
    random = np.random.default_rng(seed)
    rows = np.argwhere(case.valid)
    if len(rows) == 0:
        return
    first, n = random.choice(rows)
    last = first
    while is_followed(case, last, n):
        last += 1
    own = np.zeros_like(case.valid)
    own[first : last + 1, n] = True
    ended = case.terminated[last, n] or case.truncated[last, n]
    seen = own.copy()
    if not ended and last + 1 < len(own):
        seen[last + 1, n] = True  # its value is what row `last` is worth afterwards; nothing else of it counts
    last_counts = np.zeros(case.value.shape[1], bool)
    last_counts[n] = not ended and last + 1 == len(own)
    is_cut = case.truncated & ~case.terminated

    def else_huge(keep: NDArray[np.bool_], values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.where(keep, values, random.normal(size=values.shape) * 1e30)

    changed = replace(
        case,
        reward=else_huge(own, case.reward),
        value=else_huge(seen, case.value),
        last_value=else_huge(last_counts, case.last_value),
        final_value=else_huge(own & is_cut, case.final_value),
        log_ratio=np.where(own, case.log_ratio, random.normal(size=own.shape) * 50),
        terminated=np.where(own, case.terminated, random.random(own.shape) < 0.5),
        truncated=np.where(own, case.truncated, random.random(own.shape) < 0.5),
    )

    one, other = judge(case, gamma, trace_lambda), judge(changed, gamma, trace_lambda)

    assert one.target.numpy()[own].tolist() == other.target.numpy()[own].tolist()
    assert one.advantage.numpy()[own].tolist() == other.advantage.numpy()[own].tolist()


@repeatable
@given(cases, gammas, lambdas)
def test_envs_side_by_side_are_envs_alone(case: Case, gamma: float, trace_lambda: float) -> None:
    together = judge(case, gamma, trace_lambda)

    for n in range(case.value.shape[1]):
        alone = judge(case.env(n), gamma, trace_lambda)
        assert together.target[:, n].tolist() == alone.target[:, 0].tolist()
        assert together.advantage[:, n].tolist() == alone.advantage[:, 0].tolist()


@repeatable
@given(cases, lambdas)
def test_right_values_are_fixed(case: Case, trace_lambda: float) -> None:
    """Where V is what the env gives, nothing is to be learned, whoever acted."""
    gamma = 0.5
    right = replace(case, reward=case.value - gamma * np.vectorize(lambda t, n: next_value(case, t, n))(*_grid(case)))

    judged = judge(right, gamma, trace_lambda)

    np.testing.assert_allclose(judged.target.numpy(), case.value, atol=1e-12)
    np.testing.assert_allclose(judged.advantage.numpy(), 0, atol=1e-12)


def _grid(case: Case) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    rows, envs = np.indices(case.value.shape)
    return rows, envs


def test_float32_is_kept() -> None:
    case = by_hand()
    tensors = {name: torch.from_numpy(column).float() for name, column in vars(case).items()}
    flags = torch.from_numpy(case.terminated), torch.from_numpy(case.truncated)

    judged = vtrace(
        tensors["reward"],
        tensors["value"],
        next_values(tensors["value"], tensors["last_value"], tensors["final_value"], *flags),
        goes_on(*flags, torch.from_numpy(case.valid)),
        tensors["log_ratio"],
        0.5,
        0.5,
    )

    assert judged.target.dtype == judged.advantage.dtype == torch.float32
    assert judged.advantage.flatten().tolist() == [1 + 21 / 64, 1 + 5 / 16, 1 + 1 / 4, 1]
