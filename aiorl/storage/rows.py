"""The packed float32 row of a transition: which columns it has, and where."""

from __future__ import annotations

from dataclasses import dataclass

from aiorl.protocol import EnvSpec
from aiorl.storage.layout import columns


@dataclass(frozen=True)
class RowLayout:
    """Columns of one transition; a critic group is there only where the env has one of its own."""

    sizes: dict[str, int]
    slices: dict[str, slice]
    width: int
    groups: tuple[str, ...]

    @classmethod
    def of(cls, spec: EnvSpec) -> RowLayout:
        """Return the row layout for an environment."""
        sizes = {obs_column(group.name): group.size for group in spec.groups}
        sizes |= {"action": spec.action_size, "reward": 1}
        sizes |= {"next_" + obs_column(group.name): group.size for group in spec.groups}
        return cls(sizes, columns(sizes), sum(sizes.values()), tuple(group.name for group in spec.groups))


def obs_column(group: str) -> str:
    """Return the column that holds an observation group."""
    return "obs" if group == "policy" else f"{group}_obs"
