"""Cycles of a trace made by hand; every expected number is worked out in the margin."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorl.errors import StorageError
from aiorl.telemetry.trace.cycles import Cycles
from aiorl.telemetry.trace.drawing import draw_cycle
from aiorl.telemetry.trace.merging import Recorded
from aiorl.telemetry.trace.report import overlap_lines, typical
from aiorl.telemetry.trace.slices import Slice

MS = 1_000_000


def thread(process: str, *spans: tuple[str, str, int, int, int], name: str = "main") -> Recorded:
    """Slices of (phase, request, tick, begin ms, end ms), each half of its time on the CPU."""
    slices = [Slice(p, r, t, b * MS, e * MS, (e - b) * MS // 2) for p, r, t, b, e in spans]
    return Recorded(process, name, slices)


def made_by_hand() -> list[Recorded]:
    # ms        0     10    20    30    40    50    60
    # learner   upd1  |wait |  update 2   |w| update 3|
    # collector chunk2      |wait| chunk 3   | wait   |
    return [
        thread(
            "learner 0",
            ("critic", "Update", 1, 0, 10),
            ("wait", "Update", 2, 10, 20),
            ("critic", "Update", 2, 20, 35),
            ("publish", "Update", 2, 35, 40),
            ("wait", "Update", 3, 40, 45),
            ("critic", "Update", 3, 45, 60),
        ),
        thread(
            "collector 0",
            ("env_step", "CollectChunk", 2, 0, 15),
            ("pack", "PackBatch", 2, 15, 18),
            ("wait", "CollectChunk", 3, 18, 25),
            ("env_step", "CollectChunk", 3, 25, 43),
            ("wait", "CollectChunk", 4, 43, 60),
        ),
        thread("coordinator", ("report", "", 1, 11, 12), ("report", "", 2, 41, 43), name="loop"),
    ]


def test_time_by_phase_is_cut_at_the_bounds_of_cycles() -> None:
    cycles = Cycles(made_by_hand())
    assert cycles.ticks == [2, 3]
    assert cycles.length_ms.tolist() == [30, 20]  # 10 to 40, 40 to 60
    collector, learner = cycles.workers
    assert (collector.name, learner.name) == ("collector 0", "learner 0")
    spent = {phase: ms.tolist() for phase, ms in cycles.phase_ms(collector).items()}
    assert spent == {"env_step": [5 + 15, 3], "pack": [3, 0], "wait": [7, 17]}
    spent = {phase: ms.tolist() for phase, ms in cycles.phase_ms(learner).items()}
    assert spent == {"critic": [15, 15], "wait": [10, 5], "publish": [5, 0]}
    assert cycles.cpu_ms(learner).tolist() == [15, 10]
    assert {phase: ms.tolist() for phase, ms in cycles.coordinator_ms().items()} == {"report": [1, 2]}


def test_who_waited_for_whom() -> None:
    cycles = Cycles(made_by_hand())
    collector, learner = cycles.workers
    waits = {reason: ms.tolist() for reason, ms in cycles.together.waits(learner).items()}
    assert waits == {"for collectors": [8, 3], "for messages": [2, 2]}  # 10-18, 40-43; 18-20, 43-45
    waits = {reason: ms.tolist() for reason, ms in cycles.together.waits(collector).items()}
    assert waits == {"for the learner": [5, 15], "for other collectors": [0, 0], "for messages": [2, 2]}


def test_overlap() -> None:
    # Of 50 ms: both 15 (25-40); learner alone 5 + 15; collector alone 8 + 3; nobody 2 + 2.
    lines = overlap_lines(Cycles(made_by_hand()))
    assert lines[0] == "overlap: both sides busy 30.0%, only the learner 40.0%, only collectors 22.0%, nobody 8.0%"
    # 30 ms over max(20, 23) and 20 over max(15, 3); 30 over 43 and 20 over 18.
    assert lines[1].startswith(f"cycle / the busiest process in it: {np.median([30 / 23, 20 / 15]):.3f}")
    assert lines[2].startswith(f"cycle / (collectors + learner): {np.median([30 / 43, 20 / 18]):.3f}")


def test_with_two_collectors_one_may_wait_for_the_other() -> None:
    recorded = made_by_hand()
    recorded.append(thread("collector 1", ("env_step", "CollectChunk", 2, 0, 12), ("wait", "CollectChunk", 3, 12, 60)))
    cycles = Cycles(recorded)
    waits = {reason: ms.tolist() for reason, ms in cycles.together.waits(cycles.workers[1]).items()}
    assert waits == {"for the learner": [20, 15], "for other collectors": [6, 3], "for messages": [2, 2]}


def test_without_updates_collected_ticks_are_the_cycles() -> None:
    cycles = Cycles([made_by_hand()[1]])
    assert (cycles.bounded_by, cycles.ticks, cycles.length_ms.tolist()) == ("collected tick", [3], [28])  # 15 to 43


def test_cycles_that_a_process_has_not_kept_are_left_out() -> None:
    recorded = made_by_hand()
    recorded[1] = Recorded("collector 0", "main", recorded[1].slices[3:])  # begins at 25 ms
    assert Cycles(recorded).ticks == [3]


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_too_short_a_trace_is_said_to_be_one(kept: int) -> None:
    with pytest.raises(StorageError, match="cycle"):
        Cycles([Recorded("learner 0", "main", made_by_hand()[0].slices[:kept])])


@given(st.lists(st.tuples(st.sampled_from(["wait", "critic", "actor"]), st.integers(1, 50)), min_size=4, max_size=60))
def test_phases_sum_to_the_cycle_where_every_moment_has_one(spans: list[tuple[str, int]]) -> None:
    now, slices = 0, []
    for number, (phase, length) in enumerate(spans):
        slices.append(Slice(phase, "Update", number // 2, now, now + length * MS, 0))
        now += length * MS
    ends = {each.tick: each.end_ns for each in slices if each.name != "wait"}
    recorded = [Recorded("learner 0", "main", slices)]
    if len(ends) < 2:
        return
    cycles = Cycles(recorded)
    total = sum(cycles.phase_ms(cycles.workers[0]).values())
    assert np.allclose(total, cycles.length_ms, atol=1e-6)
    both = cycles.together
    waited = sum(both.waits(cycles.workers[0]).values())
    assert np.allclose(waited + both.ms(both.learner), cycles.length_ms, atol=1e-6)


def test_the_cycle_to_draw_is_a_typical_one_and_has_to_be_there(tmp_path: Path) -> None:
    recorded = made_by_hand()
    cycles = Cycles(recorded)
    assert typical(cycles) == 3
    with pytest.raises(StorageError, match="holds cycles 2 to 3, not 9"):
        draw_cycle(cycles, recorded, 9, tmp_path / "trace.png")
