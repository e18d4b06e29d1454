"""Batch slots: rows that collectors pack and the learner trains on, with the statistics that travel beside them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aiorl.protocol import EnvSpec
from aiorl.settings import RunSettings
from aiorl.storage.layout import Field, Layout
from aiorl.storage.moments import statistics_size
from aiorl.storage.rows import RowLayout


def batch_slot_count(settings: RunSettings) -> int:
    """Return how many batch slots a run needs: one being packed, and with lead 1 another being trained on."""
    return settings.lead + 1


def batch_layout(settings: RunSettings, spec: EnvSpec) -> Layout:
    """Return the layout of all batch slots: `[slot, gradient_step, collector, row]`."""
    slots, collectors = batch_slot_count(settings), settings.collection.collectors
    shape = (slots, settings.learner.gradient_steps, collectors, settings.rows_per_collector)
    return Layout(
        (
            Field("rows", (*shape, RowLayout.of(spec).width), "float32"),
            Field("discount", shape, "float32"),
            Field("statistics", (slots, collectors, statistics_size(spec)), "float64"),
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
