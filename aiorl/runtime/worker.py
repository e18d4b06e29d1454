"""A worker's main: make the service, say Ready, answer requests until told to stop."""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import msgspec

from aiorl.errors import ProtocolError
from aiorl.protocol import (
    MAX_FRAME_BYTES,
    Failed,
    LogLine,
    Message,
    Refused,
    Stop,
    Stopped,
    decode_request,
    encode,
)
from aiorl.service import Assignment, Blocks, RefusedError, Service
from aiorl.settings import RunSettings
from aiorl.settings.run import run_settings_model
from aiorl.storage.block import Block
from aiorl.telemetry.trace.slices import UNTRACED, SliceFile, Trace, WorkerTrace

TRACEBACK_CHARS = 60_000
FIELD_CHARS = 4_000


@dataclass(frozen=True)
class Start:
    """What a worker is started with."""

    role: str
    index: int
    service: str
    settings: str
    threads: int
    blocks: Blocks | Block | None
    env_factory: bytes | None
    incarnation: int = 0
    niceness: int = 0
    trace: SliceFile | None = None

    @property
    def name(self) -> str:
        """Role and index."""
        return f"{self.role} {self.index}"


def process_main(start: Start, connection: Connection, lifeline: socket.socket) -> None:
    """Run a worker as a process of its own."""
    from aiorl.runtime.lifeline import hold

    # Ctrl-C, or SIGTERM to the whole group, is the coordinator's to answer: it has work to save first.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _not_for(os.getpid()))
    hold(lifeline)
    os.nice(start.niceness)
    preloaded = "torch" in sys.modules
    channel = WorkerChannel(connection)
    handler = _ForwardingHandler(channel)
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.captureWarnings(True)
    os.dup2(2, 1)  # stdout belongs to the host: what an env prints must not get into its output
    import mujoco
    import torch

    mujoco.set_mju_user_warning(_WarnOnce(channel))  # else it writes a file into the working directory
    torch.set_num_threads(start.threads)
    serve(start, channel, preloaded)
    # Whatever the env left running (threads, say) must not keep a worker from ending.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _not_for(worker: int) -> Callable[[int, object], None]:
    """Return a handler that ignores SIGTERM in the worker, but not in children that an env forks off it."""

    def handle(number: int, _: object) -> None:
        if os.getpid() != worker:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    return handle


def serve(start: Start, channel: WorkerChannel, preloaded: bool = True) -> None:
    """Answer requests until Stop or the end of the pipe; whatever fails is told, and ends the worker."""
    import torch

    torch.set_flush_denormal(True)  # of this thread alone; numbers that fade away are slow to compute with
    service: Service | None = None
    trace = UNTRACED if start.trace is None else WorkerTrace(start.trace)
    try:
        try:
            service = _make(start, channel, trace)
            ready = service.ready()
            channel.send(msgspec.structs.replace(ready, preloaded=preloaded))
            trace.replied()
            while not isinstance(request := channel.receive(), Stop):
                trace.received(request)
                channel.send(service.handle(request))
                trace.replied()
            service.close()
            service = None
            channel.send(Stopped())
        except RefusedError as error:
            channel.send(Refused(error.key, error.sentence))
        except (EOFError, ConnectionError):
            pass  # the coordinator is gone or has given us up: nobody is left to tell
        except BaseException as error:
            channel.send(_failed(error))
    except (ConnectionError, OSError):
        pass
    finally:
        if service is not None:
            _close_quietly(service, channel)
        if start.blocks is not None:
            start.blocks.close()
        trace.close()
        channel.close()
        gc.collect()


def _make(start: Start, channel: WorkerChannel, trace: Trace) -> Service:
    settings: RunSettings = run_settings_model().model_validate_json(start.settings)
    factory = None if start.env_factory is None else cloudpickle.loads(start.env_factory)
    module, _, name = start.service.partition(":")
    make: Any = getattr(import_module(module), name)
    place = start.role, start.index, settings, start.blocks
    assignment = Assignment(*place, factory, channel.log, start.incarnation, trace)
    service: Service = make(assignment)
    return service


def _close_quietly(service: Service, channel: WorkerChannel) -> None:
    try:
        service.close()
    except Exception as error:
        channel.log("warning", "close failed", error=repr(error))


class WorkerChannel:
    """The worker's end of the pipe; whole frames only, from any of its threads."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._sender: int | None = None

    def receive(self) -> Any:
        """Wait for the next request.

        Raises:
            ProtocolError: what came is none.
            EOFError, ConnectionError: nothing comes any more.

        """
        try:
            data = self._connection.recv_bytes(MAX_FRAME_BYTES)
        except (EOFError, ConnectionError):
            raise
        except OSError as error:  # half a frame, or one of an impossible length
            raise ProtocolError(f"a broken frame: {error}") from error
        return decode_request(data)

    def send(self, message: Message) -> None:
        """Send a message."""
        data = encode(message)
        with self._lock:
            self._sender = threading.get_ident()
            try:
                self._connection.send_bytes(data)
            finally:
                self._sender = None

    def log(self, level: str, event: str, **fields: object) -> None:
        """Send a log line; a coordinator that is gone reads none."""
        if self._sender == threading.get_ident():
            return  # a finaliser that ran in the middle of our own sending: its line would deadlock or tear the frame
        pairs = tuple((name, _sendable(str(value)[:FIELD_CHARS])) for name, value in fields.items())
        try:
            self.send(LogLine(level, _sendable(event[:FIELD_CHARS]), pairs))
        except OSError:  # closed in any way
            return

    def close(self) -> None:
        """Close the pipe."""
        self._connection.close()


class _WarnOnce:
    """Passes each warning of MuJoCo's on once: every env of a worker gives the same ones."""

    def __init__(self, channel: WorkerChannel) -> None:
        self._channel = channel
        self._seen: set[str] = set()

    def __call__(self, text: str) -> None:
        what = text.partition("Time =")[0]  # the rest differs every time
        if what not in self._seen:
            self._seen.add(what)
            self._channel.log("warning", f"MuJoCo: {text.strip()}")


class _ForwardingHandler(logging.Handler):
    """Sends records of libraries in the worker up to the coordinator."""

    def __init__(self, channel: WorkerChannel) -> None:
        super().__init__()
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        self._channel.log(record.levelname.lower(), record.getMessage().strip(), logger=record.name)


def _failed(error: BaseException) -> Failed:
    text = "".join(traceback.format_exception(error))
    if len(text) > TRACEBACK_CHARS:
        half = TRACEBACK_CHARS // 2
        text = f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"
    try:
        message = str(error)[:FIELD_CHARS]
    except Exception as second:  # an exception that cannot be shown must not hide that there was one
        message = f"(its text cannot be had: {type(second).__name__})"
    return Failed(_sendable(type(error).__name__), _sendable(message), _sendable(text))


def _sendable(text: str) -> str:
    """Return text without lone surrogates, which a file name that is no UTF-8 brings along."""
    return text.encode("utf-8", "backslashreplace").decode()
