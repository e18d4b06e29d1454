"""Gates: a worker that comes to one says so and waits, so that a fault can be made at a known moment.

They are written in `env.kwargs.gates` as `role request count when action`, and lie in a folder as pairs of named
pipes. A gate stands before or after the handling of a request, where a service is made ("Start") or closed
("Close"), or in the env's own step ("step"). Workers are the real ones: `aiorl.coordinator.workers.SERVICES` is
pointed at `gated`, which wraps them.
"""

from __future__ import annotations

import asyncio
import os
import select
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aiorl.coordinator import workers
from aiorl.protocol import Message, Ready
from aiorl.service import Assignment, Service
from aiorl.testing import TrapEnv

GATED = dict.fromkeys(workers.SERVICES, "tests.endings.gates:gated")
REAL = dict(workers.SERVICES)
REAL_EVALUATOR = workers.EVALUATOR


@dataclass(frozen=True)
class Gate:
    """One gate, on the side of the worker that comes to it."""

    folder: str
    number: int
    role: str
    request: str
    count: int
    when: str
    action: str

    def __post_init__(self) -> None:
        assert self.when in ("before", "after")

    def enter(self, directory: str = "") -> None:
        """Say who is here, the first time only, and do what is to be done."""
        try:
            os.close(os.open(f"{self.folder}/{self.number}.passed", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        with open(f"{self.folder}/{self.number}.reached", "w") as reached:
            reached.write(f"{os.getpid()}\n")
        match self.action:
            case "wait":
                with open(f"{self.folder}/{self.number}.go", "rb", buffering=0) as go:
                    go.read(1)
            case "mark":
                pass
            case "exit":
                os._exit(7)
            case "raise":
                raise RuntimeError("the gate is shut")
            case "memory":
                import torch

                torch.empty(1 << 62, dtype=torch.uint8)
            case "full disk":  # a file that will not take a byte, in the place of the one that is to be written
                name = {"collector": "collector-0.safetensors", "learner": "learner.safetensors"}[self.role]
                os.symlink("/dev/full", f"{directory}/{name}")
            case "full disk for the metrics":
                metrics = Path(self.folder).parent / "run" / "metrics.jsonl"
                os.symlink("/dev/full", f"{metrics}.full")
                os.replace(f"{metrics}.full", metrics)
            case "full disk for the manifest":
                os.symlink("/dev/full", f"{directory}/.manifest.json")
            case other:
                raise AssertionError(other)


def gates_of(kwargs: dict[str, Any]) -> list[Gate]:
    """Read the gates of a run's settings."""
    gates = []
    for number, text in enumerate(kwargs.get("gates", ())):
        role, request, count, when, *action = text.split(" ")
        gates.append(Gate(kwargs["folder"], number, role, request, int(count), when, " ".join(action)))
    return gates


class GatedEnv(TrapEnv):
    """A TrapEnv with gates in its step, and a mark where it springs; every env of a worker counts for itself."""

    def __init__(self, folder: str = "", gates: tuple[str, ...] = (), once: bool = False, **arguments: Any) -> None:
        self._gates = [gate for gate in gates_of({"folder": folder, "gates": gates}) if gate.role == "env"]
        self._made = 0
        super().__init__(once=f"{folder}/sprung" if once else None, **arguments)

    def step(self, action: NDArray[np.float32]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._made += 1
        for gate in self._gates:
            if gate.request == "step" and gate.count == self._made:
                gate.enter()
        return super().step(action)

    def _sprung(self, obs: Any, reward: float) -> tuple[Any, float]:
        self._mark()
        return super()._sprung(obs, reward)

    def _spring(self) -> None:
        self._mark()
        super()._spring()

    def _mark(self) -> None:
        for gate in self._gates:
            if gate.request == "trap":
                gate.enter()


class GatedService:
    """A service behind gates."""

    def __init__(self, service: Service, gates: list[Gate]) -> None:
        self._service, self._gates = service, gates
        self._counts: dict[str, int] = {}

    def ready(self) -> Ready:
        return self._service.ready()

    def handle(self, request: Any) -> Message:
        name = type(request).__name__
        self._counts[name] = self._counts.get(name, 0) + 1
        directory = getattr(request, "directory", "")
        self._pass(name, "before", directory)
        reply = self._service.handle(request)
        self._pass(name, "after", directory)
        return reply

    def close(self) -> None:
        self._pass("Close", "before")
        self._service.close()

    def _pass(self, name: str, when: str, directory: str = "") -> None:
        for gate in self._gates:
            if gate.request == name and gate.when == when and gate.count == self._counts.get(name, 1):
                gate.enter(directory)


def gated(assignment: Assignment) -> Service:
    """Make the real service of an assignment, behind the gates of its settings."""
    settings = assignment.settings
    gates = [gate for gate in gates_of(settings.env.kwargs) if gate.role == assignment.role and assignment.index == 0]
    for gate in gates:
        if gate.request == "Start" and gate.when == "before":
            gate.enter()
    real = REAL.get((settings.algorithm.family, assignment.role), REAL_EVALUATOR)
    module, _, name = real.partition(":")
    make = getattr(__import__(module, fromlist=[name]), name)
    return GatedService(make(assignment), gates)


class Gates:
    """The host's side: made before a run, waited for, opened, closed."""

    def __init__(self, folder: Path, gates: list[str]) -> None:
        self.texts, self._folder = gates, folder
        folder.mkdir()
        self._reached, self._go = [], []
        for number in range(len(gates)):
            for name in ("reached", "go"):
                os.mkfifo(folder / f"{number}.{name}")
            self._reached.append(os.open(folder / f"{number}.reached", os.O_RDONLY | os.O_NONBLOCK))
            self._go.append(os.open(folder / f"{number}.go", os.O_RDWR))

    @property
    def overrides(self) -> list[str]:
        """What the settings of the run say of them."""
        texts = ", ".join(f'"{text}"' for text in self.texts)
        return [
            "env.id=tests.endings.gates:GatedEnv",
            f"env.kwargs.folder={self._folder}",
            f"env.kwargs.gates=[{texts}]",
        ]

    async def reached(self, number: int) -> tuple[int, float]:
        """Wait until a worker is there; return its pid, and when it came."""
        loop, fd = asyncio.get_running_loop(), self._reached[number]
        there: asyncio.Future[None] = loop.create_future()
        loop.add_reader(fd, lambda: there.done() or there.set_result(None))
        try:
            await there
        finally:
            loop.remove_reader(fd)
        return int(os.read(fd, 32)), time.monotonic()

    def reached_within(self, number: int, seconds: float) -> int:
        """Wait without a loop; return the worker's pid."""
        assert select.select([self._reached[number]], [], [], seconds)[0], f"nobody came to {self.texts[number]}"
        return int(os.read(self._reached[number], 32))

    def open(self, number: int) -> None:
        """Let the worker go on."""
        os.write(self._go[number], b"x")

    def close(self) -> None:
        """Close them; whoever still stands at one goes on."""
        for fd in (*self._reached, *self._go):
            os.close(fd)
