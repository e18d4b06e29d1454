"""`aiorl doctor`: what this machine offers, and what settings would need of it."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path

import psutil

from aiorl.cli.inputs import split_inputs
from aiorl.coordinator.capacity import Sizes, memory_available, size_text
from aiorl.coordinator.directory import versions
from aiorl.errors import AiorlError, SettingsError
from aiorl.runtime.cores import thread_budget, usable_cores
from aiorl.settings import RunSettings, load_settings

EXTRAS = {"dev": "pytest"}
"""Extras of the package, and a module that tells whether each is there."""


def examine(inputs: Sequence[str]) -> int:
    """Print what there is, then what the settings need."""
    names, overrides = split_inputs(inputs)
    settings = load_settings(*names, overrides=overrides)
    for name, value in [*_machine(), *_software(settings), *_needs(settings)]:
        print(f"{name:22} {value}")
    return 0


def _machine() -> list[tuple[str, str]]:
    import torch

    available, reason = memory_available()
    cuda = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return [
        ("cores", f"{os.cpu_count()} in the machine, {usable_cores()} usable (affinity and cgroup quota)"),
        ("memory", f"{size_text(psutil.virtual_memory().total)} in all, {size_text(available)} to be had ({reason})"),
        ("disk here", f"{size_text(psutil.disk_usage(str(Path.cwd())).free)} free"),
        ("shared memory", "memfd: no limit of /dev/shm applies" if hasattr(os, "memfd_create") else "unlinked files"),
        ("devices", ", ".join(["cpu", *cuda])),
    ]


def _software(settings: RunSettings) -> list[tuple[str, str]]:
    has_uvloop = importlib.util.find_spec("uvloop") is not None
    loop = "uvloop" if has_uvloop and settings.runtime.loop != "asyncio" else "asyncio"
    found = [("event loop", f"{loop} (runtime.loop={settings.runtime.loop})"), *versions().items()]
    for name, module in EXTRAS.items():
        has_it = importlib.util.find_spec(module) is not None
        found.append((f"extra [{name}]", "installed" if has_it else f"missing: pip install 'aiorl[{name}]'"))
    return found


def _needs(settings: RunSettings) -> list[tuple[str, str]]:
    from aiorl.algorithms.flat import flatten
    from aiorl.algorithms.interface import make_policy
    from aiorl.envs.make import make_vector_env
    from aiorl.envs.mujoco_warnings import no_warning_file
    from aiorl.envs.stepper import VectorStepper

    try:
        with no_warning_file():
            env = make_vector_env(settings.env, settings.envs_per_collector)
            spec = VectorStepper(env, settings.env, settings.algorithm.groups).spec
            env.close()
    except AiorlError:
        raise
    except Exception as error:  # whatever an environment's constructor raises
        raise SettingsError(f"env.id: {settings.env.id} cannot be made: {type(error).__name__}: {error}") from error
    sizes = Sizes.of(settings, spec, flatten(make_policy(settings, spec)).nbytes)
    threads = thread_budget(settings, usable_cores())
    collectors = settings.collection.collectors
    available, _ = memory_available()
    fits = "fits" if sizes.total <= available else "does not fit"
    groups = ", ".join(f"{group.name} {group.size}" for group in spec.groups)
    return [
        ("settings", f"{settings.name}: {settings.algorithm.kind} on {settings.env.id}"),
        ("environment", f"observations {groups}; actions {spec.action_size}; saves its state: {spec.saves_state}"),
        ("processes", f"{collectors} x collector ({threads.collector} threads), learner ({threads.learner} threads)"),
        (
            "shared memory needed",
            f"{size_text(sizes.total)} ({fits}), of which {'rollouts' if settings.on_policy else 'replay'}"
            f" {size_text(sizes.experience * collectors)}",
        ),
        (
            "epochs" if settings.on_policy else "replay ratio",
            f"{settings.replay_ratio:g} (rows that gradient steps see / env steps)",
        ),
    ]
