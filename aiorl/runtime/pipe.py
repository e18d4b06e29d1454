"""The coordinator's end of a worker's pipe: whole frames over asyncio streams, replies matched to requests.

The other end is a stock blocking `multiprocessing` connection, so frames are its own: a length of four
bytes, big-endian, then the bytes.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable

from aiorl.errors import ProtocolError
from aiorl.protocol import MAX_FRAME_BYTES, LogLine, Message, Replies, Request, decode_reply, encode
from aiorl.runtime.conversation import Conversation

_LENGTH = struct.Struct("!i")


class Pipe:
    """One worker's pipe. `closed` is done when the other end is gone or has broken the rules."""

    def __init__(self, worker: str, sock: socket.socket, on_log: Callable[[LogLine], None]) -> None:
        self._worker, self._sock, self._on_log = worker, sock, on_log
        self._conversation = Conversation(worker)
        self._answer: asyncio.Future[Message] | None = None
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.broken: ProtocolError | None = None
        self._reading: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Start to read; what the worker says first answers `first`."""
        self._reader, self._writer = await asyncio.open_unix_connection(sock=self._sock)
        self._reading = asyncio.create_task(self._read(), name=f"aiorl pipe of {self._worker}")

    def first(self) -> asyncio.Future[Message]:
        """Return the future of the worker's first message."""
        return self._expect()

    async def send(self, request: Request) -> asyncio.Future[Message]:
        """Send a request; return the future of its reply, never done if the pipe closes first."""
        data = encode(request)
        self._conversation.ask(request)
        answer = self._expect()
        try:
            self._writer.write(_LENGTH.pack(len(data)) + data)
            await self._writer.drain()
        except (ConnectionError, OSError):
            pass  # the reading side sees the same end and reports it
        return answer

    async def close(self) -> None:
        """Close this end and wait until nothing of it is left."""
        if self._reading is None:
            self._sock.close()
        else:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
            self._writer.transport.abort()  # nothing that is still unsent matters to anyone now
            try:
                await self._writer.wait_closed()
            except OSError:
                pass  # gone is closed
        if not self.closed.done():
            self.closed.set_result(None)

    def _expect(self) -> asyncio.Future[Message]:
        self._answer = asyncio.get_running_loop().create_future()
        return self._answer

    def _decode(self, data: bytes) -> Replies:
        try:
            return decode_reply(data)
        except ProtocolError as error:
            raise ProtocolError(f"{self._worker}: {error}") from error

    async def _read(self) -> None:
        try:
            while True:
                (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
                if not 0 <= length <= MAX_FRAME_BYTES:
                    raise ProtocolError(f"{self._worker}: a frame of {length} bytes")
                message = self._decode(await self._reader.readexactly(length))
                if isinstance(message, LogLine):
                    self._on_log(message)
                    continue
                self._conversation.hear(message)
                if self._answer is not None and not self._answer.done():
                    self._answer.set_result(message)
        except ProtocolError as error:
            self.broken = error
        except (asyncio.IncompleteReadError, ConnectionError, OSError):
            pass  # every way a peer can go means the same: closed
        finally:
            if not self.closed.done():
                self.closed.set_result(None)
