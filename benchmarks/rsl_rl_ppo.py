"""PPO of rsl-rl-lib 5 on the environments of `benchmarks.plain_ppo`, with the same networks and sizes.

rsl_rl's own algorithm, models, storage and `OnPolicyRunner.learn` do the work; here are only an adapter of a
Gymnasium vector env to its VecEnv, and a logger in place of its own that writes the same metrics.jsonl.
It has a virtual environment of its own:

    python3 -m venv /tmp/peers
    /tmp/peers/bin/pip install torch          # a CPU build of it will do; before the rest
    /tmp/peers/bin/pip install "gymnasium[mujoco]" rsl-rl-lib
    /tmp/peers/bin/python -m benchmarks.rsl_rl_ppo --env HalfCheetah-v5 --num-envs 32 --env-steps 800000 --out DIR

The defaults of the shared settings are those of `benchmarks.plain_ppo`. What differs all the same:

- The last observation of a truncated episode is not looked at: V of the observation before it stands in.
- The learning rate adapts to the KL of each minibatch, not once per update to that of the last epoch.
- Gradient norms of actor and critic are clipped each on their own.
- Value clipping, where it is on, uses the clip of the ratio.
- Normalised observations are not clipped to ±10.
- Adam is not fused, minibatches are of equal size (what is left over is dropped), permutations are the same in
  each epoch, and the critic is asked at each step of the rollout, so that its values count as rollout time.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rsl_rl.env import VecEnv
from rsl_rl.runners import OnPolicyRunner
from tensordict import TensorDict
from torch import Tensor

from benchmarks.plain_ppo import Returns, ToEnv, evaluate, make_envs


class Envs(VecEnv):
    """A SyncVectorEnv in SAME_STEP mode, as rsl_rl's VecEnv."""

    def __init__(self, name: str, count: int, seed: int) -> None:
        self.envs = make_envs(name, count)
        self.to_env = ToEnv(self.envs)
        self.num_envs = count
        self.num_actions = self.envs.single_action_space.shape[0]
        self.max_episode_length = self.envs.envs[0].spec.max_episode_steps or 1_000_000
        self.episode_length_buf = torch.zeros(count, dtype=torch.long)
        self.device = "cpu"
        self.cfg: dict[str, Any] = {}
        self.returns = Returns(count)
        observations, _ = self.envs.reset(seed=[seed * count + i for i in range(count)])
        self.observations = self.as_groups(observations)

    def as_groups(self, observations: np.ndarray) -> TensorDict:
        return TensorDict({"policy": torch.from_numpy(observations.astype(np.float32))}, batch_size=[self.num_envs])

    def get_observations(self) -> TensorDict:
        return self.observations

    def step(self, actions: Tensor) -> tuple[TensorDict, Tensor, Tensor, dict[str, Any]]:
        observations, rewards, terminated, truncated, _ = self.envs.step(self.to_env(actions.numpy()))
        done = terminated | truncated
        self.returns.add(rewards, done)
        self.episode_length_buf += 1
        self.episode_length_buf[torch.from_numpy(done)] = 0
        self.observations = self.as_groups(observations)
        time_outs = torch.from_numpy(truncated & ~terminated)
        rewards = torch.from_numpy(rewards.astype(np.float32))
        return self.observations, rewards, torch.from_numpy(done), {"time_outs": time_outs}


class Metrics:
    """In place of the runner's logger: the records of `benchmarks.plain_ppo`."""

    writer = None  # no checkpoints

    def __init__(self, path: Path, envs: Envs, arguments: argparse.Namespace, start: float) -> None:
        self.file = path.open("w", encoding="utf-8")
        self.envs = envs
        self.arguments = arguments
        self.start = start
        self.next_record = arguments.env_steps_per_record
        self.spent: dict[str, list[float]] = {"time/rollout_ms": [], "time/update_ms": []}

    def init_logging_writer(self) -> None:
        pass

    def process_env_step(self, *_: Any) -> None:
        pass

    def log(
        self,
        it: int,
        collect_time: float,
        learn_time: float,
        loss_dict: dict[str, float],
        learning_rate: float,
        action_std: Tensor,
        **_: Any,
    ) -> None:
        self.spent["time/rollout_ms"].append(1e3 * collect_time)
        self.spent["time/update_ms"].append(1e3 * learn_time)
        a = self.arguments
        env_steps = (it + 1) * a.rollout_steps * a.num_envs
        if env_steps < min(self.next_record, a.env_steps):
            return
        while self.next_record <= env_steps:
            self.next_record += a.env_steps_per_record
        record: dict[str, float | int | None] = {
            "env_steps": env_steps,
            "gradient_steps": (it + 1) * a.epochs * a.minibatches,
            "seconds": round(time.perf_counter() - self.start, 3),
        }
        record |= self.envs.returns.record()
        record |= {key: round(float(np.mean(values)), 3) for key, values in self.spent.items()}
        for values in self.spent.values():
            values.clear()
        record |= {
            "ppo/surrogate_loss": loss_dict["surrogate"],
            "ppo/value_loss": loss_dict["value"],
            "ppo/entropy": loss_dict["entropy"],
            "ppo/learning_rate": learning_rate,
            "ppo/sigma": action_std.mean().item(),
        }
        line = json.dumps(record)
        self.file.write(line + "\n")
        self.file.flush()
        print(line, flush=True)


def settings(arguments: argparse.Namespace) -> dict[str, Any]:
    model = {
        "class_name": "MLPModel",
        "hidden_dims": arguments.hidden_sizes,
        "activation": "elu",
        "obs_normalization": arguments.normalize_observations,
    }
    return {
        "num_steps_per_env": arguments.rollout_steps,
        "save_interval": 1_000_000,
        "check_for_nan": False,
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "actor": {**model, "distribution_cfg": {"class_name": "GaussianDistribution", "std_type": "log"}},
        "critic": model,
        "algorithm": {
            "class_name": "PPO",
            "num_learning_epochs": arguments.epochs,
            "num_mini_batches": arguments.minibatches,
            "clip_param": arguments.clip,
            "gamma": arguments.discount,
            "lam": arguments.gae_lambda,
            "value_loss_coef": arguments.value_coefficient,
            "entropy_coef": arguments.entropy_coefficient,
            "learning_rate": arguments.learning_rate,
            "max_grad_norm": arguments.gradient_norm,
            "use_clipped_value_loss": arguments.clip_values,
            "schedule": "adaptive",
            "desired_kl": arguments.target_kl,
        },
    }


def train(arguments: argparse.Namespace) -> None:
    start = time.perf_counter()
    torch.set_num_threads(arguments.threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(arguments.seed)
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)

    envs = Envs(arguments.env, arguments.num_envs, arguments.seed)
    runner = OnPolicyRunner(envs, settings(arguments), log_dir=None, device="cpu")
    runner.logger = Metrics(out / "metrics.jsonl", envs, arguments, start)
    runner.learn(-(-arguments.env_steps // (arguments.rollout_steps * arguments.num_envs)))
    runner.logger.file.close()
    envs.envs.close()

    policy = runner.get_inference_policy("cpu")

    def mean_action(observations: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            batch = torch.from_numpy(observations.astype(np.float32))
            return policy(TensorDict({"policy": batch}, batch_size=[len(batch)])).numpy()

    # The seeds lie far from those of training.
    scores = evaluate(mean_action, arguments.env, arguments.evaluation_episodes, seed=1_000_000 + arguments.seed)
    evaluation = {"return_mean": float(np.mean(scores)), "returns": scores}
    (out / "evaluation.json").write_text(json.dumps(evaluation) + "\n", encoding="utf-8")
    print(json.dumps(evaluation), flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rsl_rl_ppo",
        description="PPO of rsl-rl-lib.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--env", default="HalfCheetah-v5")
    parser.add_argument("--num-envs", type=int, default=32)
    parser.add_argument("--env-steps", type=int, default=800_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", required=True, metavar="DIR")
    parser.add_argument("--rollout-steps", type=int, default=64, help="of each environment, per update")
    parser.add_argument("--hidden-sizes", type=int, nargs="+", default=[256, 128], help="of actor and of critic")
    parser.add_argument("--normalize-observations", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--minibatches", type=int, default=4)
    parser.add_argument("--discount", type=float, default=0.99)
    parser.add_argument("--gae-lambda", type=float, default=0.95)
    parser.add_argument("--clip", type=float, default=0.2)
    parser.add_argument("--clip-values", action=argparse.BooleanOptionalAction, default=False)
    parser.add_argument("--value-coefficient", type=float, default=1.0)
    parser.add_argument("--entropy-coefficient", type=float, default=0.01)
    parser.add_argument("--gradient-norm", type=float, default=1.0)
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="of the first update; adapts to the KL")
    parser.add_argument("--target-kl", type=float, default=0.01)
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument("--env-steps-per-record", type=int, default=10_000)
    parser.add_argument("--evaluation-episodes", type=int, default=10)
    train(parser.parse_args(argv))


if __name__ == "__main__":
    main()
