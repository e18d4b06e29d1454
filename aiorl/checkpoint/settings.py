"""The settings that a checkpoint was made with."""

from __future__ import annotations

from pathlib import Path

from aiorl.checkpoint.manifest import MANIFEST, Manifest
from aiorl.errors import CheckpointError, SettingsError
from aiorl.settings import RunSettings
from aiorl.settings.load import validate


def recorded_settings(checkpoint: Path, manifest: Manifest) -> RunSettings:
    """Return them, as this version reads them.

    Raises:
        CheckpointError: they are none.

    """
    try:
        return validate(manifest.settings)
    except SettingsError as error:
        raise CheckpointError(
            f"{checkpoint / MANIFEST}: its settings are refused: {'; '.join(error.problems)}"
        ) from error
