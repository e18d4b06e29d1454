"""Named arrays in a safetensors file: equal arrays give equal files."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from aiorl.errors import CheckpointError
from aiorl.protocol import FileRecord

PIECE_BYTES = 1 << 20
Arrays = dict[str, NDArray[Any]]


def save_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> FileRecord:
    """Write arrays to a file that is on disk when this returns."""
    path.write_bytes(save({name: np.asarray(values, order="C") for name, values in arrays.items()}))
    return record(path)


def load_arrays(path: Path) -> Arrays:
    """Read the arrays of a file.

    Raises:
        CheckpointError: it is missing or broken.

    """
    try:
        return dict(load_file(path))
    except (OSError, SafetensorError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error


def checksum(path: Path) -> int:
    """Return the CRC-32 of a file's contents."""
    crc = 0
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            crc = zlib.crc32(piece, crc)
    return crc


def record(path: Path) -> FileRecord:
    """Force a written file to disk and return what the manifest says of it."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    return FileRecord(path.name, path.stat().st_size, checksum(path))
