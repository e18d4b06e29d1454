"""What a checkpoint is, beside its tensors: counters, settings, env, versions, files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import msgspec

from aiorl.checkpoint.tensors import checksum
from aiorl.errors import CheckpointError
from aiorl.protocol import EnvSpec, FileRecord

FORMAT = 3
Counter = Annotated[int, msgspec.Meta(ge=0)]
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
    tick: Counter
    env_steps: Counter
    gradient_steps: Counter
    weight_version: Counter
    previous_versions: tuple[Counter, ...]
    replay_from_env_steps: Counter
    seconds: Annotated[float, msgspec.Meta(ge=0)]
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
        found = msgspec.json.decode(data).get("format")
        if type(found) is not int or found != FORMAT:
            raise CheckpointError(f"{path}: has format {found}; this version reads {FORMAT}")
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path}: is no manifest: {error}") from error
    for file in manifest.files:
        if Path(file.name).name != file.name or "\0" in file.name:
            raise CheckpointError(f"{path}: {file.name!r} is no plain file name")
        try:
            nbytes = (directory / file.name).stat().st_size
        except OSError:
            raise CheckpointError(f"{directory / file.name}: missing") from None
        if nbytes != file.nbytes:
            raise CheckpointError(f"{directory / file.name}: has {nbytes} bytes, not {file.nbytes}")
    return manifest


def require_intact(path: Path) -> None:
    """Check that a file of a checkpoint holds what was saved.

    Raises:
        CheckpointError: it is not in the manifest beside it, or has other contents.

    """
    record = next((file for file in read_manifest(path.parent).files if file.name == path.name), None)
    if record is None:
        raise CheckpointError(f"{path}: the manifest beside it does not know it")
    try:
        crc = checksum(path)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    if crc != record.crc32:
        raise CheckpointError(f"{path}: its contents are not what was saved (its CRC-32 is not the manifest's)")


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write a manifest; an existing one is replaced in one step."""
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    draft = directory / f".{MANIFEST}"
    with draft.open("wb") as file:
        file.write(text + b"\n")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(directory / MANIFEST)
