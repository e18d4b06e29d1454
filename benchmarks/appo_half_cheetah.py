"""APPO on HalfCheetah-v5 beside a plain synchronous PPO loop and two peers: same networks, epochs, minibatches.

    python -m benchmarks.appo_half_cheetah [--rsl-rl PYTHON] [--unilab PYTHON] [--env-steps 800000] [--seeds 0 1]

Runs one after another; one to three minutes each on two cores. The peers run in virtual environments of their
own, whose `python` is given here; `benchmarks/rsl_rl_ppo.py` and `benchmarks/unilab_appo.py` say how to make
them. Without them they are left out.
"""

import argparse
from datetime import datetime
from pathlib import Path

from benchmarks import learning_curves
from benchmarks.commands import run

SIZES = ["--num-envs", "32", "--rollout-steps", "64", "--epochs", "6", "--minibatches", "4"]
"""Those of the preset, for everybody."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.appo_half_cheetah", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/appo_half_cheetah.png"))
    parser.add_argument("--runs", type=Path, default=Path(f"runs/appo_half_cheetah-{datetime.now():%Y%m%d-%H%M%S}"))
    parser.add_argument("--env-steps", type=int, default=800_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--rsl-rl", metavar="PYTHON", help="a python that has rsl-rl-lib")
    parser.add_argument("--unilab", metavar="PYTHON", help="a python that has unilab-rl")
    arguments = parser.parse_args()
    groups: dict[str, list[Path]] = {}
    for seed in arguments.seeds:

        def folder(label: str, name: str, seed: int = seed) -> str:
            path = arguments.runs / f"{name}-{seed}"
            groups.setdefault(label, []).append(path)
            return str(path)

        common = [*SIZES, "--env-steps", str(arguments.env_steps), "--seed", str(seed), "--out"]
        run("benchmarks.plain_ppo", *common, folder("plain PPO loop", "plain"))
        overrides = [f"seed={seed}", f"budget.env_steps={arguments.env_steps}"]
        run("aiorl", "run", "appo/half_cheetah", *overrides, "--run-dir", folder("aiorl APPO", "aiorl"))
        if arguments.rsl_rl:
            run("benchmarks.rsl_rl_ppo", *common, folder("rsl-rl-lib PPO", "rsl_rl"), python=arguments.rsl_rl)
        if arguments.unilab:
            run("benchmarks.unilab_appo", *common, folder("UniLab APPO", "unilab"), python=arguments.unilab)
    labels = [f"{label}={','.join(map(str, runs))}" for label, runs in groups.items()]
    title = "On-policy on HalfCheetah-v5: 32 envs x 64 steps, 256-128 networks, 6 epochs x 4 minibatches"
    learning_curves.main(["--out", str(arguments.out), "--title", title, *labels])


if __name__ == "__main__":
    main()
