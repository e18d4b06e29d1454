"""Observation normalisation: one module for collector, learner, evaluation and export."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from aiorl.storage.moments import Moments

EPSILON = 0.01
LIMIT = 10.0


class Normaliser(nn.Module):
    """`clip((x − μ) / (σ + 0.01), ±10)`; the identity until it is given its first statistics."""

    mean: Tensor
    scale: Tensor
    limit: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("scale", torch.ones(size))
        self.register_buffer("limit", torch.tensor(torch.finfo(torch.float32).max))

    def forward(self, obs: Tensor) -> Tensor:
        """Return the normalised observation, `(n, size)`."""
        return ((obs - self.mean) * self.scale).clamp(-self.limit, self.limit)

    @torch.no_grad()
    def set_moments(self, moments: Moments) -> None:
        """Take mean and standard deviation from the moments of all fresh observations."""
        if moments.count == 0:
            return
        deviation = (moments.m2 / moments.count) ** 0.5
        self.mean.copy_(torch.from_numpy(moments.mean))
        self.scale.copy_(torch.from_numpy(1 / (deviation + EPSILON)))
        self.limit.fill_(LIMIT)
