"""`aiorl settings list | show | schema`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from aiorl.cli.inputs import split_inputs
from aiorl.settings.load import load, load_settings
from aiorl.settings.presets import QUICK_START, preset_names
from aiorl.settings.run import run_settings_model
from aiorl.settings.yaml_text import Origins, write_mapping


def list_presets() -> int:
    """Print each preset with its algorithm, env and budget."""
    for name in preset_names():
        settings = load_settings(name, environ={})
        budget = settings.budget.env_steps
        mark = "  (default)" if name == QUICK_START else ""
        print(f"{name:24} {settings.algorithm.kind:10} {settings.env.id:28} {budget or '-':>10} env steps{mark}")
    return 0


def show(inputs: Sequence[str]) -> int:
    """Print resolved settings as YAML, each value with its origin."""
    names, overrides = split_inputs(inputs)
    loaded = load(*names, overrides=overrides)
    print("\n".join(annotated(loaded.settings.tree(), loaded.origins)))
    return 0


def annotated(tree: dict[str, Any], origins: Origins, path: tuple[str, ...] = ()) -> list[str]:
    """Return YAML lines with a comment on where each value comes from."""
    lines, indent = [], "  " * len(path)
    for key, value in tree.items():
        here = (*path, key)
        if isinstance(value, dict) and value and len(here) == 1:
            lines += [f"{indent}{key}:", *annotated(value, origins, here)]
        else:
            text = write_mapping({key: value}).strip()
            lines += [f"{indent}{line}" for line in text.splitlines()]
            lines[-1] = f"{lines[-1]:<56}  # {_origin(here, origins)}"
    return lines


def _origin(path: tuple[str, ...], origins: Origins) -> str:
    inside = (origin for known, origin in origins.items() if known[: len(path)] == path)
    return origins.get(path) or next(inside, "default")


def print_schema() -> int:
    """Print the JSON schema."""
    print(schema_text(), end="")
    return 0


def schema_text() -> str:
    """Return the JSON schema of a settings file, as `settings/schema.json` holds it."""
    schema = run_settings_model().model_json_schema()
    schema["title"] = "aiorl settings"
    schema.pop("required", None)  # a file says only what differs from the defaults
    return json.dumps(schema, indent=2) + "\n"
