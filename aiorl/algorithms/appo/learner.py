"""APPO's learner: one update is some epochs of minibatches over rollouts that V-trace has judged."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from aiorl.algorithms import gaussian
from aiorl.algorithms.appo.losses import (
    adapted_rate,
    explained_variance,
    surrogate_loss,
    surrogate_ratio,
    value_loss,
)
from aiorl.algorithms.appo.policy import AppoPolicy
from aiorl.algorithms.appo.settings import AppoSettings
from aiorl.algorithms.interface import Rollouts, unmarked
from aiorl.algorithms.networks import elu, linear, mlp
from aiorl.algorithms.normalisation import Normaliser
from aiorl.algorithms.state import load_module_tensors, load_optimiser_tensors, module_tensors, optimiser_tensors
from aiorl.algorithms.vtrace import Limits, goes_on, next_values, vtrace
from aiorl.protocol import EnvSpec
from aiorl.storage.moments import Moments

ROUNDING = 1e-3
"""On-policy the weights are 1 up to this much; only what is beyond counts as clipped."""


class Rows(NamedTuple):
    """The valid rows of an update, `(n, …)`: what each minibatch is drawn from."""

    obs: Tensor
    critic_obs: Tensor
    action: Tensor
    acting_log_prob: Tensor
    target_mean: Tensor
    target_log_prob: Tensor
    advantage: Tensor
    old_value: Tensor
    value_target: Tensor


class AppoLearner:
    """The target policy is the one published last; with a longer `target_period`, an older one."""

    metric_names = (
        "loss/actor",
        "loss/critic",
        "policy/entropy",
        "policy/kl",
        "policy/clip_share",
        "policy/rho_clip_share",
        "policy/learning_rate",
        "value/mean",
        "value/explained_variance",
    )

    mark = staticmethod(unmarked)

    def __init__(self, settings: AppoSettings, spec: EnvSpec, device: torch.device, seed: int) -> None:
        self._settings = settings
        start = torch.Generator().manual_seed(seed)  # start values come from the CPU: the same on every device
        self.policy = AppoPolicy(settings, spec, start).to(device).eval()
        self.target = copy.deepcopy(self.policy).requires_grad_(False)
        critic_size = spec.group("critic").size
        hidden = mlp(critic_size, settings.critic_hidden, start, elu)
        self.critic = nn.Sequential(hidden, linear(settings.critic_hidden[-1], 1, start), nn.Flatten(-2)).to(device)
        self.critic_normaliser: nn.Module = (
            Normaliser(critic_size).to(device) if settings.normalise_observations else nn.Identity()
        )
        self._generator = torch.Generator(device).manual_seed(seed + 1)
        self._parameters = [*self.policy.parameters(), *self.critic.parameters()]
        self._optimiser = torch.optim.Adam(self._parameters, lr=settings.learning_rate, fused=True)
        self._updates = 0

    @property
    def learning_rate(self) -> float:
        """Adam's rate now."""
        rate: float = self._optimiser.param_groups[0]["lr"]
        return rate

    def set_moments(self, moments: Mapping[str, Moments]) -> None:
        """Give actor and critic the statistics of their observation groups."""
        if isinstance(self.policy.normaliser, Normaliser):
            self.policy.normaliser.set_moments(moments["policy"])
        if isinstance(self.critic_normaliser, Normaliser):
            self.critic_normaliser.set_moments(moments.get("critic", moments["policy"]))

    def update(self, rollouts: Rollouts) -> Tensor:
        """Take `epochs` x `minibatches` gradient steps, then steer the learning rate by the last epoch's KL."""
        settings = self._settings
        if self._updates % settings.target_period == 0:
            self.target.load_state_dict(self.policy.state_dict())
        self._updates += 1
        if not rollouts.valid.any():  # resets alone
            return torch.zeros(len(self.metric_names))
        rows, judged = self._judge(rollouts)
        self.mark("judge")
        steps: list[Tensor] = []
        for _ in range(settings.epochs):
            order = torch.randperm(len(rows.action), generator=self._generator, device=rows.action.device)
            # With many resets there may be fewer rows than minibatches.
            parts = [part for part in order.tensor_split(settings.minibatches) if len(part)]
            epoch = [self._gradient_step(Rows(*(values[part] for values in rows))) for part in parts]
            steps += epoch
        trained = torch.stack(steps).mean(dim=0)
        kl = torch.stack(epoch)[:, 3].mean()
        rate = self.learning_rate
        if settings.target_kl is not None:
            bounds = settings.learning_rate_min, settings.learning_rate_max
            self._set_rate(adapted_rate(rate, kl.item(), settings.target_kl, *bounds))
        return torch.stack([*trained[:3], kl, trained[4], judged[0], kl.new_tensor(rate), *judged[1:]])

    def tensors(self) -> dict[str, Tensor]:
        """Return critic, target policy, optimiser with its rate, generator, and how many updates were done."""
        result = module_tensors("critic", self.critic) | module_tensors("target", self.target)
        result |= module_tensors("critic_normaliser", self.critic_normaliser)
        result |= {"generator": self._generator.get_state(), "updates": torch.tensor(self._updates)}
        result["learning_rate"] = torch.tensor(self.learning_rate, dtype=torch.float64)
        return result | optimiser_tensors("optimiser", self._optimiser)

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Take back what `tensors` returned."""
        load_module_tensors("critic", self.critic, tensors)
        load_module_tensors("target", self.target, tensors)
        load_module_tensors("critic_normaliser", self.critic_normaliser, tensors)
        self._generator.set_state(tensors["generator"])
        self._updates, rate = int(tensors["updates"]), float(tensors["learning_rate"])
        if self._updates < 0 or rate <= 0:
            raise ValueError(f"{self._updates} updates at a learning rate of {rate:g}")
        load_optimiser_tensors("optimiser", self._optimiser, tensors)
        self._set_rate(rate)

    @torch.no_grad()
    def _judge(self, rollouts: Rollouts) -> tuple[Rows, list[Tensor]]:
        """Return the valid rows with targets and advantages, and three metrics of them."""
        settings = self._settings
        obs, critic_obs = self.policy.normaliser(rollouts.obs), self.critic_normaliser(rollouts.critic_obs)
        target_mean = self.target.act(rollouts.obs)
        target_log_prob = gaussian.log_prob(rollouts.action, target_mean, self.target.log_std)
        value = self.critic(critic_obs)
        is_cut = rollouts.truncated & ~rollouts.terminated
        final_value = torch.zeros_like(value)
        final_value[is_cut] = self.critic(self.critic_normaliser(rollouts.next_critic_obs[is_cut]))
        last_value = self.critic(self.critic_normaliser(rollouts.last_critic_obs))
        log_ratio = target_log_prob - rollouts.log_prob
        traced = vtrace(
            rollouts.reward,
            value,
            next_values(value, last_value, final_value, rollouts.terminated, rollouts.truncated),
            goes_on(rollouts.terminated, rollouts.truncated, rollouts.valid),
            log_ratio,
            settings.gamma,
            settings.trace_lambda,
            Limits(settings.rho_limit, settings.c_limit),
        )
        valid = rollouts.valid
        advantage = traced.advantage[valid]
        if settings.normalise_advantages:
            advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
        rows = Rows(
            obs[valid],
            critic_obs[valid],
            rollouts.action[valid],
            rollouts.log_prob[valid],
            target_mean[valid],
            target_log_prob[valid],
            advantage,
            value[valid],
            traced.target[valid],
        )
        is_clipped = log_ratio[valid].exp() > settings.rho_limit * (1 + ROUNDING)
        explained = explained_variance(rows.old_value, rows.value_target)
        return rows, [is_clipped.float().mean(), rows.old_value.mean(), explained]

    def _gradient_step(self, rows: Rows) -> Tensor:
        """Take one gradient step; return the first five metrics."""
        settings = self._settings
        mean, log_std = self.policy.mean(rows.obs), self.policy.log_std
        log_prob = gaussian.log_prob(rows.action, mean, log_std)
        ratio = surrogate_ratio(log_prob, rows.target_log_prob, rows.acting_log_prob, settings.target_ratio_limit)
        loss_actor = surrogate_loss(ratio, rows.advantage, settings.clip)
        loss_critic = value_loss(self.critic(rows.critic_obs), rows.old_value, rows.value_target, settings.value_clip)
        entropy = gaussian.entropy(log_std)
        with torch.no_grad():  # before the step, which changes log σ in place
            kl = gaussian.kl_divergence(rows.target_mean, self.target.log_std, mean, log_std).mean()
            clip_share = ((ratio - 1).abs() > settings.clip).float().mean()
        loss = loss_actor + settings.value_coefficient * loss_critic - settings.entropy_coefficient * entropy
        self._optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if settings.gradient_norm is not None:
            nn.utils.clip_grad_norm_(self._parameters, settings.gradient_norm)
        self._optimiser.step()
        self.mark("minibatch")
        return torch.stack([loss_actor, loss_critic, entropy, kl, clip_share]).detach()

    def _set_rate(self, rate: float) -> None:
        for group in self._optimiser.param_groups:
            group["lr"] = rate
