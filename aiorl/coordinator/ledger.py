"""Who owns which slot: free, being written by one set of workers, full, or being read by another. No I/O."""

from __future__ import annotations

from collections.abc import Iterable

from aiorl.errors import ProtocolError


class SlotLedger:
    """The slots of one kind. A slot's content is named by a number: a tick, or a weight version.

    A slot that several workers write is cut into parts of their own, so each writer is alone on its part.
    """

    def __init__(self, kind: str, slots: int) -> None:
        self._kind = kind
        self._content: list[int | None] = [None] * slots
        self._writers: list[set[str]] = [set() for _ in range(slots)]
        self._readers: list[set[str]] = [set() for _ in range(slots)]

    def claim(self, content: int, writers: Iterable[str]) -> int:
        """Give a free slot to writers; return it.

        Raises:
            ProtocolError: none is free, or the content lies in a slot already.

        """
        if content in self._content:
            raise ProtocolError(f"{self._kind} {content} is in a slot already")
        for slot in range(len(self._content)):
            if self._content[slot] is None:
                self._content[slot], self._writers[slot] = content, set(writers)
                return slot
        raise ProtocolError(f"no free slot for {self._kind} {content}")

    def written(self, slot: int, writer: str) -> None:
        """Note that a writer is done with its part."""
        self._remove(self._writers, slot, writer, "writes")

    def find(self, content: int) -> int:
        """Return the slot that holds a content.

        Raises:
            ProtocolError: none does.

        """
        if content not in self._content:
            raise ProtocolError(f"{self._kind} {content} is in no slot")
        return self._content.index(content)

    def lend(self, slot: int, readers: Iterable[str]) -> None:
        """Let workers read a full slot.

        Raises:
            ProtocolError: it is empty, still being written, or one of them reads it already.

        """
        readers = set(readers)
        if self._content[slot] is None or self._writers[slot]:
            raise ProtocolError(f"{self._kind} slot {slot} is not full: {', '.join(self._writers[slot]) or 'empty'}")
        if readers & self._readers[slot]:
            raise ProtocolError(
                f"{self._kind} slot {slot} is lent to {', '.join(readers & self._readers[slot])} already"
            )
        self._readers[slot] |= readers

    def returned(self, slot: int, reader: str) -> None:
        """Note that a reader is done."""
        self._remove(self._readers, slot, reader, "reads")

    def free(self, slot: int) -> None:
        """Take a slot's content away.

        Raises:
            ProtocolError: somebody still writes or reads it.

        """
        busy = self._writers[slot] | self._readers[slot]
        if busy:
            raise ProtocolError(f"{self._kind} slot {slot} is still with {', '.join(sorted(busy))}")
        self._content[slot] = None

    def free_below(self, content: int) -> None:
        """Free every slot whose content is older than `content`."""
        for slot, held in enumerate(self._content):
            if held is not None and held < content:
                self.free(slot)

    def _remove(self, owners: list[set[str]], slot: int, worker: str, verb: str) -> None:
        if worker not in owners[slot]:
            raise ProtocolError(f"{worker} gave back {self._kind} slot {slot}, which it {verb} not")
        owners[slot].discard(worker)
