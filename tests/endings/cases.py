"""The matrix: what ends a run, in which phase, and what must come of it. SAC and APPO alike."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from aiorl import (
    AiorlError,
    EnvError,
    StorageError,
    WorkerCrashedError,
    WorkerFailedError,
    WorkerStalledError,
    WorkerStartupError,
)

Checkpoint = Literal["none", "older", "of the failure", "of the end"]
"""Nothing; the last one before; one made after the failure, without the collectors; one that says all."""

KILLED = r"signal 9 \(SIGKILL\)"
BEFORE_SAVE = ("checkpoint.every_env_steps=160", "telemetry.interval_ticks=1000")
"""There is a checkpoint at tick 10, another at tick 20, and the end is at tick 25."""
SHORT = ("runtime.first_deadline_s=4", "runtime.deadline_s=2")
STARTUP_S = 4
LADDER = ("runtime.stop_ask_s=1", "runtime.stop_terminate_s=0.5")


@dataclass(frozen=True)
class Case:
    """One cause in one phase: the gates that hold the phase, what is done there, and what must come of it."""

    cause: str
    phase: str
    algorithm: str
    gates: tuple[str, ...]
    act: str
    error: type[BaseException] | None
    words: str
    checkpoint: Checkpoint
    overrides: tuple[str, ...] = ()
    bound_s: float = 5.0
    """How long it may take from the cause to the end."""

    def __str__(self) -> str:
        return f"{self.algorithm}: {self.cause} · {self.phase}"


def phases(algorithm: str, role: str) -> dict[str, tuple[str, ...]]:
    """The gates that hold each phase for a fault of `role`."""
    collect, update = ("CollectChunk", "Update") if algorithm == "sac" else ("CollectRollout", "UpdateOnRollouts")
    pack = "PackBatch" if algorithm == "sac" else collect
    found = {
        "start-up": (f"{role} Start 1 before wait",),
        "mid-chunk": ("env step 58 before wait",),
        # The learner is in its 12th update, and the collector has just done all it may do meanwhile.
        "waiting for the learner": (f"learner {update} 12 before wait", f"collector {pack} 13 after wait"),
        "saving": (f"{role} Save 2 before wait",),
        "shutdown": (f"{role} Close 1 before wait",),
    }
    if algorithm == "sac":
        found["warm-up"] = ("env step 6 before wait",)
        found["packing"] = ("collector PackBatch 12 before wait",)
    return found


def matrix(algorithm: str) -> Iterator[Case]:
    """All cases of one algorithm through the API."""
    for role in ("collector", "learner"):
        for phase, gates in phases(algorithm, role).items():
            yield from _death(algorithm, role, phase, gates)
    for phase, gates in phases(algorithm, "collector").items():
        yield from _host(algorithm, phase, gates)
    yield from _replaced(algorithm)
    yield from _traps(algorithm)
    yield from _learner(algorithm)
    yield from _disk(algorithm)
    yield from _grandchildren(algorithm)


def _death(algorithm: str, role: str, phase: str, gates: tuple[str, ...]) -> Iterator[Case]:
    kill, stop = f"SIGKILL of the {role}", f"SIGSTOP of the {role}"
    crashed, stalled = (f"{role} 0 .*{KILLED}", f"{role} 0 .*did not answer")
    of_failure: Checkpoint = "of the failure" if role == "collector" else "older"
    if phase == "start-up":
        unready = f"{role} 0 was not ready after runtime.startup_deadline_s={STARTUP_S}"
        soon = (f"runtime.startup_deadline_s={STARTUP_S}",)
        yield Case(kill, phase, algorithm, gates, f"kill {role}", WorkerStartupError, crashed, "none")
        yield Case(stop, phase, algorithm, gates, f"stop {role}", WorkerStartupError, unready, "none", soon, 8)
    elif phase == "shutdown":
        yield Case(kill, phase, algorithm, gates, f"kill {role}", None, "completed", "of the end")
        yield Case(stop, phase, algorithm, gates, f"stop {role}", None, "completed", "of the end", SHORT)
    else:
        if phase == "warm-up" and role == "learner":
            of_failure = "none"
        yield Case(kill, phase, algorithm, gates, f"kill {role}", WorkerCrashedError, crashed, of_failure)
        if phase == "warm-up" and role == "learner":
            return  # nobody asks anything of it: it is missed with the first update
        yield Case(stop, phase, algorithm, gates, f"stop {role}", WorkerStalledError, stalled, of_failure, SHORT, 8)


def _replaced(algorithm: str) -> Iterator[Case]:
    """The run goes on to its end: what is checked then is every row."""
    replace = ("collection.on_collector_death=replace", "telemetry.dump_rollouts=true")[: 1 + (algorithm == "appo")]
    collect = "CollectChunk" if algorithm == "sac" else "CollectRollout"
    held = phases(algorithm, "collector") | {"collected, not told": (f"collector {collect} 14 after wait",)}
    if algorithm == "sac":
        held["packed, not told"] = ("collector PackBatch 12 after wait",)
    for phase, gates in held.items():
        for verb, signal, more in (("kill", "SIGKILL", ()), ("stop", "SIGSTOP", SHORT)):
            cause = f"{signal} of the collector, which is replaced"
            if phase not in ("start-up", "shutdown"):
                yield Case(
                    cause, phase, algorithm, gates, f"{verb} collector", None, "completed", "of the end",
                    (*replace, *more), 15,
                )  # fmt: skip
    for what, trap in (("raises", "raise"), ("calls os._exit", "exit"), ("hangs in C with the GIL", "gil")):
        trapped = ("env.kwargs.once=true", "env.kwargs.where=step", f"env.kwargs.trap={trap}", "env.kwargs.at=58")
        yield Case(
            f"env {what}, and its collector is replaced", "mid-chunk", algorithm, ("env trap 1 before mark",), "", None,
            "completed", "of the end", (*replace, *trapped, *SHORT), 15,
        )  # fmt: skip
    yield Case(
        "SIGKILL of the learner, where collectors are replaced", "mid-chunk", algorithm, ("env step 58 before wait",),
        "kill learner", WorkerCrashedError, f"learner 0 .*{KILLED}", "older", replace,
    )  # fmt: skip


def _host(algorithm: str, phase: str, gates: tuple[str, ...]) -> Iterator[Case]:
    saved: Checkpoint = "none" if phase == "start-up" else "of the end"
    yield Case("cancel of the awaiting task", phase, algorithm, gates, "cancel", asyncio.CancelledError, "", saved)
    yield Case("exception in the host's block", phase, algorithm, gates, "raise", KeyError, "of the host", saved)
    if phase == "mid-chunk":
        stuck = "cancel, and a worker that hangs"
        yield Case(stuck, phase, algorithm, gates, "cancel only", asyncio.CancelledError, "", "older")
        aborted = "the run was aborted"
        yield Case("abort", phase, algorithm, gates, "abort", AiorlError, aborted, "older")


def _traps(algorithm: str) -> Iterator[Case]:
    mark = ("env trap 1 before mark",)

    def case(what: str, trap: str, phase: str, error: type[BaseException] | None, words: str, *more: str) -> Case:
        where, at = {
            "start-up": ("init", 0),
            "first reset": ("reset", 0),
            "warm-up": ("step", 6),
            "mid-chunk": ("step", 58),
            "shutdown": ("close", 0),
        }[phase]
        saved: Checkpoint = "none" if phase in ("start-up", "first reset") else "of the failure"
        if phase == "shutdown":
            saved = "of the end"
        overrides = (f"env.kwargs.trap={trap}", f"env.kwargs.where={where}", f"env.kwargs.at={at}", *more)
        return Case(f"env {what}", phase, algorithm, mark, "", error, words, saved, overrides, 8 if more else 5)

    raised, code = r"RuntimeError: the trap env has sprung", "exited with code 9"
    yield case("raises", "raise", "start-up", WorkerStartupError, raised)
    yield case("raises", "raise", "first reset", WorkerFailedError, raised)
    yield case("raises", "raise", "mid-chunk", WorkerFailedError, raised)
    yield case("raises", "raise", "shutdown", None, "completed")
    if algorithm == "sac":
        yield case("raises", "raise", "warm-up", WorkerFailedError, raised)
    for phase in ("start-up", "first reset", "mid-chunk"):
        error = WorkerStartupError if phase == "start-up" else WorkerCrashedError
        yield case("calls os._exit", "exit", phase, error, code)
        yield case("kills its process", "kill", phase, error, KILLED)
    for what, trap in (("never returns", "hang"), ("hangs in C with the GIL", "gil")):
        soon = f"runtime.startup_deadline_s={STARTUP_S}"
        yield case(what, trap, "start-up", WorkerStartupError, f"was not ready after {soon}", soon)
        yield case(what, trap, "mid-chunk", WorkerStalledError, "did not answer Collect", *SHORT)
        yield case(what, trap, "shutdown", None, "completed", *SHORT)
    for what, trap, words in (
        ("gives another shape than it said", "shape", "shape"),
        ("gives text for numbers", "dtype", "number"),
        ("gives NaN in an observation", "nan_obs", "not finite in env"),
        ("gives Inf in an observation", "inf_obs", "not finite in env"),
    ):
        yield case(what, trap, "first reset", EnvError, words)
        yield case(what, trap, "mid-chunk", EnvError, words)
    for what, trap in (
        ("gives NaN in a reward", "nan_reward"),
        ("gives Inf in a reward", "inf_reward"),
        ("gives NaN in a final observation", "nan_final_obs"),
        ("gives Inf in a final observation", "inf_final_obs"),
    ):
        yield case(what, trap, "mid-chunk", EnvError, "not finite in env")


def _learner(algorithm: str) -> Iterator[Case]:
    update = "Update" if algorithm == "sac" else "UpdateOnRollouts"
    for phase, request, saved in (("start-up", "Build 1", "none"), ("updating", f"{update} 12", "older")):
        for cause, action, error, words in (
            ("learner out of memory", "memory", WorkerFailedError, "learner 0 .*RuntimeError: .*memory"),
            ("learner raises", "raise", WorkerFailedError, "learner 0 .*RuntimeError: the gate is shut"),
            ("learner calls os._exit", "exit", WorkerCrashedError, "learner 0 .*exited with code 7"),
        ):
            gates = (f"learner {request} before {action}",)
            yield Case(cause, phase, algorithm, gates, "", error, words, saved)  # type: ignore[arg-type]
    rates = ("algorithm.actor_learning_rate=1e38", "algorithm.critic_learning_rate=1e38")
    if algorithm == "appo":
        rates = ("algorithm.learning_rate=1e38", "algorithm.target_kl=null")
    gates = (f"learner {update} 1 before mark",)
    words = "learner 0 .*not finite"
    yield Case(
        "loss that is not finite", "updating", algorithm, gates, "", WorkerFailedError, words, "none",
        ("checkpoint.every_env_steps=null", *rates),
    )  # fmt: skip


def _disk(algorithm: str) -> Iterator[Case]:
    full = "No space left on device"
    for cause, gate, error, saved in (
        (
            "disk full for the collector's files",
            "collector Save 2 before full disk",
            WorkerFailedError,
            "of the failure",
        ),
        ("disk full for the learner's files", "learner Save 2 before full disk", WorkerFailedError, "older"),
        (
            "disk full for the manifest",
            "learner Save 2 after full disk for the manifest",
            StorageError,
            "of the failure",
        ),
    ):
        yield Case(cause, "saving", algorithm, (gate,), "", error, full, saved)  # type: ignore[arg-type]

    gates = (
        f"collector {'CollectChunk' if algorithm == 'sac' else 'CollectRollout'} 13 before full disk for the metrics",
    )
    yield Case(
        "disk full for the metrics", "mid-chunk", algorithm, gates, "", StorageError, full, "of the failure",
        ("telemetry.interval_ticks=15", "checkpoint.every_env_steps=160"),
    )  # fmt: skip


def _grandchildren(algorithm: str) -> Iterator[Case]:
    forked = "env.vectorization=async"
    gates = ("env step 58 before wait",)
    cause = "SIGKILL of the collector that has AsyncVectorEnv's processes"
    words = f"collector 0 .*{KILLED}"
    yield Case(
        cause, "mid-chunk", algorithm, gates, "kill collector", WorkerCrashedError, words, "of the failure", (forked,)
    )
    trap = ("env.kwargs.where=step", "env.kwargs.at=58", forked)
    mark = ("env trap 1 before mark",)
    yield Case(
        "env in a grandchild raises", "mid-chunk", algorithm, mark, "", WorkerFailedError,
        "the trap env has sprung", "of the failure", trap,
    )  # fmt: skip
    yield Case(
        "env in a grandchild never returns", "mid-chunk", algorithm, mark, "", WorkerStalledError,
        "did not answer Collect", "of the failure", ("env.kwargs.trap=hang", *trap, *SHORT), 8,
    )  # fmt: skip
    yield Case(
        "cancel, with AsyncVectorEnv's processes", "mid-chunk", algorithm, gates, "cancel", asyncio.CancelledError,
        "", "of the end", (forked,),
    )  # fmt: skip
