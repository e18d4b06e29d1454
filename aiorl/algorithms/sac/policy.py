"""SAC's policy: a Gaussian squashed by tanh."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from aiorl.algorithms.actions import ActionBounds
from aiorl.algorithms.interface import Policy
from aiorl.algorithms.networks import linear, mlp
from aiorl.algorithms.normalisation import Normaliser
from aiorl.algorithms.sac.settings import SacSettings
from aiorl.protocol import EnvSpec

LOG_STD_LOW, LOG_STD_HIGH = -5.0, 2.0


class SacPolicy(Policy):
    """`a = tanh(μ + σ ε)`, with `log σ = lo + ½ (hi − lo)(tanh x + 1)`, lo −5, hi 2."""

    def __init__(self, settings: SacSettings, spec: EnvSpec, generator: torch.Generator) -> None:
        super().__init__()
        obs_size, action_size = spec.group("policy").size, spec.action_size
        self.normaliser: nn.Module = Normaliser(obs_size) if settings.normalise_observations else nn.Identity()
        self.trunk = mlp(obs_size, settings.actor_hidden, generator)
        self.head = linear(settings.actor_hidden[-1], 2 * action_size, generator)
        self.bounds = ActionBounds(spec)

    def gaussian(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return μ and log σ before the tanh, each `(n, action_size)`."""
        mean, x = self.head(self.trunk(self.normaliser(obs))).chunk(2, dim=-1)
        return mean, LOG_STD_LOW + 0.5 * (LOG_STD_HIGH - LOG_STD_LOW) * (x.tanh() + 1)

    def act(self, obs: Tensor) -> Tensor:
        """Return tanh(μ)."""
        return self.gaussian(obs)[0].tanh()

    def explore(self, obs: Tensor, generator: torch.Generator) -> Tensor:
        """Return a sampled action."""
        mean, log_std = self.gaussian(obs)
        noise = torch.randn(mean.shape, generator=generator, device=mean.device)
        return (mean + log_std.exp() * noise).tanh()


def make_policy(settings: SacSettings, spec: EnvSpec, generator: torch.Generator) -> SacPolicy:
    """Make SAC's policy for an environment."""
    return SacPolicy(settings, spec, generator)


def squashed_sample(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return `a = tanh(u)`, `u = μ + σ ε`, and its log-probability `(n,)` in [-1, 1].

    The tanh term is exact: log(1 − tanh² u) = 2 (log 2 − u − softplus(−2u)) (arXiv 1801.01290, appendix C).
    """
    u = mean + log_std.exp() * noise
    gaussian = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    squash = 2 * (math.log(2) - u - functional.softplus(-2 * u))
    return u.tanh(), (gaussian - squash).sum(dim=-1)
