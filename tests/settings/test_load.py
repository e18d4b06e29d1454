"""Where a value comes from, what is refused, and in which words."""

import itertools
import re
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from aiorl.errors import SettingsError
from aiorl.protocol import PackBatch, decode_request, encode
from aiorl.settings import AlgorithmSettings, RunSettings, load_settings
from aiorl.settings import algorithm as algorithm_module
from aiorl.settings.algorithm import ENTRY_POINT_GROUP, algorithms
from aiorl.settings.base import Count
from aiorl.settings.explain import fields
from aiorl.settings.load import Loaded, load
from aiorl.settings.presets import preset_names
from aiorl.settings.run import run_settings_model
from aiorl.settings.yaml_text import read_mapping, read_value, write_mapping

BASE = "algorithm: {kind: sac}\nbudget: {env_steps: 30_000}\n"


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(text: str, name: str = "mine.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def problems_of(*files: str | Path, overrides: Any = (), environ: Any = None) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as caught:
        load_settings(*files, overrides=overrides, environ=environ or {})
    assert str(caught.value) == "\n".join(caught.value.problems)
    return caught.value.problems


def value_at(loaded: RunSettings, key: str) -> Any:
    value: Any = loaded
    for part in key.split("."):
        value = value[part] if isinstance(value, dict) else getattr(value, part)
    return value


def nested(key: str, text: str) -> str:
    """`a.b` and `1` as YAML: the last line holds the key."""
    parts = key.split(".")
    lines = [f"{'  ' * depth}{part}:" for depth, part in enumerate(parts)]
    return "\n".join([*lines[:-1], f"{lines[-1]} {text}"]) + "\n"


def env_name(key: str) -> str:
    return "AIORL_" + key.upper().replace(".", "__")


SOURCES = ("yaml", "environment", "override")
every_source = pytest.mark.parametrize("source", SOURCES)


@pytest.fixture
def give(write: Any) -> Any:
    """Load the quick start with one more key, given in one of the three ways; return (call, its origin)."""

    def give(source: str, key: str, text: str) -> tuple[dict[str, Any], str]:
        if source == "yaml":
            path = write("# a comment\n\n" + nested(key, text))
            origin = f"{path}:{2 + len(key.split('.'))}"
            return {"files": ("sac/pendulum", path)}, origin
        if source == "environment":
            return {"files": (), "environ": {env_name(key): text}}, f"environment variable {env_name(key)}"
        return {"files": (), "overrides": [f"{key}={text}"]}, f"override {key}={text}"

    return give


def load_given(call: dict[str, Any]) -> Loaded:
    files = call.pop("files")
    return load(*files, **{"environ": {}} | call)


def refused_given(call: dict[str, Any]) -> tuple[str, ...]:
    files = call.pop("files")
    return problems_of(*files, **call)


# Precedence

LAYERS = ("first", "second", "environment", "override")
SUBSETS = [chosen for size in range(5) for chosen in itertools.combinations(LAYERS, size)]


@pytest.mark.parametrize("chosen", SUBSETS, ids="+".join)
@pytest.mark.parametrize(("key", "default"), [("seed", 0), ("learner.gradient_steps", 1)])
def test_the_last_of_defaults_files_environment_and_overrides_wins(
    write: Any, key: str, default: int, chosen: tuple[str, ...]
) -> None:
    values = {layer: 11 + number for number, layer in enumerate(LAYERS)}
    texts = {layer: BASE + (nested(key, str(values[layer])) if layer in chosen else "") for layer in LAYERS}
    first, second = write(texts["first"], "first.yaml"), write(texts["second"], "second.yaml")
    environ = {env_name(key): str(values["environment"])} if "environment" in chosen else {}
    overrides = [f"{key}={values['override']}"] if "override" in chosen else []
    loaded = load(first, second, environ=environ, overrides=overrides)

    line = 2 + len(key.split("."))
    origins = {
        "first": f"{first}:{line}",
        "second": f"{second}:{line}",
        "environment": f"environment variable {env_name(key)}",
        "override": f"override {key}={values['override']}",
    }
    path = tuple(key.split("."))
    assert value_at(loaded.settings, key) == (values[chosen[-1]] if chosen else default)
    assert loaded.origins.get(path) == (origins[chosen[-1]] if chosen else None)


def test_the_later_of_two_overrides_wins() -> None:
    loaded = load(overrides=["seed=1", "seed=2"], environ={})
    assert loaded.settings.seed == 2
    assert loaded.origins["seed",] == "override seed=2"


def test_without_a_file_the_quick_start_is_loaded() -> None:
    assert load_settings(environ={}) == load_settings("sac/pendulum", environ={})


def test_the_environment_of_the_process_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIORL_SEED", "42")
    assert load_settings().seed == 42
    assert load_settings(environ={}).seed == 0


def test_variables_of_others_are_left_alone() -> None:
    assert load_settings(environ={"AIOR_SEED": "1", "SEED": "2", "PATH": "[", "XAIORL_SEED": "3"}).seed == 0


def test_files_merge_key_by_key_and_lists_are_replaced(write: Any) -> None:
    first = write(BASE + "env:\n  num_envs: 8\n  kwargs: {a: 1, b: {c: 2}}\n  wrappers: [a:b, c:d]\n", "first.yaml")
    second = write("env:\n  kwargs: {b: {d: 3}}\n  wrappers: [e:f]\n", "second.yaml")
    loaded = load(first, second, overrides=["env.kwargs.a=9"], environ={})
    env = loaded.settings.env
    assert (env.num_envs, env.kwargs, env.wrappers) == (8, {"a": 9, "b": {"c": 2, "d": 3}}, ("e:f",))
    assert loaded.origins["env", "num_envs"] == f"{first}:4"
    assert loaded.origins["env", "kwargs", "b", "c"] == f"{first}:5"
    assert loaded.origins["env", "kwargs", "b", "d"] == f"{second}:2"
    assert loaded.origins["env", "wrappers"] == f"{second}:3"
    assert loaded.origins["env", "kwargs", "a"] == "override env.kwargs.a=9"
    assert ("env", "wrappers", "1") not in loaded.origins


@pytest.mark.parametrize("source", ["environment", "override"])
def test_a_whole_section_can_be_given_at_once(write: Any, give: Any, source: str) -> None:
    path = write(BASE + "env: {id: Some-v1, num_envs: 8}\n")
    call, origin = give(source, "env", "{num_envs: 4, kwargs: {stagger: false}}")
    loaded = load_given(call | {"files": (path,)})
    assert (loaded.settings.env.num_envs, loaded.settings.env.id) == (4, "Some-v1")
    # `settings show` names the source of each value by its own path.
    assert loaded.origins["env", "num_envs"] == origin
    assert loaded.origins["env", "kwargs", "stagger"] == origin
    assert loaded.origins["env", "id"] == f"{path}:3"


# Another algorithm


class OtherSettings(AlgorithmSettings):
    """An algorithm of somebody else."""

    policy: ClassVar[str] = "somewhere:policy"
    learner: ClassVar[str] = "somewhere:learner"
    kind: Literal["other"] = "other"
    """The algorithm."""
    depth: Count = 3
    """A knob that SAC has not."""


def forget_algorithms() -> None:
    algorithms.cache_clear()
    run_settings_model.cache_clear()  # type: ignore[attr-defined]


@pytest.fixture
def other_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    point = EntryPoint("other", f"{__name__}:{OtherSettings.__name__}", ENTRY_POINT_GROUP)
    points = [*entry_points(group=ENTRY_POINT_GROUP), point]
    monkeypatch.setattr(algorithm_module, "entry_points", lambda group: points)
    forget_algorithms()
    yield
    monkeypatch.undo()
    forget_algorithms()


@pytest.mark.usefixtures("other_installed")
def test_a_file_with_another_algorithm_starts_it_afresh(write: Any) -> None:
    first = write(BASE + "seed: 3\n", "first.yaml")
    tuned = write("algorithm: {gamma: 0.5, tau: 0.1}\n", "tuned.yaml")
    other = write("algorithm: {kind: other, depth: 5}\n", "other.yaml")
    loaded = load(first, tuned, other, environ={})
    assert loaded.settings.algorithm == OtherSettings(depth=5)
    assert isinstance(loaded.settings.algorithm, OtherSettings)
    assert loaded.settings.seed == 3
    assert ("algorithm", "gamma") not in loaded.origins
    assert loaded.origins["algorithm", "kind"] == f"{other}:1"


@pytest.mark.usefixtures("other_installed")
def test_the_same_algorithm_again_keeps_its_values(write: Any) -> None:
    first = write("algorithm: {kind: sac, gamma: 0.5}\nbudget: {env_steps: 30_000}\n", "first.yaml")
    assert load_settings(first, write(BASE, "second.yaml"), environ={}).algorithm.gamma == 0.5


@pytest.mark.usefixtures("other_installed")
@pytest.mark.parametrize("key", ["algorithm.depth", "algorithm.target"])
def test_a_typo_in_another_algorithm_is_found_under_its_own_key(write: Any, key: str) -> None:
    # The union's tag is pydantic's, not the user's: the key is algorithm.x, whatever the kind.
    path = write(nested(key, "no") + "  kind: other\nbudget: {env_steps: 30_000}\n")
    (problem,) = problems_of(path)
    assert problem.startswith(f"{path}:2: {key}: ")


@pytest.mark.usefixtures("other_installed")
def test_an_unknown_algorithm_is_told_what_there_is() -> None:
    (problem,) = problems_of(overrides=["algorithm.kind=sacc"])
    assert problem == (
        "override algorithm.kind=sacc: algorithm.kind: 'sacc' is not an installed algorithm;"
        " there are: appo, other, sac"
    )


@pytest.mark.usefixtures("other_installed")
def test_variables_of_another_algorithm_are_one_layer_whatever_their_names() -> None:
    # ALGORITHM__GAMMA sorts before ALGORITHM__KIND; a new kind must not throw away what came with it.
    environ = {"AIORL_ALGORITHM__KIND": "other", "AIORL_ALGORITHM__GAMMA": "0.5", "AIORL_ALGORITHM__DEPTH": "7"}
    assert load_settings(environ=environ).algorithm == OtherSettings(gamma=0.5, depth=7)


@pytest.mark.usefixtures("other_installed")
@pytest.mark.parametrize("order", [1, -1])
def test_overrides_of_another_algorithm_are_one_layer_whatever_their_order(order: int) -> None:
    overrides = ["algorithm.kind=other", "algorithm.gamma=0.5"][::order]
    assert load_settings(overrides=overrides, environ={}).algorithm == OtherSettings(gamma=0.5)


@pytest.mark.parametrize("value", ["json:loads", "aiorl.settings:RunSettings"])
def test_an_entry_point_of_the_wrong_kind_is_named(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setattr(algorithm_module, "entry_points", lambda group: [EntryPoint("odd", value, ENTRY_POINT_GROUP)])
    try:
        forget_algorithms()
        with pytest.raises(SettingsError, match=f"odd = {value}"):
            algorithms()
    finally:
        monkeypatch.undo()
        forget_algorithms()


# Typos

TYPOS = {
    "sede": ("sede", "seed"),
    "env.num_env": ("env.num_env", "env.num_envs"),
    "colection.lead": ("colection", "collection"),
    "algorithm.gama": ("algorithm.gama", "algorithm.gamma"),
    "batch_size": ("batch_size", "learner.batch_size"),
    "env.learning_starts": ("env.learning_starts", "collection.learning_starts"),
}


@every_source
@pytest.mark.parametrize("key", TYPOS)
def test_a_typo_is_one_sentence_with_place_key_and_suggestion(give: Any, source: str, key: str) -> None:
    call, origin = give(source, key, "1")
    named, meant = TYPOS[key]
    if source == "yaml" and named != key:
        origin = origin.rpartition(":")[0] + ":3"  # the section's own line
    assert refused_given(call) == (f"{origin}: {named}: no such setting; did you mean {meant}?",)


def test_a_variable_with_one_underscore_too_few_is_no_secret() -> None:
    (problem,) = problems_of(environ={"AIORL_ENV_NUM_ENVS": "4"})
    assert problem == (
        "environment variable AIORL_ENV_NUM_ENVS: env_num_envs: no such setting; did you mean env.num_envs?"
    )


@pytest.mark.parametrize(
    ("kind", "other", "key"), [("sac", "appo", "algorithm.clip"), ("appo", "sac", "algorithm.tau")]
)
def test_a_key_of_another_algorithm_is_told_whose_it_is(kind: str, other: str, key: str) -> None:
    (problem,) = problems_of(f"{kind}/pendulum", overrides=[f"{key}=0.1"])
    assert problem == f"override {key}=0.1: {key}: is a setting of {other}; this run's algorithm is {kind}"


@pytest.mark.parametrize(
    ("preset", "typo", "meant"),
    [("sac/pendulum", "tauu", "tau"), ("appo/pendulum", "max_policy_lagg", "max_policy_lag")],
)
def test_a_typo_in_an_algorithm_finds_its_own_keys(preset: str, typo: str, meant: str) -> None:
    (problem,) = problems_of(preset, overrides=[f"algorithm.{typo}=1"])
    assert problem == (
        f"override algorithm.{typo}=1: algorithm.{typo}: no such setting; did you mean algorithm.{meant}?"
    )


def test_what_is_like_nothing_gets_no_suggestion() -> None:
    assert problems_of(overrides=["qqqq=1"]) == ("override qqqq=1: qqqq: no such setting",)


# Numbers

WHOLE = {"1e6": 1_000_000, "1_000": 1000, "1_000_000": 1_000_000, "2.5e3": 2500, "2000.0": 2000, "+7": 7}
REAL = {"1e6": 1e6, "1e-4": 1e-4, "1_000": 1000.0, "2.5e3": 2500.0, "1E+2": 100.0, ".5": 0.5, "5": 5.0}


@every_source
@pytest.mark.parametrize("key", ["seed", "checkpoint.every_env_steps"])
def test_whole_numbers_may_be_written_as_people_write_them(give: Any, source: str, key: str) -> None:
    for text, number in WHOLE.items():
        value = value_at(load_given(give(source, key, text)[0]).settings, key)
        assert (text, type(value), value) == (text, int, number)


@every_source
@pytest.mark.parametrize("key", ["algorithm.actor_learning_rate", "checkpoint.every_seconds"])
def test_real_numbers_may_be_written_as_people_write_them(give: Any, source: str, key: str) -> None:
    for text, number in REAL.items():
        value = value_at(load_given(give(source, key, text)[0]).settings, key)
        assert (text, type(value), value) == (text, float, number)


NUMBERS = {
    "budget.env_steps": "20000",
    "seed": "5",
    "collection.lead": "1",
    "telemetry.interval_s": "0.5",
    "algorithm.gamma": "0.5",
    "algorithm.target_entropy_per_action": "-0.5",
    "checkpoint.every_seconds": "1e2",
}
NO_NUMBERS = ["no", "yes", "true", "false", "True", "off", "nan", ".nan", "inf", "-inf", ".inf", "1e400", "[1]", "1 2"]


def taken(give: Any, source: str, key: str, texts: list[str]) -> list[str]:
    """Which of these texts are taken as a value; the others are refused in one sentence with key and place."""
    found = []
    for text in texts:
        call, origin = give(source, key, text)
        try:
            load_given(call)
        except SettingsError as error:
            (problem,) = error.problems
            assert problem.startswith(f"{origin}: {key}: ")
            assert "must be" in problem
        else:
            found.append(text)
    return found


@every_source
@pytest.mark.parametrize("key", NUMBERS)
def test_words_switches_and_what_is_not_finite_are_no_numbers(give: Any, source: str, key: str) -> None:
    assert taken(give, source, key, NO_NUMBERS) == []


@every_source
@pytest.mark.parametrize("key", NUMBERS)
def test_quoted_text_is_no_number(give: Any, source: str, key: str) -> None:
    number = NUMBERS[key]
    assert taken(give, source, key, [number, f"'{number}'", f'"{number}"']) == [number]


@every_source
def test_a_fraction_is_no_whole_number(give: Any, source: str) -> None:
    assert taken(give, source, "seed", ["1e-4", "2.5", "3.0"]) == ["3.0"]


@every_source
def test_no_is_a_name_like_any_other(give: Any, source: str) -> None:
    assert load_given(give(source, "name", "no")[0]).settings.name == "no"


@every_source
@pytest.mark.parametrize(("text", "value"), [("null", None), ("~", None), ("", None), ("3", 3)])
def test_null_takes_a_value_away(give: Any, source: str, text: str, value: int | None) -> None:
    assert load_given(give(source, "checkpoint.every_env_steps", text)[0]).settings.checkpoint.every_env_steps == value


# What is not a settings file


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("seed: 1\nseed: 2\n", 2, "seed is given twice"),
        ("env:\n  num_envs: 1\n  id: x\n  num_envs: 1\n", 4, "env.num_envs is given twice"),
        ("env: {kwargs: {a: 1, a: 1}}\n", 1, "env.kwargs.a is given twice"),
        ("seed: 1\nenv: [1\n", 3, "not readable as YAML"),
        ("seed: 1\n\tname: x\n", 2, "not readable as YAML"),
        ("seed: 1\n---\nseed: 2\n", 2, "not readable as YAML"),
        ("seed: *nowhere\n", 1, "not readable as YAML"),
        ("\n- seed\n", 2, "keys with values"),
        ("seed\n", 1, "keys with values"),
        ("? [a]\n: 1\n", 1, "a key must be plain text"),
        ("a: 1\nc:\n  <<: {b: 1}\n", 3, "a key must be plain text"),
    ],
)
def test_what_is_wrong_with_the_yaml_is_said_with_its_line(write: Any, text: str, line: int, words: str) -> None:
    path = write(text)
    (problem,) = problems_of("sac/pendulum", path)
    assert problem.startswith(f"{path}:{line}: ")
    assert words in problem


@pytest.mark.parametrize("text", ["", "\n", "# nothing yet\n", "---\n"])
def test_an_empty_file_changes_nothing(write: Any, text: str) -> None:
    assert load_settings("sac/pendulum", write(text), environ={}) == load_settings(environ={})


@pytest.mark.parametrize("text", ["", "seed: 1\n", "algorithm: {gamma: 0.5}\n"])
def test_an_algorithm_must_be_named(write: Any, text: str) -> None:
    (problem,) = problems_of(write(text))
    assert problem.startswith("algorithm.kind: missing")


@pytest.mark.parametrize("text", ["null", "3", "[num_envs]", "x"])
def test_a_section_must_be_one(write: Any, text: str) -> None:
    path = write(BASE + f"env: {text}\n")
    (problem,) = problems_of(path)
    assert problem.startswith(f"{path}:3: env: ")
    assert "is not a section" in problem


def test_an_override_below_a_value_is_refused() -> None:
    (problem,) = problems_of(overrides=["name.x=1"])
    assert problem.startswith("override name.x=1: name")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "nowhere.yaml"
    assert problems_of(missing) == (f"{missing}: no such settings file",)


def test_a_folder_is_no_settings_file(tmp_path: Path) -> None:
    folder = tmp_path / "folder.yaml"
    folder.mkdir()
    assert problems_of(folder) == (f"{folder}: no such settings file",)


def test_a_file_of_another_kind_is_told_its_ending(write: Any) -> None:
    path = write(BASE, "mine.json")
    assert problems_of(path) == (f"{path}: a settings file must end in .yaml",)


def test_a_file_of_bytes_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bytes.yaml"
    path.write_bytes(b"\xff\xfe\x00\x81")
    (problem,) = problems_of(path)
    assert problem.startswith(f"{path}")


@pytest.mark.parametrize(("name", "meant"), [("sac/pendulun", "sac/pendulum"), ("pendulum", "sac/pendulum")])
def test_an_unknown_preset_gets_a_suggestion(name: str, meant: str) -> None:
    assert meant in preset_names()
    (problem,) = problems_of(name)
    assert problem.startswith(f"{name}: no such preset or settings file")
    assert f"did you mean {meant}?" in problem


@pytest.mark.parametrize("name", ["", "..", "/", "no\0thing", "x" * 300, "a/" * 3000])
def test_no_name_of_a_preset_gets_past(name: str) -> None:
    (problem,) = problems_of(name)
    assert "no such preset" in problem


@pytest.mark.parametrize("text", ["seed", "=1", "a..b=1", ".seed=1", "seed.=1", ""])
def test_an_override_has_a_key_and_a_value(text: str) -> None:
    assert problems_of(overrides=[text]) == (f"{text}: an override is section.key=value",)


# Contradictions

CONTRADICTIONS = {
    "envs over collectors": (["env.num_envs=15", "collection.collectors=2"], ["env.num_envs"]),
    "more collectors than envs": (["collection.collectors=32"], ["env.num_envs"]),
    "rows over collectors": (["learner.batch_size=255", "collection.collectors=2"], ["learner.batch_size"]),
    "chunk in shard": (["replay.capacity=1600", "collection.chunk_steps=101"], ["replay.capacity"]),
    "n_step in shard": (["replay.capacity=1600", "replay.n_step=101"], ["replay.capacity"]),
    "not one step": (["replay.capacity=15", "collection.chunk_steps=1"], ["replay.capacity"]),
    "learning starts in shard": (["replay.capacity=1015", "collection.learning_starts=1009"], ["replay.capacity"]),
    "batch in shard": (
        ["replay.capacity=160", "collection.learning_starts=0", "learner.batch_size=161"],
        ["replay.capacity"],
    ),
    "no budget": (["budget.env_steps=null"], ["budget"]),
    "nothing learned": (["budget.env_steps=960"], ["budget.env_steps"]),
    "never evaluated": (["evaluation.every_env_steps=20000", "budget.env_steps=12001"], ["evaluation.every_env_steps"]),
    "wrappers": (["env.wrappers=[a:b]", "env.vectorization=vector_entry_point"], ["env.wrappers"]),
    "two": (
        ["env.num_envs=15", "learner.batch_size=255", "collection.collectors=2"],
        ["env.num_envs", "learner.batch_size"],
    ),
    "three": (
        ["env.num_envs=15", "learner.batch_size=255", "collection.collectors=2", "budget.env_steps=null"],
        ["env.num_envs", "learner.batch_size", "budget"],
    ),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_contradictions_are_refused_a_sentence_each(case: str) -> None:
    overrides, keys = CONTRADICTIONS[case]
    problems = problems_of(overrides=overrides)
    assert len(problems) == len(keys)
    for problem, key in zip(problems, keys, strict=True):
        assert re.match(rf"(.*: )?{re.escape(key)}: ", problem)


def test_an_evaluation_in_the_last_tick_is_none_too_many() -> None:
    """16 envs, chunks of 4: the run ends with 12032 env steps."""
    own = ["env.num_envs=16", "collection.chunk_steps=4", "budget.env_steps=12001"]
    assert load_settings(overrides=[*own, "evaluation.every_env_steps=12032"], environ={}).evaluation.every_env_steps
    (problem,) = problems_of(overrides=[*own, "evaluation.every_env_steps=12033"])
    assert problem.startswith("override evaluation.every_env_steps=12033: evaluation.every_env_steps: 12033 are never")


def test_a_contradiction_says_where_its_key_came_from(write: Any) -> None:
    path = write("collection: {collectors: 3}\nenv:\n  num_envs: 16\nlearner: {batch_size: 255}\n")
    assert problems_of("sac/pendulum", path) == (
        f"{path}:3: env.num_envs: 16 envs do not divide by collection.collectors=3",
    )


@pytest.mark.parametrize(
    "overrides",
    [
        ["env.num_envs=16", "collection.collectors=2", "learner.batch_size=254"],
        ["replay.capacity=1600", "collection.chunk_steps=100"],
        ["replay.capacity=1600", "replay.n_step=100"],
        ["replay.capacity=1039", "collection.learning_starts=1009"],  # 64 vector steps are held, 16 chunks
        ["replay.capacity=160", "collection.learning_starts=0", "learner.batch_size=160"],
        ["budget.env_steps=null", "budget.gradient_steps=1"],
        ["budget.env_steps=null", "budget.seconds=0.5"],
        ["budget.env_steps=961"],  # whole ticks of 64: it ends at 1024
        ["env.wrappers=[a:b]", "env.vectorization=sync"],
    ],
)
def test_what_just_fits_is_taken(overrides: list[str]) -> None:
    assert load_settings(overrides=overrides, environ={})


@pytest.mark.parametrize("layer", ["files", "variables", "overrides", "all"])
def test_two_mistakes_are_two_sentences(write: Any, layer: str) -> None:
    if layer == "files":
        problems = problems_of("sac/pendulum", write("sede: 1\nenv:\n  num_envs: 0\n"))
    elif layer == "variables":
        problems = problems_of(environ={"AIORL_SEDE": "1", "AIORL_ENV__NUM_ENVS": "0"})
    elif layer == "overrides":
        problems = problems_of(overrides=["sede=1", "env.num_envs=0"])
    else:
        problems = problems_of("sac/pendulum", write("sede: 1\n"), environ={"AIORL_ENV__NUM_ENVS": "0"})
    assert len(problems) == 2
    assert sum(": sede: " in problem for problem in problems) == 1
    assert sum(": env.num_envs: " in problem for problem in problems) == 1


@pytest.mark.parametrize(
    "call",
    [
        {"environ": {"AIORL_SEED": "[1", "AIORL_NAME": "[2"}},
        {"environ": {"AIORL_SEED": "[1"}, "overrides": ["seed"]},
        {"overrides": ["seed", "name=[1"]},
        {"overrides": ["seed", "name.x=1"]},
    ],
)
def test_two_unreadable_values_are_two_sentences(call: dict[str, Any]) -> None:
    assert len(problems_of(**call)) == 2


def test_two_unreadable_files_are_two_sentences(write: Any) -> None:
    assert len(problems_of(write("a: [", "a.yaml"), write("b: [", "b.yaml"))) == 2


# Frozen


def test_settings_are_frozen() -> None:
    found = [load_settings(f"{kind}/pendulum", environ={}) for kind in algorithms()]
    for loaded in found:
        for name in type(loaded).model_fields:
            with pytest.raises(ValidationError, match="frozen"):
                setattr(loaded, name, getattr(loaded, name))
    for path, kind, name in fields(run_settings_model()):
        sections = [value_at(loaded, ".".join(path[:-1])) if path[1:] else loaded for loaded in found]
        for section in [each for each in sections if isinstance(each, kind)] or pytest.fail(f"no {kind} has {path}"):
            with pytest.raises(ValidationError, match="frozen"):
                setattr(section, name, getattr(section, name))


def test_settings_share_nothing_that_can_change() -> None:
    one, two = (load_settings("sac/half_cheetah", environ={}) for _ in range(2))
    one.env.kwargs["mine"] = 1
    assert two.env.kwargs == {} == load_settings("sac/half_cheetah", environ={}).env.kwargs


# Whatever comes in, settings or a SettingsError come out

KEYS = [".".join(path) for path, _, _ in fields(run_settings_model())]
YAML_CHARS = st.sampled_from(list("ab01_.-+eE:,#&*!|>%@`?{}[]\n '\"\\<=~é\t\x00\x85"))
SNIPPETS = st.sampled_from(
    ["1", "1e9", "-1", "0", "null", "true", "no", "x", '"5"', "[1, 2]", "{a: 1}", "auto", "1e400", "&a 1", "*a", "2.5"]
)
VALUES = SNIPPETS | st.integers().map(str) | st.floats().map(repr) | st.text(YAML_CHARS, max_size=12) | st.text()
OVERRIDES = st.builds("{}={}".format, st.sampled_from(KEYS) | st.text(YAML_CHARS, max_size=8), VALUES) | st.text()
LINES = st.builds("{}{}: {}".format, st.sampled_from(["", "  "]), st.sampled_from([*KEYS, "env", "algorithm"]), VALUES)
DOCUMENTS = (
    st.text(YAML_CHARS, max_size=60)
    | st.lists(LINES, max_size=5).map("\n".join)
    | st.builds(lambda key, text: BASE + nested(key, text), st.sampled_from(KEYS), VALUES)
)
HOSTILE = [
    "1" * 5000,  # more digits than Python turns into a number
    "1" + "0" * 400,  # more than a float holds
    "1e300",
    "&a [*a]",  # a list inside itself
    "&a {b: *a}",
    '"\\Uffffffff"',  # no such character
    '"\\ud800"',  # half a character
    "{a: 1, a: 2}",
    "!!python/object:os.system {}",
    "!!binary x",
    "2001-01-01",
    "- - - x",
    "%YAML 9.9",
]


def settings_or_refusal(*files: str | Path, overrides: Any = ()) -> None:
    try:
        loaded = load_settings(*files, overrides=overrides, environ={})
    except SettingsError as error:
        assert error.problems
        assert all(error.problems)
        return
    assert isinstance(loaded, RunSettings)
    # What was taken must reach the workers (JSON) and a resumed run (YAML) as it is.
    model = run_settings_model()
    assert model.model_validate_json(loaded.model_dump_json()) == loaded
    tree, _ = read_mapping(write_mapping(loaded.model_dump(mode="json")), "settings.yaml")
    assert model.model_validate(tree) == loaded
    assert decode_request(encode(PackBatch(1, 0, loaded.seed))) == PackBatch(1, 0, loaded.seed)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.sampled_from(["sac/pendulum", "appo/pendulum"]), st.lists(OVERRIDES, min_size=1, max_size=3))
def test_any_override_gives_settings_or_a_refusal(preset: str, overrides: list[str]) -> None:
    settings_or_refusal(preset, overrides=overrides)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(DOCUMENTS)
def test_any_document_gives_settings_or_a_refusal(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(text, encoding="utf-8")
    settings_or_refusal(path)


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:20])
def test_hostile_values_give_settings_or_a_refusal(text: str) -> None:
    for key in ("seed", "budget.env_steps", "checkpoint.every_seconds", "env.id", "env.kwargs.x"):
        settings_or_refusal(overrides=[f"{key}={text}"])


def test_a_value_nested_without_end_is_refused() -> None:
    assert problems_of(overrides=[f"env.kwargs.x={'[' * 2000}"])


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:20])
def test_hostile_files_are_refused(write: Any, text: str) -> None:
    assert problems_of(write(text))
    assert problems_of(write(BASE + nested("env.num_envs", text)))


@pytest.mark.parametrize("text", [".inf", ".nan", "1e400", "-1e400"])
def test_no_argument_of_an_env_changes_on_its_way_to_it(text: str) -> None:
    settings_or_refusal(overrides=[f"env.kwargs.x={text}"])


# Writing

TRICKY = [
    *("1", "1e6", "1_000", "-.5", "+1", "0x10", "null", "~", "", "true", "False", "no", "yes", "=", "<<", "2001-01-01"),
    *("- a", "a: b", "a #b", "#a", " a", "a ", "\n", "a\nb", "\ta", "'", '"', "\\", "&a", "*a", "!a", "%a", "@", "é"),
    *(".inf", ".nan", "inf", "nan", "1:30", "\x85", "\u2028", "\ufeff", "x" * 200, "word " * 50, "---", "..."),
]
TEXTS = st.sampled_from(TRICKY) | st.text(max_size=20)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
TREES = st.dictionaries(
    TEXTS.filter(lambda key: key != "<<"),
    st.recursive(
        SCALARS,
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(TEXTS.filter(lambda key: key != "<<"), inner, max_size=4)
        ),
        max_leaves=12,
    ),
    max_size=4,
)


def types_of(tree: Any) -> Any:
    """1, 1.0 and True are equal for Python, but not for us."""
    if isinstance(tree, dict):
        return {key: types_of(value) for key, value in tree.items()}
    return [types_of(value) for value in tree] if isinstance(tree, list) else type(tree)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(TREES)
@example({"a": 1e16, "b": 1e-7, "c": -0.0, "d": 10**30, "e": {}, "f": [], "g": [[], {}]})
def test_what_is_written_reads_back_the_same(tree: dict[str, Any]) -> None:
    read, _ = read_mapping(write_mapping(tree), "tree")
    assert read == tree
    assert types_of(read) == types_of(tree)
    assert list(read) == list(tree)


@pytest.mark.parametrize("name", preset_names())
def test_settings_survive_their_file(write: Any, name: str) -> None:
    loaded = load_settings(name, overrides=["env.kwargs.x='1e6'", "env.wrappers=['1:2']"], environ={})
    path = write(write_mapping(loaded.model_dump(mode="json")))
    assert load_settings(path, environ={}) == loaded


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4),
        ("[64, 64]", [64, 64]),
        ("{a: 1, b: x}", {"a": 1, "b": "x"}),
        ("no", "no"),
        ("'1'", "1"),
        ("", None),
        (".", "."),
        ("1__0", "1__0"),
        ("1e", "1e"),
        ("007", 7),
    ],
)
def test_values_of_overrides_are_yaml(text: str, value: Any) -> None:
    read = read_value(text, "override")
    assert (type(read), read) == (type(value), value)


def test_another_env_takes_no_arguments_from_the_one_below(tmp_path: Path) -> None:
    assert load_settings("sac/pendulum", environ={}).evaluation.kwargs == {"stagger": False}
    loaded = load_settings("sac/pendulum", overrides=["env.kwargs.a=1", "env.id=my:Env"], environ={})
    assert loaded.evaluation.kwargs == {} and loaded.env.kwargs == {"a": 1}
    cleared = load_settings("sac/pendulum", overrides=["evaluation.kwargs={}"], environ={})
    assert cleared.evaluation.kwargs == {}


def test_a_malformed_override_hides_no_other_mistake() -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings("sac/pendulum", overrides=["seed", "learner.batch_size=0"], environ={})
    assert len(caught.value.problems) == 2
    assert "section.key=value" in caught.value.problems[0] and "learner.batch_size: 0" in caught.value.problems[1]
