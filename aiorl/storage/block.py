"""A block of shared memory that no name points to, so nothing is left of it when its processes are gone."""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
from multiprocessing import reduction
from multiprocessing.context import get_spawning_popen
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aiorl.errors import StorageError


class Block:
    """An anonymous file in memory: created empty, passed to workers at their start, sized once, then mapped."""

    def __init__(self, name: str, fd: int | None = None) -> None:
        self.name = name
        self._fd: int | None = _anonymous_file(name) if fd is None else fd

    def reserve(self, nbytes: int) -> None:
        """Give the block its size, for good.

        Raises:
            StorageError: the system has no room for it, or it has a size already.

        """
        fd = self._open_fd()
        if os.fstat(fd).st_size:
            raise StorageError(f"shared block {self.name} has its size already")
        try:
            os.ftruncate(fd, nbytes)
        except OSError as error:
            raise StorageError(f"shared block {self.name}: no {nbytes} bytes to be had: {error}") from error
        if hasattr(fcntl, "F_ADD_SEALS") and hasattr(os, "memfd_create"):
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)

    def map(self, nbytes: int) -> NDArray[np.uint8]:
        """Map the whole block, `(nbytes,)`; the mapping goes when the last array on it goes.

        Raises:
            StorageError: the block does not have this size.

        """
        fd = self._open_fd()
        size = os.fstat(fd).st_size
        if size != nbytes:
            raise StorageError(f"shared block {self.name} has {size} bytes where {nbytes} were expected")
        return np.frombuffer(mmap.mmap(fd, nbytes), dtype=np.uint8)

    def duplicate(self) -> Block:
        """Return the same memory under a descriptor of its own."""
        return Block(self.name, os.dup(self._open_fd()))

    def close(self) -> None:
        """Close the descriptor; mappings stay valid."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __reduce__(self) -> tuple[Any, ...]:
        # The descriptor itself travels, which works while a process is being started and not in any message.
        if get_spawning_popen() is None:
            raise StorageError(f"shared block {self.name} can only be passed to a process at its start")
        return _receive, (self.name, reduction.DupFd(self._open_fd()))

    def _open_fd(self) -> int:
        if self._fd is None:
            raise StorageError(f"shared block {self.name} is closed")
        return self._fd


def _receive(name: str, handle: Any) -> Block:
    return Block(name, handle.detach())


def _anonymous_file(name: str) -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create(f"aiorl-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with tempfile.TemporaryFile(prefix=f"aiorl-{name}-") as file:  # macOS: unlinked from the start
        return os.dup(file.fileno())
