"""One owner per slot, whatever is asked of the ledger."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from aiorl.coordinator.ledger import SlotLedger
from aiorl.errors import ProtocolError

# The ledger against a model of it

WORKERS = ("a", "b", "c")
SLOTS = 3
workers = st.sampled_from(WORKERS)
groups = st.sets(workers, min_size=1)
slots = st.integers(0, SLOTS - 1)
contents = st.integers(0, 6)


@dataclass
class Held:
    content: int
    writers: set[str]
    readers: set[str] = field(default_factory=set)

    @property
    def is_idle(self) -> bool:
        return not self.writers and not self.readers


class LedgerMachine(RuleBasedStateMachine):
    """Every call is tried, allowed or not: it does what it should, or raises and changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = SlotLedger("batch", SLOTS)
        self.held: dict[int, Held] = {}

    def attempt(self, is_allowed: bool, action: Callable[[], Any]) -> Any:
        if is_allowed:
            return action()
        with pytest.raises(ProtocolError, match="batch"):
            action()
        return None

    def is_held(self, content: int) -> bool:
        return any(held.content == content for held in self.held.values())

    @rule(content=contents, writers=groups)
    def claim(self, content: int, writers: set[str]) -> None:
        is_allowed = len(self.held) < SLOTS and not self.is_held(content)
        slot = self.attempt(is_allowed, lambda: self.ledger.claim(content, iter(writers)))
        if is_allowed:
            assert slot in set(range(SLOTS)) - self.held.keys()
            self.held[slot] = Held(content, set(writers))

    @rule(slot=slots, writer=workers)
    def written(self, slot: int, writer: str) -> None:
        is_allowed = slot in self.held and writer in self.held[slot].writers
        self.attempt(is_allowed, lambda: self.ledger.written(slot, writer))
        if is_allowed:
            self.held[slot].writers.discard(writer)

    @rule(slot=slots)
    def written_by_all(self, slot: int) -> None:
        if slot in self.held:
            for writer in sorted(self.held[slot].writers):
                self.written(slot, writer)

    @rule(slot=slots, readers=groups)
    def lend(self, slot: int, readers: set[str]) -> None:
        held = self.held.get(slot)
        is_allowed = held is not None and not held.writers and not held.readers & readers
        self.attempt(is_allowed, lambda: self.ledger.lend(slot, iter(readers)))
        if is_allowed and held is not None:
            held.readers |= readers

    @rule(slot=slots, reader=workers)
    def returned(self, slot: int, reader: str) -> None:
        is_allowed = slot in self.held and reader in self.held[slot].readers
        self.attempt(is_allowed, lambda: self.ledger.returned(slot, reader))
        if is_allowed:
            self.held[slot].readers.discard(reader)

    @rule(slot=slots)
    def free(self, slot: int) -> None:
        is_allowed = slot not in self.held or self.held[slot].is_idle
        self.attempt(is_allowed, lambda: self.ledger.free(slot))
        if is_allowed:
            self.held.pop(slot, None)

    @rule(content=contents)
    def free_below(self, content: int) -> None:
        older = {slot: held for slot, held in self.held.items() if held.content < content}
        is_allowed = all(held.is_idle for held in older.values())
        self.attempt(is_allowed, lambda: self.ledger.free_below(content))
        for slot, held in older.items():
            if is_allowed:
                del self.held[slot]
            elif held.is_idle and not self.is_found(held.content):
                del self.held[slot]  # freed before it came to the busy one

    def is_found(self, content: int) -> bool:
        try:
            return self.ledger.find(content) >= 0
        except ProtocolError:
            return False

    @invariant()
    def what_is_claimed_is_found_and_nothing_else(self) -> None:
        for content in range(7):
            expected = [slot for slot, held in self.held.items() if held.content == content]
            if expected:
                assert [self.ledger.find(content)] == expected
            else:
                with pytest.raises(ProtocolError, match=f"batch {content} is in no slot"):
                    self.ledger.find(content)


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=100, stateful_step_count=40, deadline=None, derandomize=True)


@pytest.fixture
def ledger() -> SlotLedger:
    return SlotLedger("policy", 2)


def test_a_slot_is_lent_only_when_all_parts_are_written(ledger: SlotLedger) -> None:
    slot = ledger.claim(7, ["collector 0", "collector 1"])
    for writer in ("collector 0", "collector 1"):
        with pytest.raises(ProtocolError, match=f"policy slot {slot} is not full"):
            ledger.lend(slot, ["learner 0"])
        ledger.written(slot, writer)
    ledger.lend(slot, ["learner 0"])


def test_a_slot_that_is_read_is_not_freed(ledger: SlotLedger) -> None:
    slot = ledger.claim(7, ["learner 0"])
    ledger.written(slot, "learner 0")
    ledger.lend(slot, ["collector 0", "collector 1"])
    ledger.returned(slot, "collector 0")
    with pytest.raises(ProtocolError, match="is still with collector 1"):
        ledger.free(slot)
    with pytest.raises(ProtocolError, match="is still with collector 1"):
        ledger.free_below(8)
    ledger.free_below(7)
    assert ledger.find(7) == slot


def test_nothing_is_given_back_that_was_not_had(ledger: SlotLedger) -> None:
    slot = ledger.claim(7, ["learner 0"])
    with pytest.raises(ProtocolError, match="collector 0 gave back policy slot"):
        ledger.written(slot, "collector 0")
    ledger.written(slot, "learner 0")
    for give_back in (ledger.written, ledger.returned):
        with pytest.raises(ProtocolError, match="learner 0 gave back policy slot"):
            give_back(slot, "learner 0")


def test_when_no_slot_is_free_none_is_claimed(ledger: SlotLedger) -> None:
    ledger.claim(1, ["a"])
    ledger.claim(2, ["a"])
    with pytest.raises(ProtocolError, match="no free slot for policy 3"):
        ledger.claim(3, ["a"])
