"""How many cores this process may use, and how they are shared out."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

from aiorl.settings import RunSettings

CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class ThreadBudget:
    """Torch threads of each collector and of the learner."""

    collector: int
    learner: int


def usable_cores(cgroup: Path = CGROUP) -> int:
    """Return the cores that affinity and cgroup quota leave to this process, at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
        if quota != "max":
            cores = min(cores, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError):
        pass  # no cgroup v2 here: affinity alone counts
    return max(1, cores)


def thread_budget(settings: RunSettings, cores: int) -> ThreadBudget:
    """Share out cores: collectors get half, the learner the rest; explicit settings win."""
    collectors = settings.collection.collectors
    collector = settings.runtime.collector_threads or max(1, cores // 2 // collectors)
    learner = settings.runtime.learner_threads or max(1, cores - collector * collectors)
    return ThreadBudget(collector, learner)
