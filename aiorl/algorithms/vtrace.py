"""V-trace with λ (IMPALA, arXiv 1802.01561, section 4.1; λ as in its remark 2), over time-major rollouts.

Every argument and result is `(T, N)` unless said.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class VTrace(NamedTuple):
    """Targets of the value function, and the advantages of the actions taken."""

    target: Tensor
    advantage: Tensor


class Limits(NamedTuple):
    """Largest importance weights: ρ̄ of an error, c̄ of its way back in time."""

    rho: float
    c: float


ONE = Limits(rho=1.0, c=1.0)


def next_values(
    value: Tensor, last_value: Tensor, final_value: Tensor, terminated: Tensor, truncated: Tensor
) -> Tensor:
    """Return what each step is worth after its reward.

    That is 0 where it terminated, V of the episode's final observation where it was truncated, V of the last
    observation (`last_value`, `(N,)`) at the end of the rollout, and V of the next row elsewhere.
    """
    following = torch.cat([value[1:], last_value[None]])
    return torch.where(truncated, final_value, following).masked_fill(terminated, 0)


def goes_on(terminated: Tensor, truncated: Tensor, valid: Tensor) -> Tensor:
    """Return where the next row is the same episode's next step, bool; the last row has none."""
    following = torch.cat([valid[1:], torch.zeros_like(valid[:1])])
    return following & ~terminated & ~truncated


def vtrace(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    is_followed: Tensor,
    log_ratio: Tensor,
    gamma: float,
    trace_lambda: float,
    limits: Limits = ONE,
) -> VTrace:
    """Return targets and advantages; `log_ratio` is log π̄(a|s) − log μ(a|s).

    With ρ = min(ρ̄, π̄/μ) and c = λ min(c̄, π̄/μ):
    δ_t = ρ_t (r_t + γ n_t − V_t), vs_t = V_t + δ_t + γ c_t cont_t (vs_{t+1} − V_{t+1}),
    A_t = ρ_t (r_t + γ (n_t + λ cont_t (vs_{t+1} − V_{t+1})) − V_t).
    Where π̄ = μ, A is GAE(λ) (arXiv 1506.02438) and vs = V + A.
    """
    ratio = log_ratio.exp()
    rho, c = ratio.clamp(max=limits.rho), trace_lambda * ratio.clamp(max=limits.c)
    error = reward + gamma * next_value - value
    correction = torch.zeros_like(value)  # vs_t − V_t
    carried = torch.zeros_like(value)  # cont_t (vs_{t+1} − V_{t+1})
    for t in reversed(range(len(value))):
        if t + 1 < len(value):
            carried[t] = correction[t + 1].masked_fill(~is_followed[t], 0)
        correction[t] = rho[t] * error[t] + gamma * c[t] * carried[t]
    return VTrace(value + correction, rho * (error + gamma * trace_lambda * carried))
