"""Settings from presets, files, environment and overrides: defaults < files < environment < overrides."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from aiorl.errors import SettingsError
from aiorl.settings.explain import sentences
from aiorl.settings.presets import QUICK_START, find
from aiorl.settings.run import RunSettings, run_settings_model
from aiorl.settings.sections import EnvSettings
from aiorl.settings.yaml_text import Origins, read_mapping, read_value
from aiorl.settings.yaml_text import Path as KeyPath

ENV_PREFIX = "AIORL_"
_FIRST = (("algorithm", "kind"), ("env", "id"))
_OF_THE_ENV = (("env", "kwargs"), ("evaluation", "kwargs"))


@dataclass(frozen=True)
class Loaded:
    """Settings and, for each value that is not a default, where it came from."""

    settings: RunSettings
    origins: Origins


def load_settings(
    *presets_or_files: str | Path, overrides: Iterable[str] = (), environ: Mapping[str, str] | None = None
) -> RunSettings:
    """Load and check settings; without presets or files, those of the quick start.

    Args:
        presets_or_files: preset names (`sac/pendulum`) and YAML files, deep-merged from left to right.
        overrides: `section.key=value` texts; they outrank everything else.
        environ: where `AIORL_SECTION__KEY` is looked up; os.environ by default.

    Raises:
        SettingsError: one sentence per mistake, before anything is started.

    """
    return load(*presets_or_files, overrides=overrides, environ=environ).settings


def load(
    *presets_or_files: str | Path, overrides: Iterable[str] = (), environ: Mapping[str, str] | None = None
) -> Loaded:
    """Load settings as `load_settings` does, with the origin of every value."""
    if isinstance(overrides, str | Mapping):
        raise SettingsError("overrides: must be a list of texts such as ['learner.batch_size=512']")
    overrides = list(overrides)
    if strange := [each for each in overrides if not isinstance(each, str)]:
        raise SettingsError([f"overrides: {each!r} is no text of the form section.key=value" for each in strange])
    tree: dict[str, Any] = {}
    origins: Origins = {}
    problems: list[str] = []
    for name in presets_or_files or (QUICK_START,):
        try:
            path, label = find(name)
            layer, layer_origins = read_mapping(_text(path, label), label)
        except SettingsError as error:
            problems += error.problems
            continue
        _merge_layer(tree, layer, origins)
        origins.update(layer_origins)
    is_complete = not problems
    environment = _environment(os.environ if environ is None else environ, problems)
    for source in (environment, _overrides(overrides, problems)):
        # Within a source these come first: they clear what is another algorithm's or env's, not what is beside them.
        for key_path, value, origin in sorted(source, key=lambda entry: entry[0] not in _FIRST):
            _put(tree, key_path, value, origin, origins, problems)
    if problems and not is_complete:
        raise SettingsError(problems)  # what a missing file would have said cannot be judged
    try:
        settings = validate(tree, origins)
    except SettingsError as error:
        raise SettingsError([*problems, *error.problems]) from None
    if problems:
        raise SettingsError(problems)
    return Loaded(settings, origins)


def validate(tree: dict[str, Any], origins: Origins | None = None) -> RunSettings:
    """Return the checked settings of a tree of plain values.

    Raises:
        SettingsError: one sentence per mistake.

    """
    model = run_settings_model()
    algorithm = tree.get("algorithm", {})
    if isinstance(algorithm, dict) and "kind" not in algorithm:
        raise SettingsError("algorithm.kind: missing; say which algorithm, for example algorithm.kind=sac")
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        raise SettingsError(sentences(error, model, origins or {})) from None


def _text(path: Path, label: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{label}: cannot be read: {error}") from None


def _environment(environ: Mapping[str, str], problems: list[str]) -> list[tuple[KeyPath, Any, str]]:
    found = []
    for name in sorted(environ):
        if name.startswith(ENV_PREFIX):
            path = tuple(name.removeprefix(ENV_PREFIX).lower().split("__"))
            origin = f"environment variable {name}"
            try:
                found.append((path, read_value(environ[name], origin), origin))
            except SettingsError as error:
                problems += error.problems
    return found


def _overrides(overrides: Iterable[str], problems: list[str]) -> list[tuple[KeyPath, Any, str]]:
    found = []
    for text in overrides:
        key, equals, value = text.partition("=")
        path = tuple(key.strip().split("."))
        if not equals or not all(path):
            problems.append(f"{text}: an override is section.key=value")
            continue
        try:
            found.append((path, read_value(value, f"override {text}"), f"override {text}"))
        except SettingsError as error:
            problems += error.problems
    return found


def _merge_layer(tree: dict[str, Any], layer: dict[str, Any], origins: Origins) -> None:
    env, below = layer.get("env"), tree.get("env", {})
    if isinstance(env, dict) and isinstance(below, dict):
        known = below.get("id", EnvSettings.model_fields["id"].default)
        if env.get("id", known) != known:
            # What a preset says about its own env's constructor is nothing to another env.
            for section, key in _OF_THE_ENV:
                if isinstance(tree.get(section), dict):
                    tree[section].pop(key, None)
                    _forget((section, key), origins)
    _merge(tree, layer, (), origins)


def _merge(base: dict[str, Any], layer: dict[str, Any], path: KeyPath, origins: Origins) -> None:
    # Another algorithm's settings do not mix with the ones below: a new kind starts from its defaults.
    if path == ("algorithm",) and "kind" in layer and layer["kind"] != base.get("kind", layer["kind"]):
        base.clear()
        _forget(path, origins)
    for key, value in layer.items():
        if isinstance(value, dict) and value and isinstance(base.get(key), dict):  # {} says: nothing at all
            _merge(base[key], value, (*path, key), origins)
        else:
            _forget((*path, key), origins)
            base[key] = value


def _put(tree: dict[str, Any], path: KeyPath, value: Any, origin: str, origins: Origins, problems: list[str]) -> None:
    # An override is a one-key file: same merge, so the same rules.
    layer: Any = value
    for depth in range(len(path) - 1, -1, -1):
        layer = {path[depth]: layer}
    node: Any = tree
    for depth, key in enumerate(path[:-1], 1):
        node = node.get(key) if isinstance(node, dict) else None
        if node is not None and not isinstance(node, dict):
            problems.append(f"{origin}: {'.'.join(path[:depth])} is not a section")
            return
    _merge_layer(tree, layer, origins)
    for known in [path, *_paths(value, path)]:
        origins[known] = origin


def _paths(value: Any, path: KeyPath) -> list[KeyPath]:
    inner = value.items() if isinstance(value, dict) else ()
    return [each for key, item in inner for each in ((*path, key), *_paths(item, (*path, key)))]


def _forget(path: KeyPath, origins: Origins) -> None:
    for known in [known for known in origins if known[: len(path)] == path]:
        del origins[known]
