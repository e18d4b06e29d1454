"""The collector's service: what every kind of collector is, whatever it keeps its steps in."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TypeVar

import numpy as np

from aiorl.checkpoint.manifest import require_intact
from aiorl.checkpoint.tensors import Arrays, load_arrays, save_arrays
from aiorl.collector.actor import Actor
from aiorl.collector.episodes import EpisodeTracker
from aiorl.collector.phases import PhaseClock, TracedPhaseClock
from aiorl.envs.make import EnvSettingsError, make_vector_env
from aiorl.envs.stepper import Step, VectorStepper
from aiorl.errors import CheckpointError, ProtocolError
from aiorl.protocol import (
    Attach,
    Attached,
    Collected,
    FileRecord,
    Message,
    Ready,
    Repeatable,
    Requests,
    Restore,
    Restored,
    Save,
    Saved,
)
from aiorl.service import Assignment, Blocks, Purpose, RefusedError, seed_number
from aiorl.storage.moments import fresh_moments
from aiorl.storage.weights import WeightSlots, weights_layout

Said = TypeVar("Said", bound=Collected)


class CollectorService(ABC):
    """Owns envs, an actor, and the running sums of episodes; steps go where a subclass keeps them."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment, self._settings, self._index = assignment, assignment.settings, assignment.index
        settings = self._settings
        try:
            env = make_vector_env(settings.env, settings.envs_per_collector, assignment.env_factory)
            self._stepper = VectorStepper(env, settings.env, settings.algorithm.groups)
            if self._index == 0 and settings.evaluation.at_end and settings.evaluation.kwargs:
                # Better refused now than after a night of training.
                make_vector_env(settings.env, 1, assignment.env_factory, settings.evaluation.kwargs).close()
        except EnvSettingsError as error:
            raise RefusedError(error.key, str(error)) from error
        if self._stepper.num_envs != settings.envs_per_collector:
            raise RefusedError(
                "env.num_envs",
                f"the env made {self._stepper.num_envs} envs, not {settings.envs_per_collector}",
            )
        self._spec = self._stepper.spec
        self._actor = Actor(settings, self._spec, self._index)
        self._episodes = EpisodeTracker(self._spec.num_envs)
        self._moments = fresh_moments(self._spec)
        self._clock = TracedPhaseClock(assignment.trace) if assignment.trace.is_on else PhaseClock()
        self._invalid = self._nonfinite = 0
        self._is_reset = False
        self._incarnation = assignment.incarnation
        self._inherits = self._incarnation > 0

    def ready(self) -> Ready:
        """Say what the env looks like."""
        return Ready(pid=os.getpid(), spec=self._spec)

    def handle(self, request: Requests) -> Message:
        """Carry out a request."""
        self._clock.mark("coordination")
        if self._inherits and isinstance(request, Repeatable):
            self._take_over(request)
        match request:
            case Attach():
                return self._attach(request)
            case Save():
                return self._save(request)
            case Restore():
                return self._restore(request)
            case _:
                if (reply := self._work(request)) is None:
                    raise ProtocolError(f"a {type(self).__name__} does not answer {type(request).__name__}")
                return reply

    def close(self) -> None:
        """Close the envs."""
        self._stepper.close()

    @abstractmethod
    def _map(self, blocks: Blocks) -> None:
        """Map the memory that steps go to."""

    @abstractmethod
    def _work(self, request: Requests) -> Message | None:
        """Carry out a request that is this kind's own; None where it is not."""

    @abstractmethod
    def _rows_kept(self) -> int:
        """Count the rows that a collector which died has left in the shared memory, and that stay."""

    @abstractmethod
    def _inherit(self, request: Repeatable) -> int:
        """Mark where the steps of a collector that died end, and count again what nobody has heard of.

        Returns:
            How many vector steps of the request's tick it has made.

        """

    def _save_experience(self, directory: Path, tick: int) -> list[FileRecord]:
        """Write the steps that belong to a checkpoint after a tick."""
        return []

    def _restore_experience(self, directory: Path, has_state: bool) -> None:  # noqa: B027  # where nothing is saved
        """Read what `_save_experience` wrote; without a state, count again what it has not passed on."""

    def _mark_break(self) -> str:
        """Note that every env starts a new episode, unannounced; return where the break shows, as a sentence."""
        return "environments restart their episodes"

    def _attach(self, request: Attach) -> Attached:
        if request.policy_bytes != self._actor.policy_bytes:
            raise ProtocolError(
                f"the learner's policy has {request.policy_bytes} bytes, ours {self._actor.policy_bytes}"
            )
        blocks = self._assignment.blocks
        assert isinstance(blocks, Blocks)
        self._map(blocks)
        weights = blocks.weights.map(weights_layout(self._settings, request.policy_bytes).nbytes)
        self._weights = WeightSlots.on(weights, self._settings, request.policy_bytes)
        blocks.close()
        return Attached(rows_kept=self._rows_kept() if self._inherits else 0)

    def _take_over(self, request: Repeatable) -> None:
        """Go on in the place of a collector that died: what it has committed stays, its envs start new episodes."""
        self._inherits = False
        self._stepper.vector_steps = (request.tick - 1) * self._settings.steps_per_tick + self._inherit(request)
        self._actor.reseed(self._stepper.vector_steps, self._incarnation)
        self._reset_envs(self._incarnation)

    def _begin(self, weights: int, weight_version: int) -> None:
        """Start a chunk or rollout: fresh envs if need be, and its policy."""
        if not self._is_reset:
            self._reset_envs()
        self._clock.mark("env_step")
        self._actor.load(self._weights, weights, weight_version)
        self._clock.mark("weight_sync")
        self._invalid = self._nonfinite = 0

    def _count(self, step: Step) -> None:
        """Count a vector step whose rows are kept."""
        self._episodes.add(step)
        self._invalid += int((~step.valid).sum())
        self._nonfinite += step.nonfinite

    def _say(self, kind: type[Said], tick: int, rows: int) -> Said:
        """Return the reply on a tick's steps, which are where they belong now."""
        self._clock.mark("replay")
        return kind(
            tick=tick,
            rows=rows,
            weight_version=self._actor.weight_version,
            invalid_rows=self._invalid,
            nonfinite=self._nonfinite,
            episodes=self._episodes.take(),
            phases=self._clock.take(),
        )

    def _save(self, request: Save) -> Saved:
        directory = Path(request.directory)
        state = {f"stepper.{name}": values for name, values in self._stepper.get_state().items()}
        state |= {f"actor.{name}": values for name, values in self._actor.get_state().items()}
        state |= {f"episodes.{name}": values for name, values in self._episodes.get_state().items()}
        state |= {f"moments.{name}": moments.vector for name, moments in self._moments.items()}
        own = save_arrays(directory / f"collector-{self._index}.safetensors", state)
        return Saved(tick=request.tick, files=(own, *self._save_experience(directory, request.tick)))

    def _restore(self, request: Restore) -> Restored:
        directory = Path(request.directory)
        if request.has_replay:
            self._restore_experience(directory, request.has_state)
        self._is_reset = request.has_state and self._take_state(directory)
        if self._is_reset:
            return Restored()
        if not request.has_state:
            self._actor.reseed(request.vector_steps)
            self._stepper.vector_steps = request.vector_steps
        self._episodes.forget_running()
        return Restored(note=self._mark_break())

    def _take_state(self, directory: Path) -> bool:
        """Take back what `_save` wrote; return whether the envs themselves went on."""
        path = directory / f"collector-{self._index}.safetensors"
        require_intact(path)
        state = load_arrays(path)

        def part(prefix: str) -> Arrays:
            return {name.removeprefix(f"{prefix}."): v for name, v in state.items() if name.startswith(f"{prefix}.")}

        try:
            for name, values in state.items():
                if np.issubdtype(values.dtype, np.floating) and not np.isfinite(values).all():
                    raise ValueError(f"{name} is not finite")
            self._actor.set_state(part("actor"))
            self._episodes.set_state(part("episodes"))
            for name, vector in part("moments").items():
                self._moments[name].restore(vector)
            return self._stepper.set_state(part("stepper"))
        except (KeyError, IndexError, ValueError, RuntimeError, TypeError, ArithmeticError) as error:
            raise CheckpointError(f"{path}: does not fit this run: {error}") from error

    def _reset_envs(self, *incarnation: int) -> None:
        # A resumed env must not repeat the episodes it started with, so its seeds depend on where it is; nor must
        # one that takes the place of another.
        base, envs = (self._index, self._stepper.vector_steps), range(self._spec.num_envs)
        seeds = [seed_number(self._settings.seed, Purpose.ENV, *base, env, *incarnation) for env in envs]
        self._stepper.reset(seeds)
        self._is_reset = True
