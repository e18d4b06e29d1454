"""Actions live in [-1, 1] everywhere but in the call of the env: the one conversion between the two."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from aiorl.protocol import EnvSpec


class ActionBounds(nn.Module):
    """The env's finite, possibly asymmetric, action box; part of every published policy."""

    low: Tensor
    high: Tensor

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        self.register_buffer("low", torch.tensor(spec.action_low, dtype=torch.float32))
        self.register_buffer("high", torch.tensor(spec.action_high, dtype=torch.float32))

    def forward(self, action: Tensor) -> Tensor:
        """Return actions of [-1, 1] in the env's units, `(n, action_size)`; ±1 and beyond are exactly the bounds."""
        share = (action + 1) / 2
        # What is not finite becomes NaN: it must not hide behind the bounds.
        return self.low.lerp(self.high, share).clamp(self.low, self.high) + (action - action)
