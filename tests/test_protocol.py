"""Messages: a closed set, frozen, small, and nothing else gets through a decoder."""

import typing
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiorl import protocol
from aiorl.errors import ProtocolError
from aiorl.protocol import (
    MAX_FRAME_BYTES,
    BatchPacked,
    Build,
    ChunkCollected,
    CollectChunk,
    Collected,
    CollectRollout,
    EnvSpec,
    EpisodesEvaluated,
    EpisodeSums,
    EvaluatedEpisode,
    Failed,
    FileRecord,
    Group,
    LogLine,
    Measure,
    Message,
    PackBatch,
    PhaseTimes,
    Replies,
    Request,
    Requests,
    Restore,
    Restored,
    RolloutReady,
    Save,
    Saved,
    Stop,
    Stopped,
    TermSum,
    TrainerDone,
    Update,
    UpdateOnRollouts,
    decode_reply,
    decode_request,
    encode,
)
from aiorl.runtime.worker import _failed

REQUESTS, REPLIES = get_args(Requests), get_args(Replies)
BASES = (Message, Request, Collected)
every_message = pytest.mark.parametrize("kind", [*REQUESTS, *REPLIES], ids=lambda kind: kind.__name__)
quickly = settings(max_examples=40, deadline=None, derandomize=True)

PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**63), 2**64 - 1),
    float: st.floats(allow_nan=False),
    str: st.text(),
    bool: st.booleans(),
}


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a field's type."""
    if kind in PLAIN:
        return PLAIN[kind]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return messages(kind)
    if typing.get_origin(kind) is tuple:
        parts = get_args(kind)
        if parts[-1] is Ellipsis:
            return st.lists(values(parts[0]), max_size=4).map(tuple)
        return st.tuples(*map(values, parts))
    return st.one_of(st.none() if part is type(None) else values(part) for part in get_args(kind))


def messages(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    return st.builds(kind, **{field.name: values(field.type) for field in msgspec.structs.fields(kind)})


def decode(kind: type[Message], data: bytes) -> Any:
    return decode_request(data) if issubclass(kind, Request) else decode_reply(data)


@every_message
@quickly
@given(data=st.data())
def test_every_message_comes_back_the_same(kind: type[Message], data: Any) -> None:
    message = data.draw(messages(kind))
    back = decode(kind, encode(message))
    assert back == message
    assert type(back) is kind


@every_message
@quickly
@given(data=st.data())
def test_a_piece_of_a_message_is_no_message(kind: type[Message], data: Any) -> None:
    frame = encode(data.draw(messages(kind)))
    length = data.draw(st.integers(0, len(frame) - 1))
    for broken in (frame[:length], frame + frame[:1]):
        with pytest.raises(ProtocolError):
            decode(kind, broken)


@settings(max_examples=500, deadline=None, derandomize=True)
@given(st.binary(max_size=200))
def test_garbage_is_no_message(data: bytes) -> None:
    for decoder in (decode_request, decode_reply):
        with pytest.raises(ProtocolError):
            decoder(data)


@quickly
@given(data=st.data(), kind=st.sampled_from([*REQUESTS, *REPLIES]), byte=st.integers(0, 255))
def test_a_flipped_byte_is_a_message_or_an_error_of_ours(data: Any, kind: type[Message], byte: int) -> None:
    frame = bytearray(encode(data.draw(messages(kind))))
    frame[data.draw(st.integers(0, len(frame) - 1))] = byte
    try:
        assert isinstance(decode(kind, bytes(frame)), Message)
    except ProtocolError:
        pass  # the usual end


JUST_MSGPACK = [
    {"type": "Explode"},
    {},
    {"tick": 1},
    {"type": "Update"},
    {"type": "Publish", "slot": "0"},
    {"type": "Publish", "slot": 0.5},
    {"type": "Publish", "slot": None},
    {"type": "Stop", "reason": "x"},
    {"type": 3},
    [],
    None,
    3,
    "Stop",
]


@pytest.mark.parametrize("thing", JUST_MSGPACK, ids=repr)
def test_msgpack_that_is_no_message_is_refused(thing: Any) -> None:
    data = msgspec.msgpack.encode(thing)
    for decoder in (decode_request, decode_reply):
        with pytest.raises(ProtocolError, match=f"a frame of {len(data)} bytes"):
            decoder(data)


@every_message
@quickly
@given(data=st.data())
def test_requests_and_replies_are_never_mixed_up(kind: type[Message], data: Any) -> None:
    frame = encode(data.draw(messages(kind)))
    with pytest.raises(ProtocolError):
        (decode_reply if issubclass(kind, Request) else decode_request)(frame)


def test_the_set_of_messages_is_closed() -> None:
    defined = {
        kind
        for kind in vars(protocol).values()
        if isinstance(kind, type) and issubclass(kind, Message) and kind not in BASES
    }
    assert {kind for kind in defined if issubclass(kind, Request)} == set(REQUESTS)
    assert {kind for kind in defined if not issubclass(kind, Request)} == set(REPLIES)
    assert len({kind.__name__ for kind in defined}) == len(REQUESTS) + len(REPLIES)


@pytest.mark.parametrize("kind", BASES, ids=lambda kind: kind.__name__)
@quickly
@given(data=st.data())
def test_what_messages_are_built_on_is_none(kind: type[Message], data: Any) -> None:
    frame = encode(data.draw(messages(kind)))
    for decoder in (decode_request, decode_reply):
        with pytest.raises(ProtocolError):
            decoder(frame)


@quickly
@given(data=st.data())
def test_a_chunk_and_a_rollout_are_told_apart_though_they_say_the_same(data: Any) -> None:
    chunk = data.draw(messages(ChunkCollected))
    rollout = RolloutReady(**{field.name: getattr(chunk, field.name) for field in msgspec.structs.fields(chunk)})
    back = [decode_reply(encode(message)) for message in (chunk, rollout)]
    assert [type(each) for each in back] == [ChunkCollected, RolloutReady]
    assert chunk != rollout


def test_every_request_has_its_reply() -> None:
    assert {kind.__name__: kind.reply.__name__ for kind in REQUESTS} == {
        "Build": "Built",
        "Attach": "Attached",
        "Publish": "Published",
        "CollectChunk": "ChunkCollected",
        "PackBatch": "BatchPacked",
        "Update": "TrainerDone",
        "CollectRollout": "RolloutReady",
        "UpdateOnRollouts": "TrainerDone",
        "Save": "Saved",
        "Restore": "Restored",
        "PublishEvaluated": "Published",
        "Evaluate": "EvaluationBegun",
        "EvaluatePolicy": "EvaluationBegun",
        "SavePolicy": "PolicySaved",
        "PlayOn": "EpisodesEvaluated",
        "DrawCurve": "CurveDrawn",
        "Stop": "Stopped",
    }
    assert {kind.reply for kind in REQUESTS} < set(REPLIES)


@every_message
@quickly
@given(data=st.data())
def test_messages_are_frozen_to_the_core(kind: type[Message], data: Any) -> None:
    message = data.draw(messages(kind))
    hash(message)  # nothing in it can change
    for field in msgspec.structs.fields(kind):
        with pytest.raises(AttributeError):
            setattr(message, field.name, getattr(message, field.name))


# Size

SPEC = EnvSpec(
    num_envs=4096,
    groups=(Group("policy", 348), Group("critic", 512), Group("privileged", 64)),
    action_low=(-0.4000000059604645,) * 38,
    action_high=(0.4000000059604645,) * 38,
    saves_state=False,
    notes=("autoreset NEXT_STEP: one row in each episode is invalid and never drawn",) * 3,
)
EPISODES = EpisodeSums(
    finished=4096,
    terminated=1000,
    truncated=3096,
    return_min=-1234.5678,
    return_max=9876.54321,
    window=100,
    window_return_mean=4321.01234,
    window_length_mean=998.75,
    reward_terms=tuple(TermSum(f"reward/{number:02}", 0.1 * number, 10**6) for number in range(24)),
)
NS = 10**12
REALISTIC: list[Message] = [
    Build(SPEC),
    protocol.Ready(pid=4194304, spec=SPEC),
    protocol.Refused("env.id", "no such env: " + "x" * 200),
    LogLine("warning", "x" * 200, (("worker", "collector 0"), ("error", "y" * 200))),
    CollectChunk(10**9, 10**4, 1, 10**9, False),
    ChunkCollected(10**9, 10**6, 10**9, 10**4, 10**4, EPISODES, PhaseTimes(NS, NS, NS, NS, NS, NS)),
    PackBatch(10**9, 1, 2**63),
    BatchPacked(10**9, 1, 10**9, 10**6, 10**9, 10**9, NS, NS),
    Update(10**9, 1, 10**4, 1, 10**9),
    CollectRollout(10**9, 10**4, 10**4, 10**9),
    RolloutReady(10**9, 10**6, 10**9, 10**4, 10**4, EPISODES, PhaseTimes(NS, NS, NS, NS, NS, NS)),
    UpdateOnRollouts(10**9, (10**4,) * 64, 10**9, 10**4, 10**9, "/" + "d" * 255),
    TrainerDone(10**9, 10**9, tuple(Measure(f"loss/number_{n}", 1 / (n + 1)) for n in range(40)), NS, NS, NS, NS),
    Save(10**9, "/" + "d" * 255, tuple(range(100))),
    Saved(10**9, tuple(FileRecord(f"collector-{index}.safetensors", 10**10, 2**32 - 1) for index in range(4))),
    Restore("/" + "d" * 255, weights=1, weight_version=10**9, pending=(9,) * 100, pending_versions=(10**9,) * 100),
    Restored("x" * 300),
    EpisodesEvaluated(is_over=True, episodes=(EvaluatedEpisode(5, 1234.5678, 1000, True),) * 50),
    Stop(),
    Stopped(),
]


@pytest.mark.parametrize("message", REALISTIC, ids=lambda message: type(message).__name__)
def test_messages_are_a_few_kilobytes_at_most(message: Message) -> None:
    assert len(encode(message)) <= 4096


def test_what_is_larger_than_a_frame_is_refused() -> None:
    overhead = len(encode(Restored("x" * (MAX_FRAME_BYTES // 2)))) - MAX_FRAME_BYTES // 2
    assert len(encode(Restored("x" * (MAX_FRAME_BYTES - overhead)))) == MAX_FRAME_BYTES
    with pytest.raises(ProtocolError, match="Restored"):
        encode(Restored("x" * (MAX_FRAME_BYTES - overhead + 1)))


# The worst day of a worker


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


class SpeechlessError(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("x" * 10**6),
        ValueError("é" * 10**6),
        RuntimeError("cannot load caf\udce9.xml"),  # a file name that is no UTF-8
        type("X" * 10**4, (Exception,), {})("odd"),
        SpeechlessError(),
        ExceptionGroup("many", [ValueError(number) for number in range(10**4)]),
    ],
    ids=["long", "wide", "undecodable", "name", "speechless", "group"],
)
def test_every_failure_of_a_worker_gets_through(error: BaseException) -> None:
    failed = decode_reply(encode(_failed(raised(error))))
    assert isinstance(failed, Failed)
    assert failed.error == type(error).__name__
    assert "test_protocol.py" in failed.traceback
