"""The slot of the policy that is evaluated on the way, with the statistics that it was made with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aiorl.errors import StorageError
from aiorl.protocol import EnvSpec
from aiorl.storage.layout import Field, Layout
from aiorl.storage.moments import Moments, statistics_size, statistics_slices


def evaluated_layout(spec: EnvSpec, policy_bytes: int) -> Layout:
    """Return the layout of the slot."""
    return Layout(
        (
            Field("policy", (policy_bytes,), "uint8"),
            Field("statistics", (statistics_size(spec),), "float64"),
            Field("version", (1,), "int64"),
        )
    )


@dataclass(frozen=True)
class EvaluatedSlot:
    """One policy as flat bytes, the moments of observations and rewards by then, and its weight version."""

    policy: NDArray[np.uint8]
    statistics: NDArray[np.float64]
    version: NDArray[np.int64]
    parts: dict[str, slice]

    @classmethod
    def on(cls, memory: NDArray[np.uint8], spec: EnvSpec, policy_bytes: int) -> EvaluatedSlot:
        """Return the slot that lies in `memory`."""
        return cls(**evaluated_layout(spec, policy_bytes).views(memory), parts=statistics_slices(spec))

    def write(self, version: int, flat: NDArray[np.uint8], moments: Mapping[str, Moments]) -> None:
        """Put a policy and its moments, by name, into the slot."""
        self.policy[:] = flat
        for name, part in self.parts.items():
            self.statistics[part] = moments[name].vector
        self.version[0] = version

    def read(self, version: int, flat: NDArray[np.uint8]) -> dict[str, NDArray[np.float64]]:
        """Copy the policy into `flat`; return copies of the moments' vectors, by name.

        Raises:
            StorageError: the slot does not hold this version.

        """
        if int(self.version[0]) != version:
            raise StorageError(f"the evaluated slot holds version {int(self.version[0])}, not {version}")
        flat[:] = self.policy
        return {name: self.statistics[part].copy() for name, part in self.parts.items()}
