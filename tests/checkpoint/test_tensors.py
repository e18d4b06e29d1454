"""Arrays in files: they come back as they were, equal ones as equal files, and broken ones are refused."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from aiorl.checkpoint.tensors import load_arrays, record, save_arrays
from aiorl.errors import CheckpointError
from aiorl.protocol import FileRecord

repeatable = settings(derandomize=True, deadline=None, database=None)

DTYPES = ("bool", "uint8", "int64", "uint64", "float16", "float32", "float64")


def sample() -> dict[str, NDArray[Any]]:
    random = np.random.default_rng(0)
    found: dict[str, NDArray[Any]] = {
        dtype: (random.normal(size=(3, 4)) * 50).astype("int64" if "uint" in dtype else dtype).astype(dtype)
        for dtype in DTYPES
    }
    return found | {"scalar": np.array(0.5), "empty": np.zeros((0, 2), np.float32), "odd": np.arange(7, dtype=np.uint8)}


def assert_same(one: dict[str, NDArray[Any]], other: dict[str, NDArray[Any]]) -> None:
    assert one.keys() == other.keys()
    for name, values in one.items():
        assert (values.dtype, values.shape) == (other[name].dtype, other[name].shape), name
        assert values.tobytes() == other[name].tobytes(), name


def test_all_types_and_shapes_come_back(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"

    written = save_arrays(path, sample())

    assert_same(load_arrays(path), sample())
    assert written == FileRecord("a.safetensors", path.stat().st_size, zlib.crc32(path.read_bytes()))
    assert record(path) == written


@repeatable
@given(
    st.dictionaries(st.text("abc.", min_size=1, max_size=5), arrays.arrays(np.float32, arrays.array_shapes(max_dims=3)))
)
def test_any_arrays_come_back(tmp_path_factory, values: dict[str, NDArray[np.float32]]) -> None:
    path = tmp_path_factory.mktemp("any") / "a.safetensors"
    save_arrays(path, values)

    assert_same(load_arrays(path), values)


def test_values_that_are_no_numbers_and_no_plain_memory_come_back(tmp_path: Path) -> None:
    whole = np.arange(24, dtype=np.float64).reshape(4, 6)
    values = {
        "nan": np.array([np.nan, np.inf, -np.inf, -0.0]),
        "transposed": whole.T,
        "strided": whole[::2, 1::3],
        "reversed": whole[::-1],
    }

    save_arrays(tmp_path / "a", values)

    assert_same(load_arrays(tmp_path / "a"), values)


def test_equal_arrays_give_equal_files_in_any_order(tmp_path: Path) -> None:
    forwards = sample()
    backwards = {name: forwards[name].copy(order="F") for name in reversed(forwards)}

    save_arrays(tmp_path / "a", forwards)
    save_arrays(tmp_path / "b", backwards)

    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_file_is_plain_safetensors(tmp_path: Path) -> None:
    save_arrays(tmp_path / "a", sample())

    assert_same(safetensors.numpy.load_file(tmp_path / "a"), sample())


def test_loaded_arrays_are_the_readers_own(tmp_path: Path) -> None:
    save_arrays(tmp_path / "a", {"x": np.zeros(3)})

    load_arrays(tmp_path / "a")["x"][:] = 1

    assert load_arrays(tmp_path / "a")["x"].tolist() == [0, 0, 0]


@pytest.mark.parametrize("keep", [0, 4, 8, 60, -1])
def test_a_truncated_file_is_refused_by_name(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "learner.safetensors"
    save_arrays(path, sample())
    path.write_bytes(path.read_bytes()[:keep])

    with pytest.raises(CheckpointError, match=r"learner\.safetensors: cannot be read"):
        load_arrays(path)


@pytest.mark.parametrize("content", [b"", b"no tensors here", b"\xff" * 100, b'{"json": 1}'])
def test_a_foreign_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "policy.safetensors"
    path.write_bytes(content)

    with pytest.raises(CheckpointError, match=r"policy\.safetensors: cannot be read"):
        load_arrays(path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"gone\.safetensors: cannot be read"):
        load_arrays(tmp_path / "gone.safetensors")
    os.mkdir(tmp_path / "folder.safetensors")
    with pytest.raises(CheckpointError, match=r"folder\.safetensors: cannot be read"):
        load_arrays(tmp_path / "folder.safetensors")
