"""The `checkpoints` folder of a run: drafts become checkpoints in one step, old ones go."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import msgspec

from aiorl.checkpoint.manifest import Manifest, read_manifest, write_manifest
from aiorl.errors import CheckpointError

LATEST = "latest"
_DRAFT, _REPLACED, _ABANDONED = ".draft-", ".replaced-", "abandoned-"


@dataclass(frozen=True)
class Found:
    """A whole checkpoint, and a sentence for each newer one that was skipped because it is broken."""

    path: Path
    manifest: Manifest
    is_newest: bool
    skipped: tuple[str, ...]


class CheckpointStore:
    """Checkpoints of one run, each in a folder named by its tick."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def begin(self, tick: int) -> Path:
        """Return an empty draft folder; drafts that a killed run left behind go."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.discard_drafts()
        draft = self.folder / f"{_DRAFT}{tick}"
        draft.mkdir()
        return draft

    def commit(self, draft: Path, manifest: Manifest, keep: int) -> Path:
        """Make a draft with all its files the newest checkpoint, point `latest` at it, drop the oldest."""
        write_manifest(draft, manifest)
        read_manifest(draft)  # what a worker says it wrote is there
        sync_folder(draft)
        final = self.folder / str(manifest.tick)
        if final.exists():  # the same tick again: `newest_whole` knows the old one until the new one is in place
            final.rename(self.folder / f"{_REPLACED}{manifest.tick}")
        draft.rename(final)
        self._abandon_after(manifest.tick)
        link = self.folder / f".{LATEST}"
        link.unlink(missing_ok=True)
        link.symlink_to(final.name)
        link.replace(self.folder / LATEST)
        sync_folder(self.folder)
        for path in self.paths()[:-keep]:
            shutil.rmtree(path)
        for path in self.paths():
            if path != final:
                _drop_replay(path)
        self._clear_replaced()
        return final

    def discard_drafts(self) -> None:
        """Remove what unfinished saves left."""
        for path in self.folder.glob(f"{_DRAFT}*"):
            shutil.rmtree(path)
        self._clear_replaced()

    def paths(self) -> list[Path]:
        """Return the folders of all checkpoints, oldest first."""
        if not self.folder.is_dir():
            return []
        return sorted(
            (path for path in self.folder.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name)
        )

    def newest_whole(self) -> Found:
        """Return the newest checkpoint that is whole.

        Raises:
            CheckpointError: there is none.

        """
        skipped: list[str] = []
        replaced = {path.name.removeprefix(_REPLACED): path for path in self.folder.glob(f"{_REPLACED}*")}
        paths = {int(tick): path for tick, path in replaced.items() if tick.isdecimal()}
        paths |= {int(path.name): path for path in self.paths()}
        for _, path in sorted(paths.items(), reverse=True):
            try:
                return Found(path, read_manifest(path), not skipped, tuple(skipped))
            except CheckpointError as error:
                skipped.append(str(error))
        reason = f" ({'; '.join(skipped)})" if skipped else ""
        raise CheckpointError(f"{self.folder}: no whole checkpoint to go on from{reason}")

    def _abandon_after(self, tick: int) -> None:
        # The run went on from before these, which were broken: they are set aside, and not counted any more.
        for path in self.paths():
            if int(path.name) > tick:
                aside = self.folder / f"{_ABANDONED}{path.name}"
                if aside.exists():
                    shutil.rmtree(aside)
                path.rename(aside)

    def _clear_replaced(self) -> None:
        for path in self.folder.glob(f"{_REPLACED}*"):
            final = self.folder / path.name.removeprefix(_REPLACED)
            if final.exists():
                shutil.rmtree(path)
            else:
                path.rename(final)


def _drop_replay(path: Path) -> None:
    try:
        manifest = read_manifest(path)
    except CheckpointError:
        return  # broken already; whoever resumes is told
    files = tuple(file for file in manifest.files if not file.name.startswith("replay-"))
    if files != manifest.files:  # said first: a manifest never promises files that are gone
        write_manifest(path, msgspec.structs.replace(manifest, has_replay=False, files=files))
    for file in path.glob("replay-*.safetensors"):
        file.unlink()


def sync_folder(path: Path) -> None:
    """Force what a folder lists to disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
