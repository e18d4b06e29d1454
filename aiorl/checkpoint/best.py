"""`checkpoints/best`: the policy with the highest mean return of a run's evaluations. Whole or absent, never pruned.

It holds a policy, its statistics, a manifest and its evaluation's result: enough to load it, to evaluate it again and
to start another run from it, and not enough to resume one, so it is never taken for a checkpoint to go on from.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aiorl.checkpoint.manifest import Manifest, read_manifest, write_manifest
from aiorl.checkpoint.store import sync_folder
from aiorl.errors import CheckpointError

BEST = "best"
RESULT_FILE = "evaluation.json"
STATISTICS_FILE = "statistics.safetensors"
_DRAFT, _REPLACED = f".{BEST}-draft", f".replaced-{BEST}"


class BestStore:
    """The best policy in a run's `checkpoints` folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.path = folder / BEST

    def return_mean(self) -> float | None:
        """Return the mean return of the best policy; None where there is none yet.

        Raises:
            CheckpointError: what is there is broken.

        """
        self._settle()
        if not self.path.exists():
            return None
        read_manifest(self.path)
        path = self.path / RESULT_FILE
        try:
            mean = float(json.loads(path.read_text(encoding="utf-8"))["return_mean"])
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise CheckpointError(f"{path}: is no evaluation's result: {error}") from error
        if not math.isfinite(mean):
            raise CheckpointError(f"{path}: return_mean is {mean}")
        return mean

    def begin(self) -> Path:
        """Return an empty draft folder."""
        self.discard_draft()
        draft = self._folder / _DRAFT
        draft.mkdir(parents=True)
        return draft

    def commit(self, draft: Path, manifest: Manifest, result: Mapping[str, Any]) -> Path:
        """Make a draft with its tensor files the best policy, in the place of the one before."""
        with (draft / RESULT_FILE).open("w", encoding="utf-8") as file:
            file.write(json.dumps(result, indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())
        write_manifest(draft, manifest)
        read_manifest(draft)  # what a worker says it wrote is there
        sync_folder(draft)
        self._settle()
        if self.path.exists():  # a kill between the two: `_settle` puts it back
            self.path.rename(self._folder / _REPLACED)
        draft.rename(self.path)
        sync_folder(self._folder)
        self._settle()
        return self.path

    def discard_draft(self) -> None:
        """Remove what an evaluation that was given up left."""
        draft = self._folder / _DRAFT
        if draft.exists():
            shutil.rmtree(draft)

    def _settle(self) -> None:
        replaced = self._folder / _REPLACED
        if not replaced.exists():
            return
        if self.path.exists():
            shutil.rmtree(replaced)
        else:
            replaced.rename(self.path)
