"""What moving experience and weights costs, beside one flat copy of the same bytes.

    python -m benchmarks.memory_moves [--rounds 15]

In shared memory as a run has it, with the classes that a run uses, one thread; moves and flat copies alternate:
  pack      8192 rows of 111 floats drawn from a shard of 204 800 rows (91 MB, more than caches hold) and gathered
            into a batch slot, 32 batches of 256, discounts too; the copy reads consecutive rows, other ones each time
  publish   a policy of 2.2 MB into a weight slot, as the learner does it; load: back out of it, as a collector does
  append    1024 rows, one vector step of 1024 envs, by the collector's own step with env, policy and statistics taken
            out: what it writes comes from arrays of float32 that are there
There is no bar: a gather reads rows in random order, and an append writes columns, where a flat copy streams.
Some seconds.
"""

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aiorl.collector.offpolicy import ReplayCollector
from aiorl.collector.packing import draw, pack
from aiorl.collector.phases import PhaseClock
from aiorl.envs.stepper import Step
from aiorl.storage.batches import BatchSlots, batch_layout
from aiorl.storage.block import Block
from aiorl.storage.replay import ReplayShard, replay_layout
from aiorl.storage.weights import WeightSlots, weights_layout
from benchmarks.gradient_steps import settings_of, spec_of
from benchmarks.measuring import Row, Table, alternate, parser_of, ratios, report

ENVS, STEPS, OBSERVATIONS, ACTIONS = 1024, 200, 49, 12
BATCHES, BATCH, POLICY_BYTES = 32, 256, 2_200_000
SETTINGS = settings_of(
    f"env.num_envs={ENVS}",
    f"replay.capacity={ENVS * STEPS}",
    f"learner.batch_size={BATCH}",
    f"learner.gradient_steps={BATCHES}",
)
SPEC = spec_of(OBSERVATIONS, ACTIONS, ENVS)


def shared(nbytes: int) -> NDArray[np.uint8]:
    """Return memory of the kind that processes share, every page of it there."""
    block = Block("benchmark")
    block.reserve(nbytes)
    memory = block.map(nbytes)
    block.close()
    memory[:] = 0
    return memory


def filled_shard() -> ReplayShard:
    shard = ReplayShard(shared(replay_layout(SETTINGS, SPEC).nbytes), SETTINGS, SPEC)
    shard.rows[:] = np.random.default_rng(0).random(shard.rows.shape, np.float32)
    shard.valid[:] = True
    for _ in range(STEPS):
        shard.commit(0)
    return shard


class Storing(ReplayCollector):
    """The off-policy collector, of which only the storing is left."""

    def __init__(self, shard: ReplayShard) -> None:
        rng = np.random.default_rng(0)
        obs, next_obs = (rng.random((ENVS, OBSERVATIONS), np.float32) for _ in range(2))
        action, reward = rng.random((ENVS, ACTIONS), np.float32), rng.random(ENVS)
        nothing, everything = np.zeros(ENVS, bool), np.ones(ENVS, bool)
        given = Step(reward, nothing, nothing, everything, 0, {})

        def step(env_action: Any, out: dict[str, NDArray[np.float32]]) -> Step:
            np.copyto(out["policy"], next_obs)
            return given

        self._shard, self._clock = shard, PhaseClock()
        self._stepper: Any = SimpleNamespace(obs={"policy": obs}, step=step)
        self._actor: Any = SimpleNamespace(choose=lambda obs, uniform: (action, action))

    def _count(self, step: Step) -> None:
        pass

    def append(self) -> None:
        self._step(uniform=False, weight_version=0)


def timed(call: Callable[[], object], count: int) -> float:
    """Return the median of so many calls, in µs."""
    times = []
    for _ in range(count):
        begin = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - begin)
    return median(times) / 1e3


class Copies:
    """Flat copies of so many rows of the shard, each time the next ones."""

    def __init__(self, shard: ReplayShard, rows: int, out: NDArray[np.float32]) -> None:
        self._rows = shard.rows.reshape(-1, shard.layout.width)
        self._count, self._out, self._next = rows, out.reshape(rows, -1), 0

    def from_shard(self) -> None:
        np.copyto(self._out, self._take())

    def to_shard(self) -> None:
        np.copyto(self._take(), self._out)

    def _take(self) -> NDArray[np.float32]:
        begin = self._next
        self._next = (begin + self._count) % (len(self._rows) - self._count)
        return self._rows[begin : begin + self._count]


def moves() -> dict[str, tuple[Callable[[], object], Callable[[], object], int]]:
    """Return, by name, each move, its flat copy, and how often a round makes them."""
    shard = filled_shard()
    slots = BatchSlots.on(shared(batch_layout(SETTINGS, SPEC).nbytes), SETTINGS, SPEC)
    out, discount, generator = slots.rows[0][:, 0], slots.discount[0][:, 0], np.random.default_rng(0)

    def pack_all() -> None:
        rows = draw(shard, discount.size, generator).reshape(discount.shape)
        for step in range(len(rows)):
            pack(shard, rows[step], 1, 0.99, out[step], discount[step])

    weights = WeightSlots.on(shared(weights_layout(SETTINGS, POLICY_BYTES).nbytes), SETTINGS, POLICY_BYTES)
    flat = np.random.default_rng(0).integers(0, 256, POLICY_BYTES, np.uint8)
    weights.write(0, 0, flat)
    there, back = shared(POLICY_BYTES), flat.copy()
    step_rows = np.random.default_rng(0).random((ENVS, shard.layout.width), np.float32)
    return {
        f"pack of {BATCHES * BATCH} rows": (pack_all, Copies(shard, BATCHES * BATCH, slots.rows[1]).from_shard, 10),
        "publish 2.2 MB": (lambda: weights.write(0, 0, flat), lambda: np.copyto(there, flat), 50),
        "load 2.2 MB": (lambda: weights.read(0, 0, back), lambda: np.copyto(back, there), 50),
        f"append of {ENVS} rows": (Storing(shard).append, Copies(shard, ENVS, step_rows).to_shard, 50),
    }


def measure(rounds: int = 15) -> Table:
    rows = []
    for name, (move, copy, count) in moves().items():
        timed(move, count), timed(copy, count)
        found = alternate(rounds, {"move": partial(timed, move, count), "copy": partial(timed, copy, count)})
        rows.append(Row(f"{name} / flat copy", ratios(found["move"], found["copy"]), "×"))
        rows += [Row(f"{name}: {label}", tuple(values), "µs") for label, values in found.items()]
    return Table("Moves in shared memory", tuple(rows))


def main() -> None:
    parser = parser_of("memory_moves", __doc__)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    report(measure(arguments.rounds), arguments.json)


if __name__ == "__main__":
    main()
