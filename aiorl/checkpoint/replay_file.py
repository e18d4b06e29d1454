"""A replay shard as a safetensors file, written and read in pieces: a shard may be most of the memory there is."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from aiorl.checkpoint.tensors import record
from aiorl.errors import CheckpointError, StorageError
from aiorl.protocol import FileRecord
from aiorl.storage.replay import ReplayShard

PIECE_BYTES = 16 << 20
_DTYPES = {"float32": "F32", "bool": "BOOL", "int64": "I64"}


def save_replay(path: Path, shard: ReplayShard, tick: int, *, is_orphaned: bool = False) -> FileRecord:
    """Write all columns in time order, `(vector_steps, num_envs, …)`, and `written_steps`, `packed_steps` `(1,)`.

    The second are those whose statistics the learner has after the update of `tick`. The writer of an orphaned
    shard may have died while it overwrote the oldest step of a full ring: that step is left out.
    """
    positions = shard.ages()
    if is_orphaned and len(positions) == shard.steps:
        positions = positions[1:]
    header: dict[str, object] = {}
    offset = 0

    def declare(name: str, dtype: str, shape: tuple[int, ...]) -> None:
        nonlocal offset
        nbytes = prod(shape) * np.dtype(dtype).itemsize
        header[name] = {"dtype": _DTYPES[dtype], "shape": shape, "data_offsets": (offset, offset + nbytes)}
        offset += nbytes

    # Largest element first keeps every column aligned, as the format's own writer does.
    shapes = sorted(shard.column_shapes.items(), key=lambda item: -np.dtype(item[1][1]).itemsize)
    declare("written_steps", "int64", (1,))
    declare("packed_steps", "int64", (1,))
    for name, (tail, dtype) in shapes:
        declare(name, dtype, (len(positions), shard.num_envs, *tail))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    steps = max(1, PIECE_BYTES // (shard.num_envs * shard.layout.width * 4))
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.write(np.array([shard.snapshot.written_steps, shard.packed_before(tick + 1)], np.int64).tobytes())
        for name, (_, dtype) in shapes:
            for start in range(0, len(positions), steps):
                file.write(shard.column(name, positions[start : start + steps]).astype(dtype, copy=False).tobytes())
    return record(path)


def load_replay(path: Path, shard: ReplayShard) -> None:
    """Fill a shard with what `save_replay` wrote; a smaller shard keeps the newest steps.

    Raises:
        CheckpointError: the file is missing, broken, or of another env.

    """
    steps = max(1, PIECE_BYTES // (shard.num_envs * shard.layout.width * 4))
    try:
        with safe_open(path, framework="numpy") as file:
            written, packed = (int(file.get_tensor(f"{name}_steps")[0]) for name in ("written", "packed"))
            columns = {name: file.get_slice(name) for name in shard.column_shapes}
            total = columns["terminated"].get_shape()[0]
            for name, (_, dtype) in shard.column_shapes.items():
                if columns[name].get_dtype() != _DTYPES[dtype]:
                    raise StorageError(f"{name} is {columns[name].get_dtype()}, not {_DTYPES[dtype]}")
            if not total <= written < 2**53 or not 0 <= packed <= written:
                raise StorageError(f"{written} steps written and {packed} packed, of which {total} are here")
            for start in range(max(0, total - shard.steps), total, steps):
                piece = {name: column[start : min(start + steps, total)] for name, column in columns.items()}
                for name, values in piece.items():
                    if not np.isfinite(values).all():
                        raise StorageError(f"{name} is not finite")
                shard.fill(piece, written - total + start, written)
            shard.set_packed(packed)
    except (
        OSError,
        SafetensorError,
        StorageError,
        ValueError,
        TypeError,
        IndexError,
        OverflowError,
        AttributeError,
    ) as error:
        raise CheckpointError(f"{path}: cannot be restored: {error}") from error
