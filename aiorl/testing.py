"""For tests of your own: environments that show what a trainer does with them, and a check for leftovers.

    settings = load_settings("sac/pendulum", overrides=["env.id=aiorl.testing:CountEnv", …])

Every probe is a single Gymnasium env, named by `aiorl.testing:<class>`, with `env.kwargs` as its arguments.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np
import psutil
from gymnasium.spaces import Box, Dict
from numpy.typing import NDArray

EPISODE_UNIT = 1_000
ENV_UNIT = 100_000


class CountEnv(gymnasium.Env[NDArray[np.float32], NDArray[np.float32]]):
    """Every number of an observation is `env * 100000 + episode * 1000 + t`; the reward is 1.

    Episodes end after `length` steps by termination, by truncation, or by both at once. With `number` None
    the env takes its number from the first seed that it is given, modulo 10.
    """

    def __init__(
        self,
        length: int = 20,
        end: Literal["terminated", "truncated", "both"] = "truncated",
        width: int = 3,
        number: int | None = None,
        groups: tuple[str, ...] = (),
    ) -> None:
        self._length, self._end, self._width, self._number, self._groups = length, end, width, number, groups
        box = Box(-np.inf, np.inf, (width,), np.float32)
        self.observation_space = Dict(dict.fromkeys(groups, box)) if groups else box  # type: ignore[assignment]
        self.action_space = Box(-1, 1, (1,), np.float32)
        self._episode, self._t = -1, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start the next episode."""
        super().reset(seed=seed)
        if self._number is None:
            self._number = (seed or 0) % 10
        self._episode += 1
        self._t = 0
        return self._observation(), {}

    def step(self, action: NDArray[np.float32]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Count one step."""
        self._t += 1
        is_over = self._t >= self._length
        terminated = is_over and self._end in ("terminated", "both")
        truncated = is_over and self._end in ("truncated", "both")
        return self._observation(), 1.0, terminated, truncated, {}

    def _observation(self) -> Any:
        count = (self._number or 0) * ENV_UNIT + self._episode * EPISODE_UNIT + self._t
        obs = np.full(self._width, count, np.float32)
        # The critic's group is told apart by its sign.
        return {name: -obs if name == "critic" else obs for name in self._groups} if self._groups else obs


class ScratchEnv(CountEnv):
    """A CountEnv that returns the same array every step and overwrites it in place."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._scratch = np.zeros(self._width, np.float32)

    def _observation(self) -> NDArray[np.float32]:
        self._scratch[:] = super()._observation()
        return self._scratch


class ClockEnv(CountEnv):
    """A CountEnv whose observation is the share of its episode that is over, so that values can be learned."""

    def _observation(self) -> NDArray[np.float32]:
        return np.full(self._width, self._t / self._length, np.float32)


class SeedEnv(CountEnv):
    """A CountEnv that appends the seed it got and its first random draw to `folder`/<pid>-<object>."""

    def __init__(self, folder: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._file = Path(folder) / f"{os.getpid()}-{id(self)}"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Write down what came."""
        result = super().reset(seed=seed)
        if seed is not None:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(f"{seed} {self.np_random.random()!r}\n")
        return result


class BoxEnv(CountEnv):
    """A CountEnv with the asymmetric action space [-2, 6], which observes the action that it was given."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.action_space = Box(-2, 6, (2,), np.float32)
        self._action = np.zeros(2, np.float32)

    def step(self, action: NDArray[np.float32]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Refuse actions out of bounds; remember the others.

        Raises:
            ValueError: the action is out of bounds.
        """
        if not self.action_space.contains(action):
            raise ValueError(f"action {action} is not in {self.action_space}")
        self._action = np.array(action)
        return super().step(action)

    def _observation(self) -> NDArray[np.float32]:
        return np.concatenate([super()._observation()[:1], self._action]).astype(np.float32)


Trap = Literal["raise", "exit", "kill", "hang", "nan_obs", "inf_obs", "nan_reward", "nan_final_obs", "shape"]


class TrapEnv(CountEnv):
    """A CountEnv that does something terrible in its constructor, in reset, or at step `at`.

    `where` is "init", "reset" or "step". `once` names a file: while it exists the trap is off, and springing
    makes it.
    """

    def __init__(
        self, trap: Trap = "raise", where: str = "step", at: int = 37, once: str | None = None, **arguments: Any
    ) -> None:
        super().__init__(**arguments)
        self._trap, self._where, self._at = trap, where, at
        self._once = None if once is None else Path(once)
        self._steps = 0
        if where == "init":
            self._spring()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset, or trap."""
        if self._where == "reset":
            self._spring()
        return super().reset(seed=seed)

    def step(self, action: NDArray[np.float32]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step, or trap."""
        obs, reward, terminated, truncated, info = super().step(action)
        self._steps += 1
        final = terminated or truncated
        if self._where == "step" and self._steps >= self._at and (final or self._trap != "nan_final_obs"):
            if self._trap in ("nan_obs", "nan_final_obs", "inf_obs", "nan_reward", "shape"):
                if self._steps == self._at or self._trap == "nan_final_obs":
                    obs, reward = self._spoiled(obs, reward)
            else:
                self._spring()
        return obs, reward, terminated, truncated, info

    def _spoiled(self, obs: Any, reward: float) -> tuple[Any, float]:
        if self._trap == "nan_reward":
            return obs, float("nan")
        if self._trap == "shape":
            return obs[:-1], reward
        spoiled = np.array(obs)
        spoiled[0] = np.inf if self._trap == "inf_obs" else np.nan
        return spoiled, reward

    def _spring(self) -> None:
        if self._once is not None:
            if self._once.exists():
                return
            self._once.touch()
        match self._trap:
            case "raise":
                raise RuntimeError("the trap env has sprung")
            case "exit":
                os._exit(9)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                threading.Event().wait()


def probe_vector_env(
    num_envs: int, probe: str, autoreset_mode: str = "SAME_STEP", **arguments: Any
) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    """Make a SyncVectorEnv of a probe, by class name, in any autoreset mode."""
    mode = gymnasium.vector.AutoresetMode[autoreset_mode]
    make = globals()[probe]
    return gymnasium.vector.SyncVectorEnv([lambda: make(**arguments)] * num_envs, autoreset_mode=mode)


class SlowEnv(CountEnv):
    """A CountEnv whose step takes `seconds`, asleep."""

    def __init__(self, seconds: float, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._seconds = seconds

    def step(self, action: NDArray[np.float32]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take the time."""
        time.sleep(self._seconds)
        return super().step(action)


class LeftoversError(AssertionError):
    """A run left something behind."""


@contextmanager
def no_leftovers() -> Iterator[None]:
    """Check that a block leaves no process, descriptor, thread or shared memory name behind.

    The fork server and resource tracker of `multiprocessing` stay with the host and do not count.

    Raises:
        LeftoversError: with what is left.
    """
    if importlib.util.find_spec("uvloop"):
        import uvloop

        uvloop.new_event_loop().close()  # its first loop opens a pipe that stays for the life of the process
    before = _inventory()
    yield
    left = {kind: sorted(now - before[kind]) for kind, now in _inventory().items() if now - before[kind]}
    if names := left.pop("shared memory", None):
        foreign = _mapped_by_others()
        if names := [name for name in names if name not in foreign]:
            left["shared memory"] = names
    if left:
        raise LeftoversError("; ".join(f"{kind}: {', '.join(items)}" for kind, items in left.items()))


def _inventory() -> dict[str, set[str]]:
    shm = Path("/dev/shm")
    return {
        "processes": _processes(),
        "descriptors": _descriptors(),
        "threads": {f"{thread.name} ({thread.ident})" for thread in threading.enumerate()},
        "shared memory": {path.name for path in shm.iterdir()} if shm.is_dir() else set(),
    }


def _mapped_by_others() -> set[str]:
    """Return the names in /dev/shm that living processes other than ours have mapped."""
    me = psutil.Process()
    ours = {me.pid, *(child.pid for child in me.children(recursive=True))}
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and int(folder.name) not in ours:
            try:
                maps = (folder / "maps").read_text()
            except OSError:  # gone, or somebody else's
                continue
            found |= {line.rpartition("/dev/shm/")[2] for line in maps.splitlines() if "/dev/shm/" in line}
    return found


def _processes() -> set[str]:
    found = set()
    for process in psutil.Process().children(recursive=True):
        try:
            command = " ".join(process.cmdline())
            # The server runs code of this name; its children, our workers, look the same but have it as parent.
            is_server = "forkserver" in command and process.ppid() == os.getpid()
            if not is_server and "resource_tracker" not in command and process.status() != psutil.STATUS_ZOMBIE:
                found.add(f"{process.pid} {command[:80]}")
        except psutil.NoSuchProcess:
            continue
    return found


def _descriptors() -> set[str]:
    from multiprocessing import forkserver, resource_tracker

    own = {
        getattr(forkserver._forkserver, "_forkserver_alive_fd", None),
        getattr(resource_tracker._resource_tracker, "_fd", None),
    }
    found = set()
    folder = Path("/proc/self/fd")
    for entry in folder.iterdir() if folder.is_dir() else ():
        try:
            target = str(entry.readlink())
        except OSError:  # the descriptor of this very listing
            continue
        if int(entry.name) not in own and not target.startswith(str(folder.resolve())):
            found.add(f"{entry.name} -> {target}")
    return found
