"""Plain synchronous single-process PPO in one file: the baseline that aiorl's asynchronous PPO is compared with.

Nothing here imports aiorl. The loop acts in all environments for a rollout, then learns from it, one after the
other: `time/rollout_ms` and `time/update_ms` say how the two share the time. `seconds` counts from before the
environments are built (imports are left out). Values, advantages and statistics belong to the update: the
critic does not change during a rollout, so one pass over all of it does.

    python -m benchmarks.plain_ppo --env HalfCheetah-v5 --num-envs 32 --env-steps 800000 --seed 0 --out DIR
"""

import argparse
import json
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor, nn

LEARNING_RATE_MIN, LEARNING_RATE_MAX = 1e-5, 1e-2


def mlp(inputs: int, hidden_sizes: Sequence[int], outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for size in hidden_sizes:
        layers += [nn.Linear(inputs, size), nn.ELU(inplace=True)]
        inputs = size
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))


class Actor(nn.Module):
    """Gaussian policy in units of [-1, 1], unclipped; σ does not depend on the observation."""

    def __init__(self, observation_size: int, action_size: int, hidden_sizes: Sequence[int]) -> None:
        super().__init__()
        self.body = mlp(observation_size, hidden_sizes, action_size)
        self.log_sigma = nn.Parameter(torch.zeros(action_size))

    def forward(self, observations: Tensor) -> Tensor:
        return self.body(observations)


class Critic(nn.Module):
    def __init__(self, observation_size: int, hidden_sizes: Sequence[int]) -> None:
        super().__init__()
        self.body = mlp(observation_size, hidden_sizes, 1)

    def forward(self, observations: Tensor) -> Tensor:
        return self.body(observations).squeeze(-1)


class Normalizer:
    """clip((x - μ) / (σ + 0.01), ±10) with μ and σ over all that update() saw; the identity before."""

    def __init__(self, size: int, enabled: bool) -> None:
        self.enabled = enabled
        self.count = 0
        self.mean, self.variance = torch.zeros(size, dtype=torch.float64), torch.zeros(size, dtype=torch.float64)
        self.shift, self.scale = torch.zeros(size), torch.ones(size)

    def __call__(self, observations: Tensor) -> Tensor:
        if not self.count:
            return observations
        return ((observations - self.shift) * self.scale).clamp_(-10.0, 10.0)

    def update(self, observations: Tensor) -> None:
        if not self.enabled:
            return
        batch = observations.double()
        variance, mean = torch.var_mean(batch, dim=0, correction=0)
        total = self.count + len(batch)
        share = len(batch) / total
        delta = mean - self.mean
        self.mean += share * delta
        self.variance += share * (variance - self.variance + delta.square() * (1.0 - share))
        self.count = total
        self.shift, self.scale = self.mean.float(), (1.0 / (self.variance.sqrt() + 0.01)).float()


class Rollout:
    """T steps of N environments; `final` are the last observations of the episodes that were truncated."""

    def __init__(self, steps: int, num_envs: int, observation_size: int, action_size: int) -> None:
        self.observations = torch.empty(steps + 1, num_envs, observation_size)  # the last: after the last step
        self.means = torch.empty(steps, num_envs, action_size)
        self.actions = torch.empty(steps, num_envs, action_size)
        self.rewards = np.empty((steps, num_envs), np.float32)
        self.terminated = np.empty((steps, num_envs), bool)
        self.done = np.empty((steps, num_envs), bool)
        self.final: list[tuple[int, int, np.ndarray]] = []


class Ppo:
    def __init__(self, observation_size: int, action_size: int, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.actor = Actor(observation_size, action_size, arguments.hidden_sizes)
        self.critic = Critic(observation_size, arguments.hidden_sizes)
        self.normalizer = Normalizer(observation_size, arguments.normalize_observations)
        self.parameters = [*self.actor.parameters(), *self.critic.parameters()]
        self.learning_rate = arguments.learning_rate
        self.optimizer = torch.optim.Adam(self.parameters, self.learning_rate, fused=True)
        action, observation = action_size, observation_size
        self.columns = [observation, action, action, 1, 1, 1, 1]  # of the rows that minibatches are gathered from

    def mean_action(self, observations: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return self.actor(self.normalizer(torch.from_numpy(observations.astype(np.float32)))).numpy()

    @torch.no_grad()
    def rows(self, rollout: Rollout) -> Tensor:
        """One row per step: observation, action, mean, log-probability, value, value target and advantage."""
        a = self.arguments
        steps, num_envs = rollout.rewards.shape
        observations = self.normalizer(rollout.observations)
        all_values = self.critic(observations).numpy()
        values, next_values = all_values[:-1], all_values[1:].copy()
        next_values[rollout.terminated] = 0.0
        if rollout.final:
            where_step, where_env, final = zip(*rollout.final, strict=True)
            final_observations = torch.from_numpy(np.array(final, np.float32))
            next_values[where_step, where_env] = self.critic(self.normalizer(final_observations)).numpy()
        deltas = rollout.rewards + a.discount * next_values - values
        decay = (a.discount * a.gae_lambda * ~rollout.done).astype(np.float32)
        advantages = np.empty_like(deltas)
        running = np.zeros(num_envs, np.float32)
        for t in reversed(range(steps)):
            running = advantages[t] = deltas[t] + decay[t] * running
        targets = advantages + values
        normalized = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        log_probs = log_prob(rollout.actions, rollout.means, self.actor.log_sigma)
        scalars = [log_probs, *(torch.from_numpy(x) for x in (values, targets, normalized))]
        parts = [observations[:-1], rollout.actions, rollout.means, *(x.unsqueeze(-1) for x in scalars)]
        return torch.cat(parts, dim=-1).flatten(0, 1)

    def update(self, rollout: Rollout) -> dict[str, Tensor | float]:
        """All epochs over one rollout; returns means over their minibatches (KL: of the last epoch)."""
        a = self.arguments
        rows = self.rows(rollout)
        old_log_sigma = self.actor.log_sigma.detach().clone()
        sums = torch.zeros(3)
        kl = torch.zeros(())
        for epoch in range(a.epochs):
            for indices in torch.randperm(len(rows)).tensor_split(a.minibatches):
                batch = rows.index_select(0, indices).split(self.columns, dim=1)
                observations, actions, old_means = batch[:3]
                old_log_probs, old_values, targets, advantages = (column.squeeze(-1) for column in batch[3:])

                means = self.actor(observations)
                ratio = (log_prob(actions, means, self.actor.log_sigma) - old_log_probs).exp()
                clipped = ratio.clamp(1.0 - a.clip, 1.0 + a.clip)
                surrogate_loss = -torch.minimum(advantages * ratio, advantages * clipped).mean()

                values = self.critic(observations)
                value_losses = (values - targets).square()
                if a.value_clip is not None:
                    near = old_values + (values - old_values).clamp(-a.value_clip, a.value_clip)
                    value_losses = torch.maximum(value_losses, (near - targets).square())
                value_loss = value_losses.mean()

                entropy = (self.actor.log_sigma + 0.5 * math.log(2.0 * math.pi * math.e)).sum()
                loss = surrogate_loss + a.value_coefficient * value_loss - a.entropy_coefficient * entropy
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.parameters, a.gradient_norm)
                if epoch == a.epochs - 1:
                    kl += gaussian_kl(old_means, old_log_sigma, means.detach(), self.actor.log_sigma.detach()).mean()
                self.optimizer.step()
                sums += torch.stack([surrogate_loss.detach(), value_loss.detach(), entropy.detach()])
        self.normalizer.update(rollout.observations[:-1].flatten(0, 1))
        mean_kl = kl.item() / a.minibatches
        if mean_kl > 2.0 * a.target_kl:
            self.set_learning_rate(self.learning_rate / 1.5)
        elif mean_kl < 0.5 * a.target_kl:
            self.set_learning_rate(self.learning_rate * 1.5)
        surrogate_loss, value_loss, entropy = sums / (a.epochs * a.minibatches)
        return {
            "surrogate_loss": surrogate_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "kl": mean_kl,
            "learning_rate": self.learning_rate,
            "sigma": self.actor.log_sigma.detach().exp().mean(),
        }

    def set_learning_rate(self, learning_rate: float) -> None:
        self.learning_rate = min(max(learning_rate, LEARNING_RATE_MIN), LEARNING_RATE_MAX)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate


def log_prob(actions: Tensor, means: Tensor, log_sigma: Tensor) -> Tensor:
    z = (actions - means) * (-log_sigma).exp()
    return -0.5 * z.square().sum(-1) - (log_sigma + 0.5 * math.log(2.0 * math.pi)).sum()


def gaussian_kl(old_means: Tensor, old_log_sigma: Tensor, means: Tensor, log_sigma: Tensor) -> Tensor:
    """KL(old ‖ new) of each row."""
    variance_ratio = (2.0 * (old_log_sigma - log_sigma)).exp()
    z = (old_means - means) * (-log_sigma).exp()
    return (0.5 * (variance_ratio + z.square() - 1.0) + log_sigma - old_log_sigma).sum(-1)


def make_envs(name: str, count: int) -> SyncVectorEnv:
    envs = SyncVectorEnv([partial(gym.make, name)] * count, copy=False, autoreset_mode=AutoresetMode.SAME_STEP)
    for space in (envs.single_observation_space, envs.single_action_space):
        if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
            raise SystemExit(f"{name}: only flat Box spaces are supported, not {space}")
    if not envs.single_action_space.is_bounded():
        raise SystemExit(f"{name}: the action space must be bounded")
    return envs


class ToEnv:
    """The affine map from [-1, 1] to the bounds of the action space, clipped there."""

    def __init__(self, envs: SyncVectorEnv) -> None:
        low, high = envs.single_action_space.low, envs.single_action_space.high
        self.center, self.half_width = (high + low) / 2, (high - low) / 2
        self.low, self.high = low, high

    def __call__(self, actions: np.ndarray) -> np.ndarray:
        return np.clip(self.center + self.half_width * actions, self.low, self.high)


class Returns:
    """Undiscounted returns of episodes: the environment's own rewards, summed in float64."""

    def __init__(self, num_envs: int) -> None:
        self.running = np.zeros(num_envs)
        self.latest: deque[float] = deque(maxlen=20)
        self.ended: list[float] = []
        self.finished = 0

    def add(self, rewards: np.ndarray, done: np.ndarray) -> None:
        self.running += rewards
        if done.any():
            ended = self.running[done].tolist()
            self.latest += ended
            self.ended += ended
            self.finished += len(ended)
            self.running[done] = 0.0

    def record(self) -> dict[str, float | int | None]:
        """For metrics; starts a new interval."""
        record = {
            "episode/return_mean": float(np.mean(self.latest)) if self.latest else None,
            "episode/return_interval_mean": float(np.mean(self.ended)) if self.ended else None,
            "episode/finished": self.finished,
        }
        self.ended.clear()
        return record


def evaluate(mean_action: Callable[[np.ndarray], np.ndarray], name: str, episodes: int, seed: int) -> list[float]:
    """Undiscounted returns of the mean action: the first episode of each of `episodes` environments."""
    envs = make_envs(name, episodes)
    to_env = ToEnv(envs)
    observations, _ = envs.reset(seed=[seed + i for i in range(episodes)])
    returns = np.zeros(episodes)
    running = np.ones(episodes, bool)
    while running.any():
        observations, rewards, terminated, truncated, _ = envs.step(to_env(mean_action(observations)))
        returns += np.where(running, rewards, 0.0)
        running &= ~(terminated | truncated)
    envs.close()
    return returns.tolist()


def train(arguments: argparse.Namespace) -> None:
    start = time.perf_counter()
    torch.set_num_threads(arguments.threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(arguments.seed)

    steps, num_envs = arguments.rollout_steps, arguments.num_envs
    envs = make_envs(arguments.env, num_envs)
    observation_size = envs.single_observation_space.shape[0]
    action_size = envs.single_action_space.shape[0]
    to_env = ToEnv(envs)
    ppo = Ppo(observation_size, action_size, arguments)
    rollout = Rollout(steps, num_envs, observation_size, action_size)
    returns = Returns(num_envs)

    env_steps = updates = 0
    next_record = arguments.env_steps_per_record
    spent = {"time/rollout_ms": [], "time/update_ms": []}
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    observations, _ = envs.reset(seed=[arguments.seed * num_envs + i for i in range(num_envs)])

    with (out / "metrics.jsonl").open("w", encoding="utf-8") as metrics:
        while env_steps < arguments.env_steps:
            rollout_start = time.perf_counter()
            rollout.final.clear()
            with torch.inference_mode():
                torch.randn(rollout.actions.shape, out=rollout.actions)  # noise, made into actions below
                rollout.actions *= ppo.actor.log_sigma.exp()
                for t in range(steps):
                    rollout.observations[t] = torch.from_numpy(observations)
                    rollout.means[t] = ppo.actor(ppo.normalizer(rollout.observations[t]))
                    actions = rollout.actions[t].add_(rollout.means[t]).numpy()
                    observations, rewards, terminated, truncated, info = envs.step(to_env(actions))
                    done = terminated | truncated
                    rollout.rewards[t], rollout.terminated[t], rollout.done[t] = rewards, terminated, done
                    returns.add(rewards, done)
                    if done.any():
                        cut = np.flatnonzero(truncated & ~terminated)
                        rollout.final += [(t, i, np.asarray(info["final_obs"][i])) for i in cut]
                rollout.observations[steps] = torch.from_numpy(observations)
            env_steps += steps * num_envs

            update_start = time.perf_counter()
            latest = ppo.update(rollout)
            updates += 1
            spent["time/rollout_ms"].append(1e3 * (update_start - rollout_start))
            spent["time/update_ms"].append(1e3 * (time.perf_counter() - update_start))

            if env_steps >= next_record or env_steps >= arguments.env_steps:
                while next_record <= env_steps:
                    next_record += arguments.env_steps_per_record
                record: dict[str, float | int | None] = {
                    "env_steps": env_steps,
                    "gradient_steps": updates * arguments.epochs * arguments.minibatches,
                    "seconds": round(time.perf_counter() - start, 3),
                }
                record |= returns.record()
                record |= {key: round(float(np.mean(values)), 3) for key, values in spent.items()}
                for values in spent.values():
                    values.clear()
                record |= {f"ppo/{key}": float(value) for key, value in latest.items()}
                line = json.dumps(record)
                metrics.write(line + "\n")
                metrics.flush()
                print(line, flush=True)
    envs.close()

    # The seeds lie far from those of training.
    scores = evaluate(ppo.mean_action, arguments.env, arguments.evaluation_episodes, seed=1_000_000 + arguments.seed)
    evaluation = {"return_mean": float(np.mean(scores)), "returns": scores}
    (out / "evaluation.json").write_text(json.dumps(evaluation) + "\n", encoding="utf-8")
    print(json.dumps(evaluation), flush=True)


def number_or_none(text: str) -> float | None:
    return None if text.lower() == "none" else float(text)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.plain_ppo",
        description="Plain synchronous single-process PPO.",
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
    parser.add_argument("--value-clip", type=number_or_none, default=None, metavar="C", help="a number, or none")
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
