"""`aiorl settings reference`: every setting in a table, from the models that check them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from inspect import cleandoc
from itertools import groupby
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from aiorl.settings.algorithm import AlgorithmSettings
from aiorl.settings.explain import fields
from aiorl.settings.run import run_settings_model
from aiorl.settings.yaml_text import Path, write_mapping

HEADER = """\
<!-- Made by `aiorl settings reference > docs/settings.md`: change the docstrings of the settings, then run it. -->

# Settings

`aiorl settings reference` prints this page, with the algorithms that are installed. Keys are written as overrides name
them (`aiorl run sac/pendulum env.num_envs=8`); in a YAML file each section is a mapping. What only algorithms of one
family use says so, and is refused for the other. Upper bounds of 2^53 and more are left out here.
`aiorl settings show PRESET` says which values a preset takes, and where each comes from.
"""

ENDLESS = 2**53
"""An upper bound from here on is none that anyone meets."""

FAMILIES = {"off_policy": "Off-policy only.", "on_policy": "On-policy only."}
WHOLE_SETS: dict[Any, str] = {type(None): "null", bool: "true or false", dict: "mapping"}
NAMES: dict[Any, str] = {int: "whole number", float: "number", str: "text"}


def print_reference() -> int:
    """Print the page."""
    print(reference_text(), end="")
    return 0


def reference_text() -> str:
    """Return the page, as `docs/settings.md` holds it: the sections, then each algorithm."""
    groups = [
        (section, list(members)) for section, members in groupby(fields(run_settings_model()), lambda field: field[1])
    ]
    groups.sort(key=lambda group: issubclass(group[0], AlgorithmSettings))  # stable: otherwise in the models' order
    return "\n".join([HEADER, *(line for group in groups for line in _table(*group))])


def _table(section: type[BaseModel], members: Iterable[tuple[Path, type[BaseModel], str]]) -> Iterator[str]:
    members = list(members)
    head = ".".join(members[0][0][:-1]) or "Every run"
    if issubclass(section, AlgorithmSettings):
        head += f": {section.model_fields['kind'].default} ({section.family.replace('_', '-')})"
    yield f"## {head}\n"
    yield f"{cleandoc(section.__doc__ or '')}\n"
    yield "| key | allowed | default | meaning |"
    yield "|---|---|---|---|"
    for path, _, name in members:
        info = section.model_fields[name]
        cells = (f"`{'.'.join(path)}`", allowed(info), _default(info), _meaning(info))
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
    yield ""


def allowed(info: FieldInfo) -> str:
    """Return what a field takes, as a person would say it."""
    kind, parts = get_origin(info.annotation) or info.annotation, get_args(info.annotation)
    if kind in (Union, UnionType):
        return ", or ".join(allowed(FieldInfo.from_annotation(part)) for part in parts)
    if kind is Literal:
        return ("one of " if len(parts) > 1 else "") + ", ".join(map(_code, parts))
    if kind is tuple:
        least = ", at least one" if _bound(info, "min_length") else ""
        return f"list of {_bounded('s', FieldInfo.from_annotation(parts[0]))}{least}"
    return WHOLE_SETS.get(kind) or _bounded("", info)


def _bounded(plural: str, info: FieldInfo) -> str:
    name = NAMES.get(info.annotation, str(info.annotation)) + plural
    if pattern := _bound(info, "pattern"):
        return f"{name} that matches `{pattern}`"
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    bounds = {each: bound for each in signs if (bound := _bound(info, each)) is not None and bound < ENDLESS}
    if bounds.keys() == {"ge", "le"}:
        return f"{name} from {bounds['ge']:g} to {bounds['le']:g}"
    return f"{name} {', '.join(f'{signs[each]} {bound:g}' for each, bound in bounds.items())}".strip()


def _bound(info: FieldInfo, name: str) -> Any:
    """Return a bound of a field, or None; of several the last one counts."""
    return next((bound for each in reversed(info.metadata) if (bound := getattr(each, name, None)) is not None), None)


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "none: it must be given"
    return _code(info.get_default(call_default_factory=True))


def _code(value: Any) -> str:
    """Return a value as a settings file would have it."""
    plain = list(value) if isinstance(value, tuple) else value
    return f"`{write_mapping({'value': plain}).removeprefix('value:').strip()}`"


def _meaning(info: FieldInfo) -> str:
    extra = info.json_schema_extra
    family = FAMILIES[str(extra["family"])] if isinstance(extra, dict) and "family" in extra else ""
    return " ".join(f"{info.description or ''} {family}".split())
