"""What every algorithm's settings have in common, and how algorithms are found.

An algorithm is a settings class that an installed package names under the entry point group
`aiorl.algorithms`; everything else about it (policy, learner) is named by that class. A new
algorithm therefore adds a folder and a line in its own pyproject, and nothing here.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from aiorl.errors import SettingsError
from aiorl.settings.base import Count, Section, Share, number

ENTRY_POINT_GROUP = "aiorl.algorithms"


class AlgorithmSettings(Section):
    """Base of an algorithm's settings; `kind` is a Literal that names the algorithm."""

    kind: str
    """The algorithm."""

    gamma: Share = 0.99
    """Discount per env step."""

    family: ClassVar[Literal["off_policy", "on_policy"]] = "off_policy"
    """Which dialogue drives it."""
    policy: ClassVar[str]
    """`module:callable` that makes its acting policy from (these settings, EnvSpec)."""
    learner: ClassVar[str]
    """`module:callable` that makes its learner."""
    groups: ClassVar[tuple[str, ...]] = ("policy",)
    """The observation groups it uses where the env offers them."""

    def contradictions(self) -> list[str]:
        """Return a sentence, starting with the key, for everything here that cannot hold together."""
        return []


class OnPolicySettings(AlgorithmSettings):
    """Base of the settings of an algorithm that trains on rollouts, each of them once."""

    family: ClassVar[Literal["off_policy", "on_policy"]] = "on_policy"

    max_policy_lag: Annotated[int, Field(ge=0, le=1_000), number] = 1
    """Updates that a rollout's policy is behind the learner's, exactly; 0 is strictly on-policy, without overlap."""
    epochs: Count = 5
    """Passes over the rollouts of an update."""
    minibatches: Count = 4
    """Gradient steps of each pass."""


@cache
def algorithms() -> dict[str, type[AlgorithmSettings]]:
    """Return the settings class of every installed algorithm, by kind.

    Raises:
        SettingsError: an installed entry point does not name an AlgorithmSettings class.

    """
    found: dict[str, type[AlgorithmSettings]] = {}
    for point in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda point: point.name):
        settings = point.load()
        if not (isinstance(settings, type) and issubclass(settings, AlgorithmSettings)):
            raise SettingsError(f"entry point {point.name} = {point.value} is not a subclass of AlgorithmSettings")
        found[point.name] = settings
    if not found:
        raise SettingsError("no algorithm is installed: install aiorl itself (`pip install -e .` in a checkout)")
    return found
