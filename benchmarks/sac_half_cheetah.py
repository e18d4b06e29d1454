"""SAC on HalfCheetah-v5: aiorl beside a plain single-process loop, same networks, steps and replay ratio.

    python -m benchmarks.sac_half_cheetah [--out docs/sac_half_cheetah.png] [--env-steps 50000] [--seeds 0 1]

Runs one after another, so that each has the machine to itself; about five minutes each on two cores.
"""

import argparse
from datetime import datetime
from pathlib import Path

from benchmarks import learning_curves
from benchmarks.commands import run


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sac_half_cheetah", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/sac_half_cheetah.png"))
    parser.add_argument("--runs", type=Path, default=Path(f"runs/sac_half_cheetah-{datetime.now():%Y%m%d-%H%M%S}"))
    parser.add_argument("--env-steps", type=int, default=50_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    arguments = parser.parse_args()
    plain, ours = [], []
    for seed in arguments.seeds:
        ours.append(arguments.runs / f"aiorl-{seed}")
        overrides = [f"seed={seed}", f"budget.env_steps={arguments.env_steps}"]
        run("aiorl", "run", "sac/half_cheetah", *overrides, "--run-dir", str(ours[-1]))
        plain.append(arguments.runs / f"plain-{seed}")
        sizes = ["--env-steps", str(arguments.env_steps), "--num-envs", "8", "--seed", str(seed)]
        run("benchmarks.plain_sac", "--env", "HalfCheetah-v5", *sizes, "--out", str(plain[-1]))
    labels = {"plain loop": plain, "aiorl": ours}
    groups = [f"{label}={','.join(map(str, runs))}" for label, runs in labels.items()]
    title = "SAC on HalfCheetah-v5, 8 envs, one gradient step of batch 256 per two env steps"
    learning_curves.main(["--out", str(arguments.out), "--title", title, *groups])


if __name__ == "__main__":
    main()
