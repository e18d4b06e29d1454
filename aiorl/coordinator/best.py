"""The best policy so far, by the mean return of its evaluation, kept as a checkpoint of the policy alone."""

from __future__ import annotations

import json
from collections.abc import Callable

from aiorl.checkpoint.manifest import Manifest
from aiorl.checkpoint.store import CheckpointStore
from aiorl.coordinator.dialogue import call
from aiorl.coordinator.evaluating import EVALUATION_FILE, evaluation_entry, write_evaluation
from aiorl.events import Evaluation
from aiorl.protocol import FileRecord, Save, Saved
from aiorl.runtime.handle import WorkerHandle
from aiorl.telemetry.writer import FileWriter

ManifestOf = Callable[[int, tuple[FileRecord, ...]], Manifest]
"""Makes the manifest of a policy after a tick, from the files that hold it."""


class BestPolicy:
    """`checkpoints/best`; an evaluator writes it from its own copy, so that the learner has no part in it."""

    def __init__(self, store: CheckpointStore, writer: FileWriter, manifest_of: ManifestOf) -> None:
        self._store, self._writer, self._manifest_of = store, writer, manifest_of

    async def consider(self, evaluation: Evaluation, tick: int, evaluator: WorkerHandle) -> bool:
        """Keep the policy that an evaluator has just played with, if none was better; return whether so."""
        if not await self._writer.run(lambda: self._is_better(evaluation)):
            return False
        draft = await self._writer.run(self._store.begin_best)
        saved = await call(evaluator, Save(tick, str(draft.resolve())), Saved)
        manifest = self._manifest_of(tick, saved.files)

        def commit() -> None:
            write_evaluation(draft / EVALUATION_FILE, evaluation)
            self._store.commit_best(draft, manifest)

        await self._writer.run(commit)
        return True

    def _is_better(self, evaluation: Evaluation) -> bool:
        try:
            text = (self._store.best / EVALUATION_FILE).read_text(encoding="utf-8")
            return evaluation.return_mean > float(json.loads(text)["return_mean"])
        except FileNotFoundError:
            return True
        except (OSError, ValueError, KeyError, TypeError):
            return True  # whoever has spoiled it gets a whole one again


def curve_entry(evaluation: Evaluation, **where: float) -> dict[str, object]:
    """Return what evaluations.jsonl says of one evaluation; `where` it lies in the run."""
    entry = evaluation_entry(evaluation)
    return {**where, **{name: value for name, value in entry.items() if name not in ("checkpoint", "lengths")}}
