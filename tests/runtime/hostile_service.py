"""Services that answer something else than they were asked, for the tests of hostile frames."""

from __future__ import annotations

import os
import struct
import threading
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from msgspec import structs

from aiorl.coordinator.workers import SERVICES
from aiorl.protocol import Message, Publish, Published, Ready, Request, Restore, Restored, Saved, encode
from aiorl.service import Assignment
from aiorl.testing import CountEnv

REAL = dict(SERVICES)
HOSTILE = "tests.runtime.hostile_service:make"


@dataclass(frozen=True)
class Plan:
    """Who does what to the first request of a tick; travels as the env factory, which it is as well."""

    role: str
    what: str
    tick: int = 6

    def __call__(self, **arguments: Any) -> CountEnv:
        return CountEnv(length=20)


def frame(message: Message) -> bytes:
    data = encode(message)
    return struct.pack("!i", len(data)) + data


def make(assignment: Assignment) -> Hostile:
    return Hostile(assignment)


class Hostile:
    """The real service, until its moment comes."""

    def __init__(self, assignment: Assignment) -> None:
        module, _, name = REAL[assignment.settings.algorithm.family, assignment.role].partition(":")
        self._real = getattr(import_module(module), name)(assignment)
        plan: Any = assignment.env_factory
        self._what, self._tick = (plan.what, plan.tick) if plan.role == assignment.role else ("", -1)
        self._log = assignment.log
        self._channel: Any = assignment.log.__self__  # type: ignore[attr-defined]

    def ready(self) -> Ready:
        ready: Ready = self._real.ready()
        return structs.replace(ready, spec=None) if self._what == "no spec" else ready

    def handle(self, request: Request) -> Message:
        reply: Message = self._real.handle(request)
        if isinstance(reply, Saved):
            return self._boast(reply)
        if getattr(request, "tick", None) != self._tick:
            return reply
        self._tick = -1
        return self._misbehave(reply)

    def close(self) -> None:
        self._real.close()

    def _boast(self, reply: Saved) -> Saved:
        first = reply.files[0]
        match self._what:
            case "no files":
                return structs.replace(reply, files=())
            case "a file that is not there":
                return structs.replace(reply, files=(structs.replace(first, name="other.safetensors"),))
            case "..":
                return structs.replace(reply, files=(structs.replace(first, name="../../status.json"),))
        return reply

    def _misbehave(self, reply: Message) -> Message:
        match self._what:
            case "wrong type":
                return Restored()
            case "wrong tick":
                return structs.replace(reply, tick=reply.tick + 1)  # type: ignore[attr-defined]
            case "twice":
                self._channel.send(reply)
            case "closes":
                self._channel.close()
                threading.Event().wait()
            case "leaves":
                os._exit(0)
            case "garbage":
                self._write(struct.pack("!i", 40) + b"\x93" * 40)
            case "nested":
                nested = b"\x82\xa1x" + b"\x91" * 100_000 + b"\xc0" + b"\xa4type\xa4Save"
                self._write(struct.pack("!i", len(nested)) + nested)
            case "2 GiB":
                self._write(struct.pack("!i", 2**31 - 1))
            case "half":
                self._write(frame(reply)[:-5])
                threading.Event().wait()
            case "flood":
                while True:
                    self._log("info", "x" * 1000)
            case "long log":
                for number in range(3000):
                    self._log("info", "x" * 1000, number=number)
        return reply

    def _write(self, data: bytes) -> None:
        os.write(self._channel._connection.fileno(), data)


# A service of a few lines, for the worker's loop alone


class Small:
    """Answers Publish and Restore, and fails where it is asked to."""

    def __init__(self, assignment: Assignment) -> None:
        self.is_closed = False

    def ready(self) -> Ready:
        return Ready(pid=1)

    def handle(self, request: Request) -> Message:
        match request:
            case Publish(slot):
                return Published(slot)
            case Restore(directory):
                return Restored(directory)
        raise ValueError(f"no {type(request).__name__} here")

    def close(self) -> None:
        pass
