"""One cycle of a trace as a picture."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path

import numpy as np

from aiorl.errors import StorageError
from aiorl.telemetry.trace.cycles import Cycles
from aiorl.telemetry.trace.merging import Recorded

PICTURE_FILE = "trace.png"
Colour = tuple[float, float, float, float]
_MARGIN = 0.15
_WAIT: Colour = (0.9, 0.9, 0.9, 1.0)


def draw_cycle(cycles: Cycles, recorded: list[Recorded], tick: int, path: Path) -> None:
    """Draw what every process did in a cycle, with a little before and after.

    Raises:
        StorageError: the trace does not hold this cycle.

    """
    if tick not in cycles.ticks:
        first, last = cycles.ticks[0], cycles.ticks[-1]
        raise StorageError(f"the trace holds cycles {first} to {last}, not {tick}")
    from matplotlib.figure import Figure  # no pyplot: nothing global
    from matplotlib.patches import Patch

    number = cycles.ticks.index(tick)
    begin, end = int(cycles.edges[number]), int(cycles.edges[number + 1])
    margin = int((end - begin) * _MARGIN)
    low, high = begin - margin, end + margin
    rows = sorted(recorded, key=_place)
    rows = [row for row in rows if any(each.end_ns > low and each.begin_ns < high for each in row.slices)]
    figure = Figure(figsize=(12, 1.2 + 0.55 * len(rows)), layout="constrained")
    axes = figure.subplots()
    colours, shown = _colours(recorded), set[str]()
    for place, row in enumerate(rows):
        for each in row.slices:
            if each.end_ns <= low or each.begin_ns >= high:
                continue
            shown.add(each.name)
            start, stop = max(each.begin_ns, low), min(each.end_ns, high)
            span = [((start - begin) / 1e6, (stop - start) / 1e6)]
            axes.broken_barh(span, (place - 0.4, 0.8), facecolors=colours[each.name], edgecolor="white", linewidth=0.3)
            if (stop - start) > 0.07 * (high - low):
                label = f"{each.name} {each.tick}" if each.name == each.request else each.name
                axes.text((start + stop - 2 * begin) / 2e6, place, label, ha="center", va="center", fontsize=7)
    for edge in (begin, end):
        axes.axvline((edge - begin) / 1e6, color="black", linewidth=0.8, linestyle=":")
    names = [_label(row) for row in rows]
    axes.set(yticks=range(len(rows)), yticklabels=names, xlim=((low - begin) / 1e6, (high - begin) / 1e6))
    axes.invert_yaxis()
    axes.set_xlabel(f"milliseconds since the {cycles.bounded_by} before")
    median = np.median(cycles.length_ms)
    axes.set_title(f"tick {tick}: a cycle of {(end - begin) / 1e6:.2f} ms (all cycles: median {median:.2f} ms)")
    handles = [Patch(color=colour, label=name) for name, colour in colours.items() if name in shown]
    figure.legend(handles=handles, loc="outside lower center", ncols=8, fontsize="small", frameon=False)
    draft = path.with_name(f".{path.name}")
    figure.savefig(draft, format="png", dpi=120)
    draft.replace(path)


def _place(row: Recorded) -> tuple[int, str, str]:
    order = ("coordinator", "collector", "learner", "evaluator")
    role = row.process.split(" ")[0]
    return order.index(role) if role in order else len(order), row.process, row.thread


def _label(row: Recorded) -> str:
    if row.process == "coordinator":
        return "coordinator" if row.thread == "loop" else f"asks {row.thread}"
    return row.process if row.thread == "main" else f"{row.process} ({row.thread})"


def _colours(rows: list[Recorded]) -> dict[str, Colour]:
    """Return a colour for every phase, the same in every picture of a trace; workers choose first."""
    from matplotlib import colormaps

    palette = cycle(colormaps["tab20"](index) for index in (*range(0, 20, 2), *range(1, 20, 2)))
    names = dict.fromkeys(each.name for row in sorted(rows, key=_place, reverse=True) for each in row.slices)
    return {"wait": _WAIT} | {name: next(palette) for name in names if name != "wait"}
