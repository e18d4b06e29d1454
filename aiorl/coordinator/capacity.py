"""Whether a run fits into this machine: exact need against what RAM, cgroup and disk leave."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import psutil

from aiorl.errors import SettingsError
from aiorl.protocol import EnvSpec
from aiorl.settings import RunSettings
from aiorl.storage.batches import batch_layout
from aiorl.storage.evaluated import evaluated_layout
from aiorl.storage.replay import replay_layout
from aiorl.storage.rollouts import rollout_layout
from aiorl.storage.weights import weights_layout

_CGROUPS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ),
)


@dataclass(frozen=True)
class Sizes:
    """Bytes of each block of shared memory."""

    experience: int
    batches: int
    weights: int
    collectors: int
    evaluated: int = 0

    @classmethod
    def of(cls, settings: RunSettings, spec: EnvSpec, policy_bytes: int) -> Sizes:
        """Return the sizes for these settings and this env."""
        experience = rollout_layout(settings, spec) if settings.on_policy else replay_layout(settings, spec)
        return cls(
            experience=experience.nbytes,
            batches=0 if settings.on_policy else batch_layout(settings, spec).nbytes,
            weights=weights_layout(settings, policy_bytes).nbytes,
            collectors=settings.collection.collectors,
            evaluated=evaluated_layout(spec, policy_bytes).nbytes if settings.evaluation.every_env_steps else 0,
        )

    @property
    def total(self) -> int:
        """Bytes of all blocks together."""
        return self.experience * self.collectors + self.batches + self.weights + self.evaluated


def memory_available() -> tuple[int, str]:
    """Return the bytes that can still be had, and what limits them."""
    available, reason = psutil.virtual_memory().available, "RAM"
    for limit_file, used_file in _CGROUPS:
        try:
            left = int(limit_file.read_text()) - int(used_file.read_text())
        except (OSError, ValueError):  # no such cgroup, or no limit ("max")
            continue
        if left < available:
            available, reason = max(left, 0), "cgroup limit"
    return available, reason


def check_memory(settings: RunSettings, sizes: Sizes) -> None:
    """Refuse a run that does not fit into memory.

    Raises:
        SettingsError: with need, what there is, and the settings that drive it.

    """
    available, reason = memory_available()
    if sizes.total <= available:
        return
    experience, collection = size_text(sizes.experience * sizes.collectors), settings.collection
    if settings.on_policy:
        key = "collection.rollout_steps"
        parts = (
            f"{settings.rollout_slots} rollout slots of collection.rollout_steps={collection.rollout_steps} x"
            f" env.num_envs={settings.env.num_envs}: {experience}, policies for"
            f" algorithm.max_policy_lag={settings.lead}: {size_text(sizes.weights)}"
        )
    else:
        key = "replay.capacity"
        parts = (
            f"replay {experience} for replay.capacity={settings.replay.capacity}, batches {size_text(sizes.batches)}"
            f" for learner.batch_size={settings.learner.batch_size} x"
            f" learner.gradient_steps={settings.learner.gradient_steps}"
        )
    raise SettingsError(
        f"{key}: the run needs {size_text(sizes.total)} of shared memory ({parts}), but only {size_text(available)}"
        f" are available ({reason})"
    )


def check_disk(settings: RunSettings, sizes: Sizes, checkpoint_bytes: int, run_dir: Path) -> None:
    """Refuse a run whose checkpoints do not fit on the disk of its run directory.

    Raises:
        SettingsError: with need and what there is.

    """
    # The newest replay is whole before the one before it goes; rollouts are never saved.
    replay = 0 if settings.on_policy else 2 * sizes.experience * sizes.collectors
    best = 2 * sizes.evaluated  # and the one that it takes the place of
    need = (settings.checkpoint.keep + 1) * checkpoint_bytes + replay + best
    free = shutil.disk_usage(run_dir).free
    if need > free:
        contents = f"{size_text(replay)} for the replay twice, and " if replay else ""
        raise SettingsError(
            f"checkpoint.keep: checkpoints need up to {size_text(need)} on disk ({contents}"
            f"{settings.checkpoint.keep + 1} x {size_text(checkpoint_bytes)}), but {run_dir} has {size_text(free)} free"
        )


def size_text(nbytes: float) -> str:
    """Return bytes as a person reads them."""
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} GiB"
