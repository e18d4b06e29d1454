"""The on-policy collector: T steps under one weight version go into a rollout slot."""

from __future__ import annotations

import numpy as np

from aiorl.collector.service import CollectorService
from aiorl.protocol import CollectRollout, Message, Repeatable, Requests, RolloutReady
from aiorl.service import Blocks
from aiorl.storage.moments import statistics_slices
from aiorl.storage.rollouts import RolloutSlot, recent_episodes, rollout_layout, rollout_slots, value_group
from aiorl.storage.rows import obs_column


class RolloutCollector(CollectorService):
    """Owns the slots that the coordinator leaves to it, one at a time."""

    def _map(self, blocks: Blocks) -> None:
        settings, spec = self._settings, self._spec
        memory = blocks.experience[0].map(rollout_layout(settings, spec).nbytes)
        self._slots = rollout_slots(memory, settings, spec)
        self._episodes.recent = recent_episodes(memory, settings, spec)
        self._value_group = value_group(spec)
        # Of other groups nobody wants the next observation; the stepper writes them all.
        self._unused = {name: np.zeros_like(values) for name, values in self._stepper.obs.items()}

    def _work(self, request: Requests) -> Message | None:
        return self._collect(request) if isinstance(request, CollectRollout) else None

    def _collect(self, request: CollectRollout) -> RolloutReady:
        slot = self._slots[request.slot]
        self._begin(request.weights, request.weight_version)
        for t in range(slot.begin(request.tick, request.weight_version), self._settings.collection.rollout_steps):
            self._step(slot, t)
            slot.commit()
        slot.last_obs[:] = self._stepper.obs[self._value_group]
        self._write_moments(slot)
        slot.label = (request.tick, request.weight_version)
        return self._say(RolloutReady, request.tick, slot.columns["valid"].size)

    def _step(self, slot: RolloutSlot, t: int) -> None:
        """Make one vector step and store it as row t."""
        stepper, clock, seen = self._stepper, self._clock, self._value_group
        row = {name: values[t] for name, values in slot.columns.items()}
        for name, values in stepper.obs.items():
            row[obs_column(name)][:] = values
        clock.mark("replay")
        row["action"][:], row["log_prob"][:], env_action = self._actor.sample(stepper.obs)
        clock.mark("action_select")
        step = stepper.step(env_action, self._unused | {seen: row["next_" + obs_column(seen)]})
        clock.mark("env_step")
        row["reward"][:] = step.reward
        row["terminated"][:], row["truncated"][:], row["valid"][:] = step.terminated, step.truncated, step.valid
        row["cut"][:] = False
        self._count(step)
        clock.mark("replay")

    def _rows_kept(self) -> int:
        return max(slot.steps_begun for slot in self._slots) * self._spec.num_envs

    def _inherit(self, request: Repeatable) -> int:
        if not isinstance(request, CollectRollout):
            return self._settings.collection.rollout_steps
        slot = self._slots[request.slot]
        if done := slot.steps_of(request.tick):
            slot.columns["cut"][done - 1] = True
        return done

    def _write_moments(self, slot: RolloutSlot) -> None:
        valid = slot.columns["valid"]
        for name, part in statistics_slices(self._spec).items():
            values = slot.columns["reward" if name == "reward" else obs_column(name)][valid]
            moments = self._moments[name]
            moments.add(values[:, None] if name == "reward" else values)
            slot.statistics[part] = moments.vector
            moments.clear()
