"""Settings as YAML text: read with the line of every value, written so that it reads back the same.

Plain scalars follow the core schema of YAML 1.2 plus `1_000`: `1e6` is a number (YAML 1.1 makes it text)
and `no` is text (YAML 1.1 makes it false).
"""

from __future__ import annotations

import math
import re
from typing import Any

import yaml

from aiorl.errors import SettingsError

Path = tuple[str, ...]
Origins = dict[Path, str]

MOST_VALUES = 20_000
"""More values than any settings have: aliases of aliases can make a few lines into millions."""

_INT = re.compile(r"[-+]?[0-9]+(_[0-9]+)*$")
_FLOAT = re.compile(r"[-+]?([0-9]+(_[0-9]+)*)?\.?[0-9]*([eE][-+]?[0-9]+)?$")
_WORDS = {
    "true": True,
    "True": True,
    "false": False,
    "False": False,
    "null": None,
    "Null": None,
    "~": None,
    "": None,
}


def scalar(text: str) -> Any:
    """Return what a plain (unquoted) scalar means."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.match(text):
        try:
            return int(text)
        except ValueError:  # more digits than Python takes
            return text
    if _FLOAT.match(text) and any(char.isdigit() for char in text.split("e")[0].split("E")[0]):
        number = float(text)
        return number if math.isfinite(number) else text
    return text


def read_mapping(text: str, label: str) -> tuple[dict[str, Any], Origins]:
    """Read a YAML mapping; the origins say `label:line` for each of its values.

    Raises:
        SettingsError: the text is no YAML, no mapping, or names a key twice.

    """
    try:
        node = _compose(text)
    except yaml.YAMLError as error:
        raise SettingsError(f"{label}{_line(error)}: not readable as YAML: {_reason(error)}") from None
    origins: Origins = {}
    if node is None or (isinstance(node, yaml.ScalarNode) and node.style is None and scalar(node.value) is None):
        return {}, origins
    if not isinstance(node, yaml.MappingNode):
        raise SettingsError(f"{label}:{node.start_mark.line + 1}: settings must be keys with values, such as `seed: 1`")
    return _checked(node, label, origins), origins


def read_value(text: str, label: str) -> Any:
    """Read one value as YAML (`3e-4`, `[64, 64]`, `{a: 1}`, text).

    Raises:
        SettingsError: the text is no YAML.

    """
    try:
        node = _compose(text)
    except yaml.YAMLError as error:
        raise SettingsError(f"{label}: not readable as a value: {_reason(error)}") from None
    return None if node is None else _checked(node, label, {})


def write_mapping(tree: dict[str, Any]) -> str:
    """Return the YAML text of a settings tree; `read_mapping` gives the same tree back."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=100)


def _compose(text: str) -> yaml.Node | None:
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except (ValueError, OverflowError) as error:
        raise yaml.YAMLError(f"no such character: {error}") from None
    except RecursionError:
        raise yaml.YAMLError("nested too deeply") from None


def _checked(node: yaml.Node, label: str, origins: Origins) -> Any:
    try:
        return _value(node, label, (), origins)
    except RecursionError:
        raise SettingsError(f"{label}: nested too deeply, or an alias inside itself") from None


def _value(node: yaml.Node, label: str, path: Path, origins: Origins) -> Any:
    where = f"{label}:{node.start_mark.line + 1}"
    if len(origins) > MOST_VALUES:
        raise SettingsError(f"{where}: more than {MOST_VALUES} values, aliases written out")
    origins[path] = where
    if isinstance(node, yaml.ScalarNode):
        if any("\ud800" <= char <= "\udfff" for char in node.value):
            raise SettingsError(f"{where}: half a character (a lone surrogate)")
        return scalar(node.value) if node.style is None else node.value
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, label, (*path, str(index)), origins) for index, item in enumerate(node.value)]
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = key_node.value
        if not isinstance(key, str) or key == "<<":
            raise SettingsError(f"{label}:{key_node.start_mark.line + 1}: a key must be plain text")
        if key in result:
            raise SettingsError(
                f"{label}:{key_node.start_mark.line + 1}: {'.'.join((*path, key))} is given twice in this file"
            )
        result[key] = _value(value_node, label, (*path, key), origins)
        origins[(*path, key)] = f"{label}:{key_node.start_mark.line + 1}"
    return result


def _line(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    return f":{mark.line + 1}" if mark else ""


def _reason(error: yaml.YAMLError) -> str:
    return getattr(error, "problem", None) or str(error).splitlines()[0]


class _Dumper(yaml.SafeDumper):
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    # Text that our reader would take for a number or a word must be quoted.
    style = None if scalar(value) == value and isinstance(scalar(value), str) and value.isprintable() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


def _list(dumper: yaml.SafeDumper, value: list[Any]) -> yaml.SequenceNode:
    return dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=True)


_Dumper.add_representer(str, _text)
_Dumper.add_representer(list, _list)
