"""Messages as bytes."""

from __future__ import annotations

from typing import Any

import msgspec

from aiorl.errors import ProtocolError
from aiorl.protocol.base import Failed, LogLine, Message, Ready, Refused
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
from aiorl.protocol.requests import (
    Attach,
    Build,
    CollectChunk,
    CollectRollout,
    DrawCurve,
    Evaluate,
    EvaluatePolicy,
    PackBatch,
    PlayOn,
    Publish,
    PublishEvaluated,
    Restore,
    Save,
    SavePolicy,
    Stop,
    Update,
    UpdateOnRollouts,
)

MAX_FRAME_BYTES = 1 << 20
"""Largest frame that either side accepts."""

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
