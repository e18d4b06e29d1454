"""Diagonal Gaussians, pure: mean `(n, size)`, log_std `(size,)` or `(n, size)`; sums over the last dimension."""

from __future__ import annotations

import math

from torch import Tensor

_LOG_2_PI = math.log(2 * math.pi)


def log_prob(action: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Return the log-density of an action, `(n,)`."""
    deviation = (action - mean) / log_std.exp()
    return -0.5 * deviation.square().sum(dim=-1) - (log_std + 0.5 * _LOG_2_PI).sum(dim=-1)


def entropy(log_std: Tensor) -> Tensor:
    """Return the differential entropy in nats."""
    return (log_std + 0.5 * (1 + _LOG_2_PI)).sum(dim=-1)


def kl_divergence(mean: Tensor, log_std: Tensor, other_mean: Tensor, other_log_std: Tensor) -> Tensor:
    """Return KL(N ‖ other), `(n,)`."""
    variance, other_variance = (2 * log_std).exp(), (2 * other_log_std).exp()
    squares = (variance + (mean - other_mean).square()) / (2 * other_variance)
    return (other_log_std - log_std + squares - 0.5).sum(dim=-1)
