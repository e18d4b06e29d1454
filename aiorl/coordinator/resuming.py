"""What a resumed run goes on with: its newest whole checkpoint, and settings of which few may change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from aiorl.checkpoint.settings import recorded_settings
from aiorl.checkpoint.store import CheckpointStore, Found
from aiorl.coordinator.directory import SETTINGS_FILE, require_run
from aiorl.coordinator.saving import start_position
from aiorl.coordinator.schedule import Schedule
from aiorl.errors import CheckpointError, SettingsError
from aiorl.settings import RunSettings, load_settings

CHANGEABLE = ("budget", "telemetry", "evaluation", "checkpoint", "runtime")


def resumed_settings(
    run_dir: Path, overrides: Iterable[str], environ: Mapping[str, str] | None
) -> tuple[RunSettings, Found]:
    """Return the settings and the checkpoint that a run goes on with.

    Raises:
        SettingsError: no run directory, a change of what must stay, or a budget that is used up.
        CheckpointError: nothing to go on from.

    """
    require_run(run_dir)
    settings = load_settings(run_dir / SETTINGS_FILE, overrides=overrides, environ=environ)
    found = CheckpointStore(run_dir / "checkpoints").newest_whole()
    # Read as settings: what is a default now and was not there then is no change.
    recorded, wanted = recorded_settings(found.path, found.manifest).tree(), settings.tree()
    problems = [
        f"{key}: {_at(wanted, key)!r} is not what this run was started with ({_at(recorded, key)!r}); a resumed run"
        f" takes new values for {', '.join(CHANGEABLE)} only"
        for key in _differences(recorded, wanted)
        if key.split(".")[0] not in CHANGEABLE
    ]
    if problems:
        raise SettingsError(problems)
    start = start_position(found)
    schedule = Schedule(settings, start)
    told, counted = (
        (found.manifest.env_steps, found.manifest.gradient_steps),
        (
            schedule.env_steps(start.tick),
            schedule.gradient_steps(start.tick),
        ),
    )
    versions = (*start.previous_versions, start.weight_version)
    if told != counted or list(versions) != sorted(versions) or len(start.previous_versions) != settings.lead:
        raise CheckpointError(f"{found.path}: the counters of its manifest contradict each other")
    reached = schedule.budget_reached(start.tick)
    seconds = settings.budget.seconds
    if reached is None and seconds is not None and found.manifest.seconds >= seconds:
        reached = f"budget.seconds={seconds:g}"
    if reached is not None:
        raise SettingsError(f"{run_dir}: this run is complete ({reached} is reached); raise the budget to go on")
    return settings, found


def _differences(recorded: Any, wanted: Any, prefix: str = "") -> list[str]:
    if isinstance(recorded, dict) and isinstance(wanted, dict):
        keys = dict.fromkeys((*recorded, *wanted))
        return [
            found
            for key in keys
            for found in _differences(recorded.get(key), wanted.get(key), f"{prefix}.{key}" if prefix else key)
        ]
    return [] if recorded == wanted else [prefix]


def _at(tree: Any, key: str) -> Any:
    for part in key.split("."):
        tree = tree.get(part) if isinstance(tree, dict) else None
    return tree
