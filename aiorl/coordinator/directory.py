"""A run's directory: made, locked against a second writer, and opened again."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import subprocess
import sys
from datetime import datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from aiorl.checkpoint.store import CheckpointStore
from aiorl.errors import SettingsError
from aiorl.settings import RunSettings
from aiorl.settings.yaml_text import write_mapping

SETTINGS_FILE = "settings.yaml"
ENVIRONMENT_FILE = "environment.json"
VERSIONED = ("aiorl", "torch", "numpy", "mujoco", "gymnasium", "pydantic", "msgspec", "safetensors")


class RunDirectory:
    """One run on disk; open while a run writes to it."""

    def __init__(self, settings: RunSettings, path: Path | None) -> None:
        self._settings, self._given = settings, path
        # Absolute: a host may change its working directory while the run goes on.
        self.path = (path or Path("runs") / f"{settings.name}-{datetime.now():%Y%m%d-%H%M%S}").absolute()
        self._lock: int | None = None

    @property
    def store(self) -> CheckpointStore:
        """The run's checkpoints."""
        return CheckpointStore(self.path / "checkpoints")

    def create(self) -> None:
        """Make the directory and say in it what runs where.

        Raises:
            SettingsError: it exists, or cannot be made.

        """
        stem, number = self.path, 1
        while not self._make():
            if self._given is not None:
                is_run = (self.path / SETTINGS_FILE).is_file()
                way_on = f", or go on with `aiorl resume {self._given}`" if is_run else ""
                raise SettingsError(f"{self._given}: exists already; take another run directory{way_on}")
            number += 1
            self.path = stem.with_name(f"{stem.name}-{number}")
        self._acquire()
        self.write_settings()
        environment = {"versions": versions(), "machine": _machine(), "git": _git(), "command": sys.argv}
        (self.path / ENVIRONMENT_FILE).write_text(json.dumps(environment, indent=2) + "\n", encoding="utf-8")

    def reopen(self) -> None:
        """Lock an existing run's directory, and write the settings that it goes on with.

        Raises:
            SettingsError: it is no run directory, or another process writes to it.

        """
        require_run(self.path)
        self._acquire()
        self.write_settings()

    def _make(self) -> bool:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.mkdir()
        except FileExistsError:
            if self.path.exists():
                return False
            raise SettingsError(f"{self.path}: cannot be made: {self.path.parent} is a file") from None
        except OSError as error:
            raise SettingsError(f"{self.path}: cannot be made: {error.strerror}") from None
        return True

    def write_settings(self) -> None:
        """Write the settings as resolved."""
        draft = self.path / f".{SETTINGS_FILE}"
        draft.write_text(write_mapping(self._settings.tree()), encoding="utf-8")
        draft.replace(self.path / SETTINGS_FILE)

    def close(self) -> None:
        """Let others write."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _acquire(self) -> None:
        self._lock = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise SettingsError(f"{self.path}: another process is running this run; wait for it or stop it") from None


def require_run(path: Path) -> None:
    """Check that a path is a run directory.

    Raises:
        SettingsError: it is none.

    """
    if not (path / SETTINGS_FILE).is_file():
        what = "is no run directory" if path.exists() else "no such run directory"
        raise SettingsError(f"{path}: {what} (it has no {SETTINGS_FILE})")


@cache
def versions() -> dict[str, str]:
    """Return the versions that results depend on."""
    found = {"python": platform.python_version()}
    for name in VERSIONED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def _machine() -> dict[str, Any]:
    return {
        "system": platform.platform(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "host": platform.node(),
    }


def _git() -> dict[str, Any] | None:
    """Return commit and cleanliness of the checkout that the run was started in, if it is one."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=5, check=True)
        return done.stdout.strip()

    try:
        return {
            "commit": git("rev-parse", "HEAD"),
            "changed_files": len(git("status", "--porcelain").splitlines()),
        }
    except (OSError, subprocess.SubprocessError):
        return None
