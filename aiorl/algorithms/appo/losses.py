"""APPO's losses, pure; every argument is `(n,)` (IMPACT, arXiv 1912.00167, section 3; PPO, arXiv 1707.06347)."""

from __future__ import annotations

import torch
from torch import Tensor


def surrogate_ratio(log_prob: Tensor, target_log_prob: Tensor, acting_log_prob: Tensor, limit: float) -> Tensor:
    """Return `min(μ/π̄, limit) π/μ`: π/π̄, but less where μ was more than `limit` times π̄."""
    acting_over_target = (acting_log_prob - target_log_prob).exp().clamp(max=limit)
    return acting_over_target * (log_prob - acting_log_prob).exp()


def surrogate_loss(ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """Return `−mean min(A r, A clip(r, 1 ± clip))`."""
    clipped = ratio.clamp(1 - clip, 1 + clip)
    return -torch.minimum(advantage * ratio, advantage * clipped).mean()


def value_loss(value: Tensor, old_value: Tensor, target: Tensor, clip: float | None) -> Tensor:
    """Return `mean max((V − vs)², (V_old + clip(V − V_old, ±clip) − vs)²)`; without a clip the first alone."""
    error = (value - target).square()
    if clip is None:
        return error.mean()
    near = old_value + (value - old_value).clamp(-clip, clip)
    return torch.maximum(error, (near - target).square()).mean()


def explained_variance(value: Tensor, target: Tensor) -> Tensor:
    """Return `1 − Var(vs − V) / Var(vs)`; 0 where the target does not vary."""
    spread = target.var(correction=0)
    explained = 1 - (target - value).var(correction=0) / spread.clamp(min=1e-8)
    return torch.where(spread > 1e-8, explained, torch.zeros_like(spread))


def adapted_rate(rate: float, kl: float, target_kl: float, least: float, most: float) -> float:
    """Return the next learning rate: ÷ 1.5 where the KL divergence is above twice its target, x 1.5 below half."""
    if kl > 2 * target_kl:
        return max(rate / 1.5, least)
    if kl < target_kl / 2:
        return min(rate * 1.5, most)
    return rate
