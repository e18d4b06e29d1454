"""What `aiorl trace` prints: tables of a run's cycles."""

from __future__ import annotations

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from aiorl.telemetry.trace.cycles import LEARNER, Cycles, Milliseconds, Worker

PERCENTILES = (10, 50, 90, 99)


def report(cycles: Cycles) -> RenderableType:
    """Return the tables: the cycles, each worker's time by phase, the overlap, and who waited for whom."""
    ticks = cycles.ticks
    slowest = ticks[int(cycles.length_ms.argmax())]
    title = f"{len(ticks)} cycles, ticks {ticks[0]} to {ticks[-1]}; each ends with an {cycles.bounded_by}"
    if cycles.bounded_by != "update":
        title = f"{len(ticks)} cycles without updates, ticks {ticks[0]} to {ticks[-1]}; each is a {cycles.bounded_by}"
    parts: list[RenderableType] = [Text(f"{title}; the slowest is tick {slowest}"), "", _time_table(cycles), ""]
    parts += [_waits_table(cycles), "", *overlap_lines(cycles)]
    return Group(*parts)


def typical(cycles: Cycles) -> int:
    """Return the tick of the cycle whose length is nearest to the median, among the later half."""
    half = len(cycles.ticks) // 2
    return cycles.ticks[half + int(np.abs(cycles.length_ms[half:] - np.median(cycles.length_ms)).argmin())]


def overlap_lines(cycles: Cycles) -> list[str]:
    """Return how much the two sides overlap, as sentences."""
    both, total = cycles.together, cycles.length_ms
    shares = [
        ("both sides busy", both.ms(both.learner & both.collectors)),
        ("only the learner", both.ms(both.learner & ~both.collectors)),
        ("only collectors", both.ms(~both.learner & both.collectors)),
        ("nobody", both.ms(~both.learner & ~both.collectors)),
    ]
    text = ", ".join(f"{name} {ms.sum() / total.sum():.1%}" for name, ms in shares)
    busy = {worker.name: both.ms(both.busy[worker.name]) for worker in cycles.workers}
    slower = np.maximum.reduce(list(busy.values()))
    ratio = float(np.median(total / np.maximum(slower, 1e-9)))
    added = float(np.median(total / np.maximum(both.ms(both.learner) + both.ms(both.collectors), 1e-9)))
    return [
        f"overlap: {text}",
        f"cycle / the busiest process in it: {ratio:.3f} (1 is the best there is)",
        f"cycle / (collectors + learner): {added:.3f} (1 is no overlap)",
    ]


def _time_table(cycles: Cycles) -> Table:
    table = Table(title="milliseconds per cycle", title_justify="left")
    table.add_column("process")
    table.add_column("phase")
    for percentile in PERCENTILES:
        table.add_column(f"p{percentile}", justify="right")
    for name in ("max", "mean", "share"):
        table.add_column(name, justify="right")
    total = cycles.length_ms
    _add(table, "", "cycle", total, total, "bold")
    for phase, ms in cycles.coordinator_ms().items():
        _add(table, "coordinator", phase, ms, total)
    for worker in cycles.workers:
        table.add_section()
        name = worker.name
        for phase, ms in sorted(cycles.phase_ms(worker).items(), key=_waits_last):
            if ms.any():
                _add(table, name, phase, ms, total)
                name = ""
        busy = cycles.together.ms(cycles.together.busy[worker.name])
        _add(table, "", "busy", busy, total, "bold")
        _add(table, "", "CPU time of its thread", cycles.cpu_ms(worker), total, "dim")
    return table


def _add(table: Table, process: str, phase: str, ms: Milliseconds, total: Milliseconds, style: str = "") -> None:
    quantiles = [f"{value:.3f}" for value in np.percentile(ms, PERCENTILES)]
    share = f"{ms.sum() / total.sum():.1%}"
    table.add_row(process, phase, *quantiles, f"{ms.max():.3f}", f"{ms.mean():.3f}", share, style=style)


def _waits_table(cycles: Cycles) -> Table:
    table = Table(title="who waited for whom, milliseconds per cycle", title_justify="left")
    table.add_column("process")
    table.add_column("waited")
    for name in ("p50", "p99", "mean", "share"):
        table.add_column(name, justify="right")
    total = cycles.length_ms
    for worker in _learner_first(cycles):
        for number, (reason, ms) in enumerate(cycles.together.waits(worker).items()):
            median, high = np.percentile(ms, (50, 99))
            numbers = (f"{median:.3f}", f"{high:.3f}", f"{ms.mean():.3f}", f"{ms.sum() / total.sum():.1%}")
            table.add_row(worker.name if number == 0 else "", reason, *numbers)
    return table


def _learner_first(cycles: Cycles) -> list[Worker]:
    return sorted(cycles.workers, key=lambda worker: not worker.name.startswith(LEARNER))


def _waits_last(item: tuple[str, Milliseconds]) -> bool:
    return item[0] == "wait"
