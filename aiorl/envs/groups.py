"""Observation groups: one Box, or a Dict of Boxes, as flat float32 arrays by group name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Space
from numpy.typing import NDArray

from aiorl.envs.make import EnvSettingsError
from aiorl.errors import EnvError
from aiorl.protocol import Group

KNOWN = ("policy", "critic", "privileged")
EXACT_IN_FLOAT32 = 2**24

Arrays = dict[str, NDArray[np.float32]]


class ObservationGroups:
    """Copies observations of an env into float32 arrays `(num_envs, size)`, one for each group in use."""

    def __init__(self, space: Space[Any], used: tuple[str, ...]) -> None:
        self._is_dict = isinstance(space, Dict)
        self._boxes: dict[str, Box] = {}
        spaces: Mapping[str, Space[Any]] = space.spaces if isinstance(space, Dict) else {"policy": space}
        if "policy" not in spaces or set(spaces) - set(KNOWN):
            raise EnvSettingsError(
                "env.id",
                f"its Dict observation has the keys {', '.join(spaces)}; aiorl knows {', '.join(KNOWN)}, of which"
                " policy must be there: rename them, or add gymnasium.wrappers:FlattenObservation to env.wrappers",
            )
        for name in KNOWN:
            if name in spaces and name in used:
                box = spaces[name]
                if not isinstance(box, Box):
                    raise EnvSettingsError(
                        "env.id",
                        f"observation {name} is a {type(box).__name__} space; aiorl takes Box: "
                        "add gymnasium.wrappers:FlattenObservation to env.wrappers",
                    )
                self._boxes[name] = box
        self.unused = tuple(name for name in spaces if name not in self._boxes)

    @property
    def groups(self) -> tuple[Group, ...]:
        """Name and flat size of each group in use; policy first."""
        return tuple(Group(name, int(np.prod(box.shape))) for name, box in self._boxes.items())

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know about how observations are kept."""
        notes = [f"observation group {name} is not used by this algorithm" for name in self.unused]
        for name, box in self._boxes.items():
            if box.dtype == np.float64:
                notes.append(f"observation {name} is float64 and kept as float32")
        return tuple(notes)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a user must know: values that change on the way."""
        wide = [
            (name, box)
            for name, box in self._boxes.items()
            if np.issubdtype(box.dtype, np.integer)
            and max(abs(int(box.low.min())), abs(int(box.high.max()))) > EXACT_IN_FLOAT32
        ]
        return tuple(
            f"observation {name} is {box.dtype} and kept as float32: values beyond 2^24 change" for name, box in wide
        )

    def empty(self, num_envs: int) -> Arrays:
        """Return zeroed arrays for all groups."""
        return {group.name: np.zeros((num_envs, group.size), np.float32) for group in self.groups}

    def write(self, obs: Any, out: Arrays) -> None:
        """Copy the observations of all envs.

        Raises:
            EnvError: they do not have the shape that the env's space promises.

        """
        for name, box in self._boxes.items():
            values = np.asarray(self._group(obs, name))
            if values.shape != (len(out[name]), *box.shape):
                raise EnvError(
                    f"observation {name} has shape {values.shape}, but the env's space promises"
                    f" {(len(out[name]), *box.shape)}"
                )
            np.copyto(out[name], values.reshape(len(values), -1), casting="unsafe")

    def write_rows(self, obs: Any, envs: NDArray[np.intp], out: Arrays) -> None:
        """Copy the observations of some envs, given densely, as a dict of arrays, or as objects with holes.

        Raises:
            EnvError: an env has none, or one of another shape.

        """
        for name, box in self._boxes.items():
            for env in envs:
                value = self._one(obs, int(env), name)
                if value is None or np.shape(value) != box.shape:
                    raise EnvError(
                        f"env {int(env)} ended an episode without a final observation {name} of shape {box.shape}"
                        f" (got {'none' if value is None else np.shape(value)})"
                    )
                out[name][env] = np.asarray(value).reshape(-1)

    def _group(self, obs: Any, name: str) -> Any:
        if not self._is_dict:
            return obs
        if not isinstance(obs, Mapping) or name not in obs:
            raise EnvError(f"the env's observation has no group {name}, which its space promises")
        return obs[name]

    def _one(self, obs: Any, env: int, name: str) -> Any:
        """Return one env's observation of a group, or None where there is none."""
        if not self._is_dict:
            return obs[env]
        if isinstance(obs, Mapping):
            return obs[name][env] if name in obs else None
        return obs[env].get(name) if isinstance(obs[env], Mapping) else None
