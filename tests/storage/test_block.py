"""Shared blocks: sized once, mapped by several processes, and gone with them."""

from __future__ import annotations

import fcntl
import gc
import multiprocessing
import os
import pickle
from multiprocessing import resource_sharer
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

from aiorl.errors import StorageError
from aiorl.storage.block import Block

NBYTES = 10_000  # no whole number of pages


@pytest.fixture
def block() -> Block:
    block = Block("test")
    yield block
    block.close()


def test_a_reserved_block_maps_as_zeros(block: Block) -> None:
    block.reserve(NBYTES)

    memory = block.map(NBYTES)

    assert memory.shape == (NBYTES,)
    assert memory.dtype == np.uint8
    assert memory.flags.writeable
    assert not memory.any()


def test_all_mappings_show_the_same_memory(block: Block) -> None:
    block.reserve(NBYTES)
    one, other = block.map(NBYTES), block.map(NBYTES)

    one[-1] = 7

    assert other[-1] == 7


@pytest.mark.parametrize("nbytes", [NBYTES - 1, NBYTES + 1, 1, 2 * NBYTES])
def test_a_mapping_of_another_size_is_refused(block: Block, nbytes: int) -> None:
    block.reserve(NBYTES)

    with pytest.raises(StorageError, match=rf"test has {NBYTES} bytes where {nbytes} were expected"):
        block.map(nbytes)


def test_a_block_without_a_size_cannot_be_mapped(block: Block) -> None:
    with pytest.raises(StorageError, match="has 0 bytes"):
        block.map(NBYTES)


@pytest.mark.parametrize("nbytes", [NBYTES, 2 * NBYTES])
def test_a_size_is_given_once(block: Block, nbytes: int) -> None:
    block.reserve(NBYTES)

    with pytest.raises(StorageError, match="has its size already"):
        block.reserve(nbytes)
    assert block.map(NBYTES).size == NBYTES


@pytest.mark.parametrize("nbytes", [0, NBYTES - 1, NBYTES + 1])
def test_a_reserved_block_is_sealed_against_every_resize(block: Block, nbytes: int) -> None:
    # A shrunk file would turn the next access in any process into a bus error.
    block.reserve(NBYTES)
    fd = os.dup(block._open_fd())
    try:
        with pytest.raises(PermissionError):
            os.ftruncate(fd, nbytes)
        with pytest.raises(PermissionError):
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    finally:
        os.close(fd)


def test_a_size_that_the_system_refuses_is_a_storage_error(block: Block) -> None:
    with pytest.raises(StorageError, match="shared block test: no -1 bytes to be had"):
        block.reserve(-1)


def test_a_duplicate_is_the_same_memory_and_lives_on_its_own(block: Block) -> None:
    twin = block.duplicate()
    block.reserve(NBYTES)  # after the duplication: the size belongs to the memory, not to the descriptor
    block.map(NBYTES)[0] = 5
    block.close()

    assert twin.map(NBYTES)[0] == 5
    twin.close()


def test_mappings_outlive_the_descriptor(block: Block) -> None:
    block.reserve(NBYTES)
    memory = block.map(NBYTES)
    block.close()

    memory[:] = 3

    assert memory.sum() == 3 * NBYTES


@pytest.mark.parametrize("use", [lambda b: b.reserve(1), lambda b: b.map(1), lambda b: b.duplicate()])
def test_a_closed_block_is_refused(use, block: Block) -> None:
    block.close()
    block.close()  # again does nothing

    with pytest.raises(StorageError, match="test is closed"):
        use(block)


def test_a_mapping_goes_with_its_last_array(block: Block) -> None:
    block.reserve(NBYTES)

    def mappings() -> int:
        return Path("/proc/self/maps").read_text(encoding="utf-8").count("aiorl-test")

    part = block.map(NBYTES)[5:10].view(np.int8)
    gc.collect()
    assert mappings() == 1
    del part
    gc.collect()
    assert mappings() == 0


def test_no_name_points_to_a_block(block: Block) -> None:
    block.reserve(NBYTES)
    block.map(NBYTES)[:] = 1

    assert os.fstat(block._open_fd()).st_nlink == 0
    assert not [name for name in os.listdir("/dev/shm") if "aiorl" in name]


def test_a_block_travels_only_while_a_process_starts(block: Block) -> None:
    # Otherwise multiprocessing would serve the descriptor from a thread and a socket that nobody stops.
    try:
        with pytest.raises((StorageError, RuntimeError)):
            pickle.dumps(block)
    finally:
        resource_sharer.stop()


def _child(block: Block, pipe: Connection) -> None:
    pipe.recv()  # the parent has given the block its size
    memory = block.map(NBYTES).view(np.float32)
    block.close()
    pipe.send(float(memory[0]))
    memory[1] = 2.5
    pipe.send("written")
    pipe.recv()
    pipe.send(float(memory[2]))
    pipe.close()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_parent_and_child_see_each_others_writes(block: Block, method: str) -> None:
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    process = context.Process(target=_child, args=(block, theirs))
    process.start()
    theirs.close()
    try:
        block.reserve(NBYTES)  # sized after the child was started, as workers' blocks are
        memory = block.map(NBYTES).view(np.float32)
        memory[0] = 1.5
        ours.send("sized")

        assert ours.recv() == 1.5
        assert ours.recv() == "written"
        assert memory[1] == 2.5
        memory[2] = 3.5
        ours.send("go on")
        assert ours.recv() == 3.5
        process.join()
        assert process.exitcode == 0
        assert memory[1] == 2.5  # the child is gone, the memory is not
    finally:
        ours.close()
        process.kill()
        process.join()
        process.close()
