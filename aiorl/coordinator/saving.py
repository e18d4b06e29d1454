"""Saving a drained run into a checkpoint, and bringing a team back to one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path

from msgspec import structs

from aiorl.checkpoint.manifest import FORMAT, MANIFEST, Manifest, read_manifest
from aiorl.checkpoint.settings import recorded_settings
from aiorl.checkpoint.store import CheckpointStore, Found
from aiorl.coordinator.dialogue import Dialogue, call
from aiorl.coordinator.directory import versions
from aiorl.coordinator.schedule import Position, Schedule
from aiorl.coordinator.team import Team
from aiorl.coordinator.together import together
from aiorl.errors import CheckpointError, ProtocolError
from aiorl.protocol import EnvSpec, FileRecord, Restore, Restored, Save
from aiorl.protocol import Saved as SavedFiles
from aiorl.settings import RunSettings
from aiorl.telemetry.log import RunLog
from aiorl.telemetry.writer import FileWriter


class Saver:
    """Writes checkpoints of one run."""

    def __init__(
        self,
        settings: RunSettings,
        store: CheckpointStore,
        team: Team,
        spec: EnvSpec,
        writer: FileWriter,
    ) -> None:
        self._settings, self._store, self._team = settings, store, team
        self._spec, self._writer = spec, writer

    async def save(
        self, dialogue: Dialogue, seconds: float, *, is_reproducible: Callable[[], bool], exact: bool = True
    ) -> Path:
        """Write a checkpoint of a drained dialogue and return its path.

        With `exact` false the collectors are gone: the learner writes their shards for them. `is_reproducible` is
        asked once all files are there: a collector may die over its own.
        """
        schedule, tick = dialogue.schedule, dialogue.tick
        position = schedule.position(tick)
        draft = await self._writer.run(lambda: self._store.begin(tick))
        pending = tuple(dialogue.weights.find(version) for version in position.pending_versions)
        workers = self._team.workers if exact else [self._team.learner]
        saved = await together(
            call(
                worker,
                Save(
                    tick=tick,
                    directory=str(draft.resolve()),
                    pending=pending if worker is self._team.learner else (),
                    shards=not exact,
                ),
                SavedFiles,
            )
            for worker in workers
        )
        for worker, each in zip(workers, saved, strict=True):
            if not each.files:
                error = ProtocolError(f"{worker.name}: Saved without a file")
                raise error.of(worker.role, worker.index, worker.pid)
        manifest = manifest_of(
            self._settings,
            schedule,
            tick,
            self._spec,
            [file for each in saved for file in each.files],
            seconds=seconds,
            exact=exact,
            reproducible=is_reproducible() and exact,
        )
        try:
            return await self._writer.run(lambda: self._store.commit(draft, manifest, self._settings.checkpoint.keep))
        except CheckpointError as error:
            raise ProtocolError(f"a worker did not save what it says: {error}") from error


def manifest_of(
    settings: RunSettings,
    schedule: Schedule,
    tick: int,
    spec: EnvSpec,
    files: Iterable[FileRecord],
    *,
    seconds: float,
    reproducible: bool,
    exact: bool = True,
    has_replay: bool = True,
) -> Manifest:
    """Return what the manifest says of these files of a run, written after the update of a tick."""
    position = schedule.position(tick)
    return Manifest(
        format=FORMAT,
        run=settings.name,
        tick=tick,
        env_steps=schedule.env_steps(tick),
        gradient_steps=schedule.gradient_steps(tick),
        weight_version=position.weight_version,
        previous_versions=position.previous_versions,
        replay_from_env_steps=position.replay_from_env_steps,
        seconds=seconds,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        exact=exact,
        reproducible=reproducible,
        has_replay=has_replay,
        settings=settings.tree(),
        spec=spec,
        versions=versions(),
        files=tuple(sorted(files, key=lambda file: file.name)),
    )


def start_position(found: Found) -> Position:
    """Return where a run goes on from a checkpoint."""
    manifest = found.manifest
    return Position(
        tick=manifest.tick,
        weight_version=manifest.weight_version,
        previous_versions=manifest.previous_versions,
        replay_from_env_steps=manifest.replay_from_env_steps if manifest.has_replay else manifest.env_steps,
    )


async def restore(
    found: Found, steps_per_tick: int, dialogue: Dialogue, team: Team, spec: EnvSpec, log: RunLog
) -> None:
    """Bring a started team to a checkpoint.

    Raises:
        CheckpointError: the checkpoint is of another env.

    """
    manifest, directory = found.manifest, str(found.path.resolve())
    if manifest.spec.bare != spec.bare:
        raise CheckpointError(f"{found.path}: was made with another environment ({manifest.spec}); this one has {spec}")
    start = dialogue.schedule.start
    learner = team.learner
    weights = dialogue.weights.claim(start.weight_version, [learner.name])
    pending = tuple(dialogue.weights.claim(version, [learner.name]) for version in start.pending_versions)
    to_learner = Restore(
        directory,
        weights=weights,
        weight_version=start.weight_version,
        pending=pending,
        pending_versions=start.pending_versions,
    )
    to_collector = Restore(
        directory, has_replay=manifest.has_replay, has_state=manifest.exact, vector_steps=manifest.tick * steps_per_tick
    )
    requests = [to_collector] * len(team.collectors) + [to_learner]
    restored = await together(
        call(worker, request, Restored) for worker, request in zip(team.workers, requests, strict=True)
    )
    for slot in (weights, *pending):
        dialogue.weights.written(slot, learner.name)
    notes = {each.note for each in restored if each.note}
    if not manifest.has_replay:
        refill = start.replay_from_env_steps + dialogue.schedule.learning_starts
        notes.add(f"this older checkpoint holds no replay: no updates before {refill} env steps")
    if not manifest.exact:
        notes.add("this checkpoint was saved after a worker's death: the run goes on, but not as it would have")
    for note in sorted(notes):
        log.warning(note)


async def warm_start(
    source: Path, settings: RunSettings, dialogue: Dialogue, team: Team, spec: EnvSpec, writer: FileWriter
) -> None:
    """Give a new run's learner the policy of a checkpoint, with its observation statistics.

    Raises:
        CheckpointError: there is none, or it does not fit.

    """
    path, manifest = await writer.run(lambda: _policy_source(source))
    kinds = recorded_settings(path, manifest).algorithm.kind, settings.algorithm.kind
    if kinds[0] != kinds[1]:
        raise CheckpointError(f"{path}: its policy is one of {kinds[0]}; this run's algorithm is {kinds[1]}")
    if manifest.spec.bare != structs.replace(spec.bare, num_envs=manifest.spec.num_envs):
        raise CheckpointError(f"{path}: its policy is for another environment ({manifest.spec}); this one has {spec}")
    learner = team.learner
    weights = dialogue.weights.claim(dialogue.schedule.start.weight_version, [learner.name])
    await call(learner, Restore(str(path.resolve()), policy_only=True, weights=weights), Restored)
    dialogue.weights.written(weights, learner.name)


def _policy_source(source: Path) -> tuple[Path, Manifest]:
    """Return the checkpoint that a run directory, or a checkpoint itself, stands for."""
    if (source / MANIFEST).is_file():
        return source, read_manifest(source)
    found = CheckpointStore(source / "checkpoints").newest_whole()
    return found.path, found.manifest
