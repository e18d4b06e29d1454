"""What cannot hold together between the sections of a run's settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from aiorl.settings.base import Section

if TYPE_CHECKING:
    from aiorl.settings.run import RunSettings


def contradictions(settings: RunSettings) -> Iterator[str]:
    """Yield a sentence, starting with the key, for everything that cannot hold together."""
    yield from _of_another_family(settings)
    yield from settings.algorithm.contradictions()
    env, collection, budget = settings.env, settings.collection, settings.budget
    if env.num_envs % collection.collectors:
        yield f"env.num_envs: {env.num_envs} envs do not divide by collection.collectors={collection.collectors}"
    yield from _of_rollouts(settings) if settings.on_policy else _of_replay(settings)
    if budget.env_steps is None and budget.gradient_steps is None and budget.seconds is None:
        yield "budget: set env_steps, gradient_steps or seconds, or the run would never end"
    if env.wrappers and env.vectorization == "vector_entry_point":
        yield "env.wrappers: wrap single envs, so they need env.vectorization sync or async"
    every = settings.evaluation.every_env_steps
    if every is not None and budget.env_steps is not None and every > settings.in_whole_ticks(budget.env_steps):
        yield (
            f"evaluation.every_env_steps: {every} are never reached, as budget.env_steps={budget.env_steps} ends the"
            " run before; null for no evaluation on the way"
        )


def foreign_fields(settings: RunSettings) -> Iterator[tuple[str, str]]:
    """Yield (section, field) for everything that only algorithms of another family use."""
    family = settings.algorithm.family
    for name in type(settings).model_fields:
        section = getattr(settings, name)
        for field, info in type(section).model_fields.items() if isinstance(section, Section) else ():
            extra = info.json_schema_extra
            if isinstance(extra, dict) and extra.get("family", family) != family:
                yield name, field


def _of_another_family(settings: RunSettings) -> Iterator[str]:
    for name, field in foreign_fields(settings):
        section = getattr(settings, name)
        value = getattr(section, field)
        if value != type(section).model_fields[field].default:
            shown = str(value).lower() if isinstance(value, bool) else value
            yield (
                f"{name}.{field}: {shown} means nothing to {settings.algorithm.kind}, which is"
                f" {settings.algorithm.family.replace('_', '-')}; leave it out, and start from"
                f" a preset of {settings.algorithm.kind}"
            )


def _of_rollouts(settings: RunSettings) -> Iterator[str]:
    collection, algorithm = settings.collection, settings.on_policy
    assert algorithm is not None
    if settings.rollout_slots < settings.lead + 1:
        yield (
            f"collection.rollout_slots: {collection.rollout_slots} are too few for"
            f" algorithm.max_policy_lag={algorithm.max_policy_lag}, which takes {settings.lead + 1}"
        )
    if settings.env_steps_per_tick % algorithm.minibatches:
        yield (
            f"algorithm.minibatches: the {settings.env_steps_per_tick} rows of an update (collection.rollout_steps="
            f"{collection.rollout_steps} x env.num_envs={settings.env.num_envs}) do not divide by"
            f" {algorithm.minibatches}"
        )


def _of_replay(settings: RunSettings) -> Iterator[str]:
    env, collection, replay, learner = settings.env, settings.collection, settings.replay, settings.learner
    if learner.batch_size % collection.collectors:
        yield (
            f"learner.batch_size: {learner.batch_size} rows do not divide by"
            f" collection.collectors={collection.collectors}"
        )
    held = settings.shard_steps * env.num_envs
    if settings.shard_steps < max(collection.chunk_steps, replay.n_step):
        yield (
            f"replay.capacity: {replay.capacity} holds {settings.shard_steps} vector steps of {env.num_envs} envs,"
            f" fewer than collection.chunk_steps={collection.chunk_steps} or replay.n_step={replay.n_step} need"
        )
    elif held < (warm_up := settings.in_whole_ticks(collection.learning_starts)):
        yield (
            f"replay.capacity: {replay.capacity} (held: {held}) is less than"
            f" collection.learning_starts={collection.learning_starts}, in whole chunks {warm_up}"
        )
    elif held < learner.batch_size:
        yield f"replay.capacity: {replay.capacity} is less than learner.batch_size={learner.batch_size}"
    budget = settings.budget.env_steps
    if budget is not None and settings.in_whole_ticks(budget) < collection.learning_starts:
        yield (
            f"budget.env_steps: {budget} ends the run before collection.learning_starts={collection.learning_starts},"
            " so nothing would be learned"
        )
