"""Building blocks of networks; every start value comes from an explicit generator."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn


class _Unset(nn.Linear):
    """A linear layer that draws nothing from the global generator.

    `nn.utils.skip_init` does the same by way of the meta device, whose import takes a second and 40 MB of each worker.
    """

    def reset_parameters(self) -> None:
        """Leave the values to who makes it."""


def linear(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    """Return a linear layer with PyTorch's default start, drawn from `generator`: U(±1/√inputs)."""
    layer = _Unset(inputs, outputs)
    bound = 1 / math.sqrt(inputs)
    with torch.no_grad():
        layer.weight.uniform_(-bound, bound, generator=generator)
        layer.bias.uniform_(-bound, bound, generator=generator)
    return layer


def relu() -> nn.Module:
    """Return a ReLU that overwrites what it is given: half the memory to go through, and no layer needs it any more."""
    return nn.ReLU(inplace=True)


def elu() -> nn.Module:
    """Return an ELU of the same kind."""
    return nn.ELU(inplace=True)


def mlp(
    inputs: int, hidden: Sequence[int], generator: torch.Generator, activation: Callable[[], nn.Module] = relu
) -> nn.Sequential:
    """Return Linear → activation for each width, `(n, inputs)` → `(n, hidden[-1])`."""
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [linear(inputs, width, generator), activation()]
        inputs = width
    return nn.Sequential(*layers)


class TwinCritic(nn.Module):
    """Two independent Q networks on [obs, action], ReLU.

    Two networks side by side, not one with batched products: on a CPU those take longer
    (benchmarks/gradient_steps.py).
    """

    def __init__(self, inputs: int, hidden: Sequence[int], generator: torch.Generator) -> None:
        super().__init__()
        self.members = nn.ModuleList(
            nn.Sequential(*mlp(inputs, hidden, generator), linear(hidden[-1], 1, generator)) for _ in range(2)
        )

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return both values, `(2, n)`, for obs `(n, obs_size)` and action `(n, action_size)`."""
        values = torch.cat([obs, action], dim=-1)
        return torch.cat([member(values) for member in self.members], dim=-1).T

    @torch.no_grad()
    def least(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return the smaller value, `(n,)`, and its derivative with respect to the action, `(n, action_size)`.

        That is all an actor needs of its critics. By hand it takes half of what backpropagation would: a row's
        derivative goes back through the one network that is smaller there, and through no recorded graph.
        """
        inputs = torch.cat([obs, action], dim=-1)
        passes = [self._forward(member, inputs) for member in self.members]
        values = torch.cat([hidden[-1] for hidden in passes], dim=-1)
        least, which = values.min(dim=-1)
        derivative = torch.empty_like(action)
        for number, (member, hidden) in enumerate(zip(self.members, passes, strict=True)):
            rows = (which == number).nonzero().squeeze(-1)
            layers = [layer for layer in member.children() if isinstance(layer, nn.Linear)]
            back = layers[-1].weight.expand(len(rows), -1)
            for layer, output in zip(reversed(layers[:-1]), reversed(hidden[:-1]), strict=True):
                back = (back * output.index_select(0, rows).sign()) @ layer.weight  # a ReLU's slope is 0 or 1
            derivative[rows] = back[:, obs.shape[-1] :]
        return least, derivative

    @staticmethod
    def _forward(member: nn.Module, values: Tensor) -> list[Tensor]:
        """Return what each hidden layer puts out, after its ReLU, and the value, `(n, 1)`."""
        outputs: list[Tensor] = []
        for layer in member.children():
            values = layer(values)
            if isinstance(layer, nn.Linear):
                outputs.append(values)  # its ReLU comes next, and overwrites it
        return outputs
