"""Environments from their settings: what works, and one clear sentence for what does not."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import register, registry
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from aiorl.envs.make import EnvSettingsError, make_vector_env
from aiorl.envs.pendulum.env import PendulumSwingupVectorEnv
from aiorl.envs.stepper import VectorStepper
from aiorl.settings.sections import EnvSettings
from aiorl.testing import CountEnv

HERE = __name__
OURS = "aiorl/PendulumSwingup-v0"


@pytest.fixture(scope="module", autouse=True)
def _shared_heap() -> None:
    """Let multiprocessing open the arena that it keeps for the shared arrays of all asynchronous envs."""
    multiprocessing.RawArray("d", 100_000)


# What settings can name


class OwnEnv(CountEnv):
    """An env of the user's own; `kept` is whatever it was given."""

    def __init__(self, kept: Any = None, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.kept = kept


def make_own(length: int = 20) -> OwnEnv:
    return OwnEnv("made by a function", length=length)


class VectorOfTwo(VectorEnv[Any, Any, Any]):
    """A vector env of the user's own: counts, and never ends."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(self, num_envs: int, start: float = 0.0) -> None:
        self.num_envs, self.start = num_envs, start
        self.single_observation_space = Box(-np.inf, np.inf, (1,), np.float32)
        self.single_action_space = Box(-1, 1, (1,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[NDArray[np.float32], dict[str, Any]]:
        return np.full((self.num_envs, 1), self.start, np.float32), {}


class VectorWithLimit(VectorOfTwo):
    def __init__(self, num_envs: int, max_episode_steps: int = 100) -> None:
        super().__init__(num_envs)
        self.max_episode_steps = max_episode_steps


def make_vector(num_envs: int) -> VectorOfTwo:
    return VectorOfTwo(num_envs, start=7.0)


class AddOne(gymnasium.ObservationWrapper):
    def observation(self, observation: Any) -> Any:
        return observation + 1


class Double(gymnasium.ObservationWrapper):
    def observation(self, observation: Any) -> Any:
        return observation * 2


NOT_CALLABLE = 3


@pytest.fixture
def made() -> Iterator[Callable[..., VectorEnv[Any, Any, Any]]]:
    """Make a vector env from settings, closed at the end."""
    envs: list[VectorEnv[Any, Any, Any]] = []

    def make(num_envs: int = 2, factory: Any = None, kwargs: Any = None, **settings: Any) -> VectorEnv[Any, Any, Any]:
        envs.append(make_vector_env(EnvSettings(**settings), num_envs, factory, kwargs))
        return envs[-1]

    yield make
    while envs:  # popped, because an asynchronous env holds its pipes for as long as it lives
        envs.pop().close()


@pytest.fixture
def registered() -> Iterator[Callable[..., str]]:
    names: list[str] = []

    def add(name: str, **arguments: Any) -> str:
        register(name, **arguments)
        names.append(name)
        return name

    yield add
    for name in names:
        del registry[name]


def first_obs(env: VectorEnv[Any, Any, Any]) -> list[float]:
    return env.reset(seed=[0] * env.num_envs)[0][:, 0].tolist()


@pytest.mark.parametrize(
    ("env_id", "kind"),
    [
        ("Pendulum-v1", SyncVectorEnv),
        ("gymnasium:Pendulum-v1", SyncVectorEnv),
        (OURS, PendulumSwingupVectorEnv),
        (f"aiorl.envs:{OURS}", PendulumSwingupVectorEnv),
        ("aiorl.testing:CountEnv", SyncVectorEnv),
        (f"{HERE}:make_own", SyncVectorEnv),
        ("aiorl.envs.pendulum.env:PendulumSwingupVectorEnv", PendulumSwingupVectorEnv),
        (f"{HERE}:VectorOfTwo", VectorOfTwo),
        (f"{HERE}:make_vector", VectorOfTwo),
    ],
)
def test_an_id_names_an_env(made, env_id: str, kind: type) -> None:
    env = made(num_envs=3, id=env_id)

    assert type(env) is kind
    assert env.num_envs == 3
    VectorStepper(env, EnvSettings(), ("policy",)).reset([1, 2, 3])


def test_a_module_is_imported_before_its_id_is_looked_up(made, tmp_path, monkeypatch) -> None:
    module = tmp_path / "aiorl_test_registers.py"
    module.write_text(
        "import gymnasium\n"
        "from aiorl.testing import CountEnv\n"
        "gymnasium.register('AiorlTestLate-v0', entry_point=CountEnv, max_episode_steps=5)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    try:
        env = made(id="aiorl_test_registers:AiorlTestLate-v0", kwargs={"number": 2})
        assert first_obs(env) == [200_000, 200_000]
    finally:
        registry.pop("AiorlTestLate-v0", None)


@pytest.mark.parametrize(
    ("factory", "kind"),
    [
        (OwnEnv, SyncVectorEnv),
        (lambda: OwnEnv(), SyncVectorEnv),
        (partial(OwnEnv, length=3), SyncVectorEnv),
        (VectorOfTwo, VectorOfTwo),
        (make_vector, VectorOfTwo),
        (lambda num_envs: VectorOfTwo(num_envs), VectorOfTwo),
        (lambda num_envs: SyncVectorEnv([CountEnv] * num_envs), SyncVectorEnv),
    ],
)
def test_a_factory_can_be_given_in_python(made, factory: Any, kind: type) -> None:
    env = made(num_envs=2, factory=factory, id="no-such-env-v0")  # the factory comes first

    assert type(env) is kind
    assert env.num_envs == 2


def test_each_single_env_is_one_of_its_own(made) -> None:
    env = made(num_envs=3, id=f"{HERE}:OwnEnv")

    assert len({id(each) for each in env.envs}) == 3


def test_kwargs_reach_every_kind_of_env(made) -> None:
    assert first_obs(made(id="aiorl.testing:CountEnv", kwargs={"number": 3})) == [300_000, 300_000]
    assert first_obs(made(id=f"{HERE}:VectorOfTwo", kwargs={"start": 4.0})) == [4, 4]
    assert made(id="Pendulum-v1", kwargs={"g": 1.0}).get_attr("g") == (1.0, 1.0)
    assert made(id=OURS, kwargs={"stagger": False}).stagger is False
    assert made(factory=OwnEnv, kwargs={"kept": 5}).get_attr("kept") == (5, 5)


def test_further_kwargs_go_over_those_of_the_settings(made) -> None:
    settings = EnvSettings(id="aiorl.testing:CountEnv", kwargs={"number": 3, "width": 5})

    env = make_vector_env(settings, 2, kwargs={"number": 4})

    assert first_obs(env) == [400_000, 400_000]
    assert env.single_observation_space.shape == (5,)
    assert settings.kwargs == {"number": 3, "width": 5}
    env.close()


class GreedyEnv(CountEnv):
    """An env that changes what it was given."""

    def __init__(self, stages: list[int], options: dict[str, int]) -> None:
        super().__init__(number=len(stages))
        stages.clear()
        options["seen"] = 1


@pytest.mark.parametrize("registration", [False, True])
def test_every_env_gets_kwargs_of_its_own(made, registered, registration: bool) -> None:
    settings = EnvSettings(
        id=registered("AiorlTestGreedy-v0", entry_point=GreedyEnv) if registration else f"{HERE}:GreedyEnv",
        kwargs={"stages": [1, 2, 3], "options": {}},
    )

    env = make_vector_env(settings, 2)

    assert first_obs(env) == [300_000, 300_000]
    assert settings.kwargs == {"stages": [1, 2, 3], "options": {}}
    env.close()


def test_wrappers_are_applied_innermost_first(made) -> None:
    wrappers = (f"{HERE}:AddOne", f"{HERE}:Double")

    for env_id in ("aiorl.testing:CountEnv", f"{HERE}:make_own"):
        assert first_obs(made(id=env_id, wrappers=wrappers)) == [2, 2]
    assert first_obs(made(factory=OwnEnv, wrappers=wrappers[::-1])) == [1, 1]


def test_gymnasiums_own_wrappers_go_around_registered_envs(made) -> None:
    env = made(
        id="aiorl.testing:CountEnv",
        kwargs={"groups": ["policy", "critic"]},
        wrappers=("gymnasium.wrappers:FlattenObservation",),
    )
    assert env.single_observation_space.shape == (6,)

    # With wrappers the single env is taken, though there is a vector entry point.
    env = made(id=OURS, wrappers=("gymnasium.wrappers:FlattenObservation",))
    assert type(env) is SyncVectorEnv


@pytest.mark.parametrize(
    ("env_id", "vectorization", "kind"),
    [
        (OURS, "auto", PendulumSwingupVectorEnv),
        (OURS, "vector_entry_point", PendulumSwingupVectorEnv),
        (OURS, "sync", SyncVectorEnv),
        (OURS, "async", AsyncVectorEnv),
        ("Pendulum-v1", "auto", SyncVectorEnv),
        ("Pendulum-v1", "sync", SyncVectorEnv),
        ("Pendulum-v1", "async", AsyncVectorEnv),
        ("aiorl.testing:CountEnv", "async", AsyncVectorEnv),
    ],
)
def test_vectorization(made, env_id: str, vectorization: str, kind: type) -> None:
    env = made(id=env_id, vectorization=vectorization)

    assert type(env) is kind
    stepper = VectorStepper(env, EnvSettings(), ("policy",))
    stepper.reset([1, 2])
    next_obs = {"policy": np.zeros_like(stepper.obs["policy"])}
    assert stepper.step(np.zeros((2, 1), np.float32), next_obs).valid.all()


@pytest.mark.parametrize("vectorization", ["auto", "sync", "async"])
@pytest.mark.parametrize("env_id", [OURS, "Pendulum-v1", "aiorl.testing:CountEnv"])
def test_end_episode_is_possible_wherever_we_make_the_vector_env(made, env_id: str, vectorization: str) -> None:
    settings = {"id": env_id, "vectorization": vectorization, "on_nonfinite": "end_episode"}

    VectorStepper(made(**settings), EnvSettings(**settings), ("policy",)).reset([1, 2])


@pytest.mark.parametrize(
    "settings",
    [
        {"id": "Pendulum-v1"},
        {"id": "gymnasium:Pendulum-v1"},
        {"id": "Pendulum-v1", "vectorization": "async"},
        {"id": OURS, "kwargs": {"stagger": False}},
        {"id": OURS, "vectorization": "sync"},
        {"id": "aiorl.testing:CountEnv"},
        {"factory": lambda: CountEnv()},
        {"id": "aiorl.envs.pendulum.env:PendulumSwingupVectorEnv", "kwargs": {"stagger": False}},
    ],
    ids=lambda settings: "factory" if "factory" in settings else str(settings),
)
def test_a_time_limit_of_the_settings_holds_for_each(made, settings: dict[str, Any]) -> None:
    env = made(**settings, max_episode_steps=3)
    stepper = VectorStepper(env, EnvSettings(), ("policy",))
    stepper.reset([0, 1])
    next_obs = {"policy": np.zeros_like(stepper.obs["policy"])}
    action = np.zeros((2, 1), np.float32)

    truncated = [stepper.step(action, next_obs).truncated.tolist() for _ in range(7)]

    assert truncated == [[number % 3 == 2] * 2 for number in range(7)]


def test_without_one_the_env_keeps_its_own_limit(made) -> None:
    env = made(id="Pendulum-v1")
    assert env.envs[0].spec.max_episode_steps == 200
    assert made(id=OURS).max_episode_steps == 200
    assert made(id=f"{HERE}:VectorWithLimit").max_episode_steps == 100


# What cannot be


class SpaceEnv(gymnasium.Env):
    def __init__(self, observation_space: Space[Any] | None = None, action_space: Space[Any] | None = None) -> None:
        self.observation_space = observation_space or Box(-1, 1, (2,), np.float32)
        self.action_space = action_space or Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self.observation_space.sample(), {}


def refusal(num_envs: int = 2, factory: Any = None, **settings: Any) -> tuple[str, str]:
    """Return key and sentence of the refusal, wherever in the start of a collector it comes."""
    env_settings = EnvSettings(**settings)
    with pytest.raises(EnvSettingsError) as caught:
        env = make_vector_env(env_settings, num_envs, factory)
        try:
            VectorStepper(env, env_settings, ("policy", "critic"))
        finally:
            env.close()
    sentence = str(caught.value)
    assert sentence
    assert "\n" not in sentence
    assert caught.value.problems == (sentence,)
    return caught.value.key, sentence


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        ("aiorl/PendulumSwingupp-v0", ("aiorl/PendulumSwingupp-v0", "Did you mean", "PendulumSwingup")),
        ("Pendulm-v1", ("Pendulm-v1", "Did you mean", "Pendulum")),
        ("Pendulum-v9", ("Pendulum-v9", "v1")),
        ("no such env!", ("no such env!",)),
        ("no_such_module_at_all:Env", ("no_such_module_at_all", "cannot be imported")),
        ("no_such_module_at_all:Env-v0", ("no_such_module_at_all", "cannot be imported")),
        ("aiorl.testing:ConutEnv", ("aiorl.testing", "ConutEnv")),
        ("math:pi", ("math", "pi")),
        (f"{HERE}:NOT_CALLABLE", ("NOT_CALLABLE",)),
        ("aiorl.testing:", ("aiorl.testing",)),
        (":CountEnv", ("CountEnv",)),
        ("..aiorl:CountEnv", ("aiorl:CountEnv",)),
    ],
)
def test_an_env_that_is_not_there(env_id: str, words: tuple[str, ...]) -> None:
    key, sentence = refusal(id=env_id)

    assert key == "env.id"
    assert all(word in sentence for word in words)


def _refusal_in_a_worker(env_id: str) -> tuple[str, str]:
    try:
        make_vector_env(EnvSettings(id=env_id), 1)
    except EnvSettingsError as error:
        return error.key, str(error)
    return "", "it was found"


def test_an_env_registered_only_in_the_parent(registered) -> None:
    env_id = registered("AiorlTestParentOnly-v0", entry_point=CountEnv)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        key, sentence = pool.submit(_refusal_in_a_worker, env_id).result()

    assert key == "env.id"
    assert "write module:AiorlTestParentOnly-v0 so that the worker imports that module first" in sentence


@pytest.mark.parametrize(
    "settings",
    [
        {"id": f"{HERE}:VectorOfTwo"},
        {"id": "aiorl.envs.pendulum.env:PendulumSwingupVectorEnv"},
        {"factory": make_vector},
    ],
)
def test_wrappers_around_a_vector_env(settings: dict[str, Any]) -> None:
    key, sentence = refusal(wrappers=(f"{HERE}:AddOne",), **settings)

    assert key == "env.wrappers"
    assert "vector env" in sentence


def test_wrappers_where_only_a_vector_entry_point_is_registered(registered) -> None:
    env_id = registered("AiorlTestVectorOnly-v0", vector_entry_point=VectorOfTwo)

    key, sentence = refusal(id=env_id, wrappers=(f"{HERE}:AddOne",))

    assert key in ("env.wrappers", "env.vectorization")
    assert "vector entry point" in sentence


def test_no_single_env_where_only_a_vector_entry_point_is_registered(registered) -> None:
    env_id = registered("AiorlTestVectorOnly-v0", vector_entry_point=VectorOfTwo)

    key, sentence = refusal(id=env_id, vectorization="sync")

    assert key == "env.vectorization"
    assert "wrappers" not in sentence  # nobody asked for any


@pytest.mark.parametrize(
    "wrapper", [f"{HERE}:NoSuch", "no_such_module_at_all:Wrapper", "gymnasium.wrappers", f"{HERE}:NOT_CALLABLE", ":X"]
)
@pytest.mark.parametrize("env_id", ["Pendulum-v1", "aiorl.testing:CountEnv"])
def test_a_wrapper_that_is_none(env_id: str, wrapper: str) -> None:
    key, sentence = refusal(id=env_id, wrappers=(wrapper,))

    assert key == "env.wrappers"
    assert wrapper in sentence


@pytest.mark.parametrize(
    ("env_id", "factory"), [("Pendulum-v1", None), ("aiorl.testing:CountEnv", None), ("x", OwnEnv)]
)
def test_a_vector_entry_point_that_is_not_there(env_id: str, factory: Any) -> None:
    key, sentence = refusal(id=env_id, factory=factory, vectorization="vector_entry_point")

    assert key == "env.vectorization"
    assert "no vector entry point" in sentence


@pytest.mark.parametrize(
    ("factory", "returned"),
    [
        (lambda: 3, "int"),
        (lambda: None, "NoneType"),
        (lambda: CountEnv, "type"),
        (lambda: VectorOfTwo(2), "VectorOfTwo"),
        (lambda num_envs: [CountEnv()] * num_envs, "list"),
        (lambda num_envs: CountEnv(), "CountEnv"),
    ],
)
def test_a_factory_that_returns_something_else(factory: Any, returned: str) -> None:
    key, sentence = refusal(factory=factory, id="mine")

    assert key == "env.id"
    assert "mine" in sentence
    assert f"returned {returned}" in sentence


def test_a_time_limit_for_a_factory_that_takes_none() -> None:
    key, sentence = refusal(id=f"{HERE}:VectorOfTwo", max_episode_steps=5)

    assert key == "env.max_episode_steps"
    assert "takes no max_episode_steps" in sentence


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (Discrete(4), "Discrete"),
        (MultiDiscrete([3, 4]), "MultiDiscrete"),
        (MultiBinary(3), "MultiBinary"),
        (Tuple([Box(-1, 1, (1,))]), "Tuple"),
        (Box(-np.inf, np.inf, (2,), np.float32), "Box"),
        (Box(np.array([-1, -np.inf], np.float32), np.array([1, 1], np.float32)), "Box"),
        (Box(-1, 1, (2, 2), np.float32), "shape (2, 2)"),
        (Box(-1, 1, (), np.float32), "shape ()"),
    ],
    ids=str,
)
def test_actions_that_are_no_finite_flat_box(space: Space[Any], words: str) -> None:
    key, sentence = refusal(factory=lambda: SpaceEnv(action_space=space))

    assert key == "env.id"
    assert "action" in sentence
    assert words in sentence


BOX = Box(-1, 1, (2,), np.float32)


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (Discrete(4), "Discrete"),
        (Tuple([BOX, BOX]), "Tuple"),
        (MultiBinary(3), "MultiBinary"),
        (Dict({"policy": Discrete(3)}), "Discrete"),
        (Dict({"policy": BOX, "critic": Dict({"x": BOX})}), "critic"),
        (Dict({"critic": BOX}), "policy"),
        (Dict({"image": BOX, "state": BOX}), "image, state"),
        (Dict({"policy": BOX, "goal": BOX}), "goal"),
    ],
    ids=str,
)
def test_observations_that_are_no_known_groups(space: Space[Any], words: str) -> None:
    key, sentence = refusal(factory=lambda: SpaceEnv(observation_space=space))

    assert key == "env.id"
    assert "observation" in sentence
    assert words in sentence


def spec_of(space: Space[Any], used: tuple[str, ...] = ("policy", "critic")) -> Any:
    env = make_vector_env(EnvSettings(), 2, lambda: SpaceEnv(observation_space=space))
    try:
        return VectorStepper(env, EnvSettings(), used).spec
    finally:
        env.close()


@pytest.mark.parametrize(
    ("space", "warning"),
    [
        (Box(0, 2**40, (2,), np.int64), "observation policy is int64 and kept as float32: values beyond 2^24 change"),
        (Box(-(2**31), 0, (2,), np.int32), "observation policy is int32 and kept as float32: values beyond 2^24"),
        (Box(0, 2**24 + 1, (2,), np.int64), "beyond 2^24"),
        (Box(0, 2**24, (2,), np.int64), None),
        (Box(0, 255, (4, 4, 3), np.uint8), None),
        (BOX, None),
    ],
    ids=str,
)
def test_integers_that_float32_cannot_hold_are_warned_of(space: Space[Any], warning: str | None) -> None:
    spec = spec_of(space)

    assert len(spec.warnings) == (warning is not None)
    assert warning is None or warning in spec.warnings[0]
    assert spec.notes == ()


def test_float64_observations_are_noted() -> None:
    spec = spec_of(Box(-1, 1, (2,), np.float64))

    assert spec.notes == ("observation policy is float64 and kept as float32",)
    assert spec.warnings == ()


def test_groups_are_flat_policy_first_and_unused_ones_are_noted() -> None:
    space = Dict({"privileged": BOX, "critic": Box(-1, 1, (2, 3), np.float64), "policy": BOX})

    spec = spec_of(space)

    assert [(group.name, group.size) for group in spec.groups] == [("policy", 2), ("critic", 6)]
    assert sorted(spec.notes) == [
        "observation critic is float64 and kept as float32",
        "observation group privileged is not used by this algorithm",
    ]
    only = spec_of(space, used=("policy",))
    assert [group.name for group in only.groups] == ["policy"]
    assert not any("float64" in note for note in only.notes)


def test_an_asymmetric_box_of_actions_is_taken_as_it_is(made) -> None:
    env = made(id="aiorl.testing:BoxEnv")

    spec = VectorStepper(env, EnvSettings(), ("policy",)).spec

    assert (spec.action_low, spec.action_high) == ((-2.0, -2.0), (6.0, 6.0))
    assert (spec.num_envs, spec.action_size, spec.saves_state) == (2, 2, False)
