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
from aiorl.storage.replay import replay_layout
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

    shard: int
    batches: int
    weights: int
    collectors: int

    @classmethod
    def of(cls, settings: RunSettings, spec: EnvSpec, policy_bytes: int) -> Sizes:
        """Return the sizes for these settings and this env."""
        return cls(
            shard=replay_layout(settings, spec).nbytes,
            batches=batch_layout(settings, spec).nbytes,
            weights=weights_layout(settings, policy_bytes).nbytes,
            collectors=settings.collection.collectors,
        )

    @property
    def total(self) -> int:
        """Bytes of all blocks together."""
        return self.shard * self.collectors + self.batches + self.weights


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
    if sizes.total > available:
        raise SettingsError(
            f"replay.capacity: the run needs {size_text(sizes.total)} of shared memory (replay"
            f" {size_text(sizes.shard * sizes.collectors)} for replay.capacity={settings.replay.capacity}, batches"
            f" {size_text(sizes.batches)} for learner.batch_size={settings.learner.batch_size} x"
            f" learner.gradient_steps={settings.learner.gradient_steps}), but only {size_text(available)} are"
            f" available ({reason})"
        )


def check_disk(settings: RunSettings, sizes: Sizes, checkpoint_bytes: int, run_dir: Path) -> None:
    """Refuse a run whose checkpoints do not fit on the disk of its run directory.

    Raises:
        SettingsError: with need and what there is.

    """
    # The newest replay is whole before the one before it goes.
    need = (settings.checkpoint.keep + 1) * checkpoint_bytes + 2 * sizes.shard * sizes.collectors
    free = shutil.disk_usage(run_dir).free
    if need > free:
        raise SettingsError(
            f"checkpoint.keep: checkpoints need up to {size_text(need)} on disk (twice the replay of"
            f" replay.capacity={settings.replay.capacity}, and {settings.checkpoint.keep + 1} x"
            f" {size_text(checkpoint_bytes)}), but {run_dir} has {size_text(free)} free"
        )


def size_text(nbytes: float) -> str:
    """Return bytes as a person reads them."""
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} GiB"
