"""Benchmarks in one go: all short ones and their joined table (`make bench`), or those that are named.

    python -m benchmarks                          # the short ones; writes docs/benchmarks.md; twenty minutes
    python -m benchmarks round_trip waiting       # these, printed only
    python -m benchmarks --sb3 sb3/bin/python     # with SB3's SAC for comparison, see benchmarks/sb3_sac.py
    python -m benchmarks sac_half_cheetah load    # a long one runs when it is named

Each runs in a process of its own, with one thread where it does not choose for itself; each also runs alone as
`python -m benchmarks.<name>`, and says in its first lines what it measures and which options it has.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.commands import environ
from benchmarks.measuring import ROOT, Table, machine, read, when

SHORT = ("end_to_end", "overlap", "round_trip", "waiting", "gradient_steps", "memory_moves", "startup", "beside")
LONG = ("sac_half_cheetah", "appo_half_cheetah", "replacement", "endings", "load")
DOCUMENT = ROOT / "docs" / "benchmarks.md"
INTRODUCTION = """# Benchmarks

Written by `python -m benchmarks`. Figures are medians over rounds, with the least and the greatest; what is compared
ran in turn, in the same minutes. One thread in each process. What each benchmark does is in the first lines of its
module.
"""


def run(name: str, options: list[str]) -> Table | None:
    """Run a benchmark in a process of its own; return its table, if it makes one."""
    print(f"\n{name} …", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.json"
        json = ["--json", str(path)] if name in SHORT else []
        # What it prints is in the table, which is printed below.
        stdout = subprocess.DEVNULL if name in SHORT else None
        command = [sys.executable, "-m", f"benchmarks.{name}", *json, *options]
        subprocess.run(command, check=True, cwd=ROOT, env=environ(), stdout=stdout)
        return read(path) if json else None


def document(tables: dict[str, tuple[str, Table]], command: str) -> str:
    parts = [INTRODUCTION, f"{machine()}\\\n{when()}, `{command}`\n"]
    parts += [f"## {name}\n\n`{how}`\n\n{table.markdown()}\n" for name, (how, table) in tables.items()]
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SHORT)}; {', '.join(LONG)}")
    parser.add_argument("--sb3", metavar="PYTHON", help="the python of a virtual environment with stable-baselines3")
    parser.add_argument("--out", type=Path, help="where the joined table goes; docs/benchmarks.md if nothing is named")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - {*SHORT, *LONG}:
        parser.error(f"no benchmark of the name {', '.join(sorted(unknown))}")
    out = arguments.out or (None if arguments.names else DOCUMENT)
    tables: dict[str, tuple[str, Table]] = {}
    failed = []
    for name in arguments.names or SHORT:
        options = ["--sb3", arguments.sb3] if arguments.sb3 and name == "end_to_end" else []
        try:
            table = run(name, options)
        except subprocess.CalledProcessError as error:
            failed.append(f"{name} (exit code {error.returncode})")
            continue
        if table is not None:
            print(f"\n{table.markdown()}", flush=True)
            shown = ["--sb3", "PYTHON"] if options else []
            tables[name] = " ".join(["python", "-m", f"benchmarks.{name}", *shown]), table
        if out is not None:  # after each, so that what is measured is not lost
            how = " ".join(["python -m benchmarks", *arguments.names, *(["--sb3 PYTHON"] if arguments.sb3 else [])])
            out.write_text(document(tables, how), encoding="utf-8")
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
