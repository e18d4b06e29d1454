"""All settings of a run, and what must hold between its sections."""

from __future__ import annotations

from functools import cache, reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, SerializeAsAny, create_model, model_validator
from pydantic_core import PydanticCustomError

from aiorl.settings.algorithm import AlgorithmSettings, OnPolicySettings, algorithms
from aiorl.settings.base import Section, number
from aiorl.settings.contradictions import contradictions, foreign_fields
from aiorl.settings.sections import (
    BudgetSettings,
    CheckpointSettings,
    CollectionSettings,
    EnvSettings,
    EvaluationSettings,
    LearnerSettings,
    ReplaySettings,
    RuntimeSettings,
    TelemetrySettings,
)


class RunSettings(Section):
    """Everything that defines a run."""

    name: str = Field(default="run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Names the run directory."""
    seed: Annotated[int, Field(ge=0, lt=2**63), number] = 0
    """Seed of every random generator of the run."""
    env: EnvSettings = EnvSettings()
    """The environment."""
    collection: CollectionSettings = CollectionSettings()
    """How experience is collected."""
    replay: ReplaySettings = ReplaySettings()
    """The replay memory."""
    algorithm: SerializeAsAny[AlgorithmSettings]
    """The algorithm: its kind and everything that is the algorithm's."""
    learner: LearnerSettings = LearnerSettings()
    """The learner process."""
    budget: BudgetSettings = BudgetSettings()
    """When the run ends."""
    evaluation: EvaluationSettings = EvaluationSettings()
    """Its evaluations, at the end and on the way."""
    checkpoint: CheckpointSettings = CheckpointSettings()
    """When it is saved."""
    telemetry: TelemetrySettings = TelemetrySettings()
    """What it reports."""
    runtime: RuntimeSettings = RuntimeSettings()
    """How its processes run."""

    @model_validator(mode="after")
    def _consistent(self) -> RunSettings:
        problems = list(contradictions(self))
        if problems:
            raise PydanticCustomError("contradictions", "{text}", {"text": "\n".join(problems), "problems": problems})
        return self

    @property
    def envs_per_collector(self) -> int:
        """Envs that each collector steps."""
        return self.env.num_envs // self.collection.collectors

    def tree(self) -> dict[str, Any]:
        """Return plain values by section and key, as a file holds them: without what the algorithm has no use for."""
        tree = self.model_dump(mode="json")
        for section, field in foreign_fields(self):
            del tree[section][field]
        return {name: value for name, value in tree.items() if value != {}}

    @property
    def on_policy(self) -> OnPolicySettings | None:
        """The algorithm's settings where it is on-policy, else None."""
        return self.algorithm if isinstance(self.algorithm, OnPolicySettings) else None

    @property
    def lead(self) -> int:
        """Ticks that the collectors are ahead of the learner, exactly."""
        return self.on_policy.max_policy_lag if self.on_policy else self.collection.lead

    @property
    def steps_per_tick(self) -> int:
        """Steps of every env in one tick: a chunk, or a rollout."""
        return self.collection.rollout_steps if self.on_policy else self.collection.chunk_steps

    @property
    def env_steps_per_tick(self) -> int:
        """Env steps of one tick over all collectors."""
        return self.env.num_envs * self.steps_per_tick

    def in_whole_ticks(self, env_steps: int) -> int:
        """Return env steps rounded up to whole ticks."""
        return -(-env_steps // self.env_steps_per_tick) * self.env_steps_per_tick

    @property
    def learning_starts(self) -> int:
        """Env steps before the first update."""
        return 0 if self.on_policy else self.collection.learning_starts

    @property
    def uniform_steps(self) -> int:
        """Env steps that act uniformly at random."""
        if self.on_policy:
            return 0
        collection = self.collection
        return collection.learning_starts if collection.random_steps is None else collection.random_steps

    @property
    def gradient_steps_per_update(self) -> int:
        """Gradient steps of one update."""
        return self.on_policy.epochs * self.on_policy.minibatches if self.on_policy else self.learner.gradient_steps

    @property
    def rows_per_update(self) -> int:
        """Rows that the gradient steps of one update see together."""
        if self.on_policy:
            return self.on_policy.epochs * self.env_steps_per_tick
        return self.learner.gradient_steps * self.learner.batch_size

    @property
    def rollout_slots(self) -> int:
        """Rollout slots of each collector."""
        return self.collection.rollout_slots or self.lead + 1

    @property
    def rows_per_collector(self) -> int:
        """Rows of each minibatch that one collector packs."""
        return self.learner.batch_size // self.collection.collectors

    @property
    def shard_steps(self) -> int:
        """Vector steps that one replay shard holds."""
        return self.replay.capacity // self.env.num_envs

    @property
    def replay_ratio(self) -> float:
        """Rows that gradient steps see / env steps, once learning has started."""
        return self.rows_per_update / self.env_steps_per_tick


if TYPE_CHECKING:

    def run_settings_model() -> type[RunSettings]:
        """Return RunSettings with the union of the installed algorithms."""

else:

    @cache
    def run_settings_model() -> type[RunSettings]:
        """Return RunSettings with `algorithm` as the union of the installed algorithms, told apart by `kind`."""
        kinds = tuple(algorithms().values())
        if len(kinds) == 1:
            union: Any = kinds[0]
        else:
            union = Annotated[reduce(or_, kinds), Field(discriminator="kind")]
        description = RunSettings.model_fields["algorithm"].description
        model = create_model("RunSettings", __base__=RunSettings, algorithm=(union, Field(description=description)))
        model.__doc__ = RunSettings.__doc__
        return model
