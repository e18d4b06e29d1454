"""The on-policy side of the dialogue: fill a rollout slot of each collector, train on them together, once."""

from __future__ import annotations

from pathlib import Path

from aiorl.coordinator.dialogue import CollectedTick, Dialogue, call
from aiorl.coordinator.ledger import SlotLedger
from aiorl.coordinator.schedule import Schedule
from aiorl.coordinator.team import Team
from aiorl.coordinator.together import together
from aiorl.protocol import CollectRollout, RolloutReady, TrainerDone, UpdateOnRollouts
from aiorl.runtime.handle import WorkerHandle
from aiorl.settings import RunSettings

DUMP_FOLDER = "rollouts"


def cut_back_dumps(run_dir: Path, tick: int) -> None:
    """Remove dumped rollouts of ticks after this one: the run goes on from before them."""
    for path in (run_dir / DUMP_FOLDER).glob("*-*.safetensors"):
        number = path.name.split("-")[0]
        if number.isdecimal() and int(number) > tick:
            path.unlink()


class OnPolicyDialogue(Dialogue):
    """Every collector has rollout slots of its own; one is written by it, then read by the learner."""

    def __init__(self, settings: RunSettings, team: Team, schedule: Schedule) -> None:
        super().__init__(settings, team, schedule)
        self._dump = str(team.run_dir / DUMP_FOLDER) if settings.telemetry.dump_rollouts else ""
        self.rollouts = [SlotLedger(f"{worker.name}'s rollout", settings.rollout_slots) for worker in team.collectors]

    async def _collect(self, tick: int, weights: int, version: int) -> CollectedTick:
        async def one(collector: WorkerHandle, ledger: SlotLedger) -> tuple[RolloutReady, int]:
            slot = ledger.claim(tick, [collector.name])
            ready = await call(collector, CollectRollout(tick, slot, weights, version), RolloutReady)
            self.weights.returned(weights, collector.name)
            ledger.written(slot, collector.name)
            return ready, slot

        pairs = zip(self._team.collectors, self.rollouts, strict=True)
        replies = await together((one(*pair) for pair in pairs), cancel_others=True)
        return CollectedTick(tick, tuple(ready for ready, _ in replies), slots=tuple(slot for _, slot in replies))

    async def _update(self, collected: CollectedTick, weights: int, version: int) -> TrainerDone:
        learner = self._team.learner
        leases = list(zip(self.rollouts, collected.slots, strict=True))
        for ledger, slot in leases:
            ledger.lend(slot, [learner.name])
        acting_version = self.schedule.acting_version(collected.tick)
        request = UpdateOnRollouts(collected.tick, collected.slots, acting_version, weights, version, self._dump)
        done = await call(learner, request, TrainerDone)
        for ledger, slot in leases:
            ledger.returned(slot, learner.name)
            ledger.free(slot)
        return done
