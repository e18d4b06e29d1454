"""What collector, learner and evaluator expect of an algorithm."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from aiorl.protocol import EnvSpec
from aiorl.settings import RunSettings
from aiorl.storage.moments import Moments


class Policy(nn.Module, ABC):
    """An acting policy: raw float32 observations in, actions of [-1, 1] out, `bounds` gives env units."""

    bounds: nn.Module

    @abstractmethod
    def act(self, obs: Tensor) -> Tensor:
        """Return the deterministic action, `(n, action_size)`, for obs `(n, obs_size)`."""

    @abstractmethod
    def explore(self, obs: Tensor, generator: torch.Generator) -> Tensor:
        """Return the action to collect with, `(n, action_size)`."""


class StochasticPolicy(Policy):
    """A policy that knows how likely its actions are."""

    @abstractmethod
    def sample(self, obs: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return the action to collect with, `(n, action_size)`, and its log-probability, `(n,)`."""

    def explore(self, obs: Tensor, generator: torch.Generator) -> Tensor:
        """Return the action to collect with."""
        return self.sample(obs, generator)[0]


def unmarked(phase: str) -> None:
    """Stand where a trace's marks go, and do nothing."""


@dataclass(frozen=True)
class Batch:
    """One minibatch on the learner's device; observations are raw, actions in [-1, 1].

    Shapes: obs groups `(n, size)`, action `(n, action_size)`, reward and discount `(n,)`. `discount` is
    γ^k of the k rewards summed, 0 where the last of them terminated.
    """

    obs: Tensor
    critic_obs: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor
    next_obs: Tensor
    next_critic_obs: Tensor


@dataclass(frozen=True)
class Rollouts:
    """The rollouts of an update side by side, time-major, on the learner's device; observations are raw.

    Shapes: obs groups `(T, N, size)`, action `(T, N, action_size)`, `log_prob` under the acting policy, reward
    and flags `(T, N)`, `last_critic_obs` `(N, size)`. `next_critic_obs` is what each step led to: the final
    observation where its episode ended. Rows that are not `valid` are no transitions.
    """

    obs: Tensor
    critic_obs: Tensor
    action: Tensor
    log_prob: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor
    next_critic_obs: Tensor
    last_critic_obs: Tensor


class Learner(Protocol):
    """The networks and optimisers of an algorithm."""

    policy: Policy
    metric_names: tuple[str, ...]
    mark: Callable[[str], None]
    """Called with a phase's name at its end; does nothing unless a trace is recorded."""

    def set_moments(self, moments: Mapping[str, Moments]) -> None:
        """Take the statistics of all fresh observations (by group) and rewards (`reward`)."""

    def tensors(self) -> dict[str, Tensor]:
        """Return everything but the policy that training needs to go on, by name."""

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Take back what `tensors` returned."""


class OffPolicyLearner(Learner, Protocol):
    """A learner that trains on drawn transitions."""

    def gradient_step(self, batch: Batch) -> Tensor:
        """Take one gradient step; return the values of `metric_names`, `(len(metric_names),)`."""


class OnPolicyLearner(Learner, Protocol):
    """A learner that trains on rollouts."""

    def update(self, rollouts: Rollouts) -> Tensor:
        """Take all gradient steps on these rollouts; return the values of `metric_names`."""


def resolve(name: str) -> Any:
    """Return the object that `module:attribute` names."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


def make_policy(settings: RunSettings, spec: EnvSpec, generator: torch.Generator | None = None) -> Policy:
    """Make the algorithm's policy in eval mode; start values are drawn from `generator`."""
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    policy: Policy = resolve(settings.algorithm.policy)(settings.algorithm, spec, generator)
    return policy.eval()


def make_learner(settings: RunSettings, spec: EnvSpec, device: torch.device, seed: int) -> Any:
    """Make the algorithm's learner on a device: an OffPolicyLearner or OnPolicyLearner, by its family."""
    learner: Learner = resolve(settings.algorithm.learner)(settings.algorithm, spec, device, seed)
    return learner
