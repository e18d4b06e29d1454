"""The messages between coordinator and workers: a closed set of small frozen structs, encoded by msgspec.

Every request has one reply type (`Request.reply`). A worker may answer any request with Failed, and the
very first one with Refused; LogLine may come at any time. Arrays never travel here.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from aiorl.errors import ProtocolError

MAX_FRAME_BYTES = 1 << 20
"""Largest frame that either side accepts."""


class Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Base of all messages."""


# What a worker says of itself


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One observation group: float32 `(num_envs, size)` wherever aiorl holds it."""

    name: str
    size: int


class EnvSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an environment looks like; all collectors must agree, and the learner is built from it."""

    num_envs: int
    groups: tuple[Group, ...]
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    saves_state: bool
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def bare(self) -> EnvSpec:
        """The same without what it only has to say."""
        return msgspec.structs.replace(self, notes=(), warnings=())

    @property
    def action_size(self) -> int:
        """Action dimension."""
        return len(self.action_low)

    def group(self, name: str) -> Group:
        """Return the group called `name`; the critic sees the policy group where it has none of its own."""
        for group in self.groups:
            if group.name == name:
                return group
        return self.groups[0]


class Ready(Message, frozen=True):
    """First message of a worker: it is up."""

    pid: int
    preloaded: bool = True
    spec: EnvSpec | None = None


class Refused(Message, frozen=True):
    """First message of a worker that cannot work with these settings."""

    key: str
    sentence: str


class Failed(Message, frozen=True):
    """A worker raised; `error` is the class name, `traceback` its whole text (bounded)."""

    error: str
    message: str
    traceback: str


class LogLine(Message, frozen=True):
    """A log line of a worker, rendered by the coordinator's process."""

    level: str
    event: str
    fields: tuple[tuple[str, str], ...] = ()


class Measure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One named number."""

    name: str
    value: float


class FileRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file that a worker wrote into a checkpoint, with the CRC-32 of its contents."""

    name: str
    nbytes: int
    crc32: int


# Replies


class Built(Message, frozen=True):
    """The learner exists: bytes of its published policy and of its checkpoint files."""

    policy_bytes: int
    checkpoint_bytes: int


class Attached(Message, frozen=True):
    """The shared memory is mapped; `rows_kept` are there already, of a collector that died."""

    rows_kept: int = 0


class Published(Message, frozen=True):
    """Policy `weight_version` lies in the weight slot."""

    weight_version: int


class TermSum(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One component of the reward, summed over rows."""

    name: str
    total: float
    rows: int


class EpisodeSums(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Episodes of one collector that ended in one chunk, and its last 100; raw rewards."""

    finished: int = 0
    terminated: int = 0
    truncated: int = 0
    return_sum: float = 0.0
    return_min: float = 0.0
    return_max: float = 0.0
    window: int = 0
    window_return_mean: float = 0.0
    window_length_mean: float = 0.0
    reward_terms: tuple[TermSum, ...] = ()


class PhaseTimes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nanoseconds of a collector since its last reply, each in exactly one phase."""

    weight_sync: int = 0
    action_select: int = 0
    env_step: int = 0
    replay: int = 0
    pack: int = 0
    coordination: int = 0


class Collected(Message, frozen=True):
    """What a collector says of a tick's steps, whatever it keeps them in."""

    tick: int
    rows: int
    weight_version: int
    invalid_rows: int
    nonfinite: int
    episodes: EpisodeSums
    phases: PhaseTimes


class ChunkCollected(Collected, frozen=True):
    """A chunk's rows are committed in the collector's shard."""


class RolloutReady(Collected, frozen=True):
    """A rollout slot is whole."""


class BatchPacked(Message, frozen=True):
    """A collector's share of a batch slot is packed, from the snapshot named here."""

    tick: int
    slot: int
    rows_written: int
    rows_present: int
    version_min: int
    version_max: int
    begin_ns: int
    end_ns: int


class TrainerDone(Message, frozen=True):
    """A batch slot, or rollouts, were trained on and the new policy published; times in nanoseconds."""

    tick: int
    weight_version: int
    metrics: tuple[Measure, ...]
    wait_ns: int
    stage_ns: int
    train_ns: int
    publish_ns: int


class Saved(Message, frozen=True):
    """A worker's checkpoint files are on disk."""

    tick: int
    files: tuple[FileRecord, ...]


class Restored(Message, frozen=True):
    """A worker has its state back; `note` says what could not be restored."""

    note: str = ""


class EvaluationBegun(Message, frozen=True):
    """The policy is loaded, the envs are reset; where it came from a slot, that is free again."""


class EvaluatedEpisode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One whole episode of an evaluation; raw return."""

    env: int
    episode_return: float
    episode_length: int
    terminated: bool


class EpisodesEvaluated(Message, frozen=True):
    """The evaluation episodes that ended since the last reply; `is_over` once all are played."""

    is_over: bool
    episodes: tuple[EvaluatedEpisode, ...]


class PolicySaved(Message, frozen=True):
    """The policy's files are on disk."""

    files: tuple[FileRecord, ...]


class CurveDrawn(Message, frozen=True):
    """The picture is on disk."""


class Stopped(Message, frozen=True):
    """The worker is about to end by itself."""


# Requests


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


Requests = (
    Build
    | Attach
    | Publish
    | PublishEvaluated
    | CollectChunk
    | PackBatch
    | Update
    | CollectRollout
    | UpdateOnRollouts
    | Save
    | Restore
    | Evaluate
    | EvaluatePolicy
    | PlayOn
    | SavePolicy
    | DrawCurve
    | Stop
)
Replies = (
    Ready
    | Refused
    | Failed
    | LogLine
    | Built
    | Attached
    | Published
    | ChunkCollected
    | BatchPacked
    | RolloutReady
    | TrainerDone
    | Saved
    | Restored
    | EvaluationBegun
    | EpisodesEvaluated
    | PolicySaved
    | CurveDrawn
    | Stopped
)

_encoder = msgspec.msgpack.Encoder()
_requests = msgspec.msgpack.Decoder(Requests)
_replies = msgspec.msgpack.Decoder(Replies)


def encode(message: Message) -> bytes:
    """Encode a message.

    Raises:
        ProtocolError: it is larger than a frame may be.

    """
    data = _encoder.encode(message)
    if len(data) > MAX_FRAME_BYTES:
        raise ProtocolError(f"{type(message).__name__} has {len(data)} bytes, more than {MAX_FRAME_BYTES}")
    return data


def decode_request(data: bytes) -> Requests:
    """Decode a request.

    Raises:
        ProtocolError: these bytes are no request.

    """
    request: Requests = _decode(_requests, data)
    return request


def decode_reply(data: bytes) -> Replies:
    """Decode a reply.

    Raises:
        ProtocolError: these bytes are no reply.

    """
    reply: Replies = _decode(_replies, data)
    return reply


def _decode(decoder: Any, data: bytes) -> Any:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ProtocolError(f"a frame of {len(data)} bytes is no message: {reason}") from error
