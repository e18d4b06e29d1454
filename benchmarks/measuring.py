"""What the benchmarks share: rounds that alternate, rows of a table with their bars, and the machine they ran on.

Every benchmark offers `measure() -> Table` and hands it to `main`, which prints it as markdown, or writes it as JSON
for `python -m benchmarks` to join.
"""

import argparse
import json
import os
import platform
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import TypeVar

Found = TypeVar("Found")

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Row:
    """One measured quantity: a value of each round, and what the median must reach, if anything."""

    what: str
    values: tuple[float, ...]
    unit: str
    at_least: float | None = None
    at_most: float | None = None

    @property
    def figure(self) -> str:
        middle, low, high = (_short(value) for value in (median(self.values), min(self.values), max(self.values)))
        unit = f" {self.unit}" if self.unit not in ("×", "%") else f"\u202f{self.unit}"
        return f"{middle}{unit} ({low} to {high})" if len(self.values) > 1 else f"{middle}{unit}"

    @property
    def bar(self) -> str:
        if self.at_least is not None:
            return f"≥ {self.at_least:g}"
        return "" if self.at_most is None else f"≤ {self.at_most:g}"

    @property
    def met(self) -> str:
        if not self.bar:
            return ""
        above = self.at_least is None or median(self.values) >= self.at_least
        below = self.at_most is None or median(self.values) <= self.at_most
        return "yes" if above and below else "**no**"


@dataclass(frozen=True)
class Table:
    """The rows of one benchmark, and what a reader must know of them."""

    title: str
    rows: tuple[Row, ...]
    note: str = ""

    def markdown(self) -> str:
        lines = [f"| {self.title} | median (min to max) | bar | met? |", "|---|---|---|---|"]
        lines += [f"| {row.what} | {row.figure} | {row.bar} | {row.met} |" for row in self.rows]
        return "\n".join(lines) + (f"\n\n{self.note}" if self.note else "")


def alternate(rounds: int, functions: dict[str, Callable[[], Found]]) -> dict[str, list[Found]]:
    """Call all functions, one after another, so many times; return what each returned, by its name.

    The order turns round every time: what drifts, drifts on all of them.
    """
    found: dict[str, list[Found]] = {name: [] for name in functions}
    for number in range(rounds):
        for name in list(functions) if number % 2 == 0 else reversed(functions):
            found[name].append(functions[name]())
    return found


def ratios(over: Sequence[float], under: Sequence[float]) -> tuple[float, ...]:
    """Divide round by round."""
    return tuple(one / other for one, other in zip(over, under, strict=True))


def machine() -> str:
    """Describe where this runs, in one line."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.machine()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    packages = ", ".join(f"{name} {version(name)}" for name in ("numpy", "torch", "mujoco", "gymnasium", "uvloop"))
    return f"{model}, {cores} cores; {platform.system()}; Python {platform.python_version()}, {packages}"


def when() -> str:
    """Say when this is, and of which commit."""
    git = ["git", "-C", str(ROOT)]
    try:
        commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], check=True, capture_output=True, text=True)
        changed = subprocess.run([*git, "status", "--porcelain", "-uno"], check=True, capture_output=True, text=True)
        name = commit.stdout.strip() + (" with changes" if changed.stdout.strip() else "")
    except (OSError, subprocess.CalledProcessError):
        name = "unknown"
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, commit {name}"


def write(table: Table, path: Path) -> None:
    path.write_text(json.dumps(asdict(table)), encoding="utf-8")


def read(path: Path) -> Table:
    found = json.loads(path.read_text(encoding="utf-8"))
    rows = tuple(Row(**{**row, "values": tuple(row["values"])}) for row in found["rows"])
    return Table(found["title"], rows, found["note"])


def parser_of(module: str, text: str | None) -> argparse.ArgumentParser:
    """Return a parser with what every benchmark takes."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{module}", description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the table there too, as JSON")
    return parser


def report(table: Table, path: Path | None) -> None:
    """Print a table with its machine, and write it as JSON where that is asked for."""
    print(f"{machine()}\n{when()}\n\n{table.markdown()}")
    if path is not None:
        write(table, path)


def main(module: str, text: str | None, measure: Callable[[], Table]) -> None:
    """Be the command line of a benchmark without options of its own."""
    arguments = parser_of(module, text).parse_args()
    report(measure(), arguments.json)


def records(folder: Path) -> list[dict[str, float]]:
    """Return the metrics records of a run."""
    lines: Iterator[str] = iter((folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [json.loads(line) for line in lines]


def _short(value: float) -> str:
    """Show three figures or more."""
    size = abs(value)
    if size >= 10_000:
        return f"{value:,.0f}".replace(",", " ")
    return (
        f"{value:.0f}"
        if size >= 100
        else f"{value:.1f}"
        if size >= 10
        else f"{value:.2f}"
        if size >= 1
        else f"{value:.3f}"
    )
