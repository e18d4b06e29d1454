"""What only one family of algorithms uses is refused for the other; what an on-policy run needs holds together."""

import re
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args, get_origin

import pytest

from aiorl.errors import SettingsError
from aiorl.settings import RunSettings, load_settings
from aiorl.settings import algorithm as algorithm_module
from aiorl.settings.algorithm import ENTRY_POINT_GROUP, OnPolicySettings, algorithms
from aiorl.settings.explain import fields
from aiorl.settings.load import load, validate
from aiorl.settings.presets import preset_names
from aiorl.settings.run import run_settings_model
from aiorl.settings.yaml_text import read_mapping, write_mapping

KINDS = {"off_policy": "sac", "on_policy": "appo"}
OTHER = {"off_policy": "on_policy", "on_policy": "off_policy"}


def marked() -> Iterator[tuple[str, str, Any, Any]]:
    """Every field that belongs to a family: key, family, default, and a value that is another."""
    for path, section, name in fields(run_settings_model()):
        info = section.model_fields[name]
        if isinstance(extra := info.json_schema_extra, dict) and "family" in extra:
            yield ".".join(path), str(extra["family"]), info.default, other_than(info.default, info.annotation)


def other_than(default: Any, annotation: Any) -> Any:
    if get_origin(annotation) is Literal:
        return next(value for value in get_args(annotation) if value != default)
    if isinstance(default, bool):
        return not default
    return 5 if default is None else default + 1


MARKED = {key: (family, default, other) for key, family, default, other in marked()}
every_marked = pytest.mark.parametrize("key", MARKED)


def plain(family: str, *overrides: str) -> RunSettings:
    """Nothing but defaults, unless told otherwise."""
    tree = {"algorithm": {"kind": KINDS[family]}, "budget": {"env_steps": 30_000}}
    for override in overrides:
        key, _, value = override.partition("=")
        *sections, name = key.split(".")
        inner: Any = tree
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[name] = read_mapping(f"x: {value}\n", "x")[0]["x"]
    return validate(tree)


def problems_of(family: str, *overrides: str) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as caught:
        plain(family, *overrides)
    return caught.value.problems


def text(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


# One family's knobs


def test_the_marked_fields_are_found() -> None:
    assert {key for key, (family, *_) in MARKED.items() if family == "off_policy"} >= {
        "collection.chunk_steps",
        "collection.lead",
        "collection.learning_starts",
        "collection.random_steps",
        "replay.capacity",
        "replay.n_step",
        "learner.batch_size",
        "learner.gradient_steps",
    }
    assert {key for key, (family, *_) in MARKED.items() if family == "on_policy"} >= {
        "collection.rollout_steps",
        "collection.rollout_slots",
        "telemetry.dump_rollouts",
    }
    assert {family for family, *_ in MARKED.values()} == set(KINDS) == {each.family for each in algorithms().values()}


@every_marked
def test_a_knob_is_taken_by_its_own_family(key: str) -> None:
    family, _, other = MARKED[key]
    found: Any = plain(family, f"{key}={text(other)}")
    for part in key.split("."):
        found = getattr(found, part)
    assert found == other


@every_marked
def test_a_knob_of_the_other_family_is_refused_with_its_key_first(key: str) -> None:
    family, _, other = MARKED[key]
    kind = KINDS[OTHER[family]]
    (problem,) = problems_of(OTHER[family], f"{key}={text(other)}")
    assert problem.startswith(
        f"{key}: {text(other)} means nothing to {kind}, which is {OTHER[family].replace('_', '-')}"
    )


@every_marked
def test_a_knob_of_the_other_family_may_say_its_default(key: str) -> None:
    family, default, _ = MARKED[key]
    assert plain(OTHER[family], f"{key}={text(default)}") == plain(OTHER[family])


@every_marked
def test_where_a_refused_knob_came_from_is_said_first(key: str) -> None:
    family, _, other = MARKED[key]
    override = f"{key}={text(other)}"
    with pytest.raises(SettingsError) as caught:
        load_settings(f"{KINDS[OTHER[family]]}/pendulum", overrides=[override], environ={})
    (problem,) = caught.value.problems
    assert problem.startswith(f"override {override}: {key}: ")


@pytest.mark.parametrize("family", KINDS)
def test_every_knob_of_the_other_family_has_a_sentence_of_its_own(family: str) -> None:
    foreign = {key: other for key, (of, _, other) in MARKED.items() if of != family}
    problems = problems_of(family, *(f"{key}={text(other)}" for key, other in foreign.items()))
    assert [problem.split(":")[0] for problem in problems] == list(foreign)


# Another kind over a preset


def keys_that_are_left_over(preset: str) -> set[str]:
    """The keys of a preset that belong to the family of its own algorithm."""
    origins = load(preset, environ={}).origins
    loaded = load_settings(preset, environ={})
    return {
        key
        for key, (family, default, _) in MARKED.items()
        if tuple(key.split(".")) in origins and family == loaded.algorithm.family
    }


@pytest.mark.parametrize("preset", preset_names())
def test_another_kind_over_a_preset_is_told_which_of_its_keys_are_left_over(preset: str) -> None:
    family = load_settings(preset, environ={}).algorithm.family
    kind, keys = KINDS[OTHER[family]], keys_that_are_left_over(preset)
    assert keys
    with pytest.raises(SettingsError) as caught:
        load_settings(preset, overrides=[f"algorithm.kind={kind}"], environ={})
    named = set()
    for problem in caught.value.problems:
        found = re.match(rf"{re.escape(preset)}\.yaml:\d+: ([\w.]+): \S+ means nothing to {kind}", problem)
        assert found, problem
        named.add(found[1])
    assert named == keys


@pytest.mark.parametrize("preset", preset_names())
def test_another_kind_over_a_preset_runs_once_those_are_back_at_their_defaults(preset: str) -> None:
    before = load_settings(preset, environ={})
    kind = KINDS[OTHER[before.algorithm.family]]
    back = [f"{key}={text(MARKED[key][1])}" for key in keys_that_are_left_over(preset)]
    loaded = load_settings(preset, overrides=[f"algorithm.kind={kind}", *back], environ={})
    assert loaded.algorithm == algorithms()[kind](kind=kind)  # nothing of the other algorithm is in it
    assert (loaded.env, loaded.budget, loaded.name) == (before.env, before.budget, before.name)


@pytest.mark.parametrize("order", [1, -1])
def test_the_kind_and_its_own_knobs_come_together(order: int) -> None:
    overrides = [
        "algorithm.kind=appo",
        "algorithm.max_policy_lag=2",
        "collection.rollout_slots=3",
        *("collection.chunk_steps=1", "replay.capacity=1_000_000", "learner.gradient_steps=1"),
    ]
    loaded = load_settings("sac/pendulum", overrides=overrides[::order], environ={})
    assert (loaded.algorithm.kind, loaded.lead, loaded.rollout_slots) == ("appo", 2, 3)


# Contradictions of an on-policy run: 16 envs, rollouts of 24 steps, lag 1, 4 minibatches

CONTRADICTIONS = {
    "too few slots": (["collection.rollout_slots=1"], ["collection.rollout_slots"]),
    "too few slots for the lag": (
        ["algorithm.max_policy_lag=3", "collection.rollout_slots=3"],
        ["collection.rollout_slots"],
    ),
    "rows over minibatches": (["algorithm.minibatches=5"], ["algorithm.minibatches"]),
    "more minibatches than rows": (["algorithm.minibatches=768"], ["algorithm.minibatches"]),
    "one row over": (["collection.rollout_steps=1", "env.num_envs=15"], ["algorithm.minibatches"]),
    "envs over collectors": (["env.num_envs=15", "collection.collectors=2"], ["env.num_envs"]),
    "more collectors than envs": (["collection.collectors=32"], ["env.num_envs"]),
    "no budget": (["budget.env_steps=null"], ["budget"]),
    "wrappers": (["env.wrappers=[a:b]", "env.vectorization=vector_entry_point"], ["env.wrappers"]),
    "all in order": (
        [
            "replay.n_step=2",
            "env.num_envs=15",
            "collection.collectors=2",
            "collection.rollout_slots=1",
            "algorithm.minibatches=7",
            "budget.env_steps=null",
        ],
        ["replay.n_step", "env.num_envs", "collection.rollout_slots", "algorithm.minibatches", "budget"],
    ),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_on_policy_contradictions_are_refused_a_sentence_each(case: str) -> None:
    overrides, keys = CONTRADICTIONS[case]
    problems = problems_of("on_policy", *overrides)
    assert [problem.split(": ")[0] for problem in problems] == keys


def test_too_few_slots_are_told_how_many_it_takes() -> None:
    (problem,) = problems_of("on_policy", "algorithm.max_policy_lag=3", "collection.rollout_slots=2")
    assert problem == "collection.rollout_slots: 2 are too few for algorithm.max_policy_lag=3, which takes 4"


def test_minibatches_that_do_not_divide_are_told_what() -> None:
    (problem,) = problems_of("on_policy", "algorithm.minibatches=5", "collection.rollout_steps=8")
    assert problem == (
        "algorithm.minibatches: the 128 rows of an update (collection.rollout_steps=8 x env.num_envs=16)"
        " do not divide by 5"
    )


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm.max_policy_lag=0", "collection.rollout_slots=1"],
        ["algorithm.max_policy_lag=3", "collection.rollout_slots=4"],
        ["algorithm.max_policy_lag=3", "collection.rollout_slots=9"],
        ["algorithm.max_policy_lag=50"],
        ["algorithm.minibatches=384"],
        ["algorithm.minibatches=1", "env.num_envs=7", "collection.rollout_steps=1"],
        ["env.num_envs=15", "collection.collectors=3"],  # the batch of 256 is not its own, nor is anything of replay
        ["env.num_envs=2_000_000", "collection.rollout_steps=1"],
        ["budget.env_steps=100"],  # fewer than the learning_starts that are not its own either
        ["budget.env_steps=null", "budget.gradient_steps=1"],
    ],
)
def test_what_just_fits_an_on_policy_run_is_taken(overrides: list[str]) -> None:
    assert plain("on_policy", *overrides)


@pytest.mark.parametrize(
    ("key", "refused"),
    [
        ("algorithm.max_policy_lag", ["-1", "0.5", "true", "null", "'1'", "x"]),
        ("algorithm.epochs", ["0", "-1", "1.5", "true", "null"]),
        ("algorithm.minibatches", ["0", "-1", "1.5", "true", "null"]),
        ("collection.rollout_steps", ["0", "-1", "1.5", "true", "null"]),
        ("collection.rollout_slots", ["0", "-1", "1.5", "true", "auto"]),
        ("telemetry.dump_rollouts", ["7", "null", "maybe"]),
    ],
)
def test_values_that_no_on_policy_run_can_have(key: str, refused: list[str]) -> None:
    for value in refused:
        (problem,) = problems_of("on_policy", f"{key}={value}")
        assert problem.startswith(f"{key}: ")


# What follows from them


def test_what_follows_for_an_on_policy_run() -> None:
    chosen = plain(
        "on_policy",
        "env.num_envs=6",
        "collection.collectors=3",
        "collection.rollout_steps=10",
        "algorithm.max_policy_lag=2",
        "algorithm.epochs=5",
        "algorithm.minibatches=4",
    )
    assert chosen.on_policy is chosen.algorithm
    assert (chosen.lead, chosen.rollout_slots, chosen.envs_per_collector) == (2, 3, 2)
    assert (chosen.steps_per_tick, chosen.env_steps_per_tick) == (10, 60)
    assert (chosen.learning_starts, chosen.uniform_steps) == (0, 0)
    assert (chosen.gradient_steps_per_update, chosen.rows_per_update, chosen.replay_ratio) == (20, 300, 5.0)


def test_what_follows_for_an_off_policy_run() -> None:
    chosen = plain(
        "off_policy",
        "env.num_envs=6",
        "collection.collectors=3",
        "collection.chunk_steps=10",
        "collection.lead=0",
        "learner.batch_size=30",
        "learner.gradient_steps=4",
    )
    assert chosen.on_policy is None
    assert (chosen.lead, chosen.envs_per_collector, chosen.rows_per_collector) == (0, 2, 10)
    assert (chosen.steps_per_tick, chosen.env_steps_per_tick) == (10, 60)
    assert (chosen.learning_starts, chosen.uniform_steps) == (1000, 1000)
    assert (chosen.gradient_steps_per_update, chosen.rows_per_update, chosen.replay_ratio) == (4, 120, 2.0)
    assert plain("off_policy").lead == 1


@pytest.mark.parametrize(("random_steps", "expected"), [("null", 500), ("0", 0), ("7", 7)])
def test_uniform_steps_are_the_learning_starts_unless_told_otherwise(random_steps: str, expected: int) -> None:
    chosen = plain("off_policy", "collection.learning_starts=500", f"collection.random_steps={random_steps}")
    assert chosen.uniform_steps == expected


@pytest.mark.parametrize(("given", "lag", "slots"), [("null", 0, 1), ("null", 3, 4), ("4", 3, 4), ("6", 3, 6)])
def test_rollout_slots_are_one_more_than_the_lag_unless_told_otherwise(given: str, lag: int, slots: int) -> None:
    chosen = plain("on_policy", f"algorithm.max_policy_lag={lag}", f"collection.rollout_slots={given}")
    assert chosen.rollout_slots == slots


# Written and read again


@pytest.mark.parametrize("family", KINDS)
def test_resolved_settings_are_read_again(tmp_path: Path, family: str) -> None:
    own = [f"{key}={text(other)}" for key, (of, _, other) in MARKED.items() if of == family]
    for number, loaded in enumerate([plain(family), plain(family, *own)]):
        path = tmp_path / f"{number}.yaml"
        path.write_text(write_mapping(loaded.model_dump(mode="json")), encoding="utf-8")
        assert load_settings(path, environ={}) == loaded
        assert run_settings_model().model_validate_json(loaded.model_dump_json()) == loaded
        assert type(load_settings(path, environ={}).algorithm) is algorithms()[KINDS[family]]


# An on-policy algorithm of somebody else


class OtherOnPolicySettings(OnPolicySettings):
    """An on-policy algorithm of somebody else."""

    policy: ClassVar[str] = "somewhere:policy"
    learner: ClassVar[str] = "somewhere:learner"
    kind: Literal["theirs"] = "theirs"
    """The algorithm."""


@pytest.fixture
def other_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    point = EntryPoint("theirs", f"{__name__}:{OtherOnPolicySettings.__name__}", ENTRY_POINT_GROUP)
    points = [*entry_points(group=ENTRY_POINT_GROUP), point]
    monkeypatch.setattr(algorithm_module, "entry_points", lambda group: points)
    forget_algorithms()
    yield
    monkeypatch.undo()
    forget_algorithms()


def forget_algorithms() -> None:
    algorithms.cache_clear()
    run_settings_model.cache_clear()  # type: ignore[attr-defined]


@pytest.mark.usefixtures("other_installed")
def test_the_family_decides_not_the_kind() -> None:
    tree = {"algorithm": {"kind": "theirs", "max_policy_lag": 2}, "budget": {"env_steps": 10}}
    loaded = validate(tree)
    assert (loaded.lead, loaded.rollout_slots, loaded.learning_starts) == (2, 3, 0)
    with pytest.raises(SettingsError, match=r"^replay\.n_step: 3 means nothing to theirs, which is on-policy"):
        validate(tree | {"replay": {"n_step": 3}})
    with pytest.raises(SettingsError, match=r"^collection\.rollout_slots: 1 are too few"):
        validate(tree | {"collection": {"rollout_slots": 1}})


def test_a_written_tree_leaves_out_what_the_algorithm_has_no_use_for() -> None:
    on, off = load_settings("appo/pendulum", environ={}).tree(), load_settings("sac/pendulum", environ={}).tree()
    assert "replay" not in on and "lead" not in on["collection"] and on["learner"] == {"device": "auto"}
    assert "rollout_steps" not in off["collection"] and off["replay"]["capacity"] == 100_000
