"""Stable-Baselines3's SAC on the jobs of benchmarks/end_to_end.py; takes the same arguments as plain_sac.py.

It needs a virtual environment of its own, with the CPU build of the torch that aiorl runs with, installed first so
that nothing else brings another:

    python3 -m venv sb3
    sb3/bin/pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu
    sb3/bin/pip install stable-baselines3 'gymnasium[mujoco]'
    python -m benchmarks.end_to_end --jobs few --sb3 sb3/bin/python

SB3 acts, stores and trains as it does by itself: one vector step, then the gradient steps; networks of 256-256, a
learned temperature, observations as they are.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env


class Records(BaseCallback):
    """Writes what metrics.jsonl of the other loops holds; a record lies before its vector step is trained on."""

    def __init__(self, path: Path, env_steps_per_record: int) -> None:
        super().__init__()
        self._path, self._every, self._next = path, env_steps_per_record, env_steps_per_record
        self._begin = time.perf_counter()

    def _on_step(self) -> bool:
        if self.num_timesteps >= self._next:
            self._next += self._every
            record = {
                "env_steps": self.num_timesteps,
                "gradient_steps": self.model._n_updates,
                "seconds": time.perf_counter() - self._begin,
            }
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        return True


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sb3_sac", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--env", default="HalfCheetah-v5")
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--env-steps", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--env-steps-per-gradient-step", type=float, default=2.0)
    parser.add_argument("--learning-starts", type=int, default=1600)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--replay-capacity", type=int, default=200_000)
    parser.add_argument("--env-steps-per-record", type=int, default=100)
    parser.add_argument("--evaluation-episodes", type=int, default=0, choices=[0], help="none are played")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = SAC(
        "MlpPolicy",
        make_vec_env(arguments.env, arguments.num_envs, seed=arguments.seed),
        learning_starts=arguments.learning_starts,
        buffer_size=arguments.replay_capacity,
        batch_size=arguments.batch_size,
        train_freq=1,
        gradient_steps=round(arguments.num_envs / arguments.env_steps_per_gradient_step),
        policy_kwargs={"net_arch": [256, 256]},
        seed=arguments.seed,
        device="cpu",
    )
    arguments.out.mkdir(parents=True, exist_ok=True)
    model.learn(arguments.env_steps, callback=Records(arguments.out / "metrics.jsonl", arguments.env_steps_per_record))


if __name__ == "__main__":
    main()
