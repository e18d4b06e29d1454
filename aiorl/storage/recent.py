"""The last finished episodes of a collector, where a collector that takes its place finds them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from aiorl.storage.layout import Field

WINDOW = 100
EPISODES = Field("episodes", (WINDOW + 1, 2), "float64")
"""Where they lie in shared memory: their number ever in the first row, then a ring of return and length."""


class RecentEpisodes:
    """Return and length of the last 100 episodes; in memory of its own, or in `memory` `(101, 2)`."""

    def __init__(self, memory: NDArray[np.float64] | None = None) -> None:
        self._memory = np.zeros(EPISODES.shape) if memory is None else memory

    def add(self, episode_return: float, episode_length: float) -> None:
        """Add an episode; of more than 100 the oldest goes."""
        count = int(self._memory[0, 0])
        self._memory[1 + count % WINDOW] = episode_return, episode_length
        self._memory[0, 0] = count + 1

    @property
    def rows(self) -> NDArray[np.float64]:
        """Returns and lengths, oldest first, `(n, 2)`, as a copy."""
        count = int(self._memory[0, 0])
        rows: NDArray[np.float64] = self._memory[1 + np.arange(max(0, count - WINDOW), count) % WINDOW]
        return rows

    def replace(self, rows: NDArray[np.float64]) -> None:
        """Take other episodes instead, `(n, 2)`, oldest first."""
        self._memory[0, 0] = 0
        for episode_return, episode_length in rows[-WINDOW:]:
            self.add(float(episode_return), float(episode_length))
