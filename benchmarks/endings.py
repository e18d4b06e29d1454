"""Every ending as a table: what ends a run, in which phase, what comes of it, and how long it takes.

    python -m benchmarks.endings [--out docs/endings.md]

Plays the very cases of `tests/endings` one after another, checks them, and writes the table: some ten minutes.
"""

import argparse
import asyncio
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from aiorl.testing import no_leftovers
from tests.endings.cases import Case, matrix
from tests.endings.play import check, play
from tests.endings.play_cli import CliCase, check_cli, cli_matrix, play_cli

ALGORITHMS = ("sac", "appo")
HEAD = """# How runs end

Each row is a cause in a phase, played with real processes: the phase is held while the fault is made, then let go.
Seconds are counted from the cause: until the coordinator knew (*noticed*), and until nothing of the run was left
(*ended*), SAC / APPO, one play of each. After every one of them no process, descriptor, thread, task or shared memory
was left. Where a row has to do with a deadline, that was set short: {short}.
SAC has a warm-up and packs; APPO has not.

*Checkpoint*: *of the end* holds everything; *of the failure* was made by the learner after a collector's end, with the
collectors' replay, but not their episodes; *older* is the last one before; *none*: there was none yet. Each was loaded.

Written by `python -m benchmarks.endings`.
"""
SHORT = "4 s to be ready,\n4 s for the first requests of a kind, 2 s for later ones, 1 s to stop by itself, 0.5 s more"


@dataclass
class Row:
    """One line of a table; times by algorithm."""

    cause: str
    phase: str
    outcome: str
    checkpoint: str
    noticed: dict[str, float | None]
    ended: dict[str, float]

    def text(self) -> str:
        """Return it as markdown."""
        noticed = " / ".join(_seconds(self.noticed.get(name)) for name in self.ended)
        ended = " / ".join(_seconds(self.ended[name]) for name in self.ended)
        return f"| {self.cause} | {self.phase} | {self.outcome} | {self.checkpoint} | {noticed} | {ended} |"


def main() -> None:
    """Play, check, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("docs/endings.md"))
    arguments = parser.parse_args()
    api = _table([case for name in ALGORITHMS for case in matrix(name)], _through_the_api)
    cli = _table([case for name in ALGORITHMS for case in cli_matrix(name)], _through_the_command_line)
    head = "| cause | phase | outcome | checkpoint | noticed, s | ended, s |\n|---|---|---|---|---|---|\n"
    text = f"{HEAD.format(short=SHORT)}\n## In a program of one's own (`aiorl.Run`)\n\n{head}{api}\n"
    text += f"\n## On the command line: signals, and the death of the coordinator\n\n{head}{cli}\n"
    arguments.out.write_text(text, encoding="utf-8")
    print(f"wrote {arguments.out}")


def _table(cases: list[Case] | list[CliCase], play_one: Callable[..., tuple[str, float | None, float]]) -> str:
    rows: dict[tuple[str, str], Row] = {}
    for case in cases:
        with tempfile.TemporaryDirectory() as folder, no_leftovers():
            outcome, noticed, ended = play_one(case, Path(folder))
        print(f"{case}: {outcome}, {ended:.2f} s", flush=True)
        row = rows.setdefault((case.cause, case.phase), Row(case.cause, case.phase, outcome, case.checkpoint, {}, {}))
        row.noticed[case.algorithm], row.ended[case.algorithm] = noticed, ended
    return "\n".join(row.text() for row in _sorted(rows.values()))


def _sorted(rows: Iterable[Row]) -> list[Row]:
    """Return the rows with all phases of a cause together, in the order in which causes came."""
    rows = list(rows)
    causes = list(dict.fromkeys(row.cause for row in rows))
    return sorted(rows, key=lambda row: causes.index(row.cause))


def _through_the_api(case: Case, folder: Path) -> tuple[str, float | None, float]:
    async def play_and_check() -> tuple[str, float | None, float]:
        ending = await play(case, folder)
        check(case, ending, folder)
        outcome = f"`{type(ending.error).__name__}`" if ending.error is not None else "completed"
        return outcome, ending.noticed_s, ending.ended_s

    return asyncio.run(play_and_check())


def _through_the_command_line(case: CliCase, folder: Path) -> tuple[str, float | None, float]:
    ending = play_cli(case, folder)
    check_cli(case, ending, folder)
    return f"exit code {ending.code}" if ending.code >= 0 else "killed", None, ending.ended_s


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    main()
