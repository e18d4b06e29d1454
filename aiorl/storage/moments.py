"""Running count, mean, squared deviations and largest absolute value of a stream of vectors (float64).

Merging follows Chan, Golub, LeVeque (1983): exact up to rounding, and independent of how the stream was cut.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aiorl.protocol import EnvSpec
from aiorl.storage.layout import columns


class Moments:
    """Moments of vectors `(size,)`, all in one float64 vector `(1 + 3 * size,)` that can travel as it is."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.vector: NDArray[np.float64] = np.zeros(1 + 3 * size)

    @property
    def count(self) -> float:
        """Vectors seen."""
        return float(self.vector[0])

    @property
    def mean(self) -> NDArray[np.float64]:
        """Mean, `(size,)`."""
        return self.vector[1 : 1 + self.size]

    @property
    def m2(self) -> NDArray[np.float64]:
        """Sum of squared deviations from the mean, `(size,)`."""
        return self.vector[1 + self.size : 1 + 2 * self.size]

    @property
    def max_abs(self) -> NDArray[np.float64]:
        """Largest absolute value, `(size,)`."""
        return self.vector[1 + 2 * self.size :]

    def add(self, values: NDArray[Any]) -> None:
        """Add a batch of vectors, `(n, size)`."""
        if len(values) == 0:
            return
        batch = Moments(self.size)
        exact = values.astype(np.float64)
        batch.vector[0] = len(exact)
        batch.mean[:] = exact.mean(axis=0)
        batch.m2[:] = np.square(exact - batch.mean).sum(axis=0)
        batch.max_abs[:] = np.abs(exact).max(axis=0)
        self.merge(batch.vector)

    def merge(self, other: NDArray[np.float64]) -> None:
        """Add everything that another Moments' vector has seen."""
        count, added = self.vector[0], other[0]
        if added == 0:
            return
        size, total = self.size, count + added
        delta = other[1 : 1 + size] - self.mean
        self.m2[:] += other[1 + size : 1 + 2 * size] + np.square(delta) * (count * added / total)
        self.mean[:] += delta * (added / total)
        np.maximum(self.max_abs, other[1 + 2 * size :], out=self.max_abs)
        self.vector[0] = total

    def restore(self, vector: NDArray[Any]) -> None:
        """Take back a vector that was saved.

        Raises:
            ValueError: it cannot be one of these moments.

        """
        fits = vector.shape == self.vector.shape and np.isfinite(vector).all()
        if not fits or vector[0] < 0 or (vector[1 + self.size :] < 0).any():
            raise ValueError(
                f"moments of {self.size} values cannot be {vector.dtype} {vector.shape}, or hold such values"
            )
        self.vector[:] = vector

    def clear(self) -> None:
        """Forget everything."""
        self.vector[:] = 0


def fresh_moments(spec: EnvSpec) -> dict[str, Moments]:
    """Return empty moments for each observation group and the reward."""
    return {group.name: Moments(group.size) for group in spec.groups} | {"reward": Moments(1)}


def statistics_slices(spec: EnvSpec) -> dict[str, slice]:
    """Return where the moments of each observation group, and of the reward, lie in a slot's header."""
    return columns({name: moments.vector.size for name, moments in fresh_moments(spec).items()})


def statistics_size(spec: EnvSpec) -> int:
    """Return how many float64 numbers such a header has."""
    return sum(1 + 3 * moments.size for moments in fresh_moments(spec).values())
