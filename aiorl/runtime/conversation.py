"""The rules of talking to one worker, without I/O: one request at a time, and the reply that belongs to it."""

from __future__ import annotations

from aiorl.errors import ProtocolError
from aiorl.protocol import Failed, Message, Ready, Refused, Request


class Conversation:
    """Keeps track of what a worker owes; it owes its first message from the start."""

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._pending: Request | None = None
        self._is_ready = False
        self._is_over = False

    def ask(self, request: Request) -> None:
        """Note that a request is about to be sent.

        Raises:
            ProtocolError: the worker is not ready, or still owes another reply.

        """
        if not self._is_ready:
            raise ProtocolError(f"{self._worker}: {_name(request)} before it was ready")
        if self._pending is not None:
            raise ProtocolError(f"{self._worker}: {_name(request)} while {_name(self._pending)} is unanswered")
        self._pending = request

    def hear(self, reply: Message) -> None:
        """Check a reply against what is owed, and settle it.

        Raises:
            ProtocolError: nothing is owed, or something else is.

        """
        if not self._is_ready:
            if self._is_over or not isinstance(reply, (Ready, Refused, Failed)):
                raise ProtocolError(f"{self._worker}: {_name(reply)} before Ready")
            self._is_ready = isinstance(reply, Ready)
            self._is_over = not self._is_ready
            return
        if isinstance(reply, Failed):
            self._pending = None
            return
        request = self._pending
        if request is None:
            raise ProtocolError(f"{self._worker}: {_name(reply)} without a request")
        if type(reply) is not request.reply:
            raise ProtocolError(f"{self._worker}: {_name(reply)} in answer to {_name(request)}")
        for field in ("tick", "slot", "weight_version"):
            asked, answered = getattr(request, field, None), getattr(reply, field, None)
            if hasattr(reply, field) and hasattr(request, field) and asked != answered:
                raise ProtocolError(
                    f"{self._worker}: {_name(reply)} of {field} {answered} in answer to {_name(request)} of {asked}"
                )
        self._pending = None


def _name(message: Message) -> str:
    return type(message).__name__
