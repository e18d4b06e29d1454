"""One contract for every autoreset mode: the same transitions, whole, copied and finite."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from aiorl.envs.make import EnvSettingsError, make_vector_env
from aiorl.envs.pendulum.env import PendulumSwingupVectorEnv
from aiorl.envs.stepper import Step, VectorStepper
from aiorl.errors import EnvError
from aiorl.settings.sections import EnvSettings
from aiorl.testing import ENV_UNIT, EPISODE_UNIT, CountEnv, ScratchEnv, TrapEnv

SAME_STEP, NEXT_STEP, DISABLED = AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED
every_mode = pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
GROUPS = ("policy", "critic")
LENGTHS = (3, 4)  # of the episodes of each env, so that some end alone and some together


@pytest.fixture(scope="module", autouse=True)
def _shared_heap() -> None:
    """Let multiprocessing open the arena that it keeps for the shared arrays of all asynchronous envs."""
    multiprocessing.RawArray("d", 100_000)


class ScratchDictEnv(CountEnv):
    """A CountEnv that returns the same dict with the same arrays every step."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(groups=GROUPS, **arguments)
        self._dict = {name: np.zeros(self._width, np.float32) for name in GROUPS}

    def _observation(self) -> dict[str, NDArray[np.float32]]:
        for name, values in super()._observation().items():
            self._dict[name][:] = values
        return self._dict


def make_stepper(env: VectorEnv[Any, Any, Any], **settings: Any) -> VectorStepper:
    stepper = VectorStepper(env, EnvSettings(**settings), GROUPS)
    stepper.reset(list(range(env.num_envs)))
    return stepper


def zeros(stepper: VectorStepper) -> NDArray[np.float32]:
    return np.zeros((stepper.num_envs, stepper.spec.action_size), np.float32)


def fresh(stepper: VectorStepper) -> dict[str, NDArray[np.float32]]:
    """Return arrays full of NaN, so that a row that was not written shows."""
    return {group.name: np.full((stepper.num_envs, group.size), np.nan, np.float32) for group in stepper.spec.groups}


def count_of(row: NDArray[np.float32], sign: int = 1) -> int:
    """Return the one number that a CountEnv's observation is full of."""
    assert (row == row[0]).all(), row
    return int(sign * row[0])


Row = tuple[int, int, bool, bool]  # obs, next obs, terminated, truncated


def valid_rows(stepper: VectorStepper, per_env: int) -> list[list[Row]]:
    """Step until every env made so many transitions; return them, env after env."""
    rows: list[list[Row]] = [[] for _ in range(stepper.num_envs)]
    while min(map(len, rows)) < per_env:
        obs = {name: values.copy() for name, values in stepper.obs.items()}
        next_obs = fresh(stepper)
        step = stepper.step(zeros(stepper), next_obs)
        for env in np.flatnonzero(step.valid):
            row = (count_of(obs["policy"][env]), count_of(next_obs["policy"][env]))
            for name in obs.keys() - {"policy"}:
                assert (count_of(obs[name][env], -1), count_of(next_obs[name][env], -1)) == row
            assert step.reward[env] == 1
            rows[env].append((*row, bool(step.terminated[env]), bool(step.truncated[env])))
    return [each[:per_env] for each in rows]


def expected_rows(end: str, per_env: int) -> list[list[Row]]:
    expected = []
    for env, length in enumerate(LENGTHS):
        rows = []
        for number in range(per_env):
            episode, t = divmod(number, length)
            obs = env * ENV_UNIT + episode * EPISODE_UNIT + t
            is_over = t == length - 1
            rows.append((obs, obs + 1, is_over and end != "truncated", is_over and end != "terminated"))
        expected.append(rows)
    return expected


def envs_of(kind: Callable[..., gymnasium.Env], end: str) -> list[Callable[[], gymnasium.Env]]:
    return [partial(kind, length=length, end=end, number=number) for number, length in enumerate(LENGTHS)]


MAKERS: dict[str, Callable[..., VectorEnv[Any, Any, Any]]] = {
    "sync-next": partial(SyncVectorEnv, autoreset_mode=NEXT_STEP),
    "sync-same": partial(SyncVectorEnv, autoreset_mode=SAME_STEP),
    "sync-disabled": partial(SyncVectorEnv, autoreset_mode=DISABLED),
    "sync-next-no-copy": partial(SyncVectorEnv, autoreset_mode=NEXT_STEP, copy=False),
    "sync-same-no-copy": partial(SyncVectorEnv, autoreset_mode=SAME_STEP, copy=False),
    "sync-disabled-no-copy": partial(SyncVectorEnv, autoreset_mode=DISABLED, copy=False),
    "async-same": partial(AsyncVectorEnv, autoreset_mode=SAME_STEP),
    "async-disabled": partial(AsyncVectorEnv, autoreset_mode=DISABLED),
}
PROBES: dict[str, Callable[..., gymnasium.Env]] = {
    "count": CountEnv,
    "count-dict": partial(CountEnv, groups=GROUPS),
    "scratch": ScratchEnv,
    "scratch-dict": ScratchDictEnv,
}
# Gymnasium's own SAME_STEP keeps a reference to the final observation, which these envs then overwrite: nothing
# that a stepper could see. The envs that make_vector_env makes have no such trouble, see below.
MATRIX = [
    (maker, probe) for maker in MAKERS for probe in PROBES if not ("same" in maker and probe.startswith("scratch"))
]


@pytest.mark.parametrize("end", ["terminated", "truncated", "both"])
@pytest.mark.parametrize(("maker", "probe"), MATRIX)
def test_every_mode_gives_the_same_transitions(maker: str, probe: str, end: str) -> None:
    stepper = make_stepper(MAKERS[maker](envs_of(PROBES[probe], end)))
    try:
        assert valid_rows(stepper, per_env=13) == expected_rows(end, per_env=13)
    finally:
        stepper.close()


@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize("probe", ["scratch", "scratch-dict"])
def test_a_final_observation_survives_an_env_that_overwrites_its_arrays(probe: str, vectorization: str) -> None:
    settings = EnvSettings(vectorization=vectorization)
    factory = partial(PROBES[probe], length=3, number=0)
    stepper = make_stepper(make_vector_env(settings, 2, factory))
    try:
        assert valid_rows(stepper, per_env=7)[0] == expected_rows("truncated", per_env=7)[0]
    finally:
        stepper.close()


@every_mode
def test_only_the_reset_rows_of_next_step_are_no_transitions(mode: AutoresetMode) -> None:
    stepper = make_stepper(SyncVectorEnv(envs_of(CountEnv, "truncated"), autoreset_mode=mode))

    valid = [stepper.step(zeros(stepper), fresh(stepper)).valid.tolist() for _ in range(8)]

    if mode is NEXT_STEP:
        assert [env for env, _ in valid] == [True, True, True, False, True, True, True, False]
        assert [env for _, env in valid] == [True, True, True, True, False, True, True, True]
    else:
        assert valid == [[True, True]] * 8
    assert stepper.vector_steps == 8


@every_mode
def test_the_policy_acts_next_on_the_first_observation_of_the_new_episode(mode: AutoresetMode) -> None:
    stepper = make_stepper(SyncVectorEnv([partial(CountEnv, length=2, number=0)], autoreset_mode=mode))
    seen = []
    for _ in range(6):
        seen.append(count_of(stepper.obs["policy"][0]))
        if not stepper.step(zeros(stepper), fresh(stepper)).valid.all():
            seen.pop()  # the action of a reset row is ignored

    assert seen[:4] == [0, 1, EPISODE_UNIT, EPISODE_UNIT + 1]


# Envs that say exactly what a test wants, in arrays of their own


class ScriptedEnv(VectorEnv[Any, Any, Any]):
    """Three envs that return what they are told to; their arrays are theirs."""

    def __init__(self, mode: Any = SAME_STEP, space: gymnasium.Space[Any] | None = None, **says: Any) -> None:
        self.metadata = {"autoreset_mode": mode}
        self.num_envs = 3
        self.single_observation_space = space or Box(-np.inf, np.inf, (2,), np.float32)
        self.single_action_space = Box(-1, 1, (1,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, 3)
        self.action_space = batch_space(self.single_action_space, 3)
        never = np.zeros(3, bool)
        self.says = {"obs": self.blank(), "reward": np.ones(3), "terminated": never, "truncated": never.copy()}
        self.says |= {"info": {}, "reset": self.blank()} | says
        self.reset_masks: list[NDArray[np.bool_]] = []

    def blank(self) -> Any:
        if isinstance(self.single_observation_space, Dict):
            return {name: np.zeros((3, *box.shape), np.float32) for name, box in self.single_observation_space.items()}
        return np.zeros((3, *self.single_observation_space.shape), np.float32)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if options:
            self.reset_masks.append(options["reset_mask"])
        return self.says["reset"], {}

    def step(self, actions: Any) -> tuple[Any, ...]:
        self.actions = actions
        return tuple(self.says[name] for name in ("obs", "reward", "terminated", "truncated", "info"))


def flags(*envs: int) -> NDArray[np.bool_]:
    return np.isin(np.arange(3), envs)


def numbered(first: float, size: int = 2) -> NDArray[np.float32]:
    """Return (3, size) observations: first, first + 1, first + 2."""
    return np.repeat(np.arange(first, first + 3, dtype=np.float32)[:, None], size, axis=1)


def holes(*values: Any) -> NDArray[Any]:
    array = np.full(len(values), None, object)
    for env, value in enumerate(values):
        array[env] = value
    return array


DICT_SPACE = Dict({"policy": Box(-1e9, 1e9, (2,), np.float32), "critic": Box(-1e9, 1e9, (2, 2), np.float32)})
FINAL = numbered(100)
FINAL_CRITIC = numbered(200, 4).reshape(3, 2, 2)
FLAT_FORMS: dict[str, dict[str, Any]] = {
    "objects with holes": {"final_obs": holes(FINAL[0], None, FINAL[2])},
    "dense": {"final_obs": FINAL},
    "lists": {"final_obs": holes([100, 100], None, [102, 102])},
    "float64": {"final_obs": holes(FINAL[0].astype(np.float64), None, FINAL[2].astype(np.float64))},
}
DICT_FORMS: dict[str, dict[str, Any]] = {
    "dict of arrays": {"final_obs": {"policy": FINAL, "critic": FINAL_CRITIC}},
    "dict of objects with holes": {
        "final_obs": {
            "policy": holes(FINAL[0], None, FINAL[2]),
            "critic": holes(FINAL_CRITIC[0], None, FINAL_CRITIC[2]),
        }
    },
    "dicts with holes": {
        "final_obs": holes(*({"policy": FINAL[e], "critic": FINAL_CRITIC[e]} if e != 1 else None for e in range(3)))
    },
}


@pytest.mark.parametrize("masked", [False, True], ids=["no mask", "mask"])
@pytest.mark.parametrize("form", FLAT_FORMS)
def test_final_observations_in_every_form(form: str, masked: bool) -> None:
    info = FLAT_FORMS[form] | ({"_final_obs": flags(0, 2)} if masked else {})
    stepper = make_stepper(ScriptedEnv(obs=numbered(10), terminated=flags(0), truncated=flags(2), info=info))

    next_obs = fresh(stepper)
    stepper.step(zeros(stepper), next_obs)

    assert next_obs["policy"][:, 0].tolist() == [100, 11, 102]
    assert stepper.obs["policy"][:, 1].tolist() == [10, 11, 12]


@pytest.mark.parametrize("masked", [False, True], ids=["no mask", "mask"])
@pytest.mark.parametrize("form", DICT_FORMS)
def test_final_observations_of_groups_in_every_form(form: str, masked: bool) -> None:
    info = DICT_FORMS[form] | ({"_final_obs": flags(0, 2)} if masked else {})
    obs = {"policy": numbered(10), "critic": numbered(20, 4).reshape(3, 2, 2)}
    env = ScriptedEnv(space=DICT_SPACE, obs=obs, terminated=flags(0), truncated=flags(2), info=info)
    stepper = make_stepper(env)

    next_obs = fresh(stepper)
    stepper.step(zeros(stepper), next_obs)

    assert next_obs["policy"][:, 0].tolist() == [100, 11, 102]
    assert next_obs["critic"].tolist() == [[200] * 4, [21] * 4, [202] * 4]


@pytest.mark.parametrize(
    ("info", "env"),
    [
        ({}, 0),
        ({"final_obs": holes(None, None, FINAL[2])}, 0),
        ({"final_obs": holes(FINAL[0], FINAL[1], None)}, 2),
        ({"final_obs": FINAL, "_final_obs": flags(0)}, 2),
        ({"final_obs": FINAL, "_final_obs": flags()}, 0),
        ({"final_obs": FINAL[:, :1]}, 0),
        ({"final_observation": FINAL}, 0),  # the name of old versions of Gymnasium
    ],
)
def test_a_missing_final_observation_is_an_error(info: dict[str, Any], env: int) -> None:
    stepper = make_stepper(ScriptedEnv(terminated=flags(0), truncated=flags(2), info=info))

    with pytest.raises(EnvError, match=rf"env {env} ended an episode.*final"):
        stepper.step(zeros(stepper), fresh(stepper))


@pytest.mark.parametrize(
    "final",
    [{"policy": FINAL}, holes({"policy": FINAL[0]}, None, {"policy": FINAL[2]}), FINAL],
    ids=["dict of arrays", "dicts", "no dict at all"],
)
def test_a_final_observation_without_a_group_is_an_error(final: Any) -> None:
    env = ScriptedEnv(space=DICT_SPACE, terminated=flags(0), truncated=flags(2), info={"final_obs": final})
    stepper = make_stepper(env)

    with pytest.raises(EnvError, match="env 0 ended an episode"):
        stepper.step(zeros(stepper), fresh(stepper))


@pytest.mark.parametrize("mode", [NEXT_STEP, DISABLED], ids=lambda mode: mode.name)
def test_other_modes_need_no_final_observation(mode: AutoresetMode) -> None:
    env = ScriptedEnv(mode, obs=numbered(10), reset=numbered(50), terminated=flags(0), truncated=flags(2))
    stepper = make_stepper(env)

    next_obs = fresh(stepper)
    stepper.step(zeros(stepper), next_obs)

    assert next_obs["policy"][:, 0].tolist() == [10, 11, 12]
    if mode is DISABLED:
        assert [mask.tolist() for mask in env.reset_masks] == [[True, False, True]]
        assert stepper.obs["policy"][:, 0].tolist() == [50, 11, 52]


@pytest.mark.parametrize(
    ("says", "named"),
    [
        ({"obs": np.zeros((3, 3), np.float32)}, r"observation policy has shape \(3, 3\).*\(3, 2\)"),
        ({"obs": np.zeros((2, 2), np.float32)}, "observation policy"),
        ({"obs": np.zeros((3, 2, 1), np.float32)}, "observation policy"),
        ({"obs": np.zeros(6, np.float32)}, "observation policy"),
        ({"reward": np.zeros((3, 1))}, r"reward has shape \(3, 1\), expected \(3,\)"),
        ({"reward": np.zeros(2)}, "reward"),
        ({"reward": 1.0}, "reward"),
        ({"terminated": np.zeros(4, bool)}, "terminated"),
        ({"truncated": np.zeros((1, 3), bool)}, "truncated"),
        ({"terminated": False}, "terminated"),
        ({"info": {"unstable": np.zeros(2, bool)}}, "unstable"),
    ],
)
@every_mode
def test_wrong_shapes_are_named(mode: AutoresetMode, says: dict[str, Any], named: str) -> None:
    stepper = make_stepper(ScriptedEnv(mode, **says))

    with pytest.raises(EnvError, match=named):
        stepper.step(zeros(stepper), fresh(stepper))


def test_wrong_shapes_after_reset_and_of_groups_are_named() -> None:
    with pytest.raises(EnvError, match="observation policy has shape"):
        make_stepper(ScriptedEnv(reset=np.zeros((3, 5), np.float32)))
    with pytest.raises(EnvError, match="observation critic has shape"):
        make_stepper(ScriptedEnv(space=DICT_SPACE, reset={"policy": FINAL, "critic": FINAL}))


@pytest.mark.parametrize("obs", [{"policy": FINAL}, FINAL], ids=["a group is missing", "no dict at all"])
def test_an_observation_without_its_groups_is_an_error(obs: Any) -> None:
    stepper = make_stepper(ScriptedEnv(space=DICT_SPACE, obs=obs))

    with pytest.raises(EnvError, match="observation"):
        stepper.step(zeros(stepper), fresh(stepper))


@pytest.mark.parametrize("mode", [None, "sometimes", 3])
def test_an_unknown_autoreset_mode_is_refused(mode: Any) -> None:
    with pytest.raises(EnvSettingsError, match=rf"autoreset_mode.*{mode!r}.*NEXT_STEP, SAME_STEP, DISABLED") as caught:
        VectorStepper(ScriptedEnv(mode), EnvSettings(), GROUPS)
    assert caught.value.key == "env.id"


def test_a_missing_autoreset_mode_is_refused() -> None:
    env = ScriptedEnv()
    env.metadata = {}

    with pytest.raises(EnvSettingsError, match="autoreset_mode"):
        VectorStepper(env, EnvSettings(), GROUPS)


# Whose memory is whose


@every_mode
def test_arrays_of_the_env_are_never_written_to_and_never_kept(mode: AutoresetMode) -> None:
    env = ScriptedEnv(mode, obs=numbered(10), reset=numbered(50), truncated=flags(1))
    env.says["info"] = {"final_obs": FINAL, "_final_obs": flags(1), "unstable": flags(2)}
    own = [value for value in (*env.says.values(), *env.says["info"].values()) if isinstance(value, np.ndarray)]
    before = [array.copy() for array in own]
    for array in own:
        array.flags.writeable = False
    stepper = make_stepper(env)
    next_obs = fresh(stepper)

    step = stepper.step(zeros(stepper), next_obs)

    kept = [step.reward, step.terminated, step.truncated, step.valid, *stepper.obs.values(), *next_obs.values()]
    for array, value in zip(own, before, strict=True):
        np.testing.assert_array_equal(array, value)
        assert not any(np.shares_memory(array, mine) for mine in kept)


class ScribblingEnv(ScriptedEnv):
    """Changes, in place, everything that it is given."""

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if options:
            options.pop("reset_mask")[:] = False
        return super().reset(seed=seed)

    def step(self, actions: Any) -> tuple[Any, ...]:
        actions[:] = 99
        return super().step(actions)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_env_may_scribble_over_what_it_is_given(dtype: str) -> None:
    env = ScribblingEnv(DISABLED, obs=numbered(10), reset=numbered(50), truncated=flags(1))
    env.single_action_space = Box(-1, 1, (1,), dtype)
    stepper = make_stepper(env)
    action = zeros(stepper)

    stepper.step(action, fresh(stepper))

    assert not action.any()
    assert stepper.obs["policy"][:, 0].tolist() == [10, 51, 12]


def test_actions_have_the_type_of_the_space_and_lie_in_it() -> None:
    # float32(0.1) is more than 0.1, so a bound that went through float32 lies outside of a float64 Box.
    env = ScriptedEnv()
    env.single_action_space = Box(-0.1, 0.1, (1,), np.float64)
    stepper = make_stepper(env)
    low, high = (np.array([bound[0]] * 3, np.float32)[:, None] for bound in (stepper.spec.action_low, [0.1]))

    for action in (low, high):
        stepper.step(action, fresh(stepper))

        assert env.actions.dtype == np.float64
        assert all(env.single_action_space.contains(each) for each in env.actions)


def test_rewards_keep_their_precision() -> None:
    reward = np.array([0.1, 1 + 1e-12, 1e300 * 0])
    stepper = make_stepper(ScriptedEnv(reward=reward))

    step = stepper.step(zeros(stepper), fresh(stepper))

    assert step.reward.dtype == np.float64
    assert step.reward.tolist() == reward.tolist()


def test_an_env_that_follows_gymnasiums_base_class_takes_one_seed() -> None:
    # VectorEnv.reset is documented with `seed: int | None`, and its own implementation refuses a list.
    class BaseClassEnv(ScriptedEnv):
        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
            VectorEnv.reset(self, seed=seed)
            return super().reset(options=options)

    stepper = VectorStepper(BaseClassEnv(reset=numbered(50)), EnvSettings(), GROUPS)

    stepper.reset([4, 5, 6])

    assert stepper.obs["policy"][:, 0].tolist() == [50, 51, 52]


# Values that are not finite


def trapped(trap: str, at: int, mode: AutoresetMode, length: int = 4) -> VectorEnv[Any, Any, Any]:
    """Return three envs of which number 1 springs its trap at its step `at`."""
    fns: list[Callable[[], gymnasium.Env]] = [partial(CountEnv, length=length, number=number) for number in range(3)]
    fns[1] = partial(TrapEnv, trap=trap, at=at, length=length, number=1)
    return SyncVectorEnv(fns, autoreset_mode=mode)


TRAPS = [("nan_obs", 2, "observation"), ("inf_obs", 2, "observation"), ("nan_reward", 2, "reward")]


@pytest.mark.parametrize(
    ("trap", "at", "what"), [*TRAPS, ("nan_final_obs", 4, "observation"), ("nan_reward", 4, "reward")]
)
@every_mode
def test_stop_names_what_where_and_when(mode: AutoresetMode, trap: str, at: int, what: str) -> None:
    stepper = make_stepper(trapped(trap, at, mode))
    for _ in range(at - 1):
        stepper.step(zeros(stepper), fresh(stepper))

    with pytest.raises(EnvError, match=rf"{what}.* is not finite in env 1 at vector step {at}$"):
        stepper.step(zeros(stepper), fresh(stepper))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_action_that_is_not_finite_never_reaches_the_env(value: float) -> None:
    stepper = make_stepper(ScriptedEnv())
    stepper.step(zeros(stepper), fresh(stepper))
    action = zeros(stepper)
    action[1] = value
    stepper.env.actions = None

    with pytest.raises(EnvError, match=r"action .*is not finite in env 1 at vector step 2$"):  # as all others: from 1
        stepper.step(action, fresh(stepper))
    assert stepper.env.actions is None


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_first_observation_that_is_not_finite_stops(value: float) -> None:
    reset = numbered(1)
    reset[2, 0] = value

    with pytest.raises(EnvError, match="observation policy after reset is not finite in env 2"):
        make_stepper(ScriptedEnv(reset=reset))


class NanResetEnv(CountEnv):
    """A CountEnv whose second episode starts with NaN."""

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = super().reset(**arguments)
        return (obs * np.float32(np.nan) if self._episode == 1 else obs), info


@every_mode
def test_a_later_first_observation_that_is_not_finite_stops_too(mode: AutoresetMode) -> None:
    fns = [partial(kind, length=3, number=number) for number, kind in enumerate([CountEnv, NanResetEnv])]
    stepper = make_stepper(SyncVectorEnv(fns, autoreset_mode=mode))
    for _ in range(3 if mode is NEXT_STEP else 2):
        stepper.step(zeros(stepper), fresh(stepper))

    with pytest.raises(EnvError, match=r"observation policy.* is not finite in env 1"):
        stepper.step(zeros(stepper), fresh(stepper))


def test_several_envs_that_are_not_finite_are_counted() -> None:
    stepper = make_stepper(ScriptedEnv(reward=np.array([np.nan, 1, np.inf])))

    with pytest.raises(EnvError, match="reward is not finite in env 0 and 1 more at vector step 1"):
        stepper.step(zeros(stepper), fresh(stepper))


def test_what_float32_cannot_hold_is_not_finite() -> None:
    space = Box(-np.inf, np.inf, (2,), np.float64)
    obs = np.zeros((3, 2))
    obs[1] = 1e300
    for says in ({"obs": obs}, {"reward": np.array([0, 1e300, 0])}):
        stepper = make_stepper(ScriptedEnv(space=space, **says))
        with np.errstate(over="ignore"), pytest.raises(EnvError, match="is not finite in env 1"):
            stepper.step(zeros(stepper), fresh(stepper))


@pytest.mark.parametrize("trap", ["nan_obs", "inf_obs", "nan_reward"])
@pytest.mark.parametrize("at", [2, 4], ids=["mid-episode", "last step"])
def test_end_episode_ends_only_that_env(trap: str, at: int) -> None:
    stepper = make_stepper(trapped(trap, at, DISABLED), on_nonfinite="end_episode")
    steps: list[tuple[Step, dict[str, Any], dict[str, Any]]] = []
    for _ in range(at + 3):
        obs, next_obs = stepper.obs["policy"].copy(), fresh(stepper)
        step = stepper.step(zeros(stepper), next_obs)
        assert np.isfinite(next_obs["policy"]).all()
        assert np.isfinite(stepper.obs["policy"]).all()
        assert np.isfinite(step.reward).all()
        steps.append((step, obs, next_obs["policy"]))

    assert [step.nonfinite for step, *_ in steps] == [int(number == at) for number in range(1, at + 4)]
    for number, (step, obs, next_obs) in enumerate(steps, start=1):
        assert step.valid.tolist() == [True, number != at, True]
        for env in np.flatnonzero(step.valid):
            assert count_of(next_obs[env]) == count_of(obs[env]) + 1
    broken = steps[at - 1][0]
    assert (broken.terminated[1], broken.truncated[1]) == (False, False)
    assert broken.truncated[[0, 2]].tolist() == [at == 4, at == 4]
    first_of_new_episode = steps[at][1]
    assert [count_of(row) % ENV_UNIT for row in first_of_new_episode] == [
        EPISODE_UNIT if at == 4 else at,
        EPISODE_UNIT,
        EPISODE_UNIT if at == 4 else at,
    ]


def test_end_episode_keeps_on_counting() -> None:
    reward = np.array([1, np.nan, np.inf])
    env = ScriptedEnv(DISABLED, obs=numbered(10), reset=numbered(50), reward=reward)
    stepper = make_stepper(env, on_nonfinite="end_episode")

    for _ in range(3):
        step = stepper.step(zeros(stepper), fresh(stepper))
        assert (step.nonfinite, step.valid.tolist()) == (2, [True, False, False])
        assert stepper.obs["policy"][:, 0].tolist() == [10, 51, 52]
    assert np.isnan(env.says["reward"][1])  # the env's own array is its own


@pytest.mark.parametrize("mode", [SAME_STEP, NEXT_STEP], ids=lambda mode: mode.name)
def test_end_episode_is_refused_where_single_envs_cannot_be_reset(mode: AutoresetMode) -> None:
    with pytest.raises(EnvSettingsError, match=rf"DISABLED.*{mode.name}") as caught:
        VectorStepper(trapped("nan_obs", 2, mode), EnvSettings(on_nonfinite="end_episode"), GROUPS)
    assert caught.value.key == "env.on_nonfinite"


# Unstable simulations


@pytest.fixture
def pendulum() -> Iterator[Callable[..., PendulumSwingupVectorEnv]]:
    made: list[PendulumSwingupVectorEnv] = []

    def make(mode: AutoresetMode, max_episode_steps: int = 50) -> PendulumSwingupVectorEnv:
        made.append(PendulumSwingupVectorEnv(3, max_episode_steps, mode, stagger=False))
        return made[-1]

    yield make
    for env in made:
        env.close()


@pytest.mark.parametrize("field", ["qpos", "qvel"])
@every_mode
def test_an_unstable_simulation_is_no_transition(pendulum, mode: AutoresetMode, field: str) -> None:
    env = pendulum(mode)
    stepper = make_stepper(env)
    stepper.step(zeros(stepper), fresh(stepper))
    getattr(env, field)[1] = 1e12

    next_obs = fresh(stepper)
    step = stepper.step(zeros(stepper), next_obs)

    assert step.valid.tolist() == [True, False, True]
    assert step.truncated.tolist() == [False, True, False]
    assert all(np.isfinite(values).all() for values in (*next_obs.values(), *stepper.obs.values()))
    assert step.nonfinite == 0
    following = [stepper.step(zeros(stepper), fresh(stepper)).valid.tolist() for _ in range(3)]
    reset_row = [[True, False, True]] if mode is NEXT_STEP else []
    assert following == reset_row + [[True] * 3] * (3 - len(reset_row))


class UnstableEnv(CountEnv):
    """A single env whose simulation breaks in its second step: truncated, and marked."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, _ = super().step(action)
        unstable = self._t == 2
        return obs, reward, terminated, truncated or unstable, {"unstable": unstable}


@every_mode
def test_an_unstable_single_env_is_no_transition_either(mode: AutoresetMode) -> None:
    # In SAME_STEP its mark lies in final_info: the info of the row is that of the reset.
    fns = [partial(CountEnv, number=0), partial(UnstableEnv, number=1)]
    stepper = make_stepper(SyncVectorEnv(fns, autoreset_mode=mode))

    valid = [stepper.step(zeros(stepper), fresh(stepper)).valid.tolist() for _ in range(2)]

    assert valid == [[True, True], [True, False]]


# State


@every_mode
def test_a_restored_stepper_goes_on_like_the_first(pendulum, mode: AutoresetMode) -> None:
    first, second = (make_stepper(pendulum(mode, max_episode_steps=4)) for _ in range(2))
    random = np.random.default_rng(0)
    for _ in range(4):  # the NEXT_STEP env awaits its reset now
        first.step(random.uniform(-1, 1, (3, 1)).astype(np.float32), fresh(first))

    assert second.set_state(first.get_state())

    assert second.vector_steps == 4
    for _ in range(6):
        action = random.uniform(-1, 1, (3, 1)).astype(np.float32)
        results = []
        for stepper in (first, second):
            next_obs = fresh(stepper)
            step = stepper.step(action, next_obs)
            parts = (
                step.reward,
                step.terminated,
                step.truncated,
                step.valid,
                stepper.obs["policy"],
                *next_obs.values(),
            )
            results.append([part.copy() for part in parts])
        for one, other in zip(*results, strict=True):
            np.testing.assert_array_equal(one, other)


def test_an_env_without_a_state_says_so() -> None:
    stepper = make_stepper(SyncVectorEnv([partial(CountEnv, number=0)], autoreset_mode=SAME_STEP))
    for _ in range(3):
        stepper.step(zeros(stepper), fresh(stepper))
    other = make_stepper(SyncVectorEnv([partial(CountEnv, number=0)], autoreset_mode=SAME_STEP))

    assert not other.spec.saves_state
    assert other.set_state(stepper.get_state()) is False
    assert other.vector_steps == 3
