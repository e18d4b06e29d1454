"""What a run may leave behind: nothing."""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

SHARED_MEMORY = Path("/dev/shm")


class LeftoversError(AssertionError):
    """A run left something behind."""


@contextmanager
def no_leftovers() -> Iterator[None]:
    """Check that a block leaves no process, descriptor, thread or shared memory name behind.

    The fork server and resource tracker of `multiprocessing` stay with the host and do not count.

    Raises:
        LeftoversError: with what is left.
    """
    if importlib.util.find_spec("uvloop"):
        import uvloop

        uvloop.new_event_loop().close()  # its first loop opens a pipe that stays for the life of the process
    before = _inventory()
    yield
    left = {kind: sorted(now - before[kind]) for kind, now in _inventory().items() if now - before[kind]}
    if names := left.pop("shared memory", None):
        foreign = _mapped_by_others()
        # What another process had, and has given back meanwhile, is no more ours than what it still has.
        if names := [name for name in names if name not in foreign and (SHARED_MEMORY / name).exists()]:
            left["shared memory"] = names
    if left:
        raise LeftoversError("; ".join(f"{kind}: {', '.join(items)}" for kind, items in left.items()))


def _inventory() -> dict[str, set[str]]:
    return {
        "processes": _processes(),
        "descriptors": _descriptors(),
        "threads": {f"{thread.name} ({thread.ident})" for thread in threading.enumerate()},
        "shared memory": {path.name for path in SHARED_MEMORY.iterdir()} if SHARED_MEMORY.is_dir() else set(),
    }


def _mapped_by_others() -> set[str]:
    """Return the names in /dev/shm that living processes other than ours have mapped."""
    me = psutil.Process()
    ours = {me.pid, *(child.pid for child in me.children(recursive=True))}
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and int(folder.name) not in ours:
            try:
                maps = (folder / "maps").read_text()
            except OSError:  # gone, or somebody else's
                continue
            found |= {line.rpartition("/dev/shm/")[2] for line in maps.splitlines() if "/dev/shm/" in line}
    return found


def _processes() -> set[str]:
    found = set()
    for process in psutil.Process().children(recursive=True):
        try:
            command = " ".join(process.cmdline())
            # The server runs code of this name; its children, our workers, look the same but have it as parent.
            is_server = "forkserver" in command and process.ppid() == os.getpid()
            if not is_server and "resource_tracker" not in command and process.status() != psutil.STATUS_ZOMBIE:
                found.add(f"{process.pid} {command[:80]}")
        except psutil.NoSuchProcess:
            continue
    return found


def _descriptors() -> set[str]:
    from multiprocessing import forkserver, resource_tracker

    own = {
        getattr(forkserver._forkserver, "_forkserver_alive_fd", None),
        getattr(resource_tracker._resource_tracker, "_fd", None),
    }
    found = set()
    folder = Path("/proc/self/fd")
    for entry in folder.iterdir() if folder.is_dir() else ():
        try:
            target = str(entry.readlink())
        except OSError:  # the descriptor of this very listing
            continue
        if int(entry.name) not in own and not target.startswith(str(folder.resolve())):
            found.add(f"{entry.name} -> {target}")
    return found
