"""Weight slots: published policies as flat bytes, with the version that each slot holds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aiorl.errors import StorageError
from aiorl.settings import RunSettings
from aiorl.storage.layout import Field, Layout, aligned


def weight_slot_count(settings: RunSettings) -> int:
    """Return how many weight slots a run needs: one for each tick under way or to come, and one being written."""
    return max(settings.lead, 1) + 1


def weights_layout(settings: RunSettings, policy_bytes: int) -> Layout:
    """Return the layout of all weight slots for a policy of this size."""
    slots = weight_slot_count(settings)
    return Layout((Field("policy", (slots, aligned(policy_bytes)), "uint8"), Field("version", (slots,), "int64")))


@dataclass(frozen=True)
class WeightSlots:
    """All weight slots: `policy[slot]` are the bytes, `version[slot]` says of which policy."""

    policy: NDArray[np.uint8]
    version: NDArray[np.int64]

    @classmethod
    def on(cls, memory: NDArray[np.uint8], settings: RunSettings, policy_bytes: int) -> WeightSlots:
        """Return the slots that lie in `memory`."""
        return cls(**weights_layout(settings, policy_bytes).views(memory))

    def write(self, slot: int, version: int, flat: NDArray[np.uint8]) -> None:
        """Put a policy into a slot: one flat copy."""
        self.policy[slot, : flat.size] = flat
        self.version[slot] = version

    def read(self, slot: int, version: int, flat: NDArray[np.uint8]) -> None:
        """Copy a slot into `flat`: one flat copy.

        Raises:
            StorageError: the slot does not hold this version.

        """
        if int(self.version[slot]) != version:
            raise StorageError(f"weight slot {slot} holds version {int(self.version[slot])}, not {version}")
        flat[:] = self.policy[slot, : flat.size]
