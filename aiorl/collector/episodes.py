"""Returns and lengths of episodes: the env's own rewards, summed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aiorl.envs.stepper import Step
from aiorl.protocol import EpisodeSums, TermSum
from aiorl.storage.recent import RecentEpisodes

_TERM = "reward/"


class EpisodeTracker:
    """Running sums of every env's episode, and the last 100 finished ones."""

    def __init__(self, num_envs: int) -> None:
        self._return = np.zeros(num_envs)
        self._length = np.zeros(num_envs, np.int64)
        self.recent = RecentEpisodes()
        self._new: list[float] = []
        self._terminated = self._truncated = 0
        self._terms: dict[str, tuple[float, int]] = {}

    def add(self, step: Step) -> None:
        """Count one vector step; rows that are no transition count nowhere, and void their episode."""
        ended = step.terminated | step.truncated
        self._return += np.where(step.valid, step.reward, 0)
        self._length += step.valid
        for env in np.flatnonzero(ended & step.valid):
            self.recent.add(float(self._return[env]), float(self._length[env]))
            self._new.append(float(self._return[env]))
            # Both at once counts as terminated.
            self._terminated += bool(step.terminated[env])
            self._truncated += not step.terminated[env]
        over = ended | ~step.valid
        self._return[over] = 0
        self._length[over] = 0
        self._add_terms(step)

    def forget_running(self) -> None:
        """Drop the episodes that were under way: their envs start new ones."""
        self._return[:] = 0
        self._length[:] = 0

    def take(self) -> EpisodeSums:
        """Return what came since the last call; the window stays."""
        window = self.recent.rows
        sums = EpisodeSums(
            finished=len(self._new),
            terminated=self._terminated,
            truncated=self._truncated,
            return_sum=sum(self._new),
            return_min=min(self._new, default=0.0),
            return_max=max(self._new, default=0.0),
            window=len(window),
            window_return_mean=float(window[:, 0].mean()) if len(window) else 0.0,
            window_length_mean=float(window[:, 1].mean()) if len(window) else 0.0,
            reward_terms=tuple(TermSum(name, total, rows) for name, (total, rows) in sorted(self._terms.items())),
        )
        self._new.clear()
        self._terms.clear()
        self._terminated = self._truncated = 0
        return sums

    def get_state(self) -> dict[str, NDArray[Any]]:
        """Return the running sums and the window."""
        return {
            "return": self._return.copy(),
            "length": self._length.copy(),
            "window": self.recent.rows,
        }

    def set_state(self, state: dict[str, NDArray[Any]]) -> None:
        """Take back what `get_state` returned."""
        if not state["return"].shape == state["length"].shape == self._return.shape:
            raise ValueError(f"returns of shape {state['return'].shape}, not {self._return.shape}")
        self._return[:] = state["return"]
        self._length[:] = state["length"]
        self.recent.replace(state["window"])

    def _add_terms(self, step: Step) -> None:
        ended = step.terminated | step.truncated
        final = step.info.get("final_info")
        if isinstance(final, dict):  # SAME_STEP: what a finished row reported; the rest is of the reset
            self._add_entries(final, step.valid & ended)
            self._add_entries(step.info, step.valid & ~ended)
        else:
            self._add_entries(step.info, step.valid)

    def _add_entries(self, info: dict[str, Any], rows: NDArray[np.bool_]) -> None:
        entries = info.get("log", info)
        if not isinstance(entries, dict) or not rows.any():
            return
        for name, values in entries.items():
            if isinstance(name, str) and name.startswith(_TERM):
                counted = rows & entries.get(f"_{name}", True)  # Gymnasium's mask of envs that have the entry
                terms = np.broadcast_to(values, rows.shape)[counted]
                total, count = self._terms.get(name, (0.0, 0))
                self._terms[name] = (total + float(terms.sum()), count + len(terms))
