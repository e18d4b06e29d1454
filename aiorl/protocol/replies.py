"""Replies of workers."""

from __future__ import annotations

import msgspec

from aiorl.protocol.base import FileRecord, Measure, Message


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
