"""How long a run takes to its first gradient step, and what memory its processes take.

    python -m benchmarks.startup [--rounds 3]

`aiorl run` on HalfCheetah-v5 with 16 envs over 1, 2 and 4 collectors in turn, with hardly any warm-up. The time is from
starting the command until status.json counts gradient steps (it is written at once when the first update is done). The
memory is the proportional set size (PSS: a page that n processes share counts 1/n in each) of all processes of the run,
fork server and tracker too, two seconds later; the replay holds 4096 rows and is part of it, half a megabyte.
What another collector takes is the difference from 1 to 4, over three. Anonymous memory is shared within the run only;
pages of files (torch's libraries) are shared with whatever else has them mapped, and the more strangers there are, the
more of those pages another collector is charged with. So nothing else that has torch loaded should run meanwhile. One
minute.
"""

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from benchmarks.commands import environ
from benchmarks.measuring import Row, Table, alternate, parser_of, report

COLLECTORS = (1, 2, 4)
OVERRIDES = (
    "sac/half_cheetah", "env.num_envs=16", "collection.learning_starts=16", "replay.capacity=4096",
    "learner.gradient_steps=1", "evaluation.at_end=false", "checkpoint.every_seconds=null", "learner.device=cpu",
    "runtime.collector_threads=1", "runtime.learner_threads=1", "budget.env_steps=1e9",
)  # fmt: skip


@dataclass(frozen=True)
class Memory:
    """Proportional set sizes, in MB."""

    whole: float
    anonymous: float


def memory_of(processes: list[psutil.Process]) -> Memory:
    def total(key: str) -> float:
        texts = (Path(f"/proc/{each.pid}/smaps_rollup").read_text(encoding="utf-8") for each in processes)
        lines = (line.split() for text in texts for line in text.splitlines())
        return sum(int(line[1]) for line in lines if line[0] == key) * 1024 / 1e6

    return Memory(total("Pss:"), total("Pss_Anon:"))


def has_learned(run_dir: Path) -> bool:
    try:
        found = json.loads((run_dir / "status.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return False
    return bool(found["gradient_steps"] > 0)


def start(collectors: int) -> tuple[float, Memory]:
    """Return the seconds to the first gradient step, and the memory of all processes."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        command = [sys.executable, "-m", "aiorl", "run", *OVERRIDES, f"collection.collectors={collectors}"]
        begin = time.perf_counter()
        run = psutil.Popen(
            [*command, "--run-dir", str(run_dir)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environ(),
        )  # fmt: skip
        try:
            while not has_learned(run_dir):
                if run.poll() is not None:
                    raise SystemExit(f"the run ended by itself, with {run.returncode}")
                time.sleep(0.005)
            seconds = time.perf_counter() - begin
            time.sleep(2)
            return seconds, memory_of([run, *run.children(recursive=True)])
        finally:
            if run.poll() is None:
                run.terminate()
            run.wait()


def further(megabytes: dict[str, tuple[float, ...]]) -> tuple[float, ...]:
    """Return what each collector behind the first one adds, round by round."""
    return tuple((four - one) / 3 for one, four in zip(megabytes["1"], megabytes["4"], strict=True))


def measure(rounds: int = 3) -> Table:
    found = alternate(rounds, {str(count): partial(start, count) for count in COLLECTORS})
    seconds = {name: tuple(each[0] for each in values) for name, values in found.items()}
    whole = {name: tuple(each[1].whole for each in values) for name, values in found.items()}
    anonymous = {name: tuple(each[1].anonymous for each in values) for name, values in found.items()}
    rows = [Row(f"first gradient step, collectors: {name}", each, "s", at_most=4.0) for name, each in seconds.items()]
    rows.append(Row("memory of each further collector (PSS)", further(whole), "MB", at_most=40.0))
    rows.append(Row("memory of each further collector, anonymous part", further(anonymous), "MB"))
    rows += [Row(f"memory of all processes (PSS), collectors: {name}", each, "MB") for name, each in whole.items()]
    return Table("Start and memory of a run, HalfCheetah-v5", tuple(rows))


def main() -> None:
    parser = parser_of("startup", __doc__)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    report(measure(arguments.rounds), arguments.json)


if __name__ == "__main__":
    main()
