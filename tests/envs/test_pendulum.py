"""The swing-up against Gymnasium's own vector env, a plain `mj_step` loop, and hand-made controllers."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from aiorl.envs.mujoco_warnings import no_warning_file
from aiorl.envs.pendulum.env import (
    SUBSTEPS,
    PendulumSwingupVectorEnv,
    swingup_reward,
)
from aiorl.envs.registration import register_envs

register_envs()

ENV_ID = "aiorl/PendulumSwingup-v0"
XML = Path(__file__).parents[2] / "aiorl" / "envs" / "pendulum" / "pendulum.xml"
Array = NDArray[Any]
Policy = Callable[[Array], Array]
SAME_STEP, NEXT_STEP, DISABLED = AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED
every_mode = pytest.mark.parametrize("mode", list(AutoresetMode))


def make(num_envs: int = 4, max_episode_steps: int = 7, **options: Any) -> PendulumSwingupVectorEnv:
    return PendulumSwingupVectorEnv(num_envs, max_episode_steps, **options)


def random_actions(steps: int, num_envs: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).uniform(-1, 1, (steps, num_envs, 1)).astype(np.float32)


def roll(env: Any, actions: Array) -> list[tuple[Any, ...]]:
    """Step through (steps, num_envs, 1) actions, resetting by mask where the mode leaves that to us."""
    rows = []
    for action in actions:
        row = env.step(action)
        rows.append(row)
        if env.metadata["autoreset_mode"] is DISABLED and (row[2] | row[3]).any():
            rows.append(env.reset(options={"reset_mask": row[2] | row[3]}))
    return rows


def assert_same(left: Any, right: Any) -> None:
    """Compare nested results bit for bit."""
    assert type(left) is type(right)
    if isinstance(left, dict):
        assert left.keys() == right.keys()
        for key in left:
            assert_same(left[key], right[key])
    elif isinstance(left, tuple | list):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_same(one, other)
    elif isinstance(left, np.ndarray):
        assert left.dtype == right.dtype
        assert left.shape == right.shape
        if left.dtype == object:
            assert_same(left.tolist(), right.tolist())
        else:
            assert left.tobytes() == right.tobytes()
    else:
        assert left == right


# ---- Gymnasium's contract


@every_mode
def test_equals_gymnasiums_sync_vector_env_over_the_single_env(mode: AutoresetMode) -> None:
    ours = make(autoreset_mode=mode, stagger=False)
    theirs = SyncVectorEnv([lambda: gymnasium.make(ENV_ID, max_episode_steps=7)] * 4, autoreset_mode=mode)
    assert_same(ours.reset(seed=3), theirs.reset(seed=3))
    mine, reference = (roll(env, random_actions(30, 4)) for env in (ours, theirs))
    for row in (*mine, *reference):
        # At the top level Gymnasium's SAME_STEP reports the new episode; we report the step just made.
        for key in ("unstable", "_unstable"):
            row[-1].pop(key, None)
    assert_same(mine, reference)
    assert sum("final_obs" in row[-1] for row in mine) == (4 if mode is SAME_STEP else 0)
    theirs.close()


def transitions(mode: AutoresetMode, num_envs: int = 3, count: int = 30) -> list[list[tuple[Any, ...]]]:
    """Return each env's first `count` transitions; the k-th of env i always takes the same action."""
    env = make(num_envs, autoreset_mode=mode)
    actions = random_actions(count, num_envs)
    found: list[list[tuple[Any, ...]]] = [[] for _ in range(num_envs)]
    before, _ = env.reset(seed=11)
    is_over = np.zeros(num_envs, np.bool_)
    while min(map(len, found)) < count:
        action = np.stack([actions[min(len(found[i]), count - 1), i] for i in range(num_envs)])
        after, reward, terminated, truncated, info = env.step(action)
        for i in range(num_envs):
            if mode is NEXT_STEP and is_over[i]:
                assert (reward[i], terminated[i], truncated[i]) == (0, False, False)
                continue
            end = info["final_obs"][i] if "final_obs" in info and info["_final_obs"][i] else after[i]
            found[i].append((before[i].tobytes(), action[i, 0], reward[i], truncated[i], end.tobytes()))
        is_over = terminated | truncated
        if mode is DISABLED and is_over.any():
            after, _ = env.reset(options={"reset_mask": is_over})
        before = after
    return [one[:count] for one in found]


def test_the_three_modes_give_the_same_transitions() -> None:
    same_step = transitions(SAME_STEP)
    assert sum(row[3] for row in same_step[0]) >= 4
    assert transitions(NEXT_STEP) == same_step
    assert transitions(DISABLED) == same_step


@every_mode
def test_mode_is_declared_and_accepted_by_name_and_by_value(mode: AutoresetMode) -> None:
    for argument in (mode, mode.name, mode.value):
        assert make(autoreset_mode=argument).metadata["autoreset_mode"] is mode
    assert PendulumSwingupVectorEnv.metadata["autoreset_mode"] is SAME_STEP


def test_masked_reset_leaves_the_other_rows_alone() -> None:
    env = make(autoreset_mode=DISABLED, stagger=False)
    env.reset(seed=0)
    before = env.step(np.ones((4, 1)))[0]
    mask = np.array([False, True, False, False])
    after, _ = env.reset(seed=[9, 9, 9, 9], options={"reset_mask": mask})
    assert (after[~mask] == before[~mask]).all()
    assert (after[1] == make(1).reset(seed=9)[0][0]).all()
    lengths = [int(env.step(np.zeros((4, 1)))[3].sum()) for _ in range(6)]
    assert lengths == [0, 0, 0, 0, 0, 3]


@pytest.mark.parametrize(
    ("mask", "error"),
    [
        ([True] * 4, TypeError),
        (np.ones(4), TypeError),
        (np.ones(3, np.bool_), ValueError),
        (np.zeros(4, np.bool_), ValueError),
    ],
)
def test_reset_masks_are_checked(mask: Any, error: type[Exception]) -> None:
    env = make(autoreset_mode=DISABLED)
    env.reset(seed=0)
    with pytest.raises(error, match="reset_mask"):
        env.reset(options={"reset_mask": mask})


def test_stepping_without_a_due_reset_raises() -> None:
    env = make(autoreset_mode=DISABLED, stagger=False)
    with pytest.raises(ResetNeeded, match="first"):
        env.step(np.zeros((4, 1)))
    with pytest.raises(ResetNeeded, match="before some"):
        env.reset(options={"reset_mask": np.ones(4, np.bool_)})
    env.reset(seed=0)
    for _ in range(7):
        env.step(np.zeros((4, 1)))
    with pytest.raises(ResetNeeded, match=r"\[0, 1, 2, 3\]"):
        env.step(np.zeros((4, 1)))


def test_returned_arrays_are_fresh_unless_asked_otherwise() -> None:
    fresh, reused = make(stagger=False), make(stagger=False, copy=False)
    for env in (fresh, reused):
        env.reset(seed=0)
    action = np.ones((4, 1))
    first, reward, _, truncated, _ = fresh.step(action)
    kept = first.copy(), reward.copy(), truncated.copy()
    for _ in range(6):
        second = fresh.step(action)
    assert not np.shares_memory(first, second[0])
    assert_same((first, reward, truncated), kept)
    one = reused.step(action)[0]
    assert one is reused.step(action)[0]
    for _ in range(5):
        last, _, _, _, info = reused.step(action)
    assert not np.shares_memory(info["final_obs"][0], last)
    assert_same(list(info["final_obs"]), list(second[4]["final_obs"]))


@pytest.mark.parametrize("options", [{"num_envs": 0}, {"max_episode_steps": 0}, {"nthread": 0}])
def test_sizes_are_checked(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        PendulumSwingupVectorEnv(**options)  # type: ignore[arg-type]


def test_unknown_options_raise() -> None:
    with pytest.raises(ValueError, match="human"):
        PendulumSwingupVectorEnv(render_mode="human")
    with pytest.raises(ValueError, match="sometimes"):
        PendulumSwingupVectorEnv(autoreset_mode="sometimes")
    with pytest.raises(ValueError, match="3 seeds for 4"):
        make().reset(seed=[1, 2, 3])


# ---- episodes and seeds


def episode_lengths(env: PendulumSwingupVectorEnv, steps: int) -> list[list[int]]:
    """Return the lengths of the episodes that end within `steps` of a SAME_STEP env, per env."""
    ends: list[list[int]] = [[0] for _ in range(env.num_envs)]
    for step in range(1, steps + 1):
        _, _, terminated, truncated, _ = env.step(np.zeros((env.num_envs, 1)))
        assert not terminated.any()
        for i in np.flatnonzero(truncated):
            ends[i].append(step)
    return [np.diff(one).tolist() for one in ends]


def test_time_limit_truncates_at_exactly_max_episode_steps() -> None:
    env = make(3, 5, stagger=False)
    env.reset(seed=0)
    assert episode_lengths(env, 15) == [[5, 5, 5]] * 3
    endless = PendulumSwingupVectorEnv(2, max_episode_steps=None)
    endless.reset(seed=0)
    assert episode_lengths(endless, 300) == [[], []]


def test_stagger_shortens_first_episodes_only() -> None:
    env = make(32, 10)
    env.reset(seed=0)
    lengths = episode_lengths(env, 40)
    first = [one[0] for one in lengths]
    assert set(first) <= set(range(1, 11))
    assert len(set(first)) >= 6
    assert {length for one in lengths for length in one[1:]} == {10}
    env.reset(seed=0)
    assert [one[0] for one in episode_lengths(env, 10)] == first
    env.reset()  # continues the generators: no fresh seed, no stagger
    assert episode_lengths(env, 10) == [[10]] * 32
    env.reset(seed=list(range(32)), options={"reset_mask": np.ones(32, np.bool_)})
    assert episode_lengths(env, 10) == [[10]] * 32


def test_stagger_does_not_change_start_states() -> None:
    assert_same(make(stagger=True).reset(seed=5), make(stagger=False).reset(seed=5))


def test_first_reset_without_a_seed_staggers_and_differs_between_instances() -> None:
    one, two = make(32, 10), make(32, 10)
    assert (one.reset()[0] != two.reset()[0]).any()
    assert len({length[0] for length in episode_lengths(one, 10)}) > 1


def test_same_seed_same_trajectory_and_distinct_envs() -> None:
    one, two, other = make(), make(), make()
    assert_same(one.reset(seed=7), two.reset(seed=7))
    assert (other.reset(seed=70)[0] != one.reset(seed=7)[0]).any(axis=1).all()
    actions = random_actions(20, 4)
    rows = roll(one, actions)
    assert_same(rows, roll(two, actions))
    assert len({row.tobytes() for row in rows[-1][0]}) == 4


def test_an_env_does_not_depend_on_its_neighbours() -> None:
    alone, crowd = make(1), make(9)
    alone.reset(seed=[42])
    crowd.reset(seed=[*range(6), 42, 7, 8])
    actions = random_actions(40, 9)
    mine, theirs = roll(alone, actions[:, 6:7]), roll(crowd, actions)
    for small, large in zip(mine, theirs, strict=True):
        assert_same([part[0] for part in small[:4]], [part[6] for part in large[:4]])


def test_int_seed_is_one_seed_per_env() -> None:
    expected = make().reset(seed=[5, 6, 7, 8])
    assert_same(make().reset(seed=5), expected)
    numpy_seeds: tuple[Any, ...] = (np.int64(5), np.arange(5, 9), (5, 6, 7, 8))
    for seed in numpy_seeds:
        assert_same(make().reset(seed=seed), expected)


def test_none_in_a_list_of_seeds_continues_that_generator() -> None:
    env, reference = make(2), make(2)
    for one in (env, reference):
        one.reset(seed=1)
    mixed, continued = env.reset(seed=[5, None])[0], reference.reset()[0]
    assert (mixed[1] == continued[1]).all()
    assert (mixed[0] == make(1).reset(seed=5)[0][0]).all()


# ---- state


@every_mode
@pytest.mark.parametrize("steps", [3, 7])  # in the middle of an episode; just after one ended
def test_state_round_trip_is_bitwise(mode: AutoresetMode, steps: int) -> None:
    env = make(autoreset_mode=mode, stagger=False)
    env.reset(seed=[0, 1, 2, 2**100])
    env.generators[0].integers(10, dtype=np.uint32)  # leaves half a draw in the generator
    for action in random_actions(steps, 4):
        env.step(action)
    state = env.get_state()
    kept = {name: array.copy() for name, array in state.items()}
    assert all(isinstance(array, np.ndarray) and array.dtype != object for array in state.values())
    actions = random_actions(25, 4, seed=1)

    def go_on(env: PendulumSwingupVectorEnv) -> Any:
        due = None
        if mode is DISABLED and steps == 7:
            due = env.reset(options={"reset_mask": np.ones(4, np.bool_)})
        return due, roll(env, actions), [one.integers(2**32, dtype=np.uint32) for one in env.generators]

    expected = go_on(env)
    assert_same(state, kept)
    env.set_state(state)
    assert_same(env.get_state(), state)
    assert_same(go_on(env), expected)
    fresh = make(autoreset_mode=mode, stagger=False)
    fresh.set_state(state)
    assert_same(go_on(fresh), expected)
    assert_same(state, kept)


def test_state_keeps_the_stagger() -> None:
    env, fresh = make(16, 20), make(16, 20)
    env.reset(seed=0)
    fresh.set_state(env.get_state())
    expected = episode_lengths(env, 20)
    assert len({one[0] for one in expected}) > 1
    assert episode_lengths(fresh, 20) == expected


def test_state_of_another_size_is_refused() -> None:
    env = make(4)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="shape"):
        make(3).set_state(env.get_state())


# ---- physics


def test_threads_do_not_change_results() -> None:
    one, two = make(nthread=1), make(nthread=2)
    assert_same(one.reset(seed=0), two.reset(seed=0))
    actions = random_actions(40, 4)
    assert_same(roll(one, actions), roll(two, actions))


def test_physics_equals_a_plain_mj_step_loop() -> None:
    env = make(3, 200, stagger=False)
    env.reset(seed=0)
    model = mujoco.MjModel.from_xml_path(str(XML))
    rows = env.get_state()["simulation"]
    sims = [mujoco.MjData(model) for _ in range(3)]
    for data, row in zip(sims, rows, strict=True):
        mujoco.mj_setState(model, data, row, mujoco.mjtState.mjSTATE_INTEGRATION)
    for action in 1.5 * random_actions(100, 3):  # beyond the box: clipped
        observations = env.step(action)[0]
        for i, data in enumerate(sims):
            data.ctrl[0] = 2.0 * np.clip(float(action[i, 0]), -1, 1)
            for _ in range(SUBSTEPS):
                mujoco.mj_step(model, data)
            assert (env.qpos[i, 0], env.qvel[i, 0]) == (data.qpos[0], data.qvel[0])
            angle, speed = data.qpos[0], data.qvel[0]
            assert observations[i] == pytest.approx([np.cos(angle), np.sin(angle), speed / 10], abs=1e-6)
    assert sims[0].time == pytest.approx(100 * 0.04)


def test_observations_stay_in_their_box() -> None:
    env = make(2, 200)
    env.reset(seed=0)
    env.qvel[:] = [[-70.0], [70.0]]
    observations = env.step(np.zeros((2, 1)))[0]
    assert observations in env.observation_space
    assert observations[:, 2].tolist() == [-5.0, 5.0]


def test_torque_is_too_weak_to_lift_the_pendulum() -> None:
    env = make(1, 200, stagger=False)
    model = mujoco.MjModel.from_xml_path(str(XML))
    data = mujoco.MjData(model)
    data.qpos[0] = np.pi / 2
    mujoco.mj_forward(model, data)
    # 9.81 · (1.0 · 0.5 + 0.1 · 0.25) = 5.15 N·m, against 2 N·m.
    assert abs(data.qfrc_bias[0]) == pytest.approx(5.15025)
    assert model.actuator_ctrlrange[0].tolist() == [-2, 2]
    for direction in (-1.0, 1.0):
        observations, _ = env.reset(seed=0)
        for _ in range(200):
            observations, _, _, truncated, _ = env.step(np.full((1, 1), direction))
            assert observations[0, 0] < 0, "lifted above horizontal"
        assert truncated.all()


def test_episodes_start_hanging() -> None:
    observations, _ = make(500).reset(seed=0)
    angle = np.arctan2(observations[:, 1], -observations[:, 0])  # from hanging
    speed = 10 * observations[:, 2]
    for value in (angle, speed):
        assert np.abs(value).max() < 0.2 + 1e-6
        assert value.min() < -0.19
        assert value.max() > 0.19


@pytest.mark.parametrize(
    ("cos_angle", "speed", "torque", "reward"),
    [
        (1, 0, 0, 1.0),  # balanced
        (-1, 0, 0, 0.0),  # hanging
        (0, 0, 0, 0.5),  # horizontal, at rest
        (1, 2, 0, 0.75),  # still = 1 / (1 + 1)
        (1, 0, -1, 0.8),  # full torque costs a fifth
        (0, -2, 1, 0.3),  # 0.5 · 0.75 · 0.8
    ],
)
def test_reward_by_hand(cos_angle: float, speed: float, torque: float, reward: float) -> None:
    assert swingup_reward(*map(np.array, (cos_angle, speed, torque))) == pytest.approx(reward)


# ---- what goes wrong


@every_mode
@pytest.mark.parametrize("field", ["qpos", "qvel"])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e20])
def test_unstable_env_is_cut_flagged_and_repaired(mode: AutoresetMode, field: str, value: float) -> None:
    env, reference = (make(4, 20, autoreset_mode=mode, stagger=False) for _ in range(2))
    for one in (env, reference):
        one.reset(seed=0)
    actions = random_actions(12, 4)
    last = roll(env, actions[:3])[-1][0][1]
    roll(reference, actions[:3])
    getattr(env, field)[1] = value
    observations, rewards, terminated, truncated, info = env.step(actions[3])
    assert info["unstable"].tolist() == truncated.tolist() == [False, True, False, False]
    assert not terminated.any()
    assert rewards[1] == 0
    final = info["final_obs"][1] if mode is SAME_STEP else observations[1]
    assert_same(final, last)
    others = [0, 2, 3]
    assert_same(observations[others], reference.step(actions[3])[0][others])
    if mode is DISABLED:
        env.reset(options={"reset_mask": truncated})
    for action in actions[4:]:
        observations, rewards, _, truncated, info = env.step(action)
        expected = reference.step(action)
        assert not info["unstable"].any()
        assert_same(observations[others], expected[0][others])
        assert_same(rewards[others], expected[1][others])
        assert observations in env.observation_space
    assert not truncated.any()
    assert np.abs(env.qvel[1]).max() < 20


def test_instability_just_after_set_state_shows_the_restored_observation() -> None:
    env, fresh = make(stagger=False), make(stagger=False)
    env.reset(seed=0)
    expected = env.step(np.ones((4, 1)))[0]
    fresh.set_state(env.get_state())
    fresh.qvel[0] = np.nan
    assert_same(fresh.step(np.ones((4, 1)))[4]["final_obs"][0], expected[0])


def test_instability_between_episodes_is_no_event() -> None:
    env = make(autoreset_mode=NEXT_STEP, stagger=False)
    env.reset(seed=0)
    for _ in range(7):
        truncated = env.step(np.zeros((4, 1)))[3]
    assert truncated.all()
    env.qpos[:] = np.nan
    observations, _, _, truncated, info = env.step(np.zeros((4, 1)))
    assert not (info["unstable"] | truncated).any()
    assert observations in env.observation_space
    assert not env.step(np.zeros((4, 1)))[4]["unstable"].any()


@pytest.mark.parametrize("nthread", [1, 2])
def test_no_log_file_and_no_lasting_warning_handler(
    nthread: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    heard: list[str] = []
    env = make(nthread=nthread)
    env.reset(seed=0)
    env.qpos[2] = np.nan
    assert env.step(np.zeros((4, 1)))[4]["unstable"].any()
    assert mujoco.get_mju_user_warning() is None
    mujoco.set_mju_user_warning(heard.append)
    try:
        env.qpos[2] = np.nan
        env.step(np.zeros((4, 1)))
        assert mujoco.get_mju_user_warning() is not None
    finally:
        mujoco.set_mju_user_warning(None)
    assert len(heard) == 1
    assert "QPOS" in heard[0]
    assert list(tmp_path.iterdir()) == []


def test_a_step_within_another_leaves_the_warning_handler_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    env = make()
    env.reset(seed=0)
    with no_warning_file():  # as if another thread's batch were stepping
        env.step(np.zeros((4, 1)))
        assert mujoco.get_mju_user_warning() is not None
    assert mujoco.get_mju_user_warning() is None


def test_actions_beyond_the_box_count_as_its_border() -> None:
    beyond, border = make(), make()
    assert_same(beyond.reset(seed=0), border.reset(seed=0))
    assert_same(beyond.step(np.full((4, 1), -9.0)), border.step(np.full((4, 1), -1.0)))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_actions_that_are_not_finite_raise_and_change_nothing(value: float) -> None:
    env = make(autoreset_mode=NEXT_STEP, stagger=False)
    env.reset(seed=0)
    state = env.get_state()
    actions = np.zeros((4, 1))
    actions[2] = value
    with pytest.raises(ValueError, match=r"envs \[2\]"):
        env.step(actions)
    assert_same(env.get_state(), state)
    for _ in range(7):
        env.step(np.zeros((4, 1)))
    env.step(actions)  # only resets: actions are ignored


def test_actions_of_another_shape_raise() -> None:
    env = make()
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"\(4, 1\)"):
        env.step(np.zeros(4))


# ---- the task can be solved


def energy_pumping(observations: Array) -> Array:
    """Pump energy until near the top, then hold by PD: what a good policy looks like, (n, 1)."""
    cos_angle, sin_angle, scaled_speed = observations.astype(np.float64).T
    speed = 10 * scaled_speed
    # About the hinge 1.0 · 0.5² + 0.1 · 0.5²/3 = 0.26 kg·m² and 5.15 N·m; zero energy is rest at the top.
    energy = 0.5 * 0.26 * speed**2 + 5.15 * (cos_angle - 1)
    pump = np.clip(-2 * energy, -1, 1) * np.where(speed < 0, -1, 1)
    hold = -(15 * np.arctan2(sin_angle, cos_angle) + 2.5 * speed) / 2
    action: Array = np.clip(np.where(cos_angle > 0.9, hold, pump), -1, 1).astype(np.float32)
    return action[:, None]


def mean_return(policy: Policy) -> tuple[float, Array]:
    env = PendulumSwingupVectorEnv(64, stagger=False)
    observations, _ = env.reset(seed=0)
    returns = np.zeros(64)
    for _ in range(200):
        observations, rewards, _, truncated, info = env.step(policy(observations))
        assert ((rewards >= 0) & (rewards <= 1)).all()
        returns += rewards
    assert truncated.all()
    return float(returns.mean()), np.stack(list(info["final_obs"]))


def test_a_good_controller_swings_up_and_nothing_else_does() -> None:
    rng = np.random.default_rng(0)
    zero, _ = mean_return(lambda observations: np.zeros((64, 1)))
    random, _ = mean_return(lambda observations: rng.uniform(-1, 1, (64, 1)))
    good, final = mean_return(energy_pumping)
    assert zero < 1
    assert random < 10
    assert good > 130
    assert (final[:, 0] > 0.999).all(), "upright at the end"
    assert np.abs(final[:, 2]).max() < 0.01, "and at rest"


# ---- Gymnasium's front door


def test_make_vec_and_make() -> None:
    vector = gymnasium.make_vec(ENV_ID, num_envs=4)
    assert isinstance(vector, PendulumSwingupVectorEnv)
    assert (vector.num_envs, vector.max_episode_steps) == (4, 200)
    observations, _ = vector.reset(seed=0)
    assert observations in vector.observation_space
    vector.step(vector.action_space.sample())
    vector.close()
    shorter = gymnasium.make_vec(ENV_ID, num_envs=2, max_episode_steps=9, autoreset_mode="NextStep")
    assert isinstance(shorter, PendulumSwingupVectorEnv)
    assert (shorter.max_episode_steps, shorter.autoreset_mode) == (9, NEXT_STEP)

    single = gymnasium.make(ENV_ID)
    first, _ = single.reset(seed=0)
    assert (first == observations[0]).all()
    truncations = [single.step(np.zeros(1, np.float32))[3] for _ in range(200)]
    assert truncations == [False] * 199 + [True]
    single.close()
    single.close()


def test_single_env_passes_the_checker() -> None:
    env = gymnasium.make(ENV_ID).unwrapped
    check_env(env, skip_render_check=True)
    assert env.render() is None
    unseeded: Any = gymnasium.make(ENV_ID).unwrapped
    observation, _ = unseeded.reset()
    assert_same(unseeded.reset(seed=unseeded.np_random_seed)[0], observation)
    assert unseeded.np_random is unseeded._batch_of_one.generators[0]


def test_single_env_reports_instability() -> None:
    env: Any = gymnasium.make(ENV_ID).unwrapped
    observation, _ = env.reset(seed=0)
    env._batch_of_one.qpos[:] = np.nan
    after, reward, terminated, truncated, info = env.step(np.zeros(1, np.float32))
    assert (reward, terminated, truncated, info) == (0.0, False, True, {"unstable": True})
    assert_same(after, observation)


def test_registering_again_and_under_a_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    from gymnasium.envs.registration import namespace, registry

    register_envs()
    spec = registry[ENV_ID]
    register_envs()
    assert registry[ENV_ID] is spec
    monkeypatch.delitem(registry, ENV_ID)
    before = set(registry)
    with namespace("aiorl"):
        register_envs()
        register_envs()
    assert set(registry) - before == {ENV_ID}


def run_python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[2]
    return subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", code],
        env=os.environ | {"PYTHONPATH": str(root)} | env,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_registration_imports_nothing_heavy() -> None:
    done = run_python(
        "import sys; import aiorl.envs.registration as r\n"
        "assert not {'gymnasium', 'mujoco', 'numpy', 'torch'} & set(sys.modules)\n"
        "r.register_envs(); assert 'mujoco' not in sys.modules"
    )
    assert done.returncode == 0, done.stderr


def test_rendering() -> None:
    code = f"""
import sys, mujoco
try:
    mujoco.GLContext(8, 8).free()
except Exception as error:
    print(error); sys.exit(77)
import gymnasium, numpy as np
from gymnasium.utils.env_checker import check_env
from aiorl.envs.registration import register_envs
register_envs()
env = gymnasium.make({ENV_ID!r}, render_mode="rgb_array")
check_env(env.unwrapped)
env.reset(seed=0); hanging = env.render()
env.unwrapped._batch_of_one.qpos[:] = 0.0; upright = env.render()
env.close()
assert hanging.shape == upright.shape == (480, 480, 3) and hanging.dtype == np.uint8
def reddest_row(image):
    red = image.astype(int)
    return (red[..., 0] - red[..., 2]).max(axis=1).argmax()
assert reddest_row(upright) < 200 < 280 < reddest_row(hanging), (reddest_row(upright), reddest_row(hanging))
vector = gymnasium.make_vec({ENV_ID!r}, num_envs=2, render_mode="rgb_array")
vector.reset(seed=0); assert len(vector.render()) == 2; vector.close()
"""
    done = run_python(code, MUJOCO_GL="egl")
    if done.returncode == 77:
        pytest.skip(f"no OpenGL here: {done.stdout}")
    assert done.returncode == 0, done.stderr
