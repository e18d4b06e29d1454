"""The coordinator's end of a worker's pipe: whole frames over an asyncio transport, replies matched to requests.

The other end is a stock blocking `multiprocessing` connection, so frames are its own: a length of four
bytes, big-endian, then the bytes.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import cast

from aiorl.errors import ProtocolError
from aiorl.protocol import MAX_FRAME_BYTES, LogLine, Message, Replies, Request, decode_reply, encode
from aiorl.runtime.conversation import Conversation

_LENGTH = struct.Struct("!i")


class Pipe(asyncio.Protocol):
    """One worker's pipe. `closed` is done when the other end is gone or has broken the rules.

    A protocol and no stream: a reply wakes who waits for it at once, and not a reader that wakes it a turn of the
    loop later.
    """

    def __init__(self, worker: str, sock: socket.socket, on_log: Callable[[LogLine], None]) -> None:
        self._worker, self._sock, self._on_log = worker, sock, on_log
        self._conversation = Conversation(worker)
        self._answer: asyncio.Future[Message] | None = None
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self.broken: ProtocolError | None = None
        self._buffer = bytearray()
        self._is_open = False
        self._transport: asyncio.Transport | None = None
        self._lost: asyncio.Future[None] = self._loop.create_future()
        self._full: asyncio.Future[None] | None = None

    async def open(self) -> None:
        """Start to read; what the worker says first answers `first`."""
        await self._loop.create_unix_connection(lambda: self, sock=self._sock)
        self._is_open = True

    def first(self) -> asyncio.Future[Message]:
        """Return the future of the worker's first message."""
        return self._expect()

    async def send(self, request: Request) -> asyncio.Future[Message]:
        """Send a request; return the future of its reply, never done if the pipe closes first."""
        data = encode(request)
        self._conversation.ask(request)
        answer = self._expect()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(_LENGTH.pack(len(data)) + data)
            if self._full is not None:
                await asyncio.wait([self._full])
        return answer

    async def close(self) -> None:
        """Close this end and wait until nothing of it is left."""
        if self._transport is not None:
            self._transport.abort()  # nothing that is still unsent matters to anyone now
        if self._is_open:
            await asyncio.wait([self._lost])
        else:  # a loop that was cancelled over the opening may never tell of the end
            self._sock.close()
        self._end()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the open transport."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Take what has come; hear every frame that is whole."""
        if self.closed.done():
            return
        self._buffer += data
        try:
            while len(self._buffer) >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(self._buffer)
                if not 0 <= length <= MAX_FRAME_BYTES:
                    raise ProtocolError(f"{self._worker}: a frame of {length} bytes")
                end = _LENGTH.size + length
                if len(self._buffer) < end:
                    return
                frame = bytes(self._buffer[_LENGTH.size : end])
                del self._buffer[:end]
                self._hear(self._decode(frame))
        except ProtocolError as error:
            self.broken = error
            self._end()
            assert self._transport is not None
            self._transport.pause_reading()  # it may never stop

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end; every way a peer can go means the same: closed."""
        self.resume_writing()
        if not self._lost.done():
            self._lost.set_result(None)
        self._end()

    def pause_writing(self) -> None:
        """Have senders wait: the worker does not read."""
        self._full = self._loop.create_future()

    def resume_writing(self) -> None:
        """Let them go on."""
        if self._full is not None and not self._full.done():
            self._full.set_result(None)
        self._full = None

    def _expect(self) -> asyncio.Future[Message]:
        self._answer = self._loop.create_future()
        return self._answer

    def _decode(self, data: bytes) -> Replies:
        try:
            return decode_reply(data)
        except ProtocolError as error:
            raise ProtocolError(f"{self._worker}: {error}") from error

    def _hear(self, message: Replies) -> None:
        if isinstance(message, LogLine):
            self._on_log(message)
            return
        self._conversation.hear(message)
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(message)

    def _end(self) -> None:
        if not self.closed.done():
            self.closed.set_result(None)
