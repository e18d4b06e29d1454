"""Drawing rows from a replay shard and gathering them, with n-step rewards, into a batch slot."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from aiorl.errors import StorageError
from aiorl.storage.replay import ReplayShard


def draw(shard: ReplayShard, count: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Draw rows uniformly, with replacement, from the valid rows present, `(count,)`.

    A row is numbered `age * num_envs + env`, age 0 the oldest vector step present.

    Raises:
        StorageError: no valid row is present.

    """
    present = shard.snapshot.present_steps
    if present == 0:
        raise StorageError("the replay shard holds no valid row to draw")
    rows = generator.integers(present * shard.num_envs, size=count)
    bad = np.flatnonzero(~_valid(shard, rows))
    if bad.size and not shard.valid[shard.ages()].any():
        raise StorageError("the replay shard holds no valid row to draw")
    while bad.size:
        rows[bad] = generator.integers(present * shard.num_envs, size=bad.size)
        bad = bad[~_valid(shard, rows[bad])]
    return rows


def pack(
    shard: ReplayShard,
    rows: NDArray[np.int64],
    n_step: int,
    gamma: float,
    out: NDArray[np.float32],
    discount: NDArray[np.float32],
) -> None:
    """Gather drawn rows `(count,)` into `out` `(count, width)` and `discount` `(count,)`.

    The reward is the sum of γ^k r over up to n steps of the same env. It ends at a terminated step (discount
    0), at a truncated or cut one (bootstrap from that row's own next observation), before an invalid row, and
    at the newest row; the discount is γ to the number of steps taken.
    """
    flat_rows = shard.rows.reshape(-1, shard.layout.width)
    here = _flat(shard, rows)
    np.take(flat_rows, here, axis=0, out=out)
    terminated = shard.terminated.reshape(-1)
    if n_step > 1:
        last, reward, discount[:] = _run_on(shard, rows, n_step, gamma)
        out[:, shard.layout.slices["reward"]] = reward[:, None]
        for name, part in shard.layout.slices.items():
            if name.startswith("next_"):
                out[:, part] = flat_rows[last, part]
        discount[terminated[last]] = 0
    else:
        discount[:] = np.float32(gamma) * ~terminated[here]


def _run_on(
    shard: ReplayShard, rows: NDArray[np.int64], n_step: int, gamma: float
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Return, for each row, the last row of its window, the summed reward, and γ^steps."""
    rewards = shard.rows[:, :, shard.layout.slices["reward"]].reshape(-1)
    stops = (shard.terminated | shard.truncated | shard.cut).reshape(-1)
    valid = shard.valid.reshape(-1)
    newest = shard.snapshot.present_steps * shard.num_envs
    last = _flat(shard, rows)
    total = rewards[last].astype(np.float64)
    power = np.full(len(rows), gamma)
    ahead = rows.copy()
    for _ in range(n_step - 1):
        ahead += shard.num_envs
        inside = np.flatnonzero((ahead < newest) & ~stops[last])
        following = _flat(shard, ahead[inside])
        goes_on = valid[following]
        inside, following = inside[goes_on], following[goes_on]
        total[inside] += power[inside] * rewards[following]
        power[inside] *= gamma
        last[inside] = following
        blocked = np.ones(len(rows), bool)
        blocked[inside] = False
        ahead[blocked] = newest  # a window that stopped stays stopped
    return last, total, power


def _flat(shard: ReplayShard, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    snapshot = shard.snapshot
    oldest = snapshot.written_steps - snapshot.present_steps
    age, env = np.divmod(rows, shard.num_envs)
    flat: NDArray[np.int64] = (oldest + age) % shard.steps * shard.num_envs + env
    return flat


def _valid(shard: ReplayShard, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    return shard.valid.reshape(-1)[_flat(shard, rows)]
