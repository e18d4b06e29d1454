"""Which device a learner computes on."""

from __future__ import annotations

import torch

from aiorl.service import RefusedError


def pick_device(name: str) -> torch.device:
    """Return the torch device of a setting.

    Raises:
        RefusedError: this machine does not have it.

    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise RefusedError("learner.device", f"{name}: this machine has {count or 'no'} CUDA device{'s' * (count > 1)}")
    return device
