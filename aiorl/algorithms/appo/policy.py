"""APPO's policy: a Gaussian whose σ is the same in every state."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from aiorl.algorithms import gaussian
from aiorl.algorithms.actions import ActionBounds
from aiorl.algorithms.appo.settings import AppoSettings
from aiorl.algorithms.interface import StochasticPolicy
from aiorl.algorithms.networks import elu, linear, mlp
from aiorl.algorithms.normalisation import Normaliser
from aiorl.protocol import EnvSpec


class AppoPolicy(StochasticPolicy):
    """`a = μ(s) + σ ε`, not clipped: what lies outside of [-1, 1] is clipped by the env's bounds alone."""

    def __init__(self, settings: AppoSettings, spec: EnvSpec, generator: torch.Generator) -> None:
        super().__init__()
        obs_size, action_size = spec.group("policy").size, spec.action_size
        self.normaliser: nn.Module = Normaliser(obs_size) if settings.normalise_observations else nn.Identity()
        self.trunk = mlp(obs_size, settings.actor_hidden, generator, elu)
        self.head = linear(settings.actor_hidden[-1], action_size, generator)
        self.log_std = nn.Parameter(torch.full((action_size,), math.log(settings.initial_std)))
        self.bounds = ActionBounds(spec)

    def mean(self, normalised: Tensor) -> Tensor:
        """Return μ, `(n, action_size)`, for observations that went through the normaliser."""
        result: Tensor = self.head(self.trunk(normalised))
        return result

    def act(self, obs: Tensor) -> Tensor:
        """Return μ."""
        return self.mean(self.normaliser(obs))

    def sample(self, obs: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return a sampled action and its log-probability."""
        mean = self.act(obs)
        noise = torch.randn(mean.shape, generator=generator, device=mean.device)
        action = torch.addcmul(mean, self.log_std.exp(), noise)
        return action, gaussian.log_prob(action, mean, self.log_std)
