"""Where arrays lie in a block of memory."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64


def aligned(nbytes: int) -> int:
    """Return the next multiple of the alignment (a cache line)."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Field:
    """One array of a layout."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Layout:
    """Arrays one after another, each at an aligned offset."""

    fields: tuple[Field, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the whole layout."""
        return sum(aligned(field.nbytes) for field in self.fields)

    def views(self, memory: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        """Return the arrays, by name, as views of `memory` of shape `(nbytes,)`."""
        arrays, offset = {}, 0
        for field in self.fields:
            data = memory[offset : offset + field.nbytes]
            arrays[field.name] = data.view(field.dtype).reshape(field.shape)
            offset += aligned(field.nbytes)
        return arrays


def columns(sizes: dict[str, int]) -> dict[str, slice]:
    """Return where each named column lies in a packed row."""
    slices, start = {}, 0
    for name, size in sizes.items():
        slices[name] = slice(start, start + size)
        start += size
    return slices
