"""The life-line: when the coordinator is gone, the kernel ends its workers and their children.

A socket pair that never carries data. The worker asks the kernel for SIGKILL to its own process group when
its end sees the other one close; that needs no thread, and so no GIL.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import sys
import threading


def hold(lifeline: socket.socket) -> None:
    """Lead a process group that dies when the other end of `lifeline` closes."""
    if os.getpgid(0) != os.getpid():
        os.setpgid(0, 0)
    if not sys.platform.startswith("linux"):
        # No such signal elsewhere: a thread waits for the end of file instead.
        threading.Thread(target=_wait_and_die, args=(lifeline,), name="aiorl-lifeline").start()
        return
    fd = lifeline.fileno()
    fcntl.fcntl(fd, fcntl.F_SETOWN, -os.getpgid(0))
    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
    poll = select.poll()
    poll.register(fd, select.POLLHUP)
    if poll.poll(0):  # it closed before we were listening
        os.killpg(0, signal.SIGKILL)


def _wait_and_die(lifeline: socket.socket) -> None:
    lifeline.recv(1)
    os.killpg(0, signal.SIGKILL)
