"""Networks: a twin is two plain networks, and every start value comes from the generator it is given."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from aiorl.algorithms.networks import EnsembleLinear, TwinCritic, linear, mlp


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=generator(99))


def member(layer: EnsembleLinear, number: int) -> nn.Linear:
    """Return one member as the linear layer that it stands for."""
    inputs, outputs = layer.weight.shape[1:]
    plain = nn.utils.skip_init(nn.Linear, inputs, outputs)
    with torch.no_grad():
        plain.weight.copy_(layer.weight[number].T)
        plain.bias.copy_(layer.bias[number, 0])
    return plain


def test_an_ensemble_is_two_linear_layers() -> None:
    layer = EnsembleLinear(2, 5, 3, generator())
    values = randn(2, 7, 5)

    result = layer(values)

    assert result.shape == (2, 7, 3)
    for number in range(2):
        torch.testing.assert_close(result[number], member(layer, number)(values[number]))


def test_gradients_of_an_ensemble_are_those_of_two_linear_layers() -> None:
    layer = EnsembleLinear(2, 5, 3, generator())
    values, weights = randn(2, 7, 5), randn(2, 7, 3)
    plain = [member(layer, number) for number in range(2)]

    (layer(values) * weights).sum().backward()
    sum((plain[number](values[number]) * weights[number]).sum() for number in range(2)).backward()

    for number in range(2):
        torch.testing.assert_close(layer.weight.grad[number].T, plain[number].weight.grad)
        torch.testing.assert_close(layer.bias.grad[number, 0], plain[number].bias.grad)


@pytest.mark.parametrize("hidden", [(4,), (6, 3)])
def test_a_twin_critic_is_two_plain_networks_on_obs_and_action(hidden: tuple[int, ...]) -> None:
    critic = TwinCritic(5, hidden, generator())
    obs, action = randn(7, 3), randn(7, 2) / 2

    result = critic(obs, action)

    assert result.shape == (2, 7)
    for number in range(2):
        values = torch.cat([obs, action], dim=1)
        for layer in critic.hidden:
            values = member(layer, number)(values).clamp(min=0)
        torch.testing.assert_close(result[number], member(critic.head, number)(values)[:, 0])
    assert not torch.equal(result[0], result[1])


def test_a_relu_network_has_a_relu_after_every_layer() -> None:
    network = mlp(3, (8, 5), generator())
    first, second = network[0], network[2]
    values = randn(10, 3)

    expected = (((values @ first.weight.T + first.bias).clamp(min=0)) @ second.weight.T + second.bias).clamp(min=0)

    torch.testing.assert_close(network(values), expected)
    assert len(network) == 4


@pytest.mark.parametrize("inputs", [4, 100])
@pytest.mark.parametrize("kind", ["linear", "ensemble"])
def test_start_values_are_uniform_within_pytorchs_bounds(kind: str, inputs: int) -> None:
    bound = 1 / math.sqrt(inputs)
    layer = linear(inputs, 500, generator()) if kind == "linear" else EnsembleLinear(2, inputs, 500, generator())

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
