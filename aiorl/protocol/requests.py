"""Requests of the coordinator; `reply` is the type of the one answer."""

from __future__ import annotations

from typing import ClassVar

from aiorl.protocol.base import EnvSpec, Message
from aiorl.protocol.replies import (
    Attached,
    BatchPacked,
    Built,
    ChunkCollected,
    CurveDrawn,
    EpisodesEvaluated,
    EvaluationBegun,
    PolicySaved,
    Published,
    Restored,
    RolloutReady,
    Saved,
    Stopped,
    TrainerDone,
)


class Request(Message, frozen=True):
    """Base of all requests."""

    reply: ClassVar[type[Message]]


class Build(Request, frozen=True):
    """Learner: make networks and optimisers for this environment."""

    reply: ClassVar[type[Message]] = Built
    spec: EnvSpec


class Attach(Request, frozen=True):
    """Map the shared memory, which now has its size."""

    reply: ClassVar[type[Message]] = Attached
    policy_bytes: int


class Publish(Request, frozen=True):
    """Learner: write the current policy into a weight slot."""

    reply: ClassVar[type[Message]] = Published
    slot: int


class PublishEvaluated(Request, frozen=True):
    """Learner: write the current policy, and the statistics it was made with, into the slot that is evaluated."""

    reply: ClassVar[type[Message]] = Published


class CollectChunk(Request, frozen=True):
    """Collector: step every env `steps` times with the policy in a weight slot."""

    reply: ClassVar[type[Message]] = ChunkCollected
    tick: int
    steps: int
    weights: int
    weight_version: int
    uniform: bool


class PackBatch(Request, frozen=True):
    """Collector: draw rows from the shard as it is now into its part of a batch slot."""

    reply: ClassVar[type[Message]] = BatchPacked
    tick: int
    slot: int
    seed: int


class Update(Request, frozen=True):
    """Learner: take all gradient steps of a tick on a batch slot, publish into a weight slot."""

    reply: ClassVar[type[Message]] = TrainerDone
    tick: int
    slot: int
    gradient_steps: int
    weights: int
    weight_version: int


class CollectRollout(Request, frozen=True):
    """Collector: fill a rollout slot under the policy in a weight slot."""

    reply: ClassVar[type[Message]] = RolloutReady
    tick: int
    slot: int
    weights: int
    weight_version: int


class UpdateOnRollouts(Request, frozen=True):
    """Learner: train once on a rollout of each collector, `slots` in their order, publish into a weight slot.

    Where `dump` names a folder, what was trained on is written there too.
    """

    reply: ClassVar[type[Message]] = TrainerDone
    tick: int
    slots: tuple[int, ...]
    acting_version: int
    weights: int
    weight_version: int
    dump: str = ""


class Save(Request, frozen=True):
    """Write own checkpoint files; the learner also the pending policies in these weight slots.

    With `shards`, once no collector is left, the learner writes their replay shards too, where there are any.
    """

    reply: ClassVar[type[Message]] = Saved
    tick: int
    directory: str
    pending: tuple[int, ...] = ()
    shards: bool = False


class Restore(Request, frozen=True):
    """Read own checkpoint files; the learner also puts the pending policies into these weight slots.

    `has_state` is false where a collector had died: its shard is there, its own state is not. Collectors
    that start afresh take other random streams than they began with, by the vector steps of the run so far.
    """

    reply: ClassVar[type[Message]] = Restored
    directory: str
    has_replay: bool = True
    has_state: bool = True
    vector_steps: int = 0
    policy_only: bool = False
    weights: int = 0
    weight_version: int = 0
    pending: tuple[int, ...] = ()
    pending_versions: tuple[int, ...] = ()


class Evaluate(Request, frozen=True):
    """Evaluator: begin to play whole episodes with the policy of a checkpoint, deterministically."""

    reply: ClassVar[type[Message]] = EvaluationBegun
    directory: str
    episodes_per_env: int
    seed: int


class EvaluatePolicy(Request, frozen=True):
    """Evaluator: the same with the policy in the slot that is evaluated, of which it takes a copy of its own."""

    reply: ClassVar[type[Message]] = EvaluationBegun
    weight_version: int
    episodes_per_env: int
    seed: int


class PlayOn(Request, frozen=True):
    """Evaluator: make some vector steps of the evaluation; in pieces, so that a long one is no stalled one."""

    reply: ClassVar[type[Message]] = EpisodesEvaluated
    steps: int


class SavePolicy(Request, frozen=True):
    """Evaluator: write the policy that it has played, and its statistics, into a folder."""

    reply: ClassVar[type[Message]] = PolicySaved
    directory: str


class DrawCurve(Request, frozen=True):
    """Evaluator: draw a run's learning curve into its directory, with an evaluation's result where a file is named.

    A worker does it because plotting leaves modules, caches and open font files in its process.
    """

    reply: ClassVar[type[Message]] = CurveDrawn
    run_dir: str
    evaluation_file: str


Repeatable = CollectChunk | PackBatch | CollectRollout | Save
"""What a collector may be asked again, after it died over the answer: another in its place does what is missing."""


class Stop(Request, frozen=True):
    """End: close everything and leave."""

    reply: ClassVar[type[Message]] = Stopped
