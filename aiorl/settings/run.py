"""All settings of a run, and what must hold between its sections."""

from __future__ import annotations

from functools import cache, reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, SerializeAsAny, create_model, model_validator
from pydantic_core import PydanticCustomError

from aiorl.settings.algorithm import AlgorithmSettings, algorithms
from aiorl.settings.base import Section, Whole
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
    seed: Annotated[Whole, Field(lt=2**63)] = 0
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
    """The evaluation that ends it."""
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

    @property
    def env_steps_per_tick(self) -> int:
        """Env steps of one tick over all collectors."""
        return self.env.num_envs * self.collection.chunk_steps

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
        """Gradient steps x batch size / env steps, once learning has started."""
        return self.learner.gradient_steps * self.learner.batch_size / self.env_steps_per_tick


def contradictions(settings: RunSettings) -> list[str]:
    """Return a sentence, starting with the key, for everything that cannot hold together."""
    env, collection, replay, learner = settings.env, settings.collection, settings.replay, settings.learner
    problems = []
    if env.num_envs % collection.collectors:
        problems.append(
            f"env.num_envs: {env.num_envs} envs do not divide by collection.collectors={collection.collectors}"
        )
    if learner.batch_size % collection.collectors:
        problems.append(
            f"learner.batch_size: {learner.batch_size} rows do not divide by"
            f" collection.collectors={collection.collectors}"
        )
    held = settings.shard_steps * env.num_envs
    if settings.shard_steps < max(collection.chunk_steps, replay.n_step):
        problems.append(
            f"replay.capacity: {replay.capacity} holds {settings.shard_steps} vector steps of {env.num_envs} envs,"
            f" fewer than collection.chunk_steps={collection.chunk_steps} or replay.n_step={replay.n_step} need"
        )
    elif held < collection.learning_starts:
        problems.append(
            f"replay.capacity: {replay.capacity} (held: {held}) is less than"
            f" collection.learning_starts={collection.learning_starts}"
        )
    elif held < learner.batch_size:
        problems.append(f"replay.capacity: {replay.capacity} is less than learner.batch_size={learner.batch_size}")
    budget = settings.budget
    if budget.env_steps is None and budget.gradient_steps is None and budget.seconds is None:
        problems.append("budget: set env_steps, gradient_steps or seconds, or the run would never end")
    if budget.env_steps is not None:
        last = -(-budget.env_steps // settings.env_steps_per_tick) * settings.env_steps_per_tick
        if last < collection.learning_starts:
            problems.append(
                f"budget.env_steps: {budget.env_steps} ends the run before"
                f" collection.learning_starts={collection.learning_starts}, so nothing would be learned"
            )
    if env.wrappers and env.vectorization == "vector_entry_point":
        problems.append("env.wrappers: wrap single envs, so they need env.vectorization sync or async")
    return problems


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
