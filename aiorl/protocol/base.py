"""What every message is, and what a worker says of itself."""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Base of all messages."""


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
