"""SAC's losses, pure (arXiv 1812.05905, sections 4 and 5)."""

from __future__ import annotations

from torch import Tensor


def critic_target(
    reward: Tensor, discount: Tensor, next_values: Tensor, next_log_prob: Tensor, temperature: Tensor
) -> Tensor:
    """Return `r + d (min Q'(s', a') − α log π(a'|s'))`, `(n,)`; next_values are `(2, n)`."""
    return reward + discount * (next_values.amin(dim=0) - temperature * next_log_prob)


def critic_loss(values: Tensor, target: Tensor) -> Tensor:
    """Return the squared errors, mean over rows and summed over both critics; values are `(2, n)`."""
    return (values - target).square().mean(dim=-1).sum()


def actor_loss(least: Tensor, log_prob: Tensor, temperature: Tensor) -> Tensor:
    """Return `mean(α log π − min Q)`; `least` is min Q, `(n,)`."""
    return (temperature * log_prob - least).mean()


def actor_surrogate(action: Tensor, derivative: Tensor, log_prob: Tensor, temperature: Tensor) -> Tensor:
    """Return a loss with the actor loss's gradient: `mean(α log π − a · ∂min Q/∂a)`, the derivative held fixed."""
    return (temperature * log_prob - (action * derivative).sum(dim=-1)).mean()


def temperature_loss(log_temperature: Tensor, log_prob: Tensor, target_entropy: float) -> Tensor:
    """Return `−α mean(log π + H̄)`; no gradient reaches log π."""
    return -(log_temperature.exp() * (log_prob.detach() + target_entropy)).mean()
