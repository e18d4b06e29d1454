"""Settings of SAC."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from aiorl.settings.algorithm import AlgorithmSettings
from aiorl.settings.base import Positive, Real, Widths, number


class SacSettings(AlgorithmSettings):
    """Soft actor-critic with twin critics and a learned temperature."""

    policy: ClassVar[str] = "aiorl.algorithms.sac.policy:make_policy"
    learner: ClassVar[str] = "aiorl.algorithms.sac.learner:SacLearner"
    groups: ClassVar[tuple[str, ...]] = ("policy", "critic")

    kind: Literal["sac"] = "sac"
    """The algorithm."""
    actor_hidden: Widths = (256, 256)
    """Widths of the actor's hidden layers."""
    critic_hidden: Widths = (256, 256)
    """Widths of each critic's hidden layers."""
    tau: Annotated[float, Field(gt=0, le=1), number] = 0.005
    """Share of the critic that enters its target after each gradient step."""
    actor_learning_rate: Positive = 3e-4
    """Adam's rate for the actor."""
    critic_learning_rate: Positive = 3e-4
    """Adam's rate for the critics."""
    temperature_learning_rate: Positive = 3e-4
    """Adam's rate for the logarithm of the temperature."""
    initial_temperature: Positive = 1.0
    """Weight of the entropy at the start."""
    learn_temperature: bool = True
    """Learn the temperature towards the target entropy; false keeps the initial one."""
    target_entropy_per_action: Real = -1.0
    """Target entropy in nats per action dimension, measured in actions of [-1, 1]."""
    normalise_observations: bool = False
    """Scale observations by the running mean and standard deviation of all fresh ones."""
