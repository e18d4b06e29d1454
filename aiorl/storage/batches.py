"""Batch slots: rows that collectors pack and the learner trains on, with the statistics that travel beside them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aiorl.protocol import EnvSpec
from aiorl.settings import RunSettings
from aiorl.storage.layout import Field, Layout, columns
from aiorl.storage.moments import Moments
from aiorl.storage.rows import RowLayout


def batch_slot_count(settings: RunSettings) -> int:
    """Return how many batch slots a run needs: one being packed, and with lead 1 another being trained on."""
    return settings.collection.lead + 1


def statistics_slices(spec: EnvSpec) -> dict[str, slice]:
    """Return where the moments of each observation group, and of the reward, lie in a slot's header."""
    sizes = {group.name: 1 + 3 * group.size for group in spec.groups}
    return columns(sizes | {"reward": 1 + 3})


def fresh_moments(spec: EnvSpec) -> dict[str, Moments]:
    """Return empty moments for each observation group and the reward."""
    return {group.name: Moments(group.size) for group in spec.groups} | {"reward": Moments(1)}


def batch_layout(settings: RunSettings, spec: EnvSpec) -> Layout:
    """Return the layout of all batch slots: `[slot, gradient_step, collector, row]`."""
    slots, collectors = batch_slot_count(settings), settings.collection.collectors
    shape = (slots, settings.learner.gradient_steps, collectors, settings.rows_per_collector)
    header = max(part.stop for part in statistics_slices(spec).values())
    return Layout(
        (
            Field("rows", (*shape, RowLayout.of(spec).width), "float32"),
            Field("discount", shape, "float32"),
            Field("statistics", (slots, collectors, header), "float64"),
        )
    )


@dataclass(frozen=True)
class BatchSlots:
    """All batch slots, `rows[slot, gradient_step, collector, row, width]`, discount alike without width.

    `discount` is γ^k of the packed reward's k steps, and 0 where the last of them terminated.
    """

    rows: NDArray[np.float32]
    discount: NDArray[np.float32]
    statistics: NDArray[np.float64]

    @classmethod
    def on(cls, memory: NDArray[np.uint8], settings: RunSettings, spec: EnvSpec) -> BatchSlots:
        """Return the slots that lie in `memory`."""
        return cls(**batch_layout(settings, spec).views(memory))
