"""What goes on beside training, and what training notices of it: traces, and evaluation on the way.

    python -m benchmarks.beside [--rounds 3]

SAC on the swing-up with its preset, one thread in each process: env steps per second after the warm-up, without
either, with telemetry.trace, and with evaluation.every_env_steps=2000 (15 evaluations of 16 episodes; there are two
cores for coordinator, collector, learner and evaluator). Then what a learner's mark costs where no trace is recorded,
and where one is. Three minutes on two cores.
"""

import tempfile
from functools import partial
from pathlib import Path
from time import perf_counter

from aiorl.algorithms.interface import unmarked
from aiorl.telemetry.trace.slices import SliceFile, WorkerTrace
from benchmarks.commands import run
from benchmarks.measuring import Row, Table, alternate, parser_of, ratios, records, report

SETTINGS = (
    "evaluation.at_end=false",
    "telemetry.interval_ticks=10",
    "runtime.collector_threads=1",
    "runtime.learner_threads=1",
)
WAYS = {
    "neither": (),
    "trace": ("telemetry.trace=true",),
    "evaluation": ("evaluation.every_env_steps=2000",),
}
MARKS = 200_000


def rate(overrides: tuple[str, ...]) -> float:
    """Return the env steps per second of a run, once it trains."""
    with tempfile.TemporaryDirectory() as folder:
        run("aiorl", "run", "sac/pendulum", *SETTINGS, *overrides, "--run-dir", f"{folder}/run")
        steady = [each for each in records(Path(folder) / "run") if each["env_steps"] > 3_000]
    first, last = steady[0], steady[-1]
    return (last["env_steps"] - first["env_steps"]) / (last["seconds"] - first["seconds"])


def mark_ns(recorded: bool) -> float:
    """Return what one mark costs, in nanoseconds."""
    with tempfile.TemporaryDirectory() as folder:
        trace = WorkerTrace(SliceFile(Path(folder) / "learner-0-0", MARKS))
        mark = trace.mark if recorded else unmarked
        begin = perf_counter()
        for _ in range(MARKS):
            mark("critic")
        return (perf_counter() - begin) / MARKS * 1e9


def measure(rounds: int = 3) -> Table:
    found = alternate(rounds, {name: partial(rate, overrides) for name, overrides in WAYS.items()})
    rows = [Row("SAC on the swing-up", tuple(found["neither"]), "env steps/s")]
    rows += [
        Row(f"with {what}: rate / rate without", ratios(found[name], found["neither"]), "×")
        for name, what in (("trace", "a trace"), ("evaluation", "15 evaluations on the way"))
    ]
    off, on = (tuple(mark_ns(recorded) for _ in range(5)) for recorded in (False, True))
    rows += [Row("a mark where no trace is recorded", off, "ns"), Row("a mark of a trace", on, "ns")]
    return Table("What goes on beside training", tuple(rows))


def main() -> None:
    parser = parser_of("beside", __doc__)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    report(measure(arguments.rounds), arguments.json)


if __name__ == "__main__":
    main()
