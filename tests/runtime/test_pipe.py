"""The pipe against what is at its other end: a stock blocking connection, or raw bytes that are no frames."""

import asyncio
import os
import socket
import struct
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection

import pytest

from aiorl.errors import ProtocolError
from aiorl.protocol import (
    MAX_FRAME_BYTES,
    Attach,
    Attached,
    Failed,
    LogLine,
    Message,
    Publish,
    Published,
    Ready,
    Restore,
    Restored,
    Save,
    Saved,
    Stop,
    Stopped,
    decode_request,
    encode,
)
from aiorl.runtime.pipe import Pipe

BIG = 300_000  # more than a stream's buffer and a socket's together


class Line:
    """Our pipe, its far end as a raw socket, and the log lines that came."""

    def __init__(self) -> None:
        self.ours, self.far = socket.socketpair()
        self.logged: list[LogLine] = []
        self.pipe = Pipe("collector 3", self.ours, self._on_log)
        self._logged = asyncio.Event()

    def _on_log(self, line: LogLine) -> None:
        self.logged.append(line)
        self._logged.set()

    async def log_line(self) -> None:
        """Wait until one more log line was read: all bytes before it are read, too."""
        await self._logged.wait()
        self._logged.clear()

    def say(self, *messages: Message) -> None:
        self.far.sendall(b"".join(frame(message) for message in messages))


def frame(message: Message) -> bytes:
    data = encode(message)
    return struct.pack("!i", len(data)) + data


@asynccontextmanager
async def opened() -> AsyncIterator[Line]:
    line = Line()
    with line.far:
        await line.pipe.open()
        try:
            yield line
        finally:
            await line.pipe.close()
    assert line.pipe.closed.done()


@asynccontextmanager
async def with_worker(worker: Callable[[Connection], None]) -> AsyncIterator[Line]:
    """Run `worker` in a thread at the far end, on a connection as workers have it."""
    line = Line()
    connection = Connection(os.dup(line.far.fileno()))
    line.far.close()

    def main() -> None:
        with connection:
            try:
                worker(connection)
            except (EOFError, ConnectionError):
                pass  # we have hung up

    thread = threading.Thread(target=main)
    await line.pipe.open()
    thread.start()
    try:
        yield line
    finally:
        await line.pipe.close()
        thread.join()


def answer_everything(connection: Connection) -> None:
    connection.send_bytes(encode(Ready(pid=1)))
    while True:
        match decode_request(connection.recv_bytes(MAX_FRAME_BYTES)):
            case Publish(slot):
                connection.send_bytes(encode(Published(slot)))
            case Restore(directory):
                connection.send_bytes(encode(LogLine("info", directory[-8:])))
                connection.send_bytes(encode(Restored(directory)))
            case Stop():
                connection.send_bytes(encode(Stopped()))
                return


async def test_many_requests_small_and_large_are_answered() -> None:
    async with with_worker(answer_everything) as line:
        assert await line.pipe.first() == Ready(pid=1)
        for number in range(500):
            assert await (await line.pipe.send(Publish(number))) == Published(number)
            if number % 20 == 0:
                text = f"{number:08}" * (number * BIG // 4000)
                assert await (await line.pipe.send(Restore(text))) == Restored(text)
        assert await (await line.pipe.send(Stop())) == Stopped()
        await line.pipe.closed
        assert line.pipe.broken is None
    assert [logged.event for logged in line.logged] == ["", *(f"{number:08}" for number in range(20, 500, 20))]


async def test_log_lines_may_come_at_any_time() -> None:
    def worker(connection: Connection) -> None:
        for _ in range(3):
            connection.send_bytes(encode(LogLine("info", "early")))
        connection.send_bytes(encode(Ready(pid=1)))
        connection.send_bytes(encode(LogLine("info", "idle")))
        connection.recv_bytes()
        connection.send_bytes(encode(LogLine("info", "busy", (("a", "b"),))))
        connection.send_bytes(encode(Attached()))
        connection.send_bytes(encode(LogLine("info", "late")))

    async with with_worker(worker) as line:
        await line.pipe.first()
        await (await line.pipe.send(Attach(1)))
        await line.pipe.closed
        assert line.pipe.broken is None
    assert [each.event for each in line.logged] == ["early"] * 3 + ["idle", "busy", "late"]
    assert line.logged[4] == LogLine("info", "busy", (("a", "b"),))


@pytest.mark.parametrize("cut", [1, 3, 4, 5, 10])
async def test_a_frame_may_come_in_pieces(cut: int) -> None:
    async with opened() as line:
        first = line.pipe.first()
        data = frame(Ready(pid=12345))
        line.far.sendall(frame(LogLine("info", "now")) + data[:cut])
        await line.log_line()
        assert not first.done()
        line.far.sendall(data[cut:] + frame(LogLine("info", "then"))[:-1])
        assert await first == Ready(pid=12345)
        assert len(line.logged) == 1
        assert not line.pipe.closed.done()


async def test_a_large_frame_may_come_byte_by_byte_and_others_behind_it() -> None:
    async with opened() as line:
        first = line.pipe.first()
        data = frame(Ready(pid=1))
        for number in range(len(data)):
            line.far.sendall(data[number : number + 1])
        await first
        answer = await line.pipe.send(Attach(1))
        line.say(LogLine("info", "x" * 60_000), Attached(), LogLine("info", "behind"))
        assert await answer == Attached()
        while len(line.logged) < 2:
            await line.log_line()


@pytest.mark.parametrize("cut", [0, 1, 4, 5, -1])
async def test_the_end_in_the_middle_of_a_frame_is_an_end(cut: int) -> None:
    async with opened() as line:
        first = line.pipe.first()
        line.far.sendall(frame(Ready(pid=1))[:cut])
        line.far.close()
        await line.pipe.closed
        assert line.pipe.broken is None
        assert not first.done()


async def test_the_last_word_of_a_worker_is_heard_before_its_end() -> None:
    async with opened() as line:
        line.say(Ready(pid=1))
        await line.pipe.first()
        answer = await line.pipe.send(Attach(1))
        failed = Failed("RuntimeError", "no", "x" * 50_000)
        line.say(failed)
        line.far.close()
        await line.pipe.closed
        assert answer.result() == failed
        assert line.pipe.broken is None


@pytest.mark.parametrize("length", [MAX_FRAME_BYTES + 1, 2**31 - 1, -1, -(2**31)])
async def test_an_impossible_length_breaks_the_pipe(length: int) -> None:
    async with opened() as line:
        first = line.pipe.first()
        line.far.sendall(struct.pack("!i", length) + b"x" * 100)
        await line.pipe.closed
        assert isinstance(line.pipe.broken, ProtocolError)
        assert f"collector 3: a frame of {length} bytes" in str(line.pipe.broken)
        assert not first.done()


async def test_the_largest_frame_is_taken() -> None:
    async with opened() as line:
        line.say(Ready(pid=1))
        await line.pipe.first()
        answer = await line.pipe.send(Restore("x"))
        overhead = len(encode(Restored("x" * 10**6))) - 10**6
        note = "x" * (MAX_FRAME_BYTES - overhead)
        sending = asyncio.get_running_loop().run_in_executor(None, line.say, Restored(note))
        assert await answer == Restored(note)
        await sending
        await asyncio.get_running_loop().shutdown_default_executor()


@pytest.mark.parametrize("data", [b"", b"\x00", b"\xff" * 50, b"\x81\xa4type\xa4Nope", encode(Stop())])
async def test_bytes_that_are_no_reply_break_the_pipe(data: bytes) -> None:
    async with opened() as line:
        first = line.pipe.first()
        line.far.sendall(struct.pack("!i", len(data)) + data)
        await line.pipe.closed
        assert isinstance(line.pipe.broken, ProtocolError)
        assert not first.done()


async def test_a_reply_before_ready_breaks_the_pipe() -> None:
    async with opened() as line:
        first = line.pipe.first()
        line.say(Attached())
        await line.pipe.closed
        assert "collector 3: Attached before Ready" in str(line.pipe.broken)
        assert not first.done()


@pytest.mark.parametrize("reply", [Stopped(), Saved(8, ()), Ready(pid=1)])
async def test_a_reply_that_was_not_asked_for_breaks_the_pipe(reply: Message) -> None:
    async with opened() as line:
        line.say(Ready(pid=1))
        await line.pipe.first()
        answer = await line.pipe.send(Save(7, "somewhere"))
        line.say(reply)
        await line.pipe.closed
        assert isinstance(line.pipe.broken, ProtocolError)
        assert not answer.done()


async def test_a_reply_out_of_turn_breaks_the_pipe() -> None:
    async with opened() as line:
        line.say(Ready(pid=1), Attached())
        await line.pipe.first()
        await line.pipe.closed
        assert "collector 3: Attached without a request" in str(line.pipe.broken)


async def test_what_must_not_be_asked_is_not_sent() -> None:
    async with opened() as line:
        with pytest.raises(ProtocolError, match="before it was ready"):
            await line.pipe.send(Attach(1))
        line.say(Ready(pid=1))
        await line.pipe.first()
        answer = await line.pipe.send(Attach(1))
        with pytest.raises(ProtocolError, match="while Attach is unanswered"):
            await line.pipe.send(Stop())
        line.say(Attached())
        assert await answer == Attached()
        line.far.setblocking(False)
        assert line.far.recv(1000) == frame(Attach(1))
        with pytest.raises(BlockingIOError):
            line.far.recv(1000)


async def test_a_request_that_is_too_large_is_not_sent_and_owes_no_reply() -> None:
    async with opened() as line:
        line.say(Ready(pid=1))
        await line.pipe.first()
        with pytest.raises(ProtocolError, match="Save has"):
            await line.pipe.send(Save(1, "x" * (MAX_FRAME_BYTES + 1)))
        answer = await line.pipe.send(Stop())
        line.say(Stopped())
        assert await answer == Stopped()


async def test_asking_a_peer_that_is_gone_gives_an_answer_that_never_comes() -> None:
    async with opened() as line:
        line.say(Ready(pid=1))
        await line.pipe.first()
        line.far.close()
        await line.pipe.closed
        answer = await line.pipe.send(Save(1, "x" * BIG))
        assert not answer.done()
        assert line.pipe.broken is None


async def test_a_peer_that_goes_while_a_request_is_on_its_way_closes_the_pipe() -> None:
    async with opened() as line:
        line.say(Ready(pid=1))
        await line.pipe.first()
        sending = asyncio.create_task(line.pipe.send(Save(1, "x" * 900_000)))
        await asyncio.sleep(0)  # it is under way now, and fills the socket
        line.far.close()
        answer = await sending
        await line.pipe.closed
        assert not answer.done()
        assert line.pipe.broken is None


async def test_closing_does_not_wait_for_a_peer_that_reads_no_more() -> None:
    async with opened() as line:
        line.say(Ready(pid=1))
        await line.pipe.first()
        sending = asyncio.create_task(line.pipe.send(Save(1, "x" * 900_000)))
        await asyncio.sleep(0)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        closing = asyncio.create_task(line.pipe.close())
        for _ in range(200):
            await asyncio.sleep(0)
        is_closed = closing.done()
        line.far.close()  # whatever it may wait for ends here
        await closing
        assert is_closed


async def test_closing_twice_is_closing_once() -> None:
    async with opened() as line:
        await line.pipe.close()
        assert line.pipe.closed.done()
        assert line.far.recv(10) == b""


async def test_a_pipe_that_was_never_opened_can_be_closed() -> None:
    line = Line()
    with line.far, line.ours:
        await line.pipe.close()
        assert line.far.recv(10) == b""


async def test_a_pipe_whose_opening_was_cancelled_can_be_closed() -> None:
    line = Line()
    with line.far, line.ours:
        opening = asyncio.create_task(line.pipe.open())
        await asyncio.sleep(0)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        await line.pipe.close()
        assert line.far.recv(10) == b""
