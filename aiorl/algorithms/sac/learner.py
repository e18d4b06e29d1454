"""SAC's learner: twin critics, actor, temperature, and one gradient step of them all."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from aiorl.algorithms.flat import flatten
from aiorl.algorithms.interface import Batch, unmarked
from aiorl.algorithms.networks import TwinCritic
from aiorl.algorithms.normalisation import Normaliser
from aiorl.algorithms.sac.losses import actor_loss, actor_surrogate, critic_loss, critic_target, temperature_loss
from aiorl.algorithms.sac.policy import SacPolicy, squashed_sample
from aiorl.algorithms.sac.settings import SacSettings
from aiorl.algorithms.state import load_module_tensors, load_optimiser_tensors, module_tensors, optimiser_tensors
from aiorl.protocol import EnvSpec
from aiorl.storage.moments import Moments


class SacLearner:
    """Order of a gradient step: critics → actor → temperature → target critics."""

    metric_names = (
        "loss/critic",
        "loss/actor",
        "loss/temperature",
        "policy/entropy",
        "policy/temperature",
        "value/mean",
    )

    mark = staticmethod(unmarked)

    def __init__(self, settings: SacSettings, spec: EnvSpec, device: torch.device, seed: int) -> None:
        self._settings = settings
        start = torch.Generator().manual_seed(seed)  # start values come from the CPU: the same on every device
        self.policy = SacPolicy(settings, spec, start).to(device).eval()
        critic_size = spec.group("critic").size
        self.critic = TwinCritic(critic_size + spec.action_size, settings.critic_hidden, start).to(device)
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self._critic_flat = flatten(self.critic).view(torch.float32)
        self._target_flat = flatten(self.target).view(torch.float32)
        self.critic_normaliser: nn.Module = (
            Normaliser(critic_size).to(device) if settings.normalise_observations else nn.Identity()
        )
        self.log_temperature = torch.tensor(
            math.log(settings.initial_temperature), device=device, requires_grad=settings.learn_temperature
        )
        self._target_entropy = settings.target_entropy_per_action * spec.action_size
        self._generator = torch.Generator(device).manual_seed(seed + 1)

        def adam(parameters: list[Tensor], rate: float) -> torch.optim.Adam:
            return torch.optim.Adam(parameters, lr=rate, fused=True)

        self._optimisers = {
            "actor": adam(list(self.policy.parameters()), settings.actor_learning_rate),
            "critic": adam(list(self.critic.parameters()), settings.critic_learning_rate),
        }
        if settings.learn_temperature:
            self._optimisers["temperature"] = adam([self.log_temperature], settings.temperature_learning_rate)

    def set_moments(self, moments: Mapping[str, Moments]) -> None:
        """Give actor and critics the statistics of their observation groups."""
        if isinstance(self.policy.normaliser, Normaliser):
            self.policy.normaliser.set_moments(moments["policy"])
        if isinstance(self.critic_normaliser, Normaliser):
            self.critic_normaliser.set_moments(moments.get("critic", moments["policy"]))

    def gradient_step(self, batch: Batch) -> Tensor:
        """Take one gradient step on all networks."""
        temperature = self.log_temperature.exp().detach()
        critic_obs = self.critic_normaliser(batch.critic_obs)
        with torch.no_grad():
            next_action, next_log_prob = self._sample(batch.next_obs)
            next_values = self.target(self.critic_normaliser(batch.next_critic_obs), next_action)
            target = critic_target(batch.reward, batch.discount, next_values, next_log_prob, temperature)
        values = self.critic(critic_obs, batch.action)
        loss_critic = critic_loss(values, target)
        self._step("critic", loss_critic)
        self.mark("critic")

        action, log_prob = self._sample(batch.obs)
        least, derivative = self.critic.least(critic_obs, action.detach())
        loss_actor = actor_loss(least, log_prob, temperature)
        self._step("actor", actor_surrogate(action, derivative, log_prob, temperature))
        self.mark("actor")

        loss_temperature = temperature_loss(self.log_temperature.detach(), log_prob, self._target_entropy)
        if self._settings.learn_temperature:
            self.log_temperature.grad = loss_temperature.detach()  # an exponential is its own derivative
            self._optimisers["temperature"].step()
        self.mark("temperature")
        self._target_flat.lerp_(self._critic_flat.detach(), self._settings.tau)
        self.mark("target")
        return torch.stack(
            [loss_critic, loss_actor, loss_temperature, -log_prob.mean(), temperature, values.mean()]
        ).detach()

    def tensors(self) -> dict[str, Tensor]:
        """Return critics, targets, temperature, optimisers, generator."""
        result = module_tensors("critic", self.critic) | module_tensors("target", self.target)
        result |= module_tensors("critic_normaliser", self.critic_normaliser)
        result |= {"log_temperature": self.log_temperature.detach(), "generator": self._generator.get_state()}
        for name, optimiser in self._optimisers.items():
            result |= optimiser_tensors(f"optimiser.{name}", optimiser)
        return result

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Take back what `tensors` returned."""
        load_module_tensors("critic", self.critic, tensors)
        load_module_tensors("target", self.target, tensors)
        load_module_tensors("critic_normaliser", self.critic_normaliser, tensors)
        with torch.no_grad():
            self.log_temperature.copy_(tensors["log_temperature"])
        self._generator.set_state(tensors["generator"])
        for name, optimiser in self._optimisers.items():
            load_optimiser_tensors(f"optimiser.{name}", optimiser, tensors)

    def _sample(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.policy.gaussian(obs)
        noise = torch.randn(mean.shape, generator=self._generator, device=mean.device)
        return squashed_sample(mean, log_std, noise)

    def _step(self, name: str, loss: Tensor) -> None:
        optimiser = self._optimisers[name]
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
