"""Building blocks of networks; every start value comes from an explicit generator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn


def linear(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    """Return a linear layer with PyTorch's default start, drawn from `generator`: U(±1/√inputs)."""
    layer = nn.utils.skip_init(nn.Linear, inputs, outputs)  # type: ignore[no-untyped-call]
    assert isinstance(layer, nn.Linear)
    bound = 1 / math.sqrt(inputs)
    with torch.no_grad():
        layer.weight.uniform_(-bound, bound, generator=generator)
        layer.bias.uniform_(-bound, bound, generator=generator)
    return layer


def mlp(
    inputs: int, hidden: Sequence[int], generator: torch.Generator, activation: type[nn.Module] = nn.ReLU
) -> nn.Sequential:
    """Return Linear → activation for each width, `(n, inputs)` → `(n, hidden[-1])`."""
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [linear(inputs, width, generator), activation()]
        inputs = width
    return nn.Sequential(*layers)


class EnsembleLinear(nn.Module):
    """`members` linear layers side by side: `(members, n, inputs)` → `(members, n, outputs)` in one product."""

    def __init__(self, members: int, inputs: int, outputs: int, generator: torch.Generator) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(members, inputs, outputs).uniform_(-bound, bound, generator=generator))
        self.bias = nn.Parameter(torch.empty(members, 1, outputs).uniform_(-bound, bound, generator=generator))

    def forward(self, values: Tensor) -> Tensor:
        """Apply every member to its own slice."""
        return torch.baddbmm(self.bias, values, self.weight)


class TwinCritic(nn.Module):
    """Two independent Q networks on [obs, action], ReLU, evaluated together."""

    def __init__(self, inputs: int, hidden: Sequence[int], generator: torch.Generator) -> None:
        super().__init__()
        widths = [inputs, *hidden]
        self.hidden = nn.ModuleList(EnsembleLinear(2, before, after, generator) for before, after in pairwise(widths))
        self.head = EnsembleLinear(2, widths[-1], 1, generator)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return both values, `(2, n)`, for obs `(n, obs_size)` and action `(n, action_size)`."""
        values = torch.cat([obs, action], dim=-1).expand(2, -1, -1)
        for layer in self.hidden:
            values = layer(values).relu()
        result: Tensor = self.head(values)
        return result.squeeze(-1)
