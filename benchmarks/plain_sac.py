"""Plain single-process soft actor-critic in one file: the baseline that aiorl is compared with.

Nothing here imports aiorl. The loop acts in all environments, stores, then takes the gradient steps that
are due, one after the other. `seconds` counts from before the environments are built (imports are left out).

    python -m benchmarks.plain_sac --env HalfCheetah-v5 --num-envs 8 --env-steps 50000 --seed 0 --out DIR

`--env module:factory` takes a factory of vector environments, called with `num_envs`.
"""

import argparse
import json
import math
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from torch import Tensor, nn
from torch.nn import functional

LOG_SIGMA_MIN, LOG_SIGMA_MAX = -5.0, 2.0


def mlp(inputs: int, hidden_sizes: Sequence[int], outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for size in hidden_sizes:
        layers += [nn.Linear(inputs, size), nn.ReLU(inplace=True)]
        inputs = size
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))


class Actor(nn.Module):
    """Tanh-Gaussian policy with actions in [-1, 1]."""

    def __init__(self, observation_size: int, action_size: int, hidden_sizes: Sequence[int]) -> None:
        super().__init__()
        self.body = mlp(observation_size, hidden_sizes, 2 * action_size)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log σ before the tanh.

        log σ is squashed, not clamped, so that its gradient never dies at a bound:
        log σ = min + (max - min)(tanh(raw) + 1) / 2, so raw = 0 gives log σ = -1.5.
        """
        mean, raw = self.body(observations).chunk(2, dim=-1)
        log_sigma = LOG_SIGMA_MIN + 0.5 * (LOG_SIGMA_MAX - LOG_SIGMA_MIN) * (torch.tanh(raw) + 1.0)
        return mean, log_sigma

    def sample(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Reparametrised actions and their log-probabilities."""
        mean, log_sigma = self(observations)
        noise = torch.randn_like(mean)
        u = mean + log_sigma.exp() * noise
        gaussian = -0.5 * noise.square() - log_sigma - 0.5 * math.log(2.0 * math.pi)
        correction = 2.0 * (math.log(2.0) - u - functional.softplus(-2.0 * u))
        return torch.tanh(u), (gaussian - correction).sum(-1)


class TwinCritic(nn.Module):
    """Two Q networks; on a CPU two modules beat one batched matrix product."""

    def __init__(self, observation_size: int, action_size: int, hidden_sizes: Sequence[int]) -> None:
        super().__init__()
        self.q1 = mlp(observation_size + action_size, hidden_sizes, 1)
        self.q2 = mlp(observation_size + action_size, hidden_sizes, 1)

    def forward(self, observations_and_actions: Tensor) -> tuple[Tensor, Tensor]:
        return self.q1(observations_and_actions).squeeze(-1), self.q2(observations_and_actions).squeeze(-1)


class Replay:
    """A float32 ring whose rows are (observation, action, next observation, reward, 1 - terminated).

    One row holds a whole transition, so a batch is one gather, made straight into a reused tensor.
    """

    def __init__(
        self,
        capacity: int,
        observation_size: int,
        action_size: int,
        batch_size: int,
        rng: np.random.Generator,
    ) -> None:
        self.rows = np.empty((capacity, 2 * observation_size + action_size + 2), np.float32)
        self.position = 0
        self.size = 0
        self.rng = rng
        self.batch = torch.empty(batch_size, self.rows.shape[1])
        self.batch_rows = self.batch.numpy()
        # Columns of the batch: views, so every sample() refreshes them.
        joint = observation_size + action_size
        self.observations = self.batch[:, :observation_size]
        self.observations_and_actions = self.batch[:, :joint]
        self.next_observations = self.batch[:, joint : joint + observation_size]
        self.rewards = self.batch[:, -2]
        self.continues = self.batch[:, -1]

    def add(
        self,
        observations: np.ndarray,
        actions: np.ndarray,
        next_observations: np.ndarray,
        rewards: np.ndarray,
        terminated: np.ndarray,
    ) -> None:
        count, capacity = len(observations), len(self.rows)
        room = min(count, capacity - self.position)  # what does not fit in at the end goes to the start
        for rows, part in (
            (self.rows[self.position : self.position + room], slice(None, room)),
            (self.rows[: count - room], slice(room, None)),
        ):
            if len(rows):
                joint = observations.shape[1] + actions.shape[1]
                rows[:, : observations.shape[1]] = observations[part]
                rows[:, observations.shape[1] : joint] = actions[part]
                rows[:, joint:-2] = next_observations[part]
                rows[:, -2] = rewards[part]
                np.subtract(1.0, terminated[part], out=rows[:, -1], casting="unsafe")
        self.position = (self.position + count) % capacity
        self.size = min(self.size + count, capacity)

    def sample(self) -> None:
        """Fill the batch tensor; mode="clip" lets numpy write into it without a buffer in between."""
        indices = self.rng.integers(self.size, size=len(self.batch_rows))
        np.take(self.rows, indices, axis=0, out=self.batch_rows, mode="clip")


class Sac:
    def __init__(
        self,
        observation_size: int,
        action_size: int,
        hidden_sizes: Sequence[int],
        learning_rate: float,
        discount: float,
        target_update_rate: float,
    ) -> None:
        self.discount = discount
        self.target_update_rate = target_update_rate
        self.target_entropy = -float(action_size)
        self.actor = Actor(observation_size, action_size, hidden_sizes)
        self.critic = TwinCritic(observation_size, action_size, hidden_sizes)
        self.target_critic = TwinCritic(observation_size, action_size, hidden_sizes).requires_grad_(False)
        self.target_critic.load_state_dict(self.critic.state_dict())
        self.log_alpha = torch.zeros((), requires_grad=True)
        self.actor_parameters = list(self.actor.parameters())
        self.critic_parameters = list(self.critic.parameters())
        self.critic_tensors = [parameter.detach() for parameter in self.critic_parameters]
        self.target_tensors = list(self.target_critic.parameters())
        self.actor_optimizer = torch.optim.Adam(self.actor_parameters, learning_rate, fused=True)
        self.critic_optimizer = torch.optim.Adam(self.critic_parameters, learning_rate, fused=True)
        self.alpha_optimizer = torch.optim.Adam([self.log_alpha], learning_rate, fused=True)

    def update(self, replay: Replay) -> dict[str, Tensor]:
        """One gradient step on critic, actor and α; returns tensors, read only when a record is due."""
        replay.sample()
        alpha = self.log_alpha.detach().exp()

        with torch.no_grad():
            next_actions, next_log_probs = self.actor.sample(replay.next_observations)
            next_q = torch.minimum(*self.target_critic(torch.cat([replay.next_observations, next_actions], dim=-1)))
            target = replay.rewards + self.discount * replay.continues * (next_q - alpha * next_log_probs)
        q1, q2 = self.critic(replay.observations_and_actions)
        critic_loss = functional.mse_loss(q1, target) + functional.mse_loss(q2, target)
        self.critic_optimizer.zero_grad()
        critic_loss.backward()
        self.critic_optimizer.step()

        actions, log_probs = self.actor.sample(replay.observations)
        q = torch.minimum(*self.critic(torch.cat([replay.observations, actions], dim=-1)))
        actor_loss = (alpha * log_probs - q).mean()
        self.actor_optimizer.zero_grad()
        actor_loss.backward(inputs=self.actor_parameters)  # skips the critic's weight gradients
        self.actor_optimizer.step()

        # The α loss is -α mean(log π + target entropy); its gradient in log α is the loss itself.
        mean_log_prob = log_probs.detach().mean()
        self.log_alpha.grad = -alpha * (mean_log_prob + self.target_entropy)
        self.alpha_optimizer.step()

        torch._foreach_lerp_(self.target_tensors, self.critic_tensors, self.target_update_rate)
        return {
            "critic_loss": critic_loss.detach(),
            "actor_loss": actor_loss.detach(),
            "q": q.detach().mean(),
            "alpha": alpha,
            "entropy": -mean_log_prob,
        }


def make_envs(name: str, count: int) -> VectorEnv[Any, Any, Any]:
    module, _, factory = name.partition(":")
    envs: VectorEnv[Any, Any, Any]
    if factory:
        envs = getattr(import_module(module), factory)(num_envs=count)
        if envs.metadata["autoreset_mode"] is not AutoresetMode.SAME_STEP:
            raise SystemExit(f"{name}: only SAME_STEP is supported")
    else:
        make = partial(gym.make, name, disable_env_checker=True)
        envs = SyncVectorEnv([make] * count, autoreset_mode=AutoresetMode.SAME_STEP)
    for space in (envs.single_observation_space, envs.single_action_space):
        if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
            raise SystemExit(f"{name}: only flat Box spaces are supported, not {space}")
    if not envs.single_action_space.is_bounded():
        raise SystemExit(f"{name}: the action space must be bounded")
    return envs


class ToEnv:
    """The affine map from [-1, 1] to the bounds of the action space."""

    def __init__(self, envs: VectorEnv[Any, Any, Any]) -> None:
        low, high = envs.single_action_space.low, envs.single_action_space.high
        self.center, self.half_width = (high + low) / 2, (high - low) / 2
        self.low, self.high = low, high

    def __call__(self, actions: np.ndarray) -> np.ndarray:
        return np.clip(self.center + self.half_width * actions, self.low, self.high)


def evaluate(actor: Actor, name: str, episodes: int, seed: int) -> list[float]:
    """Undiscounted returns of tanh(mean): the first episode of each of `episodes` environments."""
    envs = make_envs(name, episodes)
    to_env = ToEnv(envs)
    observations, _ = envs.reset(seed=[seed + i for i in range(episodes)])
    returns = np.zeros(episodes)
    running = np.ones(episodes, bool)
    while running.any():
        with torch.inference_mode():
            mean, _ = actor(torch.from_numpy(observations.astype(np.float32)))
            actions = torch.tanh(mean).numpy()
        observations, rewards, terminated, truncated, _ = envs.step(to_env(actions))
        returns += np.where(running, rewards, 0.0)
        running &= ~(terminated | truncated)
    envs.close()
    return returns.tolist()


def train(arguments: argparse.Namespace) -> None:
    start = time.perf_counter()
    torch.set_num_threads(arguments.threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(arguments.seed)
    action_seed, replay_seed = np.random.SeedSequence(arguments.seed).spawn(2)
    rng = np.random.default_rng(action_seed)

    num_envs = arguments.num_envs
    envs = make_envs(arguments.env, num_envs)
    observation_size = envs.single_observation_space.shape[0]
    action_size = envs.single_action_space.shape[0]
    to_env = ToEnv(envs)
    sac = Sac(
        observation_size,
        action_size,
        arguments.hidden_sizes,
        arguments.learning_rate,
        arguments.discount,
        arguments.target_update_rate,
    )
    replay = Replay(
        max(num_envs, min(arguments.replay_capacity, arguments.env_steps + num_envs)),
        observation_size,
        action_size,
        arguments.batch_size,
        np.random.default_rng(replay_seed),
    )

    env_steps = gradient_steps = finished = 0
    next_record = arguments.env_steps_per_record
    returns: deque[float] = deque(maxlen=20)
    ended: list[float] = []
    running_returns = np.zeros(num_envs)
    latest: dict[str, Tensor] = {}
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    observations, _ = envs.reset(seed=[arguments.seed * num_envs + i for i in range(num_envs)])

    with (out / "metrics.jsonl").open("w", encoding="utf-8") as metrics:
        while env_steps < arguments.env_steps:
            if env_steps < arguments.learning_starts:
                actions = rng.uniform(-1.0, 1.0, (num_envs, action_size)).astype(np.float32)
            else:
                with torch.inference_mode():
                    mean, log_sigma = sac.actor(torch.from_numpy(observations.astype(np.float32)))
                    actions = torch.tanh(mean + log_sigma.exp() * torch.randn_like(mean)).numpy()

            next_observations, rewards, terminated, truncated, info = envs.step(to_env(actions))
            env_steps += num_envs
            running_returns += rewards
            successors = next_observations  # what each step led to, before any reset
            done = terminated | truncated
            if done.any():
                successors = next_observations.copy()
                for i in np.flatnonzero(done):
                    successors[i] = info["final_obs"][i]
                    returns.append(float(running_returns[i]))
                    ended.append(float(running_returns[i]))
                    running_returns[i] = 0.0
                    finished += 1
            replay.add(observations, actions, successors, rewards, terminated)
            observations = next_observations

            due = (env_steps - arguments.learning_starts) / arguments.env_steps_per_gradient_step
            while gradient_steps + 1 <= due:
                latest = sac.update(replay)
                gradient_steps += 1

            if env_steps >= next_record or env_steps >= arguments.env_steps:
                while next_record <= env_steps:
                    next_record += arguments.env_steps_per_record
                record: dict[str, float | int | None] = {
                    "env_steps": env_steps,
                    "gradient_steps": gradient_steps,
                    "seconds": round(time.perf_counter() - start, 3),
                    "episode/return_mean": float(np.mean(returns)) if returns else None,
                    "episode/return_interval_mean": float(np.mean(ended)) if ended else None,
                    "episode/finished": finished,
                }
                ended.clear()
                record |= {f"sac/{key}": value.item() for key, value in latest.items()}
                line = json.dumps(record)
                metrics.write(line + "\n")
                metrics.flush()
                print(line, flush=True)
    envs.close()

    if not arguments.evaluation_episodes:
        return
    # The seeds lie far from those of training.
    scores = evaluate(sac.actor, arguments.env, arguments.evaluation_episodes, seed=1_000_000 + arguments.seed)
    evaluation = {"return_mean": float(np.mean(scores)), "returns": scores}
    (out / "evaluation.json").write_text(json.dumps(evaluation) + "\n", encoding="utf-8")
    print(json.dumps(evaluation), flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.plain_sac",
        description="Plain single-process SAC.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--env", default="HalfCheetah-v5")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--env-steps", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", required=True, metavar="DIR")
    parser.add_argument("--env-steps-per-gradient-step", type=float, default=2.0)
    parser.add_argument("--learning-starts", type=int, default=5000, help="env steps of random actions")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--replay-capacity", type=int, default=1_000_000)
    parser.add_argument("--hidden-sizes", type=int, nargs="+", default=[256, 256])
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--discount", type=float, default=0.99)
    parser.add_argument("--target-update-rate", type=float, default=0.005)
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument("--env-steps-per-record", type=int, default=1000)
    parser.add_argument("--evaluation-episodes", type=int, default=10)
    train(parser.parse_args(argv))


if __name__ == "__main__":
    main()
