"""Networks: a twin is two plain networks, and every start value comes from the generator it is given."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from aiorl.algorithms.networks import TwinCritic, linear, mlp


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=generator(99))


@pytest.mark.parametrize("hidden", [(4,), (6, 3)])
def test_a_twin_critic_is_two_plain_networks_on_obs_and_action(hidden: tuple[int, ...]) -> None:
    critic = TwinCritic(5, hidden, generator())
    obs, action = randn(7, 3), randn(7, 2) / 2

    result = critic(obs, action)

    assert result.shape == (2, 7)
    for number in range(2):
        values = torch.cat([obs, action], dim=1)
        *hidden_layers, head = [layer for layer in critic.members[number] if isinstance(layer, nn.Linear)]
        assert [layer.out_features for layer in hidden_layers] == list(hidden)
        for layer in hidden_layers:
            values = (values @ layer.weight.T + layer.bias).clamp(min=0)
        torch.testing.assert_close(result[number], (values @ head.weight.T + head.bias)[:, 0])
    assert not torch.equal(result[0], result[1])


@pytest.mark.parametrize("hidden", [(4,), (16, 8), (8, 8, 8)])
def test_the_least_value_and_its_derivative_are_those_of_backpropagation(hidden: tuple[int, ...]) -> None:
    critic = TwinCritic(5, hidden, generator())
    obs, action = randn(200, 3), randn(200, 2).requires_grad_()
    with torch.no_grad():
        first, second = critic(obs, action)
        critic.members[1][-1].bias += (first - second).median() + 1e-4  # no tie
    values = critic(obs, action)
    assert 20 < (values[0] < values[1]).sum() < 180  # both are the smaller one somewhere
    (expected,) = torch.autograd.grad(values.amin(dim=0).sum(), action)

    least, derivative = critic.least(obs, action.detach())

    assert torch.equal(least, values.amin(dim=0).detach())
    torch.testing.assert_close(derivative, expected)
    assert not least.requires_grad and not derivative.requires_grad


def test_where_one_critic_is_always_smaller_the_other_has_no_part() -> None:
    critic = TwinCritic(5, (4,), generator())
    with torch.no_grad():
        critic.members[1][-1].bias += 100
    obs, action = randn(7, 3), randn(7, 2)
    least, derivative = critic.least(obs, action)
    assert torch.equal(least, critic(obs, action)[0].detach())
    assert derivative.isfinite().all() and derivative.abs().max() > 0


def test_a_relu_network_has_a_relu_after_every_layer() -> None:
    network = mlp(3, (8, 5), generator())
    first, second = network[0], network[2]
    values = randn(10, 3)

    expected = (((values @ first.weight.T + first.bias).clamp(min=0)) @ second.weight.T + second.bias).clamp(min=0)

    torch.testing.assert_close(network(values), expected)
    assert len(network) == 4


@pytest.mark.parametrize("inputs", [4, 100])
def test_start_values_are_uniform_within_pytorchs_bounds(inputs: int) -> None:
    bound = 1 / math.sqrt(inputs)
    layer = linear(inputs, 500, generator())

    for values in (layer.weight.detach(), layer.bias.detach()):
        assert values.abs().max() <= bound
        assert values.max() > 0.97 * bound
        assert values.min() < -0.97 * bound
        assert abs(values.mean()) < 0.1 * bound
        assert values.std() == pytest.approx(bound / math.sqrt(3), rel=0.06)
    plain = nn.utils.skip_init(nn.Linear, inputs, 500)
    with torch.random.fork_rng():
        plain.reset_parameters()
    assert plain.weight.detach().abs().max() == pytest.approx(bound, rel=0.05)  # that is what PyTorch does


def test_equal_generators_give_equal_networks_and_no_global_one_is_used() -> None:
    before = torch.get_rng_state()

    first, same, other = (TwinCritic(3, (4, 4), generator(seed)).state_dict() for seed in (1, 1, 2))
    actors = [mlp(3, (4, 4), generator(1)).state_dict() for _ in range(2)]

    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)
    assert all(torch.equal(actors[0][name], actors[1][name]) for name in actors[0])
