"""Optimisers as named tensors, for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def optimiser_tensors(name: str, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the state of an optimiser, `name.<parameter>.<key>`."""
    state = optimiser.state_dict()["state"]
    return {f"{name}.{index}.{key}": value for index, entry in state.items() for key, value in entry.items()}


def load_optimiser_tensors(name: str, optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Give an optimiser the state that `optimiser_tensors` returned."""
    state: dict[int, dict[str, Tensor]] = {}
    for full, value in tensors.items():
        if full.startswith(f"{name}."):
            index, key = full.removeprefix(f"{name}.").split(".")
            state.setdefault(int(index), {})[key] = value
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
