"""What a checkpoint is, beside its tensors: counters, settings, env, versions, files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from aiorl.errors import CheckpointError
from aiorl.protocol import EnvSpec, FileRecord

FORMAT = 3
MANIFEST = "manifest.json"


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The manifest; the checkpoint lies after the update of `tick`.

    `weight_version` is that of its policy, `previous_versions` are those before the tick's update, newest last,
    which the ticks to come act with. `exact` is false where a worker's death lost some of the state,
    `reproducible` where settings and seed do not give the same again. `replay_from_env_steps` says how many env
    steps a lost replay is short of.
    """

    format: int
    run: str
    tick: int
    env_steps: int
    gradient_steps: int
    weight_version: int
    previous_versions: tuple[int, ...]
    replay_from_env_steps: int
    seconds: float
    created: str
    exact: bool
    reproducible: bool
    has_replay: bool
    settings: dict[str, Any]
    spec: EnvSpec
    versions: dict[str, str]
    files: tuple[FileRecord, ...]


def read_manifest(directory: Path) -> Manifest:
    """Read and check the manifest of a checkpoint, and that its files are there whole.

    Raises:
        CheckpointError: it is no checkpoint, a broken one, or of a newer format.

    """
    path = directory / MANIFEST
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{directory}: no checkpoint: {MANIFEST} cannot be read: {error.strerror}") from error
    try:
        if (found := msgspec.json.decode(data).get("format")) != FORMAT:
            raise CheckpointError(f"{path}: has format {found}; this version reads {FORMAT}")
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, AttributeError) as error:
        raise CheckpointError(f"{path}: is no manifest: {error}") from error
    for file in manifest.files:
        try:
            nbytes = (directory / file.name).stat().st_size
        except OSError:
            raise CheckpointError(f"{directory / file.name}: missing") from None
        if nbytes != file.nbytes:
            raise CheckpointError(f"{directory / file.name}: has {nbytes} bytes, not {file.nbytes}")
    return manifest


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write a manifest; an existing one is replaced in one step."""
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    draft = directory / f".{MANIFEST}"
    with draft.open("wb") as file:
        file.write(text + b"\n")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(directory / MANIFEST)
