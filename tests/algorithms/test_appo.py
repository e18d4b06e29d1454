"""APPO: every number by hand or by a plain implementation of the papers' formulas."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal
from torch.distributions import kl_divergence as torch_kl_divergence

from aiorl.algorithms.appo.learner import AppoLearner
from aiorl.algorithms.appo.losses import (
    adapted_rate,
    explained_variance,
    surrogate_loss,
    surrogate_ratio,
    value_loss,
)
from aiorl.algorithms.appo.policy import AppoPolicy
from aiorl.algorithms.appo.settings import AppoSettings
from aiorl.algorithms.flat import flatten
from aiorl.algorithms.interface import Rollouts
from aiorl.algorithms.vtrace import Limits
from aiorl.checkpoint.tensors import load_arrays, save_arrays
from aiorl.collector.actor import Actor
from aiorl.learner.onpolicy import OnPolicyLearnerService
from aiorl.learner.staging import RolloutStaging
from aiorl.protocol import Attach, Build, EnvSpec, Group, UpdateOnRollouts
from aiorl.service import Assignment, Blocks
from aiorl.settings import RunSettings
from aiorl.storage.moments import Moments, statistics_size, statistics_slices
from aiorl.storage.rollouts import RolloutSlot, rollout_layout, rollout_slots
from aiorl.storage.weights import WeightSlots, weights_layout
from tests.algorithms.test_vtrace import Case, forward_sum

CPU = torch.device("cpu")
ONCE = AppoSettings(actor_hidden=(5,), critic_hidden=(4,), epochs=1, minibatches=1)
"""One gradient step for each update."""


def make_spec(actions: int = 1, obs: int = 2, critic: int | None = None, envs: int = 1) -> EnvSpec:
    groups = (Group("policy", obs),) + (() if critic is None else (Group("critic", critic),))
    return EnvSpec(envs, groups, (-2.0,) * actions, (6.0,) * actions, saves_state=False)


ONE, WIDE, CRITIC = make_spec(), make_spec(actions=3, obs=4), make_spec(actions=2, critic=3)
SPECS = pytest.mark.parametrize("spec", [ONE, WIDE, CRITIC], ids=["1", "wide", "critic"])


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


def changed(settings: AppoSettings, **update: object) -> AppoSettings:
    return AppoSettings(**(settings.model_dump() | update))


def make_rollouts(learner: AppoLearner, spec: EnvSpec, seed: int = 0, lag: float = 1.0, steps: int = 12) -> Rollouts:
    """Make rollouts of 5 envs with ends of all kinds; `lag` is how far the acting policy's log-densities are off."""
    generator, envs = torch.Generator().manual_seed(seed), 5

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    def chance(share: float) -> Tensor:
        return torch.rand(steps, envs, generator=generator) < share

    obs = randn(steps, envs, spec.group("policy").size)
    critic_size = spec.group("critic").size
    terminated, truncated, valid = chance(0.1), chance(0.15), ~chance(0.05)
    terminated[1, 2] = truncated[1, 2] = valid[1, 2] = True
    valid[1:] &= ~((terminated | truncated)[:-1] & chance(0.5)[1:])  # many envs use a step for a reset
    with torch.no_grad():
        mean, log_std = learner.policy.act(obs), learner.policy.log_std
        action = mean + log_std.exp() * randn(steps, envs, spec.action_size)
        log_prob = Independent(Normal(mean, log_std.exp().expand_as(mean)), 1).log_prob(action)
    return Rollouts(
        obs=obs,
        critic_obs=randn(steps, envs, critic_size) if len(spec.groups) == 2 else obs,
        action=action,
        log_prob=log_prob + lag * randn(steps, envs),
        reward=randn(steps, envs),
        terminated=terminated,
        truncated=truncated,
        valid=valid,
        next_critic_obs=randn(steps, envs, critic_size),
        last_critic_obs=randn(envs, critic_size),
    )


def named(learner: AppoLearner, metrics: Tensor) -> dict[str, float]:
    return dict(zip(learner.metric_names, metrics.tolist(), strict=True))


def snapshot(learner: AppoLearner) -> dict[str, Tensor]:
    everything = {f"policy.{name}": values for name, values in learner.policy.state_dict().items()} | learner.tensors()
    return {name: values.detach().clone() for name, values in everything.items()}


def assert_same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, values in one.items():
        assert torch.equal(values, other[name]), name


def moments_for(spec: EnvSpec, seed: int = 3) -> dict[str, Moments]:
    moments = {group.name: Moments(group.size) for group in spec.groups} | {"reward": Moments(1)}
    values = np.random.default_rng(seed)
    for number, each in enumerate(moments.values()):
        each.add(values.normal(size=(50, each.size)) * 3 + number)
    return moments


# The losses, by hand


@pytest.mark.parametrize(
    ("acting", "target", "trained", "ratio"),
    [
        (0.1, 0.2, 0.3, 1.5),  # min(½, 2) 3 = π/π̄
        (0.4, 0.25, 0.3, 1.2),  # min(1.6, 2) ¾ = π/π̄
        (0.4, 0.2, 0.3, 1.5),  # min(2, 2) ¾ = π/π̄
        (0.5, 0.1, 0.3, 1.2),  # min(5, 2) 0.6, less than π/π̄ = 3
        (0.5, 0.1, 0.05, 0.2),  # min(5, 2) 0.1, less than π/π̄ = ½
    ],
)
def test_surrogate_ratio_and_its_gradient(acting: float, target: float, trained: float, ratio: float) -> None:
    log_prob = torch.tensor(math.log(trained), requires_grad=True)

    found = surrogate_ratio(log_prob, torch.tensor(math.log(target)), torch.tensor(math.log(acting)), limit=2.0)
    found.backward()

    assert found.item() == pytest.approx(ratio, rel=1e-6)
    assert log_prob.grad.item() == pytest.approx(ratio, rel=1e-6)  # d e^x = e^x: the min is a number


def test_the_ratios_limit_is_a_setting() -> None:
    found = surrogate_ratio(tensor(0.0), tensor(math.log(0.1)), tensor(math.log(0.5)), limit=3.0)

    assert found.item() == pytest.approx(3 / 0.5)


@pytest.mark.parametrize(
    ("advantage", "ratio", "loss", "gradient"),
    [
        (2, 1.5, -2.4, 0),  # min(3, 2 · 1.2): further up is worth nothing
        (2, 0.5, -1.0, -2),  # min(1, 2 · 0.8): the way back is open
        (-2, 1.5, 3.0, 2),  # min(−3, −2 · 1.2): the way back is open
        (-2, 0.5, 1.6, 0),  # min(−1, −2 · 0.8): further down is worth nothing
        (2, 1.1, -2.2, -2),  # inside
        (-2, 0.9, 1.8, 2),
        (0, 1.5, 0, 0),
    ],
)
def test_surrogate_loss_and_its_gradient(advantage: float, ratio: float, loss: float, gradient: float) -> None:
    leaf = tensor(ratio).requires_grad_()

    found = surrogate_loss(leaf, tensor(advantage), clip=0.2)
    found.backward()

    assert found.item() == pytest.approx(loss)
    assert leaf.grad.item() == gradient


def test_surrogate_loss_is_a_mean() -> None:
    loss = surrogate_loss(tensor(1.5, 0.5, 1.5, 1.1), tensor(2, 2, -2, 2), clip=0.2)

    assert loss.item() == pytest.approx(-(2.4 + 1 - 3 + 2.2) / 4)


def test_the_clip_is_around_the_whole_ratio() -> None:
    # μ/π̄ = 5, π/μ = 0.5: the ratio is 2 · 0.5 = 1 and free to move, though π/π̄ is 2.5
    log_prob = tensor(math.log(0.25)).requires_grad_()

    ratio = surrogate_ratio(log_prob, tensor(math.log(0.1)), tensor(math.log(0.5)), limit=2.0)
    loss = surrogate_loss(ratio, tensor(3.0), clip=0.2)
    loss.backward()

    assert loss.item() == pytest.approx(-3)
    assert log_prob.grad.item() == pytest.approx(-3)


@pytest.mark.parametrize(
    ("value", "target", "loss", "gradient"),
    [
        (1.1, 2, 0.9**2, -2 * 0.9),  # nearer than 0.2: both are the same
        (1.5, 2, (1.2 - 2) ** 2, 0),  # went too far towards the target: no more of it
        (1.5, 0, 1.5**2, 2 * 1.5),  # went too far away from the target: comes back
        (0.5, 0, (0.8 - 0) ** 2, 0),
        (0.5, 2, 1.5**2, -2 * 1.5),
    ],
)
def test_value_loss_and_its_gradient(value: float, target: float, loss: float, gradient: float) -> None:
    leaf = tensor(value).requires_grad_()

    found = value_loss(leaf, old_value=tensor(1), target=tensor(target), clip=0.2)
    found.backward()

    assert found.item() == pytest.approx(loss, rel=1e-5)
    assert leaf.grad.item() == pytest.approx(gradient, rel=1e-5)


def test_value_loss_is_a_mean_and_has_no_half() -> None:
    values = tensor(1.5, 1.5), tensor(1, 1), tensor(2, 0)

    assert value_loss(*values, clip=0.2).item() == pytest.approx((0.64 + 2.25) / 2)
    assert value_loss(*values, clip=None).item() == pytest.approx((0.25 + 2.25) / 2)


def test_explained_variance() -> None:
    assert explained_variance(tensor(1, 2), tensor(1, 3)).item() == pytest.approx(1 - 0.25 / 1)
    assert explained_variance(tensor(1, 3), tensor(1, 3)).item() == 1
    assert explained_variance(tensor(2, 2), tensor(1, 3)).item() == 0
    assert explained_variance(tensor(3, 1), tensor(1, 3)).item() == pytest.approx(1 - 4 / 1)
    assert explained_variance(tensor(1, 2), tensor(3, 3)).item() == 0


@pytest.mark.parametrize(
    ("rate", "kl", "expected"),
    [
        (1e-3, 0.0201, 1e-3 / 1.5),
        (1e-3, 0.02, 1e-3),
        (1e-3, 0.01, 1e-3),
        (1e-3, 0.005, 1e-3),
        (1e-3, 0.0049, 1e-3 * 1.5),
        (1e-3, 0.0, 1e-3 * 1.5),
        (1e-3, math.inf, 1e-3 / 1.5),
        (1.2e-5, 1.0, 1e-5),
        (1e-5, 1.0, 1e-5),
        (0.9e-2, 0.0, 1e-2),
        (1e-2, 0.0, 1e-2),
    ],
)
def test_adapted_rate(rate: float, kl: float, expected: float) -> None:
    assert adapted_rate(rate, kl, 0.01, 1e-5, 1e-2) == pytest.approx(expected, rel=1e-12)


# The policy


def make_policy(spec: EnvSpec, settings: AppoSettings = ONCE, seed: int = 0) -> AppoPolicy:
    return AppoPolicy(settings, spec, torch.Generator().manual_seed(seed)).eval()


def test_the_settings_are_those_of_the_specification() -> None:
    learner = AppoLearner(AppoSettings(), WIDE, CPU, seed=0)

    for network, inputs, outputs in ((learner.policy, 4, 3), (learner.critic, 4, 1)):
        layers = [each for each in network.modules() if isinstance(each, nn.Linear)]
        shapes = [(each.in_features, each.out_features) for each in layers]
        assert shapes == [(inputs, 512), (512, 256), (256, 128), (128, outputs)]
        assert sum(isinstance(each, nn.ELU) for each in network.modules()) == 3
    assert learner.policy.log_std.tolist() == [0, 0, 0]
    assert learner.learning_rate == 1e-3
    found = AppoSettings()
    assert (found.epochs, found.minibatches, found.trace_lambda, found.target_period) == (5, 4, 0.95, 1)
    assert (found.rho_limit, found.c_limit, found.target_ratio_limit) == (1, 1, 2)
    assert (found.clip, found.value_clip, found.value_coefficient, found.entropy_coefficient) == (0.2, 0.2, 1, 0.01)
    assert (found.gradient_norm, found.target_kl) == (1, 0.01)
    assert (found.learning_rate, found.learning_rate_min, found.learning_rate_max) == (1e-3, 1e-5, 1e-2)
    assert found.normalise_advantages


def test_a_sample_is_of_the_gaussian_and_its_log_probability_is_that_of_the_unclipped_action() -> None:
    policy = make_policy(WIDE)
    with torch.no_grad():
        policy.log_std.copy_(tensor(0.7, -0.5, 1.5))
    obs = torch.randn(200, 4, generator=torch.Generator().manual_seed(1)) * 3
    noise = torch.randn(200, 3, generator=torch.Generator().manual_seed(5))

    action, log_prob = policy.sample(obs, torch.Generator().manual_seed(5))

    deviation = tensor(0.7, -0.5, 1.5).exp()
    assert (action.abs() > 1).any(dim=1).sum() > 50
    torch.testing.assert_close(action, policy.act(obs) + deviation * noise)
    expected = Independent(Normal(policy.act(obs).double(), deviation.double().expand(200, 3)), 1)
    torch.testing.assert_close(log_prob.double(), expected.log_prob(action.double()), rtol=1e-5, atol=1e-5)
    assert torch.equal(action, policy.explore(obs, torch.Generator().manual_seed(5)))
    assert not torch.equal(action, policy.explore(obs, torch.Generator().manual_seed(6)))


def test_an_action_that_is_not_finite_does_not_hide_behind_the_bounds() -> None:
    policy = make_policy(ONE)
    for action, expected in ((-1e30, -2), (-1.5, -2), (0, 2), (1.5, 6), (1e30, 6)):
        assert policy.bounds(torch.tensor([[action]])).item() == expected
    for action in (math.inf, -math.inf, math.nan):
        assert math.isnan(policy.bounds(torch.tensor([[action]])).item())

    with torch.no_grad():
        policy.head.bias.fill_(math.inf)
    sampled, _ = policy.sample(torch.zeros(1, 2), torch.Generator())

    assert sampled.item() == math.inf
    assert math.isnan(policy.bounds(sampled).item())


def test_observations_are_normalised_only_where_that_is_on() -> None:
    moments = moments_for(CRITIC)
    obs = torch.randn(20, 2, generator=torch.Generator().manual_seed(1)) * 40
    off, on = (AppoLearner(changed(ONCE, normalise_observations=flag), CRITIC, CPU, seed=5) for flag in (False, True))
    before = on.policy.act(obs)
    assert torch.equal(before, off.policy.act(obs))  # the identity before the first statistics

    for learner in (off, on):
        learner.set_moments(moments)

    assert torch.equal(off.policy.act(obs), before)
    each = moments["policy"]
    deviation = np.sqrt(each.m2 / each.count)
    scaled = ((obs.double() - torch.from_numpy(each.mean)) / (torch.from_numpy(deviation) + 0.01)).clamp(-10, 10)
    assert (scaled.abs() == 10).any()
    torch.testing.assert_close(on.policy.act(obs), off.policy.mean(scaled.float()), rtol=1e-4, atol=1e-4)


# One update, and several


def double(values: Tensor) -> Tensor:
    return values.detach().double().clone()


@dataclass
class Plain:
    """APPO written down again, in float64, with a list of tensors for each network and PyTorch's plain Adam."""

    settings: AppoSettings
    actor: list[Tensor]  # W, b of each layer
    log_std: Tensor
    critic: list[Tensor]
    noise: torch.Generator
    normalise: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    updates: int = 0

    def __post_init__(self) -> None:
        self.own = [self.log_std, *self.actor, *self.critic]
        for each in self.own:
            each.requires_grad_(True)
        self.adam = torch.optim.Adam(self.own, self.settings.learning_rate)
        self.seen = dict.fromkeys(("capped", "clipped", "free", "value clipped", "value free"), 0)

    @classmethod
    def of(cls, learner: AppoLearner, settings: AppoSettings) -> Plain:
        policy, tensors = learner.policy.state_dict(), learner.tensors()
        noise = torch.Generator()
        noise.set_state(tensors["generator"])
        return cls(
            settings,
            [double(values) for name, values in policy.items() if name.endswith(("weight", "bias"))],
            double(policy["log_std"]),
            [double(values) for name, values in tensors.items() if name.startswith("critic.")],
            noise,
        )

    def set_moments(self, moments: Mapping[str, Moments]) -> None:
        for group in ("policy", "critic"):
            each = moments.get(group, moments["policy"])
            deviation = torch.from_numpy((each.m2 / each.count) ** 0.5)
            self.normalise[group] = torch.from_numpy(each.mean.copy()), deviation

    @staticmethod
    def run(network: list[Tensor], values: Tensor) -> Tensor:
        *hidden, last = zip(network[::2], network[1::2], strict=True)
        for weight, bias in hidden:
            values = values @ weight.T + bias
            values = torch.where(values > 0, values, values.clamp(max=0).exp() - 1)
        return values @ last[0].T + last[1]

    @staticmethod
    def scaled(statistics: dict[str, tuple[Tensor, Tensor]], group: str, obs: Tensor) -> Tensor:
        if group not in statistics:
            return obs.double()
        mean, deviation = statistics[group]
        return ((obs.double() - mean) / (deviation + 0.01)).clamp(-10, 10)

    def value(self, obs: Tensor) -> Tensor:
        return self.run(self.critic, self.scaled(self.normalise, "critic", obs))[..., 0]

    @staticmethod
    def gaussian(mean: Tensor, log_std: Tensor) -> Independent:
        return Independent(Normal(mean, log_std.exp().expand_as(mean)), 1)

    def update(self, rollouts: Rollouts) -> list[float]:
        settings, valid = self.settings, rollouts.valid
        if self.updates % settings.target_period == 0:
            self.target = [double(each) for each in self.actor], double(self.log_std), dict(self.normalise)
        self.updates += 1
        network, target_log_std, statistics = self.target
        with torch.no_grad():
            target_mean = self.run(network, self.scaled(statistics, "policy", rollouts.obs))
            target = self.gaussian(target_mean, target_log_std).log_prob(rollouts.action.double())
            old_value = self.value(rollouts.critic_obs)
            log_ratio = target - rollouts.log_prob.double()
            case = Case(
                reward=rollouts.reward.double().numpy(),
                value=old_value.numpy(),
                last_value=self.value(rollouts.last_critic_obs).numpy(),
                final_value=self.value(rollouts.next_critic_obs).numpy(),
                log_ratio=log_ratio.numpy(),
                terminated=rollouts.terminated.numpy(),
                truncated=rollouts.truncated.numpy(),
                valid=valid.numpy(),
            )
        limits = Limits(settings.rho_limit, settings.c_limit)
        goal, advantage = forward_sum(case, settings.gamma, settings.trace_lambda, limits)
        advantage = torch.from_numpy(advantage)[valid]
        if settings.normalise_advantages:
            advantage = (advantage - advantage.mean()) / (((advantage - advantage.mean()) ** 2).mean() ** 0.5)
        columns = [
            self.scaled(self.normalise, "policy", rollouts.obs)[valid],
            self.scaled(self.normalise, "critic", rollouts.critic_obs)[valid],
            rollouts.action.double()[valid],
            rollouts.log_prob.double()[valid],
            target_mean[valid],
            target[valid],
            advantage,
            old_value[valid],
            torch.from_numpy(goal)[valid],
        ]
        steps: list[list[float]] = []
        for _ in range(settings.epochs):
            order = torch.randperm(int(valid.sum()), generator=self.noise)
            parts = order.tensor_split(settings.minibatches)
            epoch = [self.gradient_step(*(column[part] for column in columns)) for part in parts]
            steps += epoch
        kl, rate = float(np.mean([step[3] for step in epoch])), self.adam.param_groups[0]["lr"]
        if settings.target_kl is not None:
            if kl > 2 * settings.target_kl:
                self.adam.param_groups[0]["lr"] = max(rate / 1.5, settings.learning_rate_min)
            elif kl < settings.target_kl / 2:
                self.adam.param_groups[0]["lr"] = min(rate * 1.5, settings.learning_rate_max)
        mean = np.mean(steps, axis=0)
        goal, old = torch.from_numpy(goal)[valid], old_value[valid]
        return [
            *mean[:3],
            kl,
            mean[4],
            (log_ratio[valid] > math.log(settings.rho_limit)).double().mean().item(),
            rate,
            old.mean().item(),
            1 - ((goal - old).var() / goal.var()).item(),
        ]

    def gradient_step(
        self,
        obs: Tensor,
        critic_obs: Tensor,
        action: Tensor,
        acting: Tensor,
        target_mean: Tensor,
        target: Tensor,
        advantage: Tensor,
        old_value: Tensor,
        goal: Tensor,
    ) -> list[float]:
        settings, seen = self.settings, self.seen
        trained = self.gaussian(self.run(self.actor, obs), self.log_std)
        acting_over_target = (acting - target).exp()
        cap = torch.where(
            acting_over_target < settings.target_ratio_limit, acting_over_target, settings.target_ratio_limit
        )
        ratio = cap * (trained.log_prob(action) - acting).exp()
        clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
        rises = advantage > 0
        stays = torch.where(rises, ratio > 1 + settings.clip, ratio < 1 - settings.clip)
        actor_loss = -torch.where(stays, advantage * clipped, advantage * ratio).mean()

        value = self.run(self.critic, critic_obs)[:, 0]
        error = (value - goal) ** 2
        if settings.value_clip is not None:
            clip = settings.value_clip
            near = torch.minimum(torch.maximum(value, old_value - clip), old_value + clip)
            is_far = (near - goal) ** 2 > error
            seen["value clipped"] += int(is_far.sum())
            seen["value free"] += int((((value - old_value).abs() > clip) & ~is_far).sum())
            error = torch.where(is_far, (near - goal) ** 2, error)
        entropy = trained.entropy().mean()
        loss = actor_loss + settings.value_coefficient * error.mean() - settings.entropy_coefficient * entropy
        kl = torch_kl_divergence(self.gaussian(target_mean, self.target[1]), trained).mean()
        is_beyond = (ratio < 1 - settings.clip) | (ratio > 1 + settings.clip)
        seen["capped"] += int((acting_over_target > settings.target_ratio_limit).sum())
        seen["clipped"] += int(stays.sum())
        seen["free"] += int((is_beyond & ~stays).sum())

        gradients = torch.autograd.grad(loss, self.own)
        self.norm = sum((each**2).sum() for each in gradients).item() ** 0.5
        limit = settings.gradient_norm
        scale = 1.0 if limit is None or self.norm <= limit else limit / self.norm
        for each, gradient in zip(self.own, gradients, strict=True):
            each.grad = gradient * scale
        self.adam.step()
        numbers = [actor_loss, error.mean(), entropy, kl, is_beyond.double().mean()]
        return [number.item() for number in numbers]


def own_parameters(learner: AppoLearner) -> list[Tensor]:
    """Return the parameters in the order of `Plain.own`."""
    return [*learner.policy.parameters(), *learner.critic.parameters()]


def assert_updates_are_plain(settings: AppoSettings, spec: EnvSpec, updates: int) -> Plain:
    learner = AppoLearner(settings, spec, CPU, seed=6)
    plain = Plain.of(learner, settings)
    moved = [0.0] * len(plain.own)
    for number in range(updates):
        before = [double(each) for each in plain.own]
        rollouts = make_rollouts(learner, spec, seed=number)
        metrics = learner.update(rollouts)
        expected = plain.update(rollouts)

        assert metrics.shape == (len(learner.metric_names),)
        assert metrics.tolist() == pytest.approx(expected, rel=1e-4, abs=1e-6)
        for found, right in zip(own_parameters(learner), plain.own, strict=True):
            torch.testing.assert_close(found.grad.double(), right.grad, rtol=1e-5, atol=3e-6)
            torch.testing.assert_close(found.detach().double(), right.detach(), rtol=0, atol=1e-6)
        moved = [max(most, (a - b).abs().max().item()) for most, a, b in zip(moved, before, plain.own, strict=True)]
        assert learner.learning_rate == pytest.approx(plain.adam.param_groups[0]["lr"], rel=1e-12)
        moments = moments_for(spec, seed=number)
        learner.set_moments(moments)
        if settings.normalise_observations:
            plain.set_moments(moments)
    assert min(moved) > 2e-4  # all of it was compared in motion
    return plain


@pytest.mark.parametrize("target_period", [1, 3])
@pytest.mark.parametrize("normalise", [False, True])
@SPECS
def test_updates_of_one_step_are_those_of_a_plain_implementation(
    spec: EnvSpec, normalise: bool, target_period: int
) -> None:
    settings = changed(ONCE, normalise_observations=normalise, target_period=target_period)

    plain = assert_updates_are_plain(settings, spec, updates=4)

    assert plain.seen["capped"] > 0
    assert plain.seen["clipped"] > 0
    assert plain.seen["free"] > 0


MANY = changed(ONCE, epochs=3, minibatches=4, learning_rate=5e-3, value_clip=0.02)


@pytest.mark.parametrize(
    "update",
    [
        {},
        {"normalise_observations": True},
        {"target_period": 2},
        {"normalise_advantages": False},
        {"value_clip": None},
        {"gradient_norm": None},
        {"gradient_norm": 0.05},
        {"value_coefficient": 0.3, "entropy_coefficient": 0.1},
        {"trace_lambda": 0.5, "rho_limit": 1.5, "c_limit": 0.5, "gamma": 0.8},
        {"target_ratio_limit": 1.2, "clip": 0.05},
        {"target_kl": None},
        {"target_kl": 1e-5},
    ],
    ids=lambda update: "-".join(update) or "plain",
)
def test_updates_of_many_steps_are_those_of_a_plain_implementation(update: dict[str, object]) -> None:
    settings = changed(MANY, **update)

    plain = assert_updates_are_plain(settings, CRITIC, updates=3)

    assert plain.seen["capped"] > 0
    assert plain.seen["clipped"] > 0
    assert plain.seen["free"] > 0
    if settings.value_clip is not None:
        assert plain.seen["value clipped"] > 0
        assert plain.seen["value free"] > 0


@pytest.mark.parametrize("limit", [0.05, 1.0])
def test_the_gradient_is_clipped_over_actor_and_critic_together(limit: float) -> None:
    settings = changed(ONCE, gradient_norm=limit)
    learner, free = (AppoLearner(each, WIDE, CPU, seed=6) for each in (settings, changed(ONCE, gradient_norm=None)))
    rollouts = make_rollouts(learner, WIDE)
    rollouts = replace(rollouts, reward=rollouts.reward * 100)  # the critic's gradient is huge, the actor's is not

    for each in (learner, free):
        each.update(rollouts)

    gradients, whole = (torch.cat([p.grad.flatten() for p in own_parameters(each)]) for each in (learner, free))
    assert whole.norm() > 10
    assert gradients.norm().item() == pytest.approx(limit, rel=1e-4)
    torch.testing.assert_close(gradients, whole * (limit / whole.norm()), rtol=1e-4, atol=1e-8)
    actor = torch.cat([p.grad.flatten() for p in learner.policy.parameters()])
    assert 0 < actor.norm() < limit / 10


def test_a_small_gradient_is_left_as_it_is() -> None:
    settings = changed(ONCE, gradient_norm=1e6)
    learner, free = (AppoLearner(each, WIDE, CPU, seed=6) for each in (settings, changed(ONCE, gradient_norm=None)))
    rollouts = make_rollouts(learner, WIDE)

    for each in (learner, free):
        each.update(rollouts)

    assert_same(snapshot(learner), snapshot(free))


# Which rows count


def reset_rollouts(rollouts: Rollouts) -> Rollouts:
    """Return the same with invalid rows only where V-trace must not look at their values: behind ends, at the start."""
    may_be_invalid = torch.ones_like(rollouts.valid)
    may_be_invalid[1:] = (rollouts.terminated | rollouts.truncated)[:-1]
    valid = ~may_be_invalid
    valid[0, ::2] = True
    return replace(rollouts, valid=valid)


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("huge", [1e6, -1e30])
@SPECS
def test_invalid_rows_have_no_influence_whatever_is_in_them(spec: EnvSpec, huge: float, normalise: bool) -> None:
    settings = changed(ONCE, epochs=2, minibatches=3, normalise_observations=normalise)
    learners = [AppoLearner(settings, spec, CPU, seed=6) for _ in range(2)]
    for learner in learners:
        learner.set_moments(moments_for(spec))
    rollouts = reset_rollouts(make_rollouts(learners[0], spec))
    invalid = ~rollouts.valid
    assert invalid.sum() > 5
    garbage = {each.name: getattr(rollouts, each.name).clone() for each in fields(Rollouts)}
    for name, values in garbage.items():
        if name in ("terminated", "truncated"):
            values[invalid] = True
        elif name not in ("valid", "last_critic_obs"):
            values[invalid] = huge

    metrics = [learner.update(each) for learner, each in zip(learners, (rollouts, Rollouts(**garbage)), strict=True)]

    assert metrics[0].tolist() == metrics[1].tolist()
    assert all(np.isfinite(metrics[0].tolist()))
    assert_same(snapshot(learners[0]), snapshot(learners[1]))


def test_only_a_truncated_steps_final_observation_counts() -> None:
    learners = [AppoLearner(ONCE, CRITIC, CPU, seed=6) for _ in range(3)]
    rollouts = make_rollouts(learners[0], CRITIC)
    is_cut = rollouts.truncated & ~rollouts.terminated
    assert (rollouts.truncated & rollouts.terminated & rollouts.valid).any()
    assert (is_cut & rollouts.valid).any()
    others = rollouts.next_critic_obs.masked_fill(~is_cut[..., None], math.nan)
    ends = rollouts.next_critic_obs + is_cut[..., None]

    for learner, values in zip(learners, (rollouts.next_critic_obs, others, ends), strict=True):
        learner.update(replace(rollouts, next_critic_obs=values))

    assert_same(snapshot(learners[0]), snapshot(learners[1]))
    assert not torch.equal(learners[0].critic[1].bias.grad, learners[2].critic[1].bias.grad)


def test_rollouts_of_resets_alone_change_nothing() -> None:
    learner = AppoLearner(changed(ONCE, target_kl=0.01), WIDE, CPU, seed=6)
    learner.update(make_rollouts(learner, WIDE))
    before, rate = snapshot(learner), learner.learning_rate
    rollouts = make_rollouts(learner, WIDE, seed=1)

    metrics = learner.update(replace(rollouts, valid=torch.zeros_like(rollouts.valid)))

    assert metrics.shape == (len(learner.metric_names),)
    assert metrics.isfinite().all()
    assert learner.learning_rate == rate
    after = snapshot(learner)
    changes = {name for name, values in after.items() if not torch.equal(values, before[name])}
    # the target policy is the one published last all the same
    assert changes <= {"updates"} | {name for name in before if name.startswith("target.")}
    for name, values in learner.policy.state_dict().items():
        assert torch.equal(after[f"target.{name}"], values)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5])
def test_fewer_valid_rows_than_minibatches(rows: int) -> None:
    learner = AppoLearner(changed(ONCE, epochs=3, minibatches=4), WIDE, CPU, seed=6)
    rollouts = make_rollouts(learner, WIDE)
    valid = torch.zeros_like(rollouts.valid)
    valid.view(-1)[3 : 3 + rows] = True

    metrics = learner.update(replace(rollouts, valid=valid))

    assert metrics.isfinite().all()
    assert all(each.isfinite().all() for each in own_parameters(learner))
    steps = {values.item() for name, values in learner.tensors().items() if name.endswith(".step")}
    assert steps == {3 * min(rows, 4)}


def test_each_epoch_sees_each_valid_row_once_in_a_new_order() -> None:
    learner = AppoLearner(changed(ONCE, epochs=3, minibatches=4), WIDE, CPU, seed=6)
    rollouts = make_rollouts(learner, WIDE)
    seen: list[Tensor] = []

    def note(_: nn.Module, inputs: tuple[Tensor]) -> None:
        if torch.is_grad_enabled():
            seen.append(inputs[0].detach().clone())

    learner.policy.trunk.register_forward_pre_hook(note)
    learner.update(rollouts)

    expected = sorted(rollouts.obs[rollouts.valid].tolist())
    epochs = [torch.cat(seen[start : start + 4]) for start in (0, 4, 8)]
    assert len(seen) == 3 * 4
    assert max(map(len, seen)) - min(map(len, seen)) <= 1
    for epoch in epochs:
        assert sorted(epoch.tolist()) == expected
    assert not torch.equal(epochs[0], epochs[1])
    assert not torch.equal(epochs[1], epochs[2])
    assert not torch.equal(epochs[0], rollouts.obs[rollouts.valid])


# The learning rate


def test_the_rate_is_steered_by_the_last_epochs_kl_once_for_each_update() -> None:
    many = changed(ONCE, epochs=3, minibatches=2, learning_rate=2e-3)

    def kl_and_rates(target_kl: float | None) -> tuple[float, float, float]:
        learner = AppoLearner(changed(many, target_kl=target_kl), WIDE, CPU, seed=6)
        metrics = named(learner, learner.update(make_rollouts(learner, WIDE)))
        return metrics["policy/kl"], metrics["policy/learning_rate"], learner.learning_rate

    kl, _, rate = kl_and_rates(None)
    assert kl > 0
    assert rate == 2e-3
    for share, expected in ((2.01, 2e-3 / 1.5), (1.99, 2e-3), (0.51, 2e-3), (0.49, 2e-3 * 1.5)):
        same, used, rate = kl_and_rates(kl / share)
        assert (same, used) == (kl, pytest.approx(2e-3))
        assert rate == pytest.approx(expected, rel=1e-12)


def test_the_rate_stays_within_its_bounds() -> None:
    start = changed(ONCE, epochs=2, learning_rate=3e-3, learning_rate_min=1.5e-3)
    low, high = (AppoLearner(changed(start, target_kl=target), WIDE, CPU, seed=6) for target in (1e-9, 1e9))
    rates = []
    for number in range(4):
        for learner in (low, high):
            learner.update(make_rollouts(learner, WIDE, seed=number, steps=3))
        rates.append((low.learning_rate, high.learning_rate))

    expected = [(2e-3, 4.5e-3), (1.5e-3, 6.75e-3), (1.5e-3, 1e-2), (1.5e-3, 1e-2)]
    assert rates == [pytest.approx(each) for each in expected]


def test_adam_takes_the_steered_rate() -> None:
    learner = AppoLearner(changed(ONCE, target_kl=1e9, learning_rate=2e-3), WIDE, CPU, seed=6)
    rollouts = make_rollouts(learner, WIDE)
    moved: list[float] = []
    for _ in range(2):
        before = learner.policy.head.bias.detach().clone()
        metrics = named(learner, learner.update(rollouts))
        moved.append((learner.policy.head.bias - before).abs().max().item())
        # Adam never steps much further than its rate, and about that far at the start
        assert moved[-1] == pytest.approx(metrics["policy/learning_rate"], rel=0.2)

    assert moved[1] / moved[0] == pytest.approx(1.5, rel=0.2)


# The target policy


def target_of(learner: AppoLearner) -> dict[str, Tensor]:
    tensors = learner.tensors()
    return {name.removeprefix("target."): each.clone() for name, each in tensors.items() if name.startswith("target.")}


def policy_of(learner: AppoLearner) -> dict[str, Tensor]:
    return {name: each.detach().clone() for name, each in learner.policy.state_dict().items()}


@pytest.mark.parametrize("period", [1, 3])
def test_the_target_policy_is_the_one_published_last_or_an_older_one(period: int) -> None:
    settings = changed(ONCE, target_period=period, normalise_observations=True)
    learner = AppoLearner(settings, WIDE, CPU, seed=6)
    published, kls = [], []
    for number in range(7):
        published.append(policy_of(learner))  # statistics included
        metrics = named(learner, learner.update(make_rollouts(learner, WIDE, seed=number)))
        kls.append(metrics["policy/kl"])

        assert_same(target_of(learner), published[number - number % period])
        learner.set_moments(moments_for(WIDE, seed=number))

    assert all(each.grad is None and not each.requires_grad for each in learner.target.parameters())
    is_old = [number % period > 0 for number in range(7)]  # KL of the only step, before it
    assert [kl > 1e-6 for kl in kls] == is_old


@pytest.mark.parametrize("normalise", [False, True])
@SPECS
def test_on_policy_nothing_is_clipped_and_nothing_differs_at_the_first_step(spec: EnvSpec, normalise: bool) -> None:
    learner = AppoLearner(changed(ONCE, normalise_observations=normalise), spec, CPU, seed=6)
    for number in range(3):
        rollouts = make_rollouts(learner, spec, seed=number, lag=0)

        metrics = named(learner, learner.update(rollouts))

        assert metrics["policy/rho_clip_share"] == 0
        assert metrics["policy/clip_share"] == 0
        assert metrics["policy/kl"] == pytest.approx(0, abs=1e-7)
        assert metrics["loss/actor"] == pytest.approx(0, abs=1e-5)  # the mean of normalised advantages
        learner.set_moments(moments_for(spec, seed=number))


def test_the_share_of_clipped_weights() -> None:
    learner = AppoLearner(changed(ONCE, rho_limit=1.5), ONE, CPU, seed=6)
    rollouts = make_rollouts(learner, ONE, lag=0)
    off = torch.zeros_like(rollouts.log_prob)
    off[0], off[1], off[2] = -math.log(1.6), -math.log(1.4), math.log(8)
    valid = torch.ones_like(rollouts.valid)

    metrics = named(learner, learner.update(replace(rollouts, log_prob=rollouts.log_prob + off, valid=valid)))

    assert metrics["policy/rho_clip_share"] == pytest.approx(1 / 12)
    # the surrogate's ratio is 1 but where μ is 8 π̄: 2/8
    assert metrics["policy/clip_share"] == pytest.approx(1 / 12)


# From the collector's hands to the update


def run_settings(**algorithm: object) -> RunSettings:
    return RunSettings(
        algorithm=changed(ONCE, **algorithm),
        env={"id": "Pendulum-v1", "num_envs": 8},
        collection={"rollout_steps": 6, "collectors": 2},
        budget={"env_steps": 1000},
        learner={"device": "cpu"},
    )


def random_obs(random: np.random.Generator, spec: EnvSpec) -> dict[str, np.ndarray]:
    return {g.name: random.normal(size=(spec.num_envs, g.size)).astype(np.float32) * 2 for g in spec.groups}


def fill(slot: RolloutSlot, actor: Actor, spec: EnvSpec, seed: int) -> list[np.ndarray]:
    """Act for a rollout as a collector does; return the actions in env units."""
    random = np.random.default_rng(seed)
    env_actions = []
    for t in range(len(slot.columns["valid"])):
        obs = random_obs(random, spec)
        for name, values in obs.items():
            slot.columns["obs" if name == "policy" else f"{name}_obs"][t] = values
        slot.columns["action"][t], slot.columns["log_prob"][t], env_action = actor.sample(obs)
        env_actions.append(env_action)
        slot.columns["reward"][t] = random.normal(size=spec.num_envs)
        slot.columns["truncated"][t] = random.random(spec.num_envs) < 0.2
        slot.columns["valid"][t] = True
        following = "next_critic_obs" if "next_critic_obs" in slot.columns else "next_obs"
        slot.columns[following][t] = random.normal(size=slot.columns[following][t].shape)
    slot.last_obs[:] = random.normal(size=slot.last_obs.shape)
    for name, part in statistics_slices(spec).items():
        moments = Moments(1 if name == "reward" else spec.group(name).size)
        moments.add(random.normal(size=(30, moments.size)) * 2 + 5)
        slot.statistics[part] = moments.vector
    return env_actions


def actors_of(learner: AppoLearner, settings: RunSettings, spec: EnvSpec) -> list[Actor]:
    """Publish a policy and return the actors that loaded it."""
    flat = flatten(copy.deepcopy(learner.policy)).numpy()
    slots = WeightSlots.on(np.zeros(weights_layout(settings, flat.size).nbytes, np.uint8), settings, flat.size)
    slots.write(0, 1, flat)
    actors = [Actor(settings, spec, index) for index in range(2)]
    for actor in actors:
        actor.load(slots, 0, 1)
    return actors


@pytest.mark.parametrize("critic", [None, 3])
def test_what_is_stored_is_the_unclipped_action_and_its_log_probability(critic: int | None) -> None:
    spec = make_spec(actions=2, critic=critic, envs=4)
    settings = run_settings(initial_std=2.0, normalise_observations=True)
    learner = AppoLearner(settings.algorithm, spec, CPU, seed=6)
    learner.set_moments(moments_for(spec))
    slots = []
    for index, actor in enumerate(actors_of(learner, settings, spec)):
        slot = rollout_slots(np.zeros(rollout_layout(settings, spec).nbytes, np.uint8), settings, spec)[0]
        for t, env_action in enumerate(fill(slot, actor, spec, seed=index)):
            action = slot.columns["action"][t]
            expected = np.clip(2 + 4 * action.astype(np.float64), -2, 6)
            np.testing.assert_allclose(env_action, expected, rtol=1e-5, atol=1e-5)
        slots.append(slot)

    rollouts = RolloutStaging(spec, CPU).stage(slots)

    assert rollouts.action.shape == (6, 8, 2)
    assert (rollouts.action.abs() > 1).sum() > 20
    seen = "critic_obs" if critic else "obs"
    columns = {each.name: each.name for each in fields(Rollouts) if each.name != "last_critic_obs"}
    for name, column in (columns | {"critic_obs": seen, "next_critic_obs": f"next_{seen}"}).items():
        side_by_side = np.concatenate([slot.columns[column] for slot in slots], axis=1)
        np.testing.assert_array_equal(getattr(rollouts, name).numpy(), side_by_side, err_msg=name)
    last = np.concatenate([slot.last_obs for slot in slots])
    np.testing.assert_array_equal(rollouts.last_critic_obs.numpy(), last)
    assert not torch.equal(rollouts.action[:, 4:], rollouts.action[:, :4])  # each actor has noise of its own
    with torch.no_grad():
        mean = learner.policy.act(rollouts.obs)
    gaussian = Independent(Normal(mean.double(), 2.0), 1)
    torch.testing.assert_close(
        rollouts.log_prob.double(), gaussian.log_prob(rollouts.action.double()), rtol=1e-5, atol=1e-5
    )
    metrics = named(learner, learner.update(rollouts))
    assert metrics["policy/rho_clip_share"] == metrics["policy/clip_share"] == 0
    assert metrics["policy/kl"] == pytest.approx(0, abs=1e-7)


def test_an_infinite_action_is_nan_for_the_env() -> None:
    spec, settings = make_spec(actions=2, envs=4), run_settings()
    learner = AppoLearner(settings.algorithm, spec, CPU, seed=6)
    with torch.no_grad():
        learner.policy.head.bias[1] = math.inf
    actor = actors_of(learner, settings, spec)[0]

    action, _, env_action = actor.sample(random_obs(np.random.default_rng(0), spec))

    assert np.isinf(action[:, 1]).all()
    assert np.isnan(env_action[:, 1]).all()
    assert np.isfinite(env_action[:, 0]).all()


def test_statistics_of_rollouts_enter_after_their_update() -> None:
    spec, settings = make_spec(actions=2, envs=4), run_settings(normalise_observations=True)
    blocks = Blocks.create(collectors=2)
    service = OnPolicyLearnerService(
        Assignment("learner", 0, settings, blocks.duplicate(), None, lambda level, event, **fields: None)
    )
    built = service.handle(Build(spec))
    layout, weights = rollout_layout(settings, spec), weights_layout(settings, built.policy_bytes)
    for block in blocks.experience:
        block.reserve(layout.nbytes)
    blocks.weights.reserve(weights.nbytes)
    service.handle(Attach(built.policy_bytes))
    learner = service._learner
    published = WeightSlots.on(blocks.weights.map(weights.nbytes), settings, built.policy_bytes)
    slots = [rollout_slots(block.map(layout.nbytes), settings, spec)[0] for block in blocks.experience]
    blocks.close()
    service._publish(0)
    actors = [Actor(settings, spec, index) for index in range(2)]
    seen = Moments(2)
    for tick in (1, 2, 3):  # strictly on-policy: each acts with what the last update made, statistics included
        for index, (actor, slot) in enumerate(zip(actors, slots, strict=True)):
            actor.load(published, 0, tick - 1)
            fill(slot, actor, spec, seed=10 * tick + index)
            slot.label = (tick, tick - 1)

        done = service.handle(UpdateOnRollouts(tick, (0, 0), tick - 1, 0, tick))

        metrics = {measure.name: measure.value for measure in done.metrics}
        assert metrics["policy/kl"] == pytest.approx(0, abs=1e-7)
        assert metrics["policy/rho_clip_share"] == metrics["policy/clip_share"] == 0
        for slot in slots:
            seen.merge(slot.statistics[statistics_slices(spec)["policy"]])
        deviation = np.sqrt(seen.m2 / seen.count)
        for normaliser in (learner.policy.normaliser, learner.critic_normaliser):
            np.testing.assert_allclose(normaliser.mean.numpy(), seen.mean, rtol=1e-6)
            np.testing.assert_allclose(normaliser.scale.numpy(), 1 / (deviation + 0.01), rtol=1e-6)
    assert statistics_size(spec) == slots[0].statistics.size
    service.close()


# State


BIGGER = AppoSettings(actor_hidden=(8, 8), critic_hidden=(8,), epochs=2, minibatches=3, normalise_observations=True)


@pytest.mark.parametrize("updates", [0, 1, 2, 3])
@pytest.mark.parametrize("period", [1, 3])
def test_a_restored_learner_goes_on_bit_for_bit(tmp_path: Path, period: int, updates: int) -> None:
    spec, settings = CRITIC, changed(BIGGER, target_period=period)
    first, second = (AppoLearner(settings, spec, CPU, seed) for seed in (5, 6))
    for learner in (first, second):
        flatten(learner.policy)  # as the learner's service does
    for number in range(updates):
        first.update(make_rollouts(first, spec, seed=number))
        first.set_moments(moments_for(spec, seed=number))
    for number in range(2):
        second.update(make_rollouts(second, spec, seed=77 + number))  # what it has must go, too

    for name, tensors in (("policy", first.policy.state_dict()), ("learner", first.tensors())):
        save_arrays(tmp_path / name, {key: values.numpy() for key, values in tensors.items()})
    state = {key: torch.from_numpy(values) for key, values in load_arrays(tmp_path / "policy").items()}
    second.policy.load_state_dict(state)
    second.load_tensors({key: torch.from_numpy(values) for key, values in load_arrays(tmp_path / "learner").items()})

    assert_same(snapshot(second), snapshot(first))
    assert second.learning_rate == first.learning_rate
    for number in range(4):
        rollouts = make_rollouts(first, spec, seed=100 + number)
        assert torch.equal(second.update(rollouts), first.update(rollouts))
        for learner in (first, second):
            learner.set_moments(moments_for(spec, seed=100 + number))
        assert second.learning_rate == first.learning_rate
    assert_same(snapshot(second), snapshot(first))


def test_tensors_name_everything_that_training_goes_on_with() -> None:
    learner = AppoLearner(BIGGER, CRITIC, CPU, seed=5)
    learner.update(make_rollouts(learner, CRITIC))

    names = {name.partition(".")[0] for name in learner.tensors()}

    own = {"critic", "critic_normaliser", "target", "optimiser", "learning_rate", "generator", "updates"}
    assert names == own
    moments = [name for name in learner.tensors() if name.endswith(".exp_avg_sq")]
    assert len(moments) == len([*learner.policy.parameters(), *learner.critic.parameters()])


def test_a_seed_decides_everything_and_no_global_generator_is_touched() -> None:
    before = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist())

    learners = [AppoLearner(BIGGER, CRITIC, CPU, seed) for seed in (5, 5, 6)]
    for learner in learners:
        learner.update(make_rollouts(learner, CRITIC))
        learner.policy.explore(torch.zeros(2, 2), torch.Generator().manual_seed(0))

    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert np.random.get_state()[1].tolist() == before[2]
    assert_same(snapshot(learners[0]), snapshot(learners[1]))
    assert not torch.equal(learners[0].policy.head.weight, learners[2].policy.head.weight)


def test_actor_and_critic_share_nothing_and_the_policy_is_in_eval_mode() -> None:
    learner = AppoLearner(BIGGER, ONE, CPU, seed=5)

    actor, critic = ({each.data_ptr() for each in net.parameters()} for net in (learner.policy, learner.critic))
    assert not actor & critic
    assert not torch.equal(learner.policy.trunk[0].weight, learner.critic[0][0].weight)
    assert not learner.policy.training
    assert_same(target_of(learner), policy_of(learner))


def test_statistics_go_to_the_group_that_they_are_of() -> None:
    learner = AppoLearner(BIGGER, CRITIC, CPU, seed=5)
    moments = moments_for(CRITIC)

    learner.set_moments(moments)

    assert learner.policy.normaliser.mean.tolist() == pytest.approx(moments["policy"].mean.tolist())
    assert learner.critic_normaliser.mean.tolist() == pytest.approx(moments["critic"].mean.tolist())
    assert learner.target.normaliser.mean.tolist() == [0, 0]  # until the next update


# It learns


FIXED = AppoSettings(
    actor_hidden=(16,),
    critic_hidden=(32,),
    epochs=4,
    minibatches=2,
    gamma=0.8,
    learning_rate=1e-2,
    target_kl=None,
    entropy_coefficient=0.0,
)


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("best", [-0.6, 0.6])
def test_the_mean_action_moves_to_the_better_one(best: float, lag: int) -> None:
    """A bandit: each step is an episode, and worth more the nearer the action is to the best."""
    spec = make_spec(actions=1, obs=1)
    learner = AppoLearner(FIXED, spec, CPU, seed=6)
    generator = torch.Generator().manual_seed(0)
    obs, ones = torch.ones(16, 8, 1), torch.ones(16, 8, dtype=torch.bool)
    acting = [copy.deepcopy(learner.policy)] * (lag + 1)  # the collectors are so many updates behind
    before = abs(learner.policy.act(obs[0, :1]).item() - best)
    for _ in range(60):
        with torch.no_grad():
            action, log_prob = acting[0].sample(obs, generator)
        reward = -((action[..., 0] - best) ** 2)
        learner.update(Rollouts(obs, obs, action, log_prob, reward, ones, ~ones, ones, obs, obs[0]))
        acting = [*acting[1:], copy.deepcopy(learner.policy)]

    after = abs(learner.policy.act(obs[0, :1]).item() - best)
    assert after < 0.12 < before
    assert learner.policy.log_std.item() < -0.5  # it is sure of it


@pytest.mark.parametrize("flag", ["terminated", "truncated"])
def test_values_become_those_of_the_rewards_to_come(flag: str) -> None:
    """Each step is worth 1, each episode has 3; what is truncated is as good as endless, what terminates is not."""
    spec = make_spec(actions=1, obs=3)
    learner = AppoLearner(changed(FIXED, trace_lambda=0.95), spec, CPU, seed=6)
    generator = torch.Generator().manual_seed(0)
    place = (torch.arange(10)[:, None] + torch.arange(6)) % 3  # step of the episode; envs begin at different ones
    obs = torch.eye(3)[place]
    ends, valid = place == 2, torch.ones(10, 6, dtype=torch.bool)
    flags = {"terminated": ~valid, "truncated": ~valid} | {flag: ends}
    final = torch.full((10, 6, 3), math.nan)
    final[ends] = torch.eye(3)[0]  # where an episode is cut, the same goes on behind it
    for _ in range(70):
        with torch.no_grad():
            action, log_prob = learner.policy.sample(obs, generator)
        last = torch.eye(3)[(place[-1] + 1) % 3]
        learner.update(
            Rollouts(
                obs,
                obs,
                action,
                log_prob,
                torch.ones(10, 6),
                valid=valid,
                **flags,
                next_critic_obs=final,
                last_critic_obs=last,
            )
        )

    values = learner.critic(torch.eye(3)).tolist()
    expected = [1 + 0.8 + 0.64, 1 + 0.8, 1] if flag == "terminated" else [1 / (1 - 0.8)] * 3
    assert values == pytest.approx(expected, abs=0.1)
