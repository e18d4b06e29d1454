"""All tensors of a module in one flat piece of memory, so that publishing, loading and mixing are one operation."""

from __future__ import annotations

from itertools import chain

import torch
from torch import Tensor, nn

from aiorl.storage.layout import aligned


def flatten(module: nn.Module) -> Tensor:
    """Move every parameter and buffer of `module` into one tensor and return it, uint8 `(nbytes,)`.

    The module goes on working: its tensors become views, each at an aligned offset, in state-dict order.
    """
    tensors = dict(chain(module.named_parameters(), module.named_buffers()))
    ordered = [tensors[name] for name in module.state_dict()]
    device = ordered[0].device
    flat = torch.zeros(sum(aligned(tensor.nbytes) for tensor in ordered), dtype=torch.uint8, device=device)
    offset = 0
    for tensor in ordered:
        place = flat[offset : offset + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        place.copy_(tensor.detach())
        tensor.data = place
        offset += aligned(tensor.nbytes)
    return flat
