"""Gradient steps of SAC: aiorl's learner beside a plain torch loop, and beside what this machine multiplies at most.

    python -m benchmarks.gradient_steps [--rounds 7] [--steps 150]

Networks of 256-256, batches of 256 that lie ready, one thread, all in one process; blocks of steps alternate between
  aiorl        `SacLearner.gradient_step` on the minibatches of a batch slot, as the learner's process cuts them
  plain loop   `Sac.update` of benchmarks/plain_sac.py, the same mathematics, without drawing the batch
  products     256 x 256 x 256 single-precision matrix products, for the machine's rate
The share of the products' rate counts the multiplications and additions of the linear layers alone. The widths are
those of HalfCheetah-v5 (17 observations, 6 actions) and of a legged robot (48, 12). One minute.
"""

import time
from collections.abc import Callable
from functools import partial
from itertools import cycle, pairwise

import numpy as np
import torch

from aiorl.algorithms.sac.learner import SacLearner
from aiorl.learner.staging import BatchStaging
from aiorl.protocol import EnvSpec, Group
from aiorl.settings import RunSettings, load_settings
from aiorl.storage.batches import BatchSlots, batch_layout
from aiorl.storage.rows import RowLayout
from benchmarks.measuring import Row, Table, alternate, parser_of, ratios, report
from benchmarks.plain_sac import Replay, Sac

BATCH, HIDDEN, BATCHES = 256, (256, 256), 8
SIZES = {"HalfCheetah-v5's widths": (17, 6), "48 observations, 12 actions": (48, 12)}


def spec_of(observations: int, actions: int, num_envs: int = 16) -> EnvSpec:
    return EnvSpec(num_envs, (Group("policy", observations),), (-1.0,) * actions, (1.0,) * actions, saves_state=False)


def settings_of(*overrides: str) -> RunSettings:
    return load_settings("sac/half_cheetah", overrides=overrides, environ={})


def our_step(observations: int, actions: int) -> Callable[[], object]:
    """Return a gradient step of aiorl's on one prepared batch after another."""
    settings = settings_of(f"learner.gradient_steps={BATCHES}", f"learner.batch_size={BATCH}")
    spec, device = spec_of(observations, actions), torch.device("cpu")
    slots = BatchSlots.on(np.zeros(batch_layout(settings, spec).nbytes, np.uint8), settings, spec)
    slots.rows[:] = np.random.default_rng(0).uniform(-1, 1, slots.rows.shape)
    slots.discount[:] = 0.99
    batches = cycle(BatchStaging(slots, RowLayout.of(spec), device).stage(0))
    learner = SacLearner(settings.algorithm, spec, device, seed=0)  # type: ignore[arg-type]

    return lambda: learner.gradient_step(next(batches))


class Prepared(Replay):
    """A replay whose batches were drawn before."""

    def prepare(self) -> None:
        self.batch.uniform_(-1, 1)
        self.continues.fill_(1)

    def sample(self) -> None:
        pass


def plain_step(observations: int, actions: int) -> Callable[[], object]:
    """Return a gradient step of the plain loop's on one prepared batch after another."""
    sac = Sac(observations, actions, HIDDEN, 3e-4, 0.99, 0.005)
    replays = [Prepared(BATCH, observations, actions, BATCH, np.random.default_rng(0)) for _ in range(BATCHES)]
    for replay in replays:
        replay.prepare()
    prepared = cycle(replays)
    return lambda: sac.update(next(prepared))


def rate(call: Callable[[], object], count: int) -> float:
    """Calls per second."""
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return count / (time.perf_counter() - begin)


def flops(observations: int, actions: int) -> float:
    """Multiplications and additions in the linear layers of one gradient step."""

    def layers(*widths: int) -> list[float]:
        return [2.0 * BATCH * before * after for before, after in pairwise(widths)]

    actor = layers(observations, *HIDDEN, 2 * actions)
    critics = [2 * one for one in layers(observations + actions, *HIDDEN, 1)]
    return (
        2 * sum(actor)  # at the next observations, and at the present ones
        + sum(actor) + sum(actor[1:])  # back to its weights, and to all inputs but the observations
        + 3 * sum(critics)  # the targets, the values, and the values of the actor's actions
        + sum(critics) + sum(critics[1:])  # back from the squared errors to the weights
        + sum(critics)  # back from the actor's loss to the actions
    )  # fmt: skip


def product_gflops(count: int = 600) -> float:
    left, right, out = torch.randn(256, 256), torch.randn(256, 256), torch.empty(256, 256)
    return rate(lambda: torch.mm(left, right, out=out), count) * 2 * 256**3 / 1e9


def seconds_per_step(observations: int, actions: int) -> float:
    """Return how long a gradient step of aiorl's takes here, roughly."""
    torch.set_num_threads(1)
    step = our_step(observations, actions)
    rate(step, 20)
    return 1 / rate(step, 50)


def measure(rounds: int = 7, steps: int = 150) -> Table:
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    rows: list[Row] = []
    for name, (observations, actions) in SIZES.items():
        ours, plain = our_step(observations, actions), plain_step(observations, actions)
        rate(ours, 30), rate(plain, 30)
        functions = {"ours": partial(rate, ours, steps), "plain": partial(rate, plain, steps), "mm": product_gflops}
        found = alternate(rounds, functions)
        used = [100 * each * flops(observations, actions) / 1e9 for each in found["ours"]]
        rows += [
            Row(f"{name}: aiorl / plain loop", ratios(found["ours"], found["plain"]), "×", at_least=1.0),
            Row(f"{name}: aiorl", tuple(found["ours"]), "steps/s"),
            Row(f"{name}: plain loop", tuple(found["plain"]), "steps/s"),
            Row(f"{name}: aiorl's share of the products' rate", ratios(used, found["mm"]), "%"),
            Row(f"{name}: matrix products", tuple(found["mm"]), "GFLOP/s"),
        ]
    return Table("Gradient steps of SAC, 256-256, batch 256, one thread", tuple(rows))


def main() -> None:
    parser = parser_of("gradient_steps", __doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=150)
    arguments = parser.parse_args()
    report(measure(arguments.rounds, arguments.steps), arguments.json)


if __name__ == "__main__":
    main()
