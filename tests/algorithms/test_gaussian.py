"""Diagonal Gaussians: by hand, and against torch.distributions."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Independent, Normal
from torch.distributions import kl_divergence as torch_kl_divergence

from aiorl.algorithms.gaussian import entropy, kl_divergence, log_prob

LOG_2, LOG_2_PI = 0.6931471805599453, 1.8378770664093453


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def randn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def normal(mean: Tensor, log_std: Tensor) -> Independent:
    return Independent(Normal(mean, log_std.exp().expand_as(mean)), 1)


SHAPES = [((1,), (50, 1)), ((3,), (50, 3)), ((50, 3), (50, 3)), ((3,), (4, 5, 3))]
"""Of log_std and of mean; one σ for every state, σ of each state, time-major rollouts."""


@pytest.mark.parametrize(("of_log_std", "of_mean"), SHAPES)
def test_torch_says_the_same(of_log_std: tuple[int, ...], of_mean: tuple[int, ...]) -> None:
    mean, other_mean, action = (randn(*of_mean, seed=seed) * 3 for seed in (0, 1, 2))
    log_std, other_log_std = (randn(*of_log_std, seed=seed) for seed in (3, 4))
    one, other = normal(mean, log_std), normal(other_mean, other_log_std)

    found = log_prob(action, mean, log_std)
    divergence = kl_divergence(mean, log_std, other_mean, other_log_std)

    assert found.shape == divergence.shape == of_mean[:-1]
    torch.testing.assert_close(found, one.log_prob(action), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(divergence, torch_kl_divergence(one, other), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(entropy(log_std).expand(of_mean[:-1]), one.entropy(), rtol=1e-12, atol=1e-12)


def test_log_prob_by_hand() -> None:
    # σ = 2 at one σ, σ = 1 at the mean: (−½ − ln 2 − ½ ln 2π) + (−½ ln 2π)
    found = log_prob(tensor(5, -1)[None], tensor(3, -1)[None], tensor(LOG_2, 0))

    assert found.tolist() == pytest.approx([-0.5 - LOG_2 - LOG_2_PI], rel=1e-14)


def test_entropy_by_hand() -> None:
    # ½ ln 2πe of σ = 1, and ln 2 more of σ = 2
    assert entropy(tensor(0)).item() == pytest.approx(1.4189385332046727, rel=1e-14)
    assert entropy(tensor(0, LOG_2)).item() == pytest.approx(2 * 1.4189385332046727 + LOG_2, rel=1e-14)


def test_kl_divergence_by_hand_and_its_direction() -> None:
    zero, one, narrow, wide = tensor(0)[None], tensor(1)[None], tensor(0), tensor(LOG_2)

    # ln (2/1) + (1² + 1²) / (2 · 2²) − ½
    assert kl_divergence(zero, narrow, one, wide).item() == pytest.approx(LOG_2 + 1 / 4 - 1 / 2, rel=1e-14)
    # ln (1/2) + (2² + 1²) / (2 · 1²) − ½
    assert kl_divergence(one, wide, zero, narrow).item() == pytest.approx(-LOG_2 + 5 / 2 - 1 / 2, rel=1e-14)


def test_kl_divergence_is_the_mean_of_the_difference_of_log_probabilities() -> None:
    mean, log_std, other_mean, other_log_std = tensor(0.3), tensor(-0.5), tensor(-0.2), tensor(0.1)
    action = mean + log_std.exp() * randn(400_000, 1, seed=0)

    difference = log_prob(action, mean, log_std) - log_prob(action, other_mean, other_log_std)

    found = kl_divergence(mean[None], log_std, other_mean[None], other_log_std).item()
    assert difference.mean().item() == pytest.approx(found, abs=4 * difference.std().item() / math.sqrt(400_000))


def test_a_gaussian_does_not_differ_from_itself() -> None:
    mean, log_std = randn(20, 3, seed=0).float() * 100, randn(3, seed=1).float()

    assert kl_divergence(mean, log_std, mean, log_std).tolist() == pytest.approx([0] * 20, abs=1e-6)


def test_gradients() -> None:
    mean, log_std = tensor(3)[None].requires_grad_(), tensor(LOG_2).requires_grad_()

    log_prob(tensor(9)[None], mean, log_std).sum().backward()

    # (a − μ) / σ² = 6/4, ((a − μ)/σ)² − 1 = 8
    assert mean.grad.item() == pytest.approx(1.5)
    assert log_std.grad.item() == pytest.approx(8)
    log_std.grad = None
    entropy(log_std).backward()
    assert log_std.grad.item() == 1


@pytest.mark.parametrize("log_std", [-20.0, 20.0])
def test_float32_at_its_limits(log_std: float) -> None:
    scale = torch.tensor([log_std])
    mean = torch.zeros(1, 1)

    found = log_prob(mean + scale.exp(), mean, scale)

    assert found.item() == pytest.approx(-0.5 - log_std - 0.5 * LOG_2_PI, rel=1e-6)
    assert kl_divergence(mean, scale, mean + scale.exp(), scale).item() == pytest.approx(0.5, rel=1e-5)
