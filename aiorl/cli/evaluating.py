"""`aiorl evaluate`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from aiorl.checkpoint.manifest import MANIFEST, read_manifest
from aiorl.checkpoint.settings import recorded_settings
from aiorl.checkpoint.store import CheckpointStore
from aiorl.cli.training import run_loop
from aiorl.coordinator.directory import SETTINGS_FILE, require_run
from aiorl.coordinator.evaluating import EVALUATION_FILE, Evaluator, evaluation_entry, write_evaluation
from aiorl.coordinator.workers import WorkerFactory
from aiorl.errors import SettingsError
from aiorl.telemetry.log import RunLog, configure_cli
from aiorl.telemetry.plot import CURVE_FILE


def evaluate_path(path: Path, episodes: int | None) -> int:
    """Evaluate a run directory or a checkpoint."""
    configure_cli()
    if episodes is not None and episodes < 1:
        raise SettingsError(f"--episodes: {episodes} is not allowed: it must be at least 1")
    run_dir: Path | None = path
    if (path / MANIFEST).is_file():
        checkpoint, manifest = path, read_manifest(path)
        run_dir, result = path.resolve().parents[1], f"evaluation-{manifest.tick}.json"
        if not (run_dir / SETTINGS_FILE).is_file():
            run_dir = None
    else:
        require_run(path)
        found = CheckpointStore(path / "checkpoints").newest_whole()
        for sentence in found.skipped:
            print(f"aiorl: skipped: {sentence}", file=sys.stderr)
        checkpoint, manifest, result = found.path, found.manifest, EVALUATION_FILE
    settings = recorded_settings(checkpoint, manifest)
    if episodes is not None:
        evaluation_settings = settings.evaluation.model_copy(update={"episodes": episodes})
        settings = settings.model_copy(update={"evaluation": evaluation_settings})

    async def main() -> int:
        factory = WorkerFactory(settings, None, RunLog())
        try:
            async with Evaluator(settings, factory) as evaluator:
                evaluation = await evaluator.play(checkpoint, manifest.env_steps)
                print(json.dumps(evaluation_entry(evaluation), indent=2))
                if run_dir is not None:
                    write_evaluation(run_dir / result, evaluation)
                    await evaluator.draw(run_dir, result)
                    print(f"aiorl: wrote {run_dir / result} and {run_dir / CURVE_FILE}", file=sys.stderr)
        finally:
            factory.close()
        return 0

    return run_loop(settings, main)
