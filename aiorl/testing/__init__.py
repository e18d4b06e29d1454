"""For tests of your own: environments that show what a trainer does with them, and a check for leftovers.

    settings = load_settings("sac/pendulum", overrides=["env.id=aiorl.testing:CountEnv", …])

Every probe is a single Gymnasium env, named by `aiorl.testing:<class>`, with `env.kwargs` as its arguments.
"""

from __future__ import annotations

from typing import Any

import gymnasium

from aiorl.testing.leftovers import LeftoversError, no_leftovers
from aiorl.testing.probes import (
    ENV_UNIT,
    EPISODE_UNIT,
    BoxEnv,
    ClockEnv,
    CountEnv,
    ScratchEnv,
    SeedEnv,
    SlowEnv,
)
from aiorl.testing.traps import Trap, TrapEnv

__all__ = [
    "ENV_UNIT",
    "EPISODE_UNIT",
    "BoxEnv",
    "ClockEnv",
    "CountEnv",
    "LeftoversError",
    "ScratchEnv",
    "SeedEnv",
    "SlowEnv",
    "Trap",
    "TrapEnv",
    "no_leftovers",
    "probe_vector_env",
]


def probe_vector_env(
    num_envs: int, probe: str, autoreset_mode: str = "SAME_STEP", **arguments: Any
) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    """Make a SyncVectorEnv of a probe, by class name, in any autoreset mode."""
    mode = gymnasium.vector.AutoresetMode[autoreset_mode]
    make = globals()[probe]
    return gymnasium.vector.SyncVectorEnv([lambda: make(**arguments)] * num_envs, autoreset_mode=mode)
