"""Bytes that nobody of ours would send: the right reply or a ProtocolError, soon, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import threading
import typing
from collections.abc import AsyncIterator, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from aiorl import AiorlError, Run, WorkerCrashedError, WorkerStalledError
from aiorl.coordinator.workers import SERVICES
from aiorl.errors import ProtocolError
from aiorl.protocol import (
    MAX_FRAME_BYTES,
    Failed,
    LogLine,
    Message,
    Publish,
    Published,
    Ready,
    Replies,
    Request,
    Requests,
    Restore,
    Restored,
    Stop,
    Stopped,
    decode_reply,
)
from aiorl.runtime.pipe import Pipe
from aiorl.runtime.worker import Start, WorkerChannel, serve
from aiorl.telemetry.log import RunLog
from tests.conftest import small_settings
from tests.run.helpers import assert_no_tasks
from tests.runtime.hostile_service import HOSTILE, Plan, frame

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
SOON_S = 5.0
FAILED = Failed("RuntimeError", "no", "Traceback …")
LOG = LogLine("info", "x", (("a", "b"),))
MATCHED = ("tick", "slot", "weight_version")


def sample(kind: Any, number: int = 7) -> Any:
    """Some message of a kind, by the types of its fields."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind(**{field.name: sample(field.type, number) for field in msgspec.structs.fields(kind)})
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        return (sample(parts[0], number),) * 2
    return {int: number, float: 0.5, str: "x", bool: True}.get(kind) if origin is None else sample(parts[0], number)


REQUESTS: list[Any] = [sample(kind) for kind in typing.get_args(Requests)]
REPLIES = [sample(kind, number) for kind in typing.get_args(Replies) for number in (7, 8)]
LENGTHS = st.sampled_from([-(2**31), -1, 0, 1, MAX_FRAME_BYTES, MAX_FRAME_BYTES + 1, 2**31 - 1]) | st.integers(-9, 99)


def fits(reply: Message, request: Request) -> bool:
    """Whether this is an answer to that."""
    if isinstance(reply, Failed):
        return True
    both = [name for name in MATCHED if hasattr(reply, name) and hasattr(request, name)]
    return type(reply) is request.reply and all(getattr(reply, name) == getattr(request, name) for name in both)


# Hostile bytes, with hypothesis


@st.composite
def mutated(draw: Any, frames: list[bytes]) -> bytes:
    """Some frames with bytes changed, cut out, put in or given twice."""
    data = bytearray(b"".join(draw(st.lists(st.sampled_from(frames), min_size=1, max_size=3))))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        match draw(st.sampled_from(["change", "cut", "put", "twice", "end"])):
            case "change":
                data[at : at + 1] = bytes([draw(st.integers(0, 255))])
            case "cut":
                del data[at : at + draw(st.integers(1, 9))]
            case "put":
                data[at:at] = draw(st.binary(max_size=9))
            case "twice":
                data[at:at] = data[at : at + draw(st.integers(1, 40))]
            case "end":
                del data[at:]
    return bytes(data)


def hostile(frames: list[bytes]) -> st.SearchStrategy[bytes]:
    framed = st.builds(lambda data: struct.pack("!i", len(data)) + data, st.binary(max_size=60))
    wrong = st.builds(lambda length, data: struct.pack("!i", length) + data[4:], LENGTHS, st.sampled_from(frames))
    return st.binary(max_size=80) | framed | wrong | mutated(frames)


FROM_WORKER = [frame(reply) for reply in [*REPLIES, FAILED, LOG]]
FROM_COORDINATOR = [frame(request) for request in REQUESTS]


# The coordinator's side


class Line:
    """An open pipe, and the raw socket of its peer."""

    def __init__(self) -> None:
        self.ours, self.far = socket.socketpair()
        self.lines: list[LogLine] = []
        self.pipe = Pipe("collector 3", self.ours, self.lines.append)

    async def ask(self, request: Request) -> asyncio.Future[Message]:
        self.far.sendall(frame(Ready(pid=1)))
        assert await self.pipe.first() == Ready(pid=1)
        return await self.pipe.send(request)


@contextlib.asynccontextmanager
async def opened() -> AsyncIterator[Line]:
    line = Line()
    with line.far:
        await line.pipe.open()
        try:
            async with asyncio.timeout(SOON_S):
                yield line
        finally:
            await line.pipe.close()
            assert line.pipe._lost.done()


async def closed_by(line: Line, data: bytes) -> ProtocolError | None:
    """Send the last bytes and wait for the end of the pipe; return what it says."""
    with contextlib.suppress(ConnectionError):
        line.far.sendall(data)
        line.far.shutdown(socket.SHUT_WR)
    await line.pipe.closed
    broken = line.pipe.broken
    assert broken is None or (type(broken) is ProtocolError and "\n" not in str(broken) and str(broken))
    return broken


@pytest.fixture(params=LOOPS)
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    """One loop for thousands of cases; whatever it would only log is an error."""
    said: list[dict[str, Any]] = []
    with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: said.append(context))
        yield runner
    assert said == []


def test_hostile_bytes_give_the_right_reply_or_break_the_pipe(runner: asyncio.Runner) -> None:
    async def case(request: Any, data: bytes) -> None:
        async with opened() as line:
            answer = await line.ask(request)
            await closed_by(line, data)
            if answer.done():
                assert fits(answer.result(), request)

    @settings(max_examples=1500, deadline=None, derandomize=True, database=None)
    @given(st.sampled_from(REQUESTS), hostile(FROM_WORKER))
    def check(request: Any, data: bytes) -> None:
        runner.run(case(request, data))

    check()


def test_hostile_bytes_in_place_of_ready(runner: asyncio.Runner) -> None:
    async def case(data: bytes) -> None:
        async with opened() as line:
            first = line.pipe.first()
            await closed_by(line, data)
            assert not first.done() or type(first.result()).__name__ in ("Ready", "Refused", "Failed")

    @settings(max_examples=500, deadline=None, derandomize=True, database=None)
    @given(hostile(FROM_WORKER))
    def check(data: bytes) -> None:
        runner.run(case(data))

    check()


def test_replies_in_any_order_and_number(runner: asyncio.Runner) -> None:
    """Each request hears a few whole replies: the first must fit, and none may follow it before the next request."""

    async def case(exchanges: list[tuple[Any, list[Message]]]) -> None:
        async with opened() as line:
            line.far.sendall(frame(Ready(pid=1)))
            await line.pipe.first()
            for request, replies in exchanges:
                answer = await line.pipe.send(request)
                line.far.sendall(b"".join(map(frame, [LOG, *replies])))
                answers = [reply for reply in replies if not isinstance(reply, LogLine)]
                if len(answers) == 1 and fits(answers[0], request):
                    assert await answer == answers[0]
                    continue
                broken = await closed_by(line, b"")
                assert answer.done() == bool(answers and fits(answers[0], request))
                # A worker that failed owes nothing more, and may say so again.
                if any(not isinstance(reply, Failed) for reply in answers):
                    assert broken is not None and "collector 3: " in str(broken)
                return
            assert await closed_by(line, b"") is None

    right = [frame_of for request in REQUESTS for frame_of in [(request, [sample(request.reply)])]]
    some = st.tuples(st.sampled_from(REQUESTS), st.lists(st.sampled_from([*REPLIES, FAILED, LOG]), max_size=3))
    twice = st.sampled_from([(request, replies * 2) for request, replies in right])

    @settings(max_examples=800, deadline=None, derandomize=True, database=None)
    @given(st.lists(st.sampled_from(right), max_size=6), some | twice)
    def check(good: list[Any], last: Any) -> None:
        runner.run(case([*good, last]))

    check()


@pytest.mark.parametrize("field", MATCHED)
def test_every_reply_of_another_tick_slot_or_version_is_refused(runner: asyncio.Runner, field: str) -> None:
    async def case(request: Any) -> None:
        reply = sample(request.reply)
        for number in (6, 8, 0, -7, 2**63 - 1):
            async with opened() as line:
                answer = await line.ask(request)
                broken = await closed_by(line, frame(msgspec.structs.replace(reply, **{field: number})))
                assert broken is not None and f"of {field} {number} in answer to" in str(broken)
                assert "collector 3: " in str(broken) and not answer.done()

    matched = [each for each in REQUESTS if hasattr(each, field) and hasattr(sample(each.reply), field)]
    assert matched
    for request in matched:
        runner.run(case(request))


def nested(depth: int, kind: str = "Attached") -> bytes:
    """A message whose kind comes after a field of another version, nested without end."""
    data = b"\x82\xa1x" + b"\x91" * depth + b"\xc0" + b"\xa4type" + msgspec.msgpack.encode(kind)
    return struct.pack("!i", len(data)) + data


@pytest.mark.parametrize("depth", [10, 1000, 100_000, 1_000_000])
async def test_a_frame_nested_without_end_breaks_the_pipe(depth: int) -> None:
    async with opened() as line:
        answer = await line.ask(REQUESTS[0])
        sending = threading.Thread(target=lambda: contextlib.suppress(OSError) and line.far.sendall(nested(depth)))
        sending.start()
        await line.pipe.closed
        await asyncio.to_thread(sending.join)
        assert type(line.pipe.broken) is ProtocolError and not answer.done()
    await asyncio.get_running_loop().shutdown_default_executor()


@pytest.mark.parametrize("data", [b"\x00\x00\x00\x05wrong", struct.pack("!i", 50) + b"\xff" * 99, b"\xff" * 9])
async def test_a_broken_pipe_says_whose_it_is(data: bytes) -> None:
    async with opened() as line:
        await line.ask(REQUESTS[0])
        assert "collector 3" in str(await closed_by(line, data))


@pytest.mark.parametrize("start", [b"\xff\xff\xff\xff", struct.pack("!i", MAX_FRAME_BYTES), b""], ids=repr)
async def test_a_peer_that_never_stops_fills_no_memory(start: bytes) -> None:
    """What a pipe takes in is bounded, whether it still waits for a frame's end or has given up."""
    async with opened() as line:
        await line.ask(REQUESTS[0])
        line.far.setblocking(False)
        line.far.send(start)
        taken = turns = 0
        while turns < 50:
            try:
                taken += line.far.send(b"\xff" * 65536)
                turns = 0
            except BlockingIOError:
                turns += 1
            except ConnectionError:
                break
            assert taken < 4 * MAX_FRAME_BYTES
            await asyncio.sleep(0)  # let the other side read
        assert line.pipe.broken is not None


@pytest.mark.parametrize(
    "line",
    [
        *(LogLine(level, "x") for level in ("", "notset", "NOTSET", "warn", "fatal", "trace", "10", "é", "x" * 9999)),
        *(LogLine("info", "x", ((name, "y"),)) for name in ("", "self", "event", "level", "method_name", "exc_info")),
        *(
            LogLine("info", "x", ((name, "y"),))
            for name in ("stack_info", "extra", "args", "msg", "name", "positional")
        ),
        LogLine("error", "%s %d {x} \0 \x1b[2J", (("%s", "%"),)),
        LogLine("info", "x", (("a", "b"), ("a", "c"))),
        LogLine("info", "x" * 200_000, tuple((f"n{number}", "y") for number in range(2000))),
    ],
    ids=lambda line: f"{line.level[:9]} {line.fields[0][0] if line.fields else ''}",
)
async def test_no_log_line_ends_the_reading(line: LogLine) -> None:
    kept: list[Any] = []
    log = RunLog(kept.append)
    ours, far = socket.socketpair()
    pipe = Pipe("collector 3", ours, lambda line: log.from_worker("collector", 3, 1, line))
    with far:
        await pipe.open()
        try:
            async with asyncio.timeout(SOON_S):
                first = pipe.first()
                # Two calls: a large line fills the socket.
                await asyncio.get_running_loop().run_in_executor(None, far.sendall, frame(line) + frame(Ready(pid=1)))
                await asyncio.wait([first, pipe.closed], return_when=asyncio.FIRST_COMPLETED)
                assert first.done() and len(kept) == 1
        finally:
            await pipe.close()
            await asyncio.get_running_loop().shutdown_default_executor()


# The worker's side

SETTINGS = small_settings().model_dump_json()
START = Start("collector", 3, "tests.runtime.hostile_service:Small", SETTINGS, 1, None, None)


def said_by_worker(data: bytes, *, hang_up: bool = False) -> list[Any]:
    """Have a worker's loop read these bytes and then the end; return what it said after Ready."""
    near, far = socket.socketpair()
    channel = WorkerChannel(Connection(far.detach()))
    thread = threading.Thread(target=serve, args=(START, channel))
    thread.start()
    heard = bytearray()
    with near:
        near.settimeout(SOON_S)
        with contextlib.suppress(ConnectionError):
            near.sendall(data)
        if not hang_up:
            near.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionError):
                while part := near.recv(1 << 16):
                    heard += part
    thread.join(SOON_S)
    assert not thread.is_alive()
    said = []
    while heard:
        (length,) = struct.unpack("!i", heard[:4])
        said.append(decode_reply(bytes(heard[4 : 4 + length])))
        del heard[: 4 + length]
    assert hang_up or isinstance(said.pop(0), Ready)
    return said


def assert_failed(said: list[Any], *before: Message) -> None:
    assert said[: len(before)] == list(before)
    assert [type(each) for each in said[len(before) :]] == [Failed], said
    assert said[-1].error == "ProtocolError" and said[-1].message, said[-1]


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(hostile(FROM_COORDINATOR))
def test_hostile_requests_are_answered_with_a_failure_or_an_end(data: bytes) -> None:
    *before, last = said_by_worker(data) or [Stopped()]
    assert all(isinstance(each, Published | Restored) for each in before)
    if isinstance(last, Failed):
        is_of_service = last.error == "ValueError" and last.message.startswith("no ")
        assert is_of_service or (last.error == "ProtocolError" and last.message), last
    else:
        assert isinstance(last, Published | Restored | Stopped)


@settings(max_examples=20, deadline=None, derandomize=True, database=None)
@given(hostile(FROM_COORDINATOR))
def test_a_coordinator_that_sends_bytes_and_hangs_up_leaves_no_worker(data: bytes) -> None:
    assert said_by_worker(data, hang_up=True) == []


@pytest.mark.parametrize("length", [-(2**31), -2, -1, 0, MAX_FRAME_BYTES + 1, 2**31 - 1])
def test_a_request_of_an_impossible_length_is_refused(length: int) -> None:
    data = frame(Publish(3)) + struct.pack("!i", length) + b"\x7f" * 64
    assert_failed(said_by_worker(data), Published(3))


@pytest.mark.parametrize("cut", [1, 3, 5, -1])
def test_half_a_request_is_refused_and_no_reason_to_wait(cut: int) -> None:
    data = frame(Publish(3)) + frame(Restore("somewhere"))[:cut]
    assert_failed(said_by_worker(data), Published(3))


@pytest.mark.parametrize("depth", [10, 1000, 100_000])
def test_a_request_nested_without_end_is_refused(depth: int) -> None:
    assert_failed(said_by_worker(frame(Publish(3)) + nested(depth, "Publish")), Published(3))


@pytest.mark.parametrize("reply", [Ready(pid=1), Published(3), FAILED, LOG], ids=lambda reply: type(reply).__name__)
def test_a_reply_is_no_request(reply: Message) -> None:
    assert_failed(said_by_worker(frame(Publish(3)) + frame(reply)), Published(3))


def test_a_request_twice_is_two_requests_and_what_follows_stop_is_not_read() -> None:
    data = frame(Publish(3)) * 3 + frame(Stop()) * 2 + b"\xff" * 99
    assert said_by_worker(data) == [Published(3)] * 3 + [Stopped()]


# Whole runs, with real processes

WRONG = {
    "wrong type": (ProtocolError, "Restored in answer to"),
    "wrong tick": (ProtocolError, "of tick 7 in answer to"),
    "twice": (ProtocolError, "without a request|in answer to"),
    "closes": (WorkerCrashedError, "closed its pipe but runs on"),
    "leaves": (WorkerCrashedError, "exited with code 0"),
    "garbage": (ProtocolError, "is no message"),
    "nested": (ProtocolError, "is no message"),
    "2 GiB": (ProtocolError, "a frame of 2147483647 bytes"),
    "half": (WorkerStalledError, "did not answer"),
    "flood": (WorkerStalledError, "did not answer"),
}
DEADLINES = ("runtime.deadline_s=3", "runtime.first_deadline_s=4")


async def outcome_of(run_dir: Path, plan: Plan, algorithm: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    for key in SERVICES:
        monkeypatch.setitem(SERVICES, key, HOSTILE)
    settings = small_settings(*DEADLINES, algorithm=algorithm)
    try:
        async with asyncio.timeout(15), Run(settings, run_dir=run_dir, env_factory=plan) as run:
            return await run.wait()
    finally:
        assert_no_tasks()


@pytest.mark.parametrize(
    ("what", "role", "algorithm"),
    [(what, ("collector", "learner")[number % 2], "sac") for number, what in enumerate(WRONG)]
    + [
        pytest.param(what, ("learner", "collector")[number % 2], "sac", marks=pytest.mark.slow)
        for number, what in enumerate(WRONG)
    ]
    + [("twice", "learner", "appo"), ("garbage", "collector", "appo"), ("half", "learner", "appo")],
)
def test_a_worker_that_answers_something_else_ends_the_run(
    run_dir: Path, what: str, role: str, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, words = WRONG[what]
    with pytest.raises(AiorlError, match=f"{role} 0.*({words})") as caught:
        asyncio.run(outcome_of(run_dir, Plan(role, what), algorithm, monkeypatch))
    assert type(caught.value) is kind
    status = json.loads((run_dir / "status.json").read_text())
    assert status["state"] == "failed" and status["error"]["worker"]["role"] == role


@pytest.mark.parametrize("what", ["no files", "a file that is not there", ".."])
def test_a_worker_that_did_not_save_what_it_says_makes_no_checkpoint(
    run_dir: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ProtocolError, match=r"Saved without a file|did not save what it says"):
        asyncio.run(outcome_of(run_dir, Plan("learner", what), "sac", monkeypatch))
    status = json.loads((run_dir / "status.json").read_text())
    assert status["state"] == "failed"
    assert not (run_dir / "checkpoints" / "latest").exists()


def test_a_collector_that_does_not_say_what_its_env_is(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ProtocolError, match="collector 0: Ready without a spec"):
        asyncio.run(outcome_of(run_dir, Plan("collector", "no spec"), "sac", monkeypatch))


def test_a_worker_that_has_much_to_say_is_heard_out(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = asyncio.run(outcome_of(run_dir, Plan("learner", "long log"), "sac", monkeypatch))
    assert outcome.state == "completed"
    assert (run_dir / "log.jsonl").read_text().count("x" * 1000) == 3000
