"""Modules and optimisers as named tensors, for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


def module_tensors(name: str, module: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers of a module, `name.<tensor>`."""
    return {f"{name}.{key}": value for key, value in module.state_dict().items()}


def load_module_tensors(name: str, module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Give a module what `module_tensors` returned."""
    prefix = f"{name}."
    own = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
    load_exactly(module, own)


def load_exactly(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Give a module all of its tensors, which must be of its own types, too.

    Raises:
        RuntimeError: some are missing, unknown, or of another shape or type.

    """
    for name, own in module.state_dict().items():
        if name in tensors and tensors[name].dtype != own.dtype:
            raise RuntimeError(f"{name} is of type {tensors[name].dtype}, not {own.dtype}")
    module.load_state_dict(tensors)


def optimiser_tensors(name: str, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the state of an optimiser, `name.<parameter>.<key>`."""
    state = optimiser.state_dict()["state"]
    return {f"{name}.{index}.{key}": value for index, entry in state.items() for key, value in entry.items()}


def load_optimiser_tensors(name: str, optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Give an optimiser the state that `optimiser_tensors` returned."""
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for full, value in tensors.items():
        if full.startswith(f"{name}."):
            index, key = full.removeprefix(f"{name}.").split(".")
            parameter = parameters[int(index)]
            if value.shape not in (parameter.shape, torch.Size()) or value.dtype != parameter.dtype:
                raise ValueError(f"{full} is {value.dtype} {tuple(value.shape)}, its parameter is not")
            state.setdefault(int(index), {})[key] = value
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
