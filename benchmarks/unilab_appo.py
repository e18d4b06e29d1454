"""UniLab's asynchronous PPO (unilab-rl 1.4) on the environments of `benchmarks.plain_ppo`.

Its own APPORunner, collector process, V-trace learner and models do the work; here are only an adapter of a
Gymnasium vector env to its contract, and a logger in place of its own that writes the same metrics.jsonl.
It has a virtual environment of its own:

    python3 -m venv /tmp/unilab
    /tmp/unilab/bin/pip install torch          # a CPU build of it will do; before the rest
    /tmp/unilab/bin/pip install "gymnasium[mujoco]" unilab-rl
    /tmp/unilab/bin/python -m benchmarks.unilab_appo --env HalfCheetah-v5 --num-envs 32 --env-steps 800000 --out DIR

The defaults of the shared settings are those of `benchmarks.plain_ppo`; there is no λ, as its V-trace has none.
Each update takes what the collector has written since the last and trains on the latest `--replay-rollouts`
rollouts together; a collector that is faster than the learner overwrites what was not read. `env_steps` is what
was collected, `env_steps_trained` what reached an update for the first time. Two of its properties (1.4.15) that
matter here: its collector never writes the observation after the last step of a rollout, so that the learner
bootstraps from a row of zeros; and what was taken from the ring may have been half overwritten meanwhile.
"""

import argparse
import json
import multiprocessing
import time
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from queue import Empty
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor
from uni_rl.algos.appo import runner as appo
from uni_rl.algos.appo.learner import APPOLearner

from benchmarks.plain_ppo import ToEnv, evaluate, make_envs


class Envs:
    """A SyncVectorEnv in SAME_STEP mode, as an environment of uni_rl; sends the returns of episodes to a queue."""

    def __init__(self, num_envs: int, _: Mapping[str, Any] | None, name: str, seed: int, threads: int, ended: Any):
        torch.set_num_threads(threads)
        torch.set_flush_denormal(True)
        self.envs = make_envs(name, num_envs)
        self.to_env = ToEnv(self.envs)
        self.num_envs = num_envs
        self.seeds = [seed * num_envs + i for i in range(num_envs)]
        self.device = torch.device("cpu")
        self.action_space = self.envs.single_action_space
        self.observation_space = self.envs.single_observation_space
        size = self.observation_space.shape[0]
        # Without a group for the critic, the learner would read one that nobody writes, all zeros.
        self.obs_groups_spec = {"obs": size, "critic": size}
        self.running = np.zeros(num_envs)
        self.ended = ended

    def groups(self, observations: np.ndarray) -> dict[str, Tensor]:
        rows = torch.from_numpy(observations.astype(np.float32))
        return {"obs": rows, "critic": rows}

    def reset(self, _: Tensor | None) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return self.groups(self.envs.reset(seed=self.seeds)[0]), {}

    def step(self, actions: Tensor) -> SimpleNamespace:
        observations, rewards, terminated, truncated, info = self.envs.step(self.to_env(actions.numpy()))
        done = terminated | truncated
        self.running += rewards
        final = None
        if done.any():
            self.ended.put(self.running[done].tolist())
            self.running[done] = 0.0
            successors = observations.copy()
            for i in np.flatnonzero(done):
                successors[i] = info["final_obs"][i]
            final = self.groups(successors)
        return SimpleNamespace(
            obs=self.groups(observations),
            reward=torch.from_numpy(rewards.astype(np.float32)),
            terminated=torch.from_numpy(terminated.copy()),
            truncated=torch.from_numpy(truncated & ~terminated),
            info={},
            final_observation=final,
        )

    def close(self) -> None:
        self.envs.close()


class EnoughError(Exception):
    """The budget of env steps is spent; uni_rl counts updates, not env steps."""


class Runner(appo.APPORunner):
    learner: APPOLearner

    def _build_learner(self) -> APPOLearner:
        self.learner = super()._build_learner()
        return self.learner

    def collected(self) -> int:
        """Env steps of the rollouts that the collector has finished, read or not."""
        ring = self._shared_resources[0]
        return int(ring._write_ptr.value) * self.steps_per_env * self.num_envs


class Metrics:
    """In place of the runner's logger: the records of `benchmarks.plain_ppo`."""

    runner: Runner
    ended: Any

    def __init__(self, path: Path, arguments: argparse.Namespace, start: float) -> None:
        self.file = path.open("w", encoding="utf-8")
        self.arguments = arguments
        self.started = start
        self.next_record = arguments.env_steps_per_record
        self.updates = self.trained = self.finished = 0
        self.rollout_ms: float | None = None
        self.latest: deque[float] = deque(maxlen=20)
        self.interval: list[float] = []
        self.spent: dict[str, list[float]] = {"time/update_ms": [], "time/wait_ms": []}

    def __getattr__(self, name: str) -> Any:
        """Of the rest of the runner's logger nothing is wanted."""
        return lambda *_, **__: None

    def update_collector_timing(self, timing: Mapping[str, float]) -> None:
        self.rollout_ms = timing.get("rollout_ms", self.rollout_ms)

    def log_step(
        self,
        metrics: Mapping[str, float],
        train_time: float,
        collector_wait_time: float,
        extra_info: Mapping[str, Any],
        **_: Any,
    ) -> None:
        self.updates += 1
        self.trained += extra_info["throughput_steps"]
        self.spent["time/update_ms"].append(1e3 * train_time)
        self.spent["time/wait_ms"].append(1e3 * collector_wait_time)
        a = self.arguments
        env_steps = self.runner.collected()
        if env_steps < min(self.next_record, a.env_steps):
            return
        while self.next_record <= env_steps:
            self.next_record += a.env_steps_per_record
        try:
            while True:
                returns = self.ended.get_nowait()
                self.latest += returns
                self.interval += returns
                self.finished += len(returns)
        except Empty:
            pass
        record: dict[str, float | int | None] = {
            "env_steps": env_steps,
            "env_steps_trained": self.trained,
            "updates": self.updates,
            "gradient_steps": self.updates * a.epochs * a.minibatches,
            "seconds": round(time.perf_counter() - self.started, 3),
            "episode/return_mean": float(np.mean(self.latest)) if self.latest else None,
            "episode/return_interval_mean": float(np.mean(self.interval)) if self.interval else None,
            "episode/finished": self.finished,
            "time/rollout_ms": self.rollout_ms,
        }
        self.interval.clear()
        record |= {key: round(float(np.mean(values)), 3) for key, values in self.spent.items()}
        for values in self.spent.values():
            values.clear()
        names = {
            "surrogate_loss": "Loss/surrogate",
            "value_loss": "Loss/value",
            "entropy": "Loss/entropy",
            "kl": "Train/approx_kl",
            "learning_rate": "Loss/learning_rate",
            "sigma": "Policy/mean_std",
        }
        record |= {f"ppo/{key}": float(metrics[name]) for key, name in names.items()}
        line = json.dumps(record)
        self.file.write(line + "\n")
        self.file.flush()
        print(line, flush=True)
        if env_steps >= a.env_steps:
            raise EnoughError


def settings(arguments: argparse.Namespace) -> dict[str, Any]:
    model = {
        "class_name": "rsl_rl.models.MLPModel",
        "hidden_dims": arguments.hidden_sizes,
        "activation": "elu",
        "obs_normalization": arguments.normalize_observations,
    }
    gaussian = {"class_name": "GaussianDistribution", "std_type": "log"}
    return {
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "actor": {**model, "distribution_cfg": gaussian},
        "critic": model,
        "algorithm": {
            "num_learning_epochs": arguments.epochs,
            "num_mini_batches": arguments.minibatches,
            "clip_param": arguments.clip,
            "gamma": arguments.discount,
            "value_loss_coef": arguments.value_coefficient,
            "entropy_coef": arguments.entropy_coefficient,
            "learning_rate": arguments.learning_rate,
            "max_grad_norm": arguments.gradient_norm,
            "use_clipped_value_loss": arguments.clip_values,
            "schedule": "adaptive",
            "desired_kl": arguments.target_kl,
            "enable_compile": False,
        },
    }


def train(arguments: argparse.Namespace) -> None:
    start = time.perf_counter()
    torch.set_num_threads(arguments.threads)
    torch.set_flush_denormal(True)
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)

    metrics = Metrics(out / "metrics.jsonl", arguments, start)
    metrics.ended = multiprocessing.get_context("spawn").Queue()
    appo.OffPolicyLogger = lambda **_: metrics
    factory = partial(Envs, name=arguments.env, seed=arguments.seed, threads=arguments.threads, ended=metrics.ended)
    metrics.runner = runner = Runner(
        env_name=arguments.env,
        env_cfg_overrides={},
        rl_cfg=settings(arguments),
        env_factory=factory,
        device="cpu",
        num_envs=arguments.num_envs,
        steps_per_env=arguments.rollout_steps,
        replay_queue_size=arguments.replay_rollouts,
        seed=arguments.seed,
    )
    try:
        runner.learn(max_iterations=1_000_000_000, save_interval=0, log_dir=str(out))
    except EnoughError:
        pass
    finally:
        runner.close()
        metrics.file.close()

    actor = runner.learner.actor.eval()

    def mean_action(observations: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            batch = torch.from_numpy(observations.astype(np.float32))
            return actor(TensorDict({"policy": batch}, batch_size=[len(batch)])).numpy()

    # The seeds lie far from those of training.
    scores = evaluate(mean_action, arguments.env, arguments.evaluation_episodes, seed=1_000_000 + arguments.seed)
    evaluation = {"return_mean": float(np.mean(scores)), "returns": scores}
    (out / "evaluation.json").write_text(json.dumps(evaluation) + "\n", encoding="utf-8")
    print(json.dumps(evaluation), flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.unilab_appo",
        description="Asynchronous PPO of unilab-rl.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--env", default="HalfCheetah-v5")
    parser.add_argument("--num-envs", type=int, default=32)
    parser.add_argument("--env-steps", type=int, default=800_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", required=True, metavar="DIR")
    parser.add_argument("--rollout-steps", type=int, default=64, help="of each environment, per rollout")
    parser.add_argument("--replay-rollouts", type=int, default=3, help="that an update trains on together")
    parser.add_argument("--hidden-sizes", type=int, nargs="+", default=[256, 128], help="of actor and of critic")
    parser.add_argument("--normalize-observations", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--minibatches", type=int, default=4)
    parser.add_argument("--discount", type=float, default=0.99)
    parser.add_argument("--clip", type=float, default=0.2)
    parser.add_argument("--clip-values", action=argparse.BooleanOptionalAction, default=False)
    parser.add_argument("--value-coefficient", type=float, default=1.0)
    parser.add_argument("--entropy-coefficient", type=float, default=0.01)
    parser.add_argument("--gradient-norm", type=float, default=1.0)
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="of the first update; adapts to the KL")
    parser.add_argument("--target-kl", type=float, default=0.01)
    parser.add_argument("--threads", type=int, default=1, help="torch threads of each of the two processes")
    parser.add_argument("--env-steps-per-record", type=int, default=10_000)
    parser.add_argument("--evaluation-episodes", type=int, default=10)
    train(parser.parse_args(argv))


if __name__ == "__main__":
    main()
