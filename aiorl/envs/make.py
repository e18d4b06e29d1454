"""Any Gymnasium vector env from its settings: an id, `module:id`, `module:factory` or a Python factory."""

from __future__ import annotations

import copy
import ctypes
import inspect
import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import gymnasium
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import TimeLimit

from aiorl.envs.checked import CheckedEnv
from aiorl.envs.registration import register_envs
from aiorl.errors import SettingsError
from aiorl.settings.sections import EnvSettings

Factory = Callable[..., Any]
PR_SET_PDEATHSIG = 1


class EnvSettingsError(SettingsError):
    """The environment cannot be made from these settings; `key` is the one to change."""

    def __init__(self, key: str, sentence: str) -> None:
        super().__init__(sentence)
        self.key = key


def make_vector_env(
    settings: EnvSettings, num_envs: int, factory: Factory | None = None, kwargs: dict[str, Any] | None = None
) -> VectorEnv[Any, Any, Any]:
    """Make a vector env of `num_envs` envs; `kwargs` go over those of the settings.

    Raises:
        EnvSettingsError: there is no such env, or the settings do not fit it.

    """
    own = kwargs or {}
    arguments = settings.kwargs | own
    if factory is None and ":" in settings.id:
        factory = _named_factory(settings.id)
    if factory is None:
        return _registered(settings, num_envs, arguments)
    for key, given in (("evaluation.kwargs", own), ("env.kwargs", settings.kwargs)):
        _require_known(key, given, factory, settings.id)
    if "num_envs" in _parameters(factory):
        return _from_vector_factory(settings, factory, num_envs, arguments)
    if settings.vectorization == "vector_entry_point":
        raise EnvSettingsError(
            "env.vectorization", f"{settings.id} has no vector entry point, it makes single envs; use sync or async"
        )
    return _vectorised(settings, lambda: factory(**copy.deepcopy(arguments)), num_envs)


def _named_factory(env_id: str) -> Factory | None:
    module_name, _, name = env_id.partition(":")
    try:
        module = import_module(module_name)
    except (ImportError, ValueError, TypeError) as error:
        raise EnvSettingsError(
            "env.id", f"{env_id}: module {module_name} cannot be imported in the worker: {error}"
        ) from error
    factory = getattr(module, name, None)
    if callable(factory):
        return factory  # type: ignore[no-any-return]
    if name in gymnasium.registry:
        return None
    raise EnvSettingsError(
        "env.id",
        f"{env_id}: module {module_name} has no callable {name} and registers no environment of that id",
    )


def _registered(settings: EnvSettings, num_envs: int, arguments: dict[str, Any]) -> VectorEnv[Any, Any, Any]:
    register_envs()  # for versions of Gymnasium that load no plug-ins
    env_id = settings.id.rpartition(":")[2]
    try:
        spec = gymnasium.spec(env_id)
    except gymnasium.error.Error as error:
        raise EnvSettingsError(
            "env.id",
            f"{env_id}: {str(error).rstrip('.')}; if code of yours registers it, write module:{env_id}"
            " so that the worker imports that module first",
        ) from error
    has_own = spec.vector_entry_point is not None
    if settings.vectorization == "vector_entry_point" and not has_own:
        raise EnvSettingsError("env.vectorization", f"{env_id} has no vector entry point; use sync or async")
    if has_own and settings.vectorization in ("auto", "vector_entry_point") and not settings.wrappers:
        if settings.max_episode_steps is not None:
            arguments = arguments | {"max_episode_steps": settings.max_episode_steps}
        if settings.on_nonfinite == "end_episode":
            arguments = arguments | {"autoreset_mode": AutoresetMode.DISABLED}
        return gymnasium.make_vec(
            env_id, num_envs=num_envs, vectorization_mode="vector_entry_point", **copy.deepcopy(arguments)
        )
    if spec.entry_point is None:
        key = "env.wrappers" if settings.wrappers else "env.vectorization"
        raise EnvSettingsError(key, f"{env_id} offers only its own vector entry point, and no single envs")
    limit = {} if settings.max_episode_steps is None else {"max_episode_steps": settings.max_episode_steps}
    single = settings.model_copy(update={"max_episode_steps": None})

    def make() -> Any:
        return gymnasium.make(env_id, disable_env_checker=True, **limit, **copy.deepcopy(arguments))

    return _vectorised(single, make, num_envs)


def _vectorised(settings: EnvSettings, make: Callable[[], Any], num_envs: int) -> VectorEnv[Any, Any, Any]:
    wrappers = [_wrapper(name) for name in settings.wrappers]

    worker, context = os.getpid(), _context()

    def single(number: int) -> gymnasium.Env[Any, Any]:
        if context == "fork" and os.getpid() != worker:
            _die_with(worker)
        env = make()
        if not isinstance(env, gymnasium.Env):
            raise EnvSettingsError("env.id", f"{settings.id}: its factory returned {type(env).__name__}, not an Env")
        for wrapper in wrappers:
            env = wrapper(env)
        env = CheckedEnv(env, number)
        return env if settings.max_episode_steps is None else TimeLimit(env, settings.max_episode_steps)

    # We reset finished envs ourselves, after their final observation is copied: an env that reuses its arrays
    # would overwrite it in Gymnasium's own resets.
    makers = [partial(single, number) for number in range(num_envs)]
    if settings.vectorization == "async":
        return AsyncVectorEnv(makers, autoreset_mode=AutoresetMode.DISABLED, context=context)
    return SyncVectorEnv(makers, autoreset_mode=AutoresetMode.DISABLED)


def _context() -> str | None:
    """Return how an AsyncVectorEnv starts its processes.

    By fork where that is safe, in a worker, which has no other thread: they start at once, share what is loaded,
    keep the life-line open, and leave no named semaphores behind when they are killed.
    """
    return "fork" if sys.platform.startswith("linux") and threading.active_count() == 1 else None


def _die_with(parent: int) -> None:
    """Have this process killed when the one that forked it dies: nothing is left for it to do, or to complain of."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before we asked
        os.kill(os.getpid(), signal.SIGKILL)


def _from_vector_factory(
    settings: EnvSettings, factory: Factory, num_envs: int, arguments: dict[str, Any]
) -> VectorEnv[Any, Any, Any]:
    if settings.wrappers:
        raise EnvSettingsError("env.wrappers", "wrap single envs, but this factory makes a vector env")
    if settings.max_episode_steps is not None:
        if "max_episode_steps" not in _parameters(factory):
            raise EnvSettingsError("env.max_episode_steps", "this env's factory takes no max_episode_steps")
        arguments = arguments | {"max_episode_steps": settings.max_episode_steps}
    env = factory(num_envs=num_envs, **copy.deepcopy(arguments))
    if not isinstance(env, VectorEnv):
        raise EnvSettingsError(
            "env.id",
            f"{settings.id}: its factory takes num_envs but returned {type(env).__name__}, not a VectorEnv",
        )
    return env


def _wrapper(name: str) -> Callable[[Any], Any]:
    module_name, _, attribute = name.partition(":")
    try:
        found = getattr(import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise EnvSettingsError("env.wrappers", f"{name} is no importable module:callable: {error}") from error
    if not callable(found):
        raise EnvSettingsError("env.wrappers", f"{name} is not callable")
    return found  # type: ignore[no-any-return]


def _require_known(key: str, given: dict[str, Any], factory: Factory, name: str) -> None:
    """Refuse arguments that a factory does not take; a preset's are for the preset's own env."""
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        return
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        return
    if unknown := [argument for argument in given if argument not in parameters]:
        known = [argument for argument in parameters if argument != "num_envs"]
        raise EnvSettingsError(
            key,
            f"{', '.join(unknown)}: {name} takes {', '.join(known) or 'no arguments'}; where a preset brings them for"
            f" another env, say {key}={{}}",
        )


def _parameters(factory: Factory) -> set[str]:
    try:
        return set(inspect.signature(factory).parameters)
    except (TypeError, ValueError):  # a builtin without a signature
        return set()
