"""Flattened modules: one piece of memory, and a module that does not notice."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from aiorl.algorithms.flat import flatten
from aiorl.storage.layout import ALIGNMENT, aligned


class Mixed(nn.Module):
    """Parameters and buffers of several types and odd sizes."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.first = nn.utils.skip_init(nn.Linear, 3, 5)
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("count", torch.tensor(7 + seed))
        self.register_buffer("mask", torch.tensor([True, False, True]))
        self.register_buffer("precise", torch.tensor([1.0 / 3], dtype=torch.float64))
        self.register_buffer("short", torch.tensor([0.5, 1.5, 2.5], dtype=torch.float16))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)
        self.last = nn.utils.skip_init(nn.Linear, 5, 1)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.uniform_(-1, 1, generator=generator)

    def forward(self, values: Tensor) -> Tensor:
        return self.last(self.first(values * self.mask).relu()) * self.scale


def copy_of(module: nn.Module) -> dict[str, Tensor]:
    return {name: values.clone() for name, values in module.state_dict().items()}


def assert_states_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert list(one) == list(other)
    for name, values in one.items():
        assert (values.dtype, values.shape) == (other[name].dtype, other[name].shape), name
        assert torch.equal(values, other[name]), name


def test_a_flattened_module_is_the_module_it_was() -> None:
    module, values = Mixed(), torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
    before, result = copy_of(module), module(values).detach()
    parameters = list(module.parameters())

    flatten(module)

    assert_states_equal(copy_of(module), before)
    assert torch.equal(module(values), result)
    assert all(one is other for one, other in zip(module.parameters(), parameters, strict=True))
    assert all(parameter.requires_grad for parameter in parameters)


def test_every_tensor_is_an_aligned_view_in_state_dict_order() -> None:
    module = Mixed()

    flat = flatten(module)

    assert (flat.dtype, flat.dim()) == (torch.uint8, 1)
    offset = 0
    for values in module.state_dict().values():
        assert values.data_ptr() - flat.data_ptr() == offset
        assert offset % ALIGNMENT == 0
        assert flat[offset : offset + values.nbytes].tolist() == values.contiguous().view(-1).view(torch.uint8).tolist()
        offset += aligned(values.nbytes)
    assert flat.nbytes == offset


def test_copying_the_bytes_copies_the_module() -> None:
    source, target = Mixed(0), Mixed(1)
    values = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
    from_flat, to_flat = flatten(source), flatten(target)
    assert not torch.equal(source(values), target(values))

    to_flat.copy_(from_flat)

    assert_states_equal(copy_of(target), copy_of(source))
    assert torch.equal(source(values), target(values))
    with torch.no_grad():
        source.first.weight.add_(1)
    assert not torch.equal(source.first.weight, target.first.weight)  # a copy, not an alias of the other


def test_equal_modules_have_equal_bytes() -> None:
    assert torch.equal(flatten(Mixed(3)), flatten(Mixed(3)))  # the gaps between tensors too


def test_what_the_module_does_shows_in_the_bytes() -> None:
    module = Mixed()
    flat = flatten(module)
    before = flat.clone()

    module.load_state_dict(copy_of(Mixed(1)))

    assert not torch.equal(flat, before)
    assert torch.equal(flat, flatten(Mixed(1)))


def test_an_optimiser_works_on_the_views_whenever_it_was_made() -> None:
    values = torch.randn(16, 3, generator=torch.Generator().manual_seed(1))
    modules = [Mixed(), Mixed(), Mixed()]
    early = torch.optim.Adam(modules[0].parameters(), lr=0.01, fused=True)
    flats = [flatten(module) for module in modules[:2]]
    optimisers = [early, *(torch.optim.Adam(module.parameters(), lr=0.01, fused=True) for module in modules[1:])]
    start = flats[0].clone()

    for module, optimiser in zip(modules, optimisers, strict=True):
        for _ in range(5):
            optimiser.zero_grad()
            module(values).square().mean().backward()
            optimiser.step()

    assert_states_equal(copy_of(modules[0]), copy_of(modules[2]))  # the last one was never flattened
    assert_states_equal(copy_of(modules[1]), copy_of(modules[2]))
    assert torch.equal(flats[0], flats[1])
    assert not torch.equal(flats[0], start)
