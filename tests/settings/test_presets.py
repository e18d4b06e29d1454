"""What ships in settings/: presets, the schema that editors check them with, and the explanation of every field."""

import json
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import jsonschema
import pytest

from aiorl.cli.settings import schema_text
from aiorl.errors import SettingsError
from aiorl.settings import load_settings
from aiorl.settings.algorithm import AlgorithmSettings, algorithms
from aiorl.settings.base import Section
from aiorl.settings.explain import fields
from aiorl.settings.load import validate
from aiorl.settings.presets import QUICK_START, preset_dir, preset_names
from aiorl.settings.run import run_settings_model
from aiorl.settings.yaml_text import read_mapping

MODELINE = "# yaml-language-server: $schema=../schema.json"
FIELDS = [(".".join(path), section, name) for path, section, name in fields(run_settings_model())]
KEYS = {key for key, _, _ in FIELDS}
every_preset = pytest.mark.parametrize("name", preset_names())


def path_of(name: str) -> Path:
    return preset_dir() / f"{name}.yaml"


def leaves(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values by key; what is a dict for the settings too (kwargs) is one value."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        key = f"{prefix}{name}"
        found |= {key: value} if key in KEYS else leaves(value, f"{key}.")
    return found


def numbers_in(kind: Any) -> bool:
    """Whether an annotation has a number that is no switch."""
    if get_origin(kind) is Literal:
        return any(type(value) in (int, float) for value in get_args(kind))
    return kind in (int, float) or any(numbers_in(part) for part in get_args(kind))


NUMERIC = [each for each in FIELDS if numbers_in(each[1].model_fields[each[2]].annotation)]
NUMERIC_KEYS = {key for key, _, _ in NUMERIC}


def test_there_are_presets_and_the_quick_start_is_one_of_them() -> None:
    assert preset_dir() == Path(__file__).parents[2] / "settings"
    assert QUICK_START in preset_names()


@every_preset
def test_a_preset_is_valid_by_itself(name: str) -> None:
    assert load_settings(name, environ={}).algorithm.kind == name.split("/")[0]


@every_preset
def test_a_preset_tells_editors_its_schema(name: str) -> None:
    path = path_of(name)
    first, second = path.read_text(encoding="utf-8").splitlines()[:2]
    assert first == MODELINE
    assert second
    assert (path.parent / "../schema.json").resolve() == (preset_dir() / "schema.json").resolve()


@every_preset
def test_a_preset_says_only_what_differs_from_the_defaults(name: str) -> None:
    tree, _ = read_mapping(path_of(name).read_text(encoding="utf-8"), name)
    loaded = load_settings(name, environ={})
    repeated = []
    for key in leaves(tree):
        section: Any = loaded
        *path, field = key.split(".")
        for part in path:
            section = getattr(section, part)
        default = type(section).model_fields[field].get_default(call_default_factory=True)
        if getattr(section, field) == default and key != "algorithm.kind":
            repeated.append(key)
    assert repeated == []


def test_the_schema_on_disk_is_that_of_the_code() -> None:
    text = (preset_dir() / "schema.json").read_text(encoding="utf-8")
    assert text == schema_text(), "run `aiorl settings schema > settings/schema.json`"


def test_every_setting_is_explained() -> None:
    silent = [key for key, section, name in FIELDS if not section.model_fields[name].description]
    silent += [name for name, field in run_settings_model().model_fields.items() if not field.description]
    silent += [section.__name__ for _, section, _ in FIELDS if not section.__doc__]
    assert silent == []


def test_every_algorithm_explains_itself() -> None:
    for kind, settings in algorithms().items():
        assert settings.model_fields["kind"].default == kind
        assert [name for name, field in settings.model_fields.items() if not field.description] == []


def test_every_section_is_frozen_and_takes_no_unknown_key() -> None:
    for _, section, _ in FIELDS:
        assert issubclass(section, Section)
        assert section.model_config["frozen"]
        assert section.model_config["extra"] == "forbid"
        assert section.model_config["allow_inf_nan"] is False


def test_the_numeric_settings_are_found() -> None:
    assert {"seed", "env.num_envs", "collection.lead", "algorithm.tau", "algorithm.actor_hidden"} <= NUMERIC_KEYS
    assert {"collection.rollout_steps", "algorithm.max_policy_lag", "algorithm.value_clip"} <= NUMERIC_KEYS
    assert not {"name", "env.id", "evaluation.at_end", "learner.device", "runtime.kind"} & NUMERIC_KEYS


@pytest.mark.parametrize(("key", "section", "name"), NUMERIC, ids=lambda part: getattr(part, "__name__", part))
@pytest.mark.parametrize("switch", [True, False])
def test_a_number_is_no_switch(key: str, section: type[Section], name: str, switch: bool) -> None:
    is_list = get_origin(section.model_fields[name].annotation) is tuple
    preset = (
        f"{section.model_fields['kind'].default}/pendulum" if issubclass(section, AlgorithmSettings) else QUICK_START
    )
    tree = load_settings(preset, environ={}).model_dump(mode="json")
    inner = tree
    for part in key.split(".")[:-1]:
        inner = inner[part]
    inner[name] = [switch] if is_list else switch
    with pytest.raises(SettingsError) as caught:
        validate(tree)
    (problem,) = caught.value.problems
    assert problem.startswith(key)
    assert str(switch).lower() in problem


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("learner", "batch_size", 0),
        ("replay", "n_step", 1.5),
        ("algorithm", "tau", 2),
        ("algorithm", "tau", 0),
        ("algorithm", "gamma", 1.5),
        ("collection", "on_collector_death", "ignore"),
        ("env", "num_env", 3),
    ],
)
def test_an_editor_sees_what_the_loader_would_refuse(section: str, key: str, value: object) -> None:
    schema = json.loads(schema_text())
    good = {"algorithm": {"kind": "sac"}, "learner": {"batch_size": 1}}
    jsonschema.validate(good, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**good, section: {**good.get(section, {}), key: value}}, schema)
