"""One request at a time, and the reply that belongs to it."""

import pytest

from aiorl.errors import ProtocolError
from aiorl.protocol import (
    Attach,
    Attached,
    BatchPacked,
    ChunkCollected,
    CollectChunk,
    EpisodeSums,
    Failed,
    Message,
    PackBatch,
    PhaseTimes,
    Publish,
    Published,
    Ready,
    Refused,
    Request,
    Stop,
    Stopped,
)
from aiorl.runtime.conversation import Conversation

FAILED = Failed("RuntimeError", "no", "Traceback …")


def chunk(tick: int) -> CollectChunk:
    return CollectChunk(tick, steps=4, weights=0, weight_version=0, uniform=True)


def collected(tick: int) -> ChunkCollected:
    return ChunkCollected(
        tick, rows=4, weight_version=0, invalid_rows=0, nonfinite=0, episodes=EpisodeSums(), phases=PhaseTimes()
    )


def packed(tick: int, slot: int) -> BatchPacked:
    return BatchPacked(tick, slot, 1, 1, 0, 0, 0, 0)


@pytest.fixture
def conversation() -> Conversation:
    conversation = Conversation("collector 3")
    conversation.hear(Ready(pid=1))
    return conversation


def test_each_request_is_settled_by_its_reply(conversation: Conversation) -> None:
    exchanges: list[tuple[Request, Message]] = [
        (Attach(1), Attached()),
        (chunk(7), collected(7)),
        (PackBatch(7, 1, 0), packed(7, 1)),
        (chunk(8), collected(8)),
        (Publish(1), Published(5)),
        (Stop(), Stopped()),
    ]
    for request, reply in exchanges:
        conversation.ask(request)
        conversation.hear(reply)


def test_nothing_is_asked_of_a_worker_that_is_not_ready() -> None:
    with pytest.raises(ProtocolError, match="collector 3: Stop before it was ready"):
        Conversation("collector 3").ask(Stop())


@pytest.mark.parametrize("reply", [Stopped(), Attached(), collected(1)])
def test_the_first_message_is_ready_refused_or_failed(reply: Message) -> None:
    with pytest.raises(ProtocolError, match=f"collector 3: {type(reply).__name__} before Ready"):
        Conversation("collector 3").hear(reply)


@pytest.mark.parametrize("last_word", [Refused("env.id", "no such env"), FAILED])
def test_a_worker_that_did_not_get_ready_owes_nothing_more(last_word: Message) -> None:
    conversation = Conversation("collector 3")
    conversation.hear(last_word)
    with pytest.raises(ProtocolError, match="Stop before it was ready"):
        conversation.ask(Stop())
    with pytest.raises(ProtocolError):
        conversation.hear(Ready(pid=1))


def test_one_request_at_a_time(conversation: Conversation) -> None:
    conversation.ask(chunk(7))
    with pytest.raises(ProtocolError, match="collector 3: PackBatch while CollectChunk is unanswered"):
        conversation.ask(PackBatch(7, 0, 0))
    conversation.hear(collected(7))
    conversation.ask(PackBatch(7, 0, 0))


@pytest.mark.parametrize("reply", [Stopped(), Ready(pid=1), collected(1), Refused("a", "b")])
def test_a_reply_without_a_request_is_refused(conversation: Conversation, reply: Message) -> None:
    with pytest.raises(ProtocolError, match=f"collector 3: {type(reply).__name__} without a request"):
        conversation.hear(reply)


def test_a_reply_counts_once(conversation: Conversation) -> None:
    conversation.ask(chunk(7))
    conversation.hear(collected(7))
    with pytest.raises(ProtocolError, match="ChunkCollected without a request"):
        conversation.hear(collected(7))


@pytest.mark.parametrize("reply", [Attached(), packed(7, 0), Ready(pid=1), Refused("a", "b")])
def test_a_reply_of_another_kind_is_refused(conversation: Conversation, reply: Message) -> None:
    conversation.ask(chunk(7))
    with pytest.raises(ProtocolError, match=f"{type(reply).__name__} in answer to CollectChunk"):
        conversation.hear(reply)
    conversation.hear(collected(7))  # what is owed is owed still


@pytest.mark.parametrize("tick", [6, 8, 0])
def test_a_reply_of_another_tick_is_refused(conversation: Conversation, tick: int) -> None:
    conversation.ask(chunk(7))
    with pytest.raises(ProtocolError, match=f"ChunkCollected of tick {tick} in answer to CollectChunk of 7"):
        conversation.hear(collected(tick))


def test_a_reply_of_another_slot_is_refused(conversation: Conversation) -> None:
    conversation.ask(PackBatch(7, 1, 0))
    with pytest.raises(ProtocolError, match="BatchPacked of slot 0 in answer to PackBatch of 1"):
        conversation.hear(packed(7, 0))


def test_any_request_may_fail(conversation: Conversation) -> None:
    conversation.ask(chunk(7))
    conversation.hear(FAILED)
    conversation.ask(Stop())
