"""Settings of APPO."""

from __future__ import annotations

from typing import ClassVar, Literal

from aiorl.settings.algorithm import OnPolicySettings
from aiorl.settings.base import Count, NonNegative, Positive, Share, Widths


class AppoSettings(OnPolicySettings):
    """Asynchronous PPO: V-trace corrects the policy lag, clipping is around a target policy."""

    policy: ClassVar[str] = "aiorl.algorithms.appo.policy:AppoPolicy"
    learner: ClassVar[str] = "aiorl.algorithms.appo.learner:AppoLearner"
    groups: ClassVar[tuple[str, ...]] = ("policy", "critic")

    kind: Literal["appo"] = "appo"
    """The algorithm."""
    actor_hidden: Widths = (512, 256, 128)
    """Widths of the actor's hidden layers (ELU)."""
    critic_hidden: Widths = (512, 256, 128)
    """Widths of the critic's hidden layers (ELU)."""
    initial_std: Positive = 1.0
    """Standard deviation of actions at the start, in actions of [-1, 1]; it is learned, the same in every state."""
    trace_lambda: Share = 0.95
    """λ of V-trace; on-policy it is that of GAE."""
    rho_limit: Positive = 1.0
    """Largest weight of an error of the value function (ρ̄ of V-trace)."""
    c_limit: Positive = 1.0
    """Largest weight that carries an error back in time (c̄ of V-trace)."""
    target_period: Count = 1
    """Updates after which the target policy becomes the trained one again."""
    target_ratio_limit: Positive = 2.0
    """Most that acting policy / target policy may weigh in the surrogate's ratio."""
    clip: Positive = 0.2
    """How far the surrogate's ratio may be from 1."""
    value_clip: Positive | None = 0.2
    """How far one update may move a value, in units of returns; null for no limit."""
    value_coefficient: NonNegative = 1.0
    """Weight of the critic's squared error."""
    entropy_coefficient: NonNegative = 0.01
    """Weight of the policy's entropy."""
    normalise_advantages: bool = True
    """Scale the advantages of an update to mean 0 and standard deviation 1."""
    gradient_norm: Positive | None = 1.0
    """Largest norm of the gradient, actor and critic together; null for no limit."""
    learning_rate: Positive = 1e-3
    """Adam's rate at the start."""
    target_kl: Positive | None = 0.01
    """KL divergence that the learning rate is steered to: ÷ 1.5 above twice, x 1.5 below half of it; null keeps it."""
    learning_rate_min: Positive = 1e-5
    """Least learning rate."""
    learning_rate_max: Positive = 1e-2
    """Greatest learning rate."""
    normalise_observations: bool = False
    """Scale observations by the running mean and standard deviation of all fresh ones."""

    def contradictions(self) -> list[str]:
        """Return what is wrong with the rates."""
        if self.target_kl is None or self.learning_rate_min <= self.learning_rate <= self.learning_rate_max:
            return []
        return [
            f"algorithm.learning_rate: {self.learning_rate:g} is not within learning_rate_min="
            f"{self.learning_rate_min:g} and learning_rate_max={self.learning_rate_max:g}, where target_kl keeps it"
        ]
