"""SAC: every number by hand or by a plain implementation of the papers' formulas."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Independent, Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

from aiorl.algorithms.flat import flatten
from aiorl.algorithms.interface import Batch
from aiorl.algorithms.sac.learner import SacLearner
from aiorl.algorithms.sac.losses import actor_loss, critic_loss, critic_target, temperature_loss
from aiorl.algorithms.sac.policy import SacPolicy, squashed_sample
from aiorl.algorithms.sac.settings import SacSettings
from aiorl.checkpoint.tensors import load_arrays, save_arrays
from aiorl.protocol import EnvSpec, Group
from aiorl.storage.moments import Moments

CPU = torch.device("cpu")
NEURON = SacSettings(
    actor_hidden=(1,),
    critic_hidden=(1,),
    actor_learning_rate=1e-3,
    critic_learning_rate=2e-3,
    temperature_learning_rate=3e-3,
    initial_temperature=0.2,
    tau=0.05,
)


def make_spec(actions: int = 1, obs: int = 1, critic: int | None = None) -> EnvSpec:
    groups = (Group("policy", obs),) + (() if critic is None else (Group("critic", critic),))
    return EnvSpec(1, groups, (-2.0,) * actions, (6.0,) * actions, saves_state=False)


def make_batch(spec: EnvSpec, rows: int = 16, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)

    def randn(size: int) -> Tensor:
        return torch.randn(rows, size, generator=generator)

    obs_size, critic_size = spec.group("policy").size, spec.group("critic").size
    discount = torch.full((rows,), 0.9)
    discount[::4] = 0  # terminated
    obs, next_obs = randn(obs_size), randn(obs_size)
    own = len(spec.groups) == 2
    return Batch(
        obs=obs,
        critic_obs=randn(critic_size) if own else obs,
        action=randn(spec.action_size).tanh(),
        reward=randn(1)[:, 0],
        discount=discount,
        next_obs=next_obs,
        next_critic_obs=randn(critic_size) if own else next_obs,
    )


def tensor(*values: float) -> Tensor:
    return torch.tensor(values)


# The losses, by hand


def test_critic_target() -> None:
    target = critic_target(
        reward=tensor(1, 2, 3),
        discount=tensor(0.9, 0, 0.5),
        next_values=torch.tensor([[3.0, 1e9, 4.0], [5.0, 1e9, -2.0]]),
        next_log_prob=tensor(0.5, -1e9, -1),
        temperature=torch.tensor(0.2),
    )

    assert target.tolist() == pytest.approx([1 + 0.9 * (3 - 0.1), 2, 3 + 0.5 * (-2 + 0.2)])


def test_critic_loss() -> None:
    loss = critic_loss(torch.tensor([[1.0, 2.0], [3.0, 5.0]]), tensor(2, 4))

    assert loss.item() == (1 + 4) / 2 + (1 + 1) / 2


def test_actor_loss() -> None:
    loss = actor_loss(tensor(1, 3), tensor(1, -1), torch.tensor(0.2))

    assert loss.item() == pytest.approx(((0.2 - 1) + (-0.2 - 3)) / 2)


def test_temperature_loss() -> None:
    loss = temperature_loss(torch.tensor(math.log(0.5)), tensor(1, -3), target_entropy=-1.0)

    assert loss.item() == pytest.approx(-0.5 * ((1 - 1) + (-3 - 1)) / 2)


@pytest.mark.parametrize(("log_prob", "direction"), [(2.0, 1), (0.5, -1), (1.0, 0)])
def test_the_temperature_rises_exactly_where_entropy_is_too_low(log_prob: float, direction: int) -> None:
    log_temperature = torch.tensor(math.log(0.5), requires_grad=True)
    log_probs = torch.full((4,), log_prob, requires_grad=True)

    temperature_loss(log_temperature, log_probs, target_entropy=-1.0).backward()  # entropy is -log_prob

    assert np.sign(-log_temperature.grad.item()) == direction
    assert log_temperature.grad.item() == pytest.approx(-0.5 * (log_prob - 1), abs=1e-7)
    assert log_probs.grad is None


# The policy


def test_log_probabilities_are_those_of_a_squashed_gaussian() -> None:
    generator = torch.Generator().manual_seed(0)
    mean, log_std, noise = (torch.randn(200, 3, generator=generator, dtype=torch.float64) / 2 for _ in range(3))

    action, log_prob = squashed_sample(mean, log_std, noise)

    squashed = TransformedDistribution(Independent(Normal(mean, log_std.exp()), 1), [TanhTransform()])
    torch.testing.assert_close(action, (mean + log_std.exp() * noise).tanh())
    torch.testing.assert_close(log_prob, squashed.log_prob(action), rtol=1e-6, atol=1e-6)


def test_one_log_probability_by_hand() -> None:
    action, log_prob = squashed_sample(tensor(0.5)[None], tensor(math.log(2.0))[None], tensor(0.25)[None])

    gaussian = math.exp(-(0.25**2) / 2) / (2 * math.sqrt(2 * math.pi))
    assert action.item() == pytest.approx(math.tanh(1.0))
    assert log_prob.item() == pytest.approx(math.log(gaussian / (1 - math.tanh(1.0) ** 2)), rel=1e-6)


@pytest.mark.parametrize("far", [-60.0, -12.0, 12.0, 60.0])
def test_log_probabilities_stay_finite_where_tanh_is_flat(far: float) -> None:
    mean = torch.tensor([[far]], requires_grad=True)

    action, log_prob = squashed_sample(mean, torch.zeros(1, 1), torch.zeros(1, 1))
    log_prob.sum().backward()

    expected = -0.5 * math.log(2 * math.pi) - 2 * (math.log(2) - abs(far))
    assert action.abs().item() == 1
    assert log_prob.item() == pytest.approx(expected, rel=1e-5)
    assert mean.grad.item() == pytest.approx(2 * np.sign(far), abs=1e-4)


def make_policy(spec: EnvSpec, settings: SacSettings = NEURON, seed: int = 0) -> SacPolicy:
    return SacPolicy(settings, spec, torch.Generator().manual_seed(seed)).eval()


def test_acting_and_exploring_use_the_same_gaussian() -> None:
    policy = make_policy(make_spec(actions=2, obs=3), SacSettings(actor_hidden=(8, 8)))
    obs = torch.randn(50, 3, generator=torch.Generator().manual_seed(1)) * 3
    mean, log_std = policy.gaussian(obs)
    noise = torch.randn(50, 2, generator=torch.Generator().manual_seed(5))

    explored = policy.explore(obs, torch.Generator().manual_seed(5))

    assert torch.equal(policy.act(obs), mean.tanh())
    assert torch.equal(explored, squashed_sample(mean, log_std, noise)[0])
    assert torch.equal(explored, policy.explore(obs, torch.Generator().manual_seed(5)))
    assert not torch.equal(explored, policy.explore(obs, torch.Generator().manual_seed(6)))


@pytest.mark.parametrize(("x", "log_std"), [(0.0, -1.5), (50.0, 2.0), (-50.0, -5.0)])
def test_the_standard_deviation_is_squashed_between_its_bounds(x: float, log_std: float) -> None:
    policy = make_policy(make_spec(actions=2))
    with torch.no_grad():
        policy.head.weight.zero_()
        policy.head.bias.copy_(tensor(0.3, -0.7, x, x))

    mean, found = policy.gaussian(torch.zeros(1, 1))

    assert mean[0].tolist() == pytest.approx([0.3, -0.7])
    assert found[0].tolist() == pytest.approx([log_std] * 2)


# One gradient step


@dataclass
class Plain:
    """SAC written down again, in float64, with a list of tensors for each network and PyTorch's plain Adam."""

    settings: SacSettings
    actor: list[Tensor]  # W, b of the hidden layer, W, b of the head
    critics: list[list[Tensor]]
    targets: list[list[Tensor]]
    log_temperature: Tensor
    noise: torch.Generator
    normalise: Mapping[str, tuple[Tensor, Tensor]]

    def __post_init__(self) -> None:
        own = [*self.actor, *(each for critic in self.critics for each in critic), self.log_temperature]
        for each in own:
            each.requires_grad_(True)
        settings = self.settings
        self.adams = [
            torch.optim.Adam([each for critic in self.critics for each in critic], settings.critic_learning_rate),
            torch.optim.Adam(self.actor, settings.actor_learning_rate),
            torch.optim.Adam([self.log_temperature], settings.temperature_learning_rate),
        ]

    @classmethod
    def of(cls, learner: SacLearner, settings: SacSettings, moments: Mapping[str, Moments] | None = None) -> Plain:
        policy, tensors = learner.policy.state_dict(), learner.tensors()

        def double(values: Tensor) -> Tensor:
            return values.detach().double().clone()

        def network(name: str, member: int) -> list[Tensor]:
            parts = []
            for layer in (0, 2):
                parts += [double(tensors[f"{name}.members.{member}.{layer}.{kind}"]) for kind in ("weight", "bias")]
            return parts

        noise = torch.Generator()
        noise.set_state(tensors["generator"])
        statistics = {
            name: (torch.from_numpy(each.mean.copy()), torch.from_numpy((each.m2 / each.count) ** 0.5))
            for name, each in (moments or {}).items()
        }
        return cls(
            settings,
            [double(policy[name]) for name in ("trunk.0.weight", "trunk.0.bias", "head.weight", "head.bias")],
            [network("critic", member) for member in range(2)],
            [network("target", member) for member in range(2)],
            double(tensors["log_temperature"]),
            noise,
            statistics,
        )

    @staticmethod
    def run(network: list[Tensor], values: Tensor) -> Tensor:
        hidden = (values @ network[0].T + network[1]).clamp(min=0)
        return hidden @ network[2].T + network[3]

    def scaled(self, group: str, obs: Tensor) -> Tensor:
        if group not in self.normalise:
            return obs.double()
        mean, deviation = self.normalise[group]
        return ((obs.double() - mean) / (deviation + 0.01)).clamp(-10, 10)

    def sample(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        mean, x = self.run(self.actor, self.scaled("policy", obs)).chunk(2, dim=1)
        deviation = (-5 + 3.5 * (x.tanh() + 1)).exp()
        u = mean + deviation * torch.randn(mean.shape, generator=self.noise).double()
        log_prob = Normal(mean, deviation).log_prob(u) - (1 - u.tanh() ** 2).log()
        return u.tanh(), log_prob.sum(dim=1)

    def values(self, networks: list[list[Tensor]], obs: Tensor, action: Tensor) -> list[Tensor]:
        inputs = torch.cat([self.scaled("critic", obs), action.double()], dim=1)
        return [self.run(network, inputs)[:, 0] for network in networks]

    def gradient_step(self, batch: Batch) -> list[float]:
        critic_adam, actor_adam, temperature_adam = self.adams
        temperature = self.log_temperature.detach().exp()
        with torch.no_grad():
            action, log_prob = self.sample(batch.next_obs)
            worst = torch.minimum(*self.values(self.targets, batch.next_critic_obs, action))
            goal = batch.reward.double() + batch.discount.double() * (worst - temperature * log_prob)
        values = self.values(self.critics, batch.critic_obs, batch.action)
        loss_critic = sum(((each - goal) ** 2).mean() for each in values)
        critic_adam.zero_grad()
        loss_critic.backward()
        self.critic_gradients = [[each.grad.clone() for each in critic] for critic in self.critics]
        critic_adam.step()

        action, log_prob = self.sample(batch.obs)
        worst = torch.minimum(*self.values(self.critics, batch.critic_obs, action))
        loss_actor = (temperature * log_prob - worst).mean()
        actor_adam.zero_grad()
        loss_actor.backward()
        actor_adam.step()

        target_entropy = self.settings.target_entropy_per_action * batch.action.shape[1]
        loss_temperature = -self.log_temperature.exp() * (log_prob.detach() + target_entropy).mean()
        if self.settings.learn_temperature:
            temperature_adam.zero_grad()
            loss_temperature.backward()
            temperature_adam.step()

        tau = self.settings.tau
        with torch.no_grad():
            for target, critic in zip(self.targets, self.critics, strict=True):
                for old, new in zip(target, critic, strict=True):
                    old.copy_((1 - tau) * old + tau * new)
        mean_value = torch.stack(values).mean()
        numbers = [loss_critic, loss_actor, loss_temperature, -log_prob.mean(), temperature, mean_value]
        return [number.item() for number in numbers]


def moments_for(spec: EnvSpec) -> dict[str, Moments]:
    moments = {group.name: Moments(group.size) for group in spec.groups} | {"reward": Moments(1)}
    values = np.random.default_rng(3)
    for number, each in enumerate(moments.values()):
        each.add(values.normal(size=(50, each.size)) * 3 + number)
    return moments


@pytest.mark.parametrize("learn_temperature", [True, False])
@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize(
    "spec", [make_spec(), make_spec(actions=2, obs=3), make_spec(critic=2)], ids=["1", "3→2", "critic"]
)
def test_gradient_steps_are_those_of_a_plain_implementation(
    spec: EnvSpec, normalise: bool, learn_temperature: bool
) -> None:
    settings = NEURON.model_copy(update={"normalise_observations": normalise, "learn_temperature": learn_temperature})
    learner = SacLearner(settings, spec, CPU, seed=10)  # one with which no neuron is dead
    moments = moments_for(spec)
    learner.set_moments(moments)
    statistics = {"policy": moments["policy"], "critic": moments.get("critic", moments["policy"])}
    plain = Plain.of(learner, settings, statistics if normalise else None)
    start = Plain.of(learner, settings)

    for number in range(3):
        batch = make_batch(spec, seed=number)
        metrics = learner.gradient_step(batch)
        expected = plain.gradient_step(batch)

        assert metrics.shape == (len(learner.metric_names),)
        assert metrics.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-6)
        found = Plain.of(learner, settings)
        pairs = [(found.actor, plain.actor), ([found.log_temperature], [plain.log_temperature])]
        pairs += [*zip(found.critics, plain.critics, strict=True), *zip(found.targets, plain.targets, strict=True)]
        for one, other in pairs:
            for left, right in zip(one, other, strict=True):
                torch.testing.assert_close(left.detach(), right.detach(), rtol=0, atol=1e-6)
    everything = [
        (start.actor, plain.actor),
        (start.critics[0] + start.critics[1], plain.critics[0] + plain.critics[1]),
        (start.targets[0], plain.targets[0]),
    ]
    for one, other in everything:  # no neuron was dead, so all of it was compared in motion
        assert not any(torch.equal(left, right) for left, right in zip(one, other, strict=True))
    assert torch.equal(start.log_temperature, plain.log_temperature) is not learn_temperature


def test_the_actors_loss_leaves_the_critics_gradients_alone() -> None:
    spec = make_spec(actions=2, obs=3)
    learner = SacLearner(NEURON, spec, CPU, seed=5)
    plain = Plain.of(learner, NEURON)
    batch = make_batch(spec)

    learner.gradient_step(batch)
    plain.gradient_step(batch)

    layers = dict(learner.critic.named_parameters())
    for member, (weight, bias, head_weight, head_bias) in enumerate(plain.critic_gradients):
        expected = {"0.weight": weight, "0.bias": bias, "2.weight": head_weight, "2.bias": head_bias}
        for name, gradient in expected.items():
            found = layers[f"members.{member}.{name}"].grad
            torch.testing.assert_close(found.double(), gradient, rtol=1e-5, atol=1e-6)
    assert all(parameter.grad is None for parameter in learner.target.parameters())
    assert all(parameter.grad is not None for parameter in learner.policy.parameters())


def test_a_terminated_row_is_worth_its_reward_whatever_comes_next() -> None:
    spec = make_spec(actions=2, obs=3)
    batch = replace(make_batch(spec), discount=torch.zeros(16))
    strange = replace(batch, next_obs=batch.next_obs + 100, next_critic_obs=batch.next_critic_obs - 100)
    learners = [SacLearner(NEURON, spec, CPU, seed=5) for _ in range(2)]

    losses = [learner.gradient_step(each)[0] for learner, each in zip(learners, (batch, strange), strict=True)]

    assert losses[0] == losses[1]
    for one, other in zip(learners[0].critic.parameters(), learners[1].critic.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("tau", [0.005, 0.5, 1.0])
def test_targets_move_by_tau(tau: float) -> None:
    spec = make_spec(actions=2, obs=3)
    learner = SacLearner(NEURON.model_copy(update={"tau": tau, "critic_hidden": (8, 8)}), spec, CPU, seed=5)
    learner.gradient_step(make_batch(spec, seed=1))
    before = {name: values.clone() for name, values in learner.target.state_dict().items()}

    learner.gradient_step(make_batch(spec, seed=2))

    critic, target = learner.critic.state_dict(), learner.target.state_dict()
    for name, old in before.items():
        expected = ((1 - tau) * old.double() + tau * critic[name].double()).float()
        torch.testing.assert_close(target[name], expected, rtol=1e-6, atol=1e-9)
        if tau == 1:
            assert torch.equal(target[name], critic[name])


# State


BIGGER = SacSettings(actor_hidden=(8, 8), critic_hidden=(8,), normalise_observations=True, tau=0.1)


def snapshot(learner: SacLearner) -> dict[str, Tensor]:
    everything = {f"policy.{name}": values for name, values in learner.policy.state_dict().items()} | learner.tensors()
    return {name: values.detach().clone() for name, values in everything.items()}


def assert_same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, values in one.items():
        assert torch.equal(values, other[name]), name


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("learn_temperature", [True, False])
def test_a_restored_learner_goes_on_bit_for_bit(tmp_path: Path, learn_temperature: bool, steps: int) -> None:
    spec = make_spec(actions=2, obs=3, critic=4)
    settings = BIGGER.model_copy(update={"learn_temperature": learn_temperature})
    first, second = (SacLearner(settings, spec, CPU, seed) for seed in (5, 6))
    for learner in (first, second):
        flatten(learner.policy)  # as the learner's service does
    first.set_moments(moments_for(spec))
    for number in range(steps):
        first.gradient_step(make_batch(spec, seed=number))
    second.gradient_step(make_batch(spec, seed=77))  # what it has must go, too

    for name, tensors in (("policy", first.policy.state_dict()), ("learner", first.tensors())):
        save_arrays(tmp_path / name, {key: values.numpy() for key, values in tensors.items()})
    state = {key: torch.from_numpy(values) for key, values in load_arrays(tmp_path / "policy").items()}
    second.policy.load_state_dict(state)
    second.load_tensors({key: torch.from_numpy(values) for key, values in load_arrays(tmp_path / "learner").items()})

    assert_same(snapshot(second), snapshot(first))
    for number in range(3):
        batch = make_batch(spec, seed=100 + number)
        assert torch.equal(second.gradient_step(batch), first.gradient_step(batch))
    assert_same(snapshot(second), snapshot(first))


def test_tensors_name_everything_that_training_goes_on_with() -> None:
    spec = make_spec(actions=2, obs=3)
    learner = SacLearner(BIGGER, spec, CPU, seed=5)
    learner.gradient_step(make_batch(spec))

    names = {name.partition(".")[0] for name in learner.tensors()}

    assert names == {"critic", "target", "critic_normaliser", "log_temperature", "generator", "optimiser"}
    moments = [name for name in learner.tensors() if name.endswith(".exp_avg_sq")]
    networks = [*learner.policy.parameters(), *learner.critic.parameters()]
    assert len(moments) == len(networks) + 1  # and the temperature


def test_a_seed_decides_everything_and_no_global_generator_is_touched() -> None:
    spec = make_spec(actions=2, obs=3)
    before = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist())

    learners = [SacLearner(BIGGER, spec, CPU, seed) for seed in (5, 5, 6)]
    for learner in learners:
        learner.gradient_step(make_batch(spec))
        learner.policy.explore(torch.zeros(2, 3), torch.Generator().manual_seed(0))

    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert np.random.get_state()[1].tolist() == before[2]
    assert_same(snapshot(learners[0]), snapshot(learners[1]))
    assert not torch.equal(learners[0].policy.head.weight, learners[2].policy.head.weight)


def test_targets_start_as_the_critics_and_the_twins_differ() -> None:
    learner = SacLearner(BIGGER, make_spec(actions=2, obs=3), CPU, seed=5)

    assert_same(dict(learner.target.state_dict()), dict(learner.critic.state_dict()))
    one, other = (member[0].weight for member in learner.critic.members)
    assert not torch.equal(one, other)
    assert learner.log_temperature.item() == pytest.approx(math.log(BIGGER.initial_temperature))


def test_the_policy_is_in_eval_mode() -> None:
    assert not SacLearner(BIGGER, make_spec(), CPU, seed=0).policy.training
