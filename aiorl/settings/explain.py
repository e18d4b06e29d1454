"""Validation errors as sentences: where, which key, which value, what is allowed, and the nearest valid key."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ValidationError

from aiorl.settings.algorithm import AlgorithmSettings, algorithms
from aiorl.settings.yaml_text import Origins, Path


def fields(model: type[BaseModel], prefix: Path = ()) -> Iterator[tuple[Path, type[BaseModel], str]]:
    """Yield (path, section, field name) of every settings field below `model`, sections entered."""
    for name, info in model.model_fields.items():
        kind = info.annotation
        if (isinstance(kind, type) and issubclass(kind, AlgorithmSettings)) or name == "algorithm":
            for settings in algorithms().values():
                yield from fields(settings, (*prefix, name))
        elif isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from fields(kind, (*prefix, name))
        else:
            yield (*prefix, name), model, name


def sentences(error: ValidationError, model: type[BaseModel], origins: Origins) -> list[str]:
    """Return one sentence per mistake in a validation error."""
    result = []
    found = error.errors(include_url=False)
    for item in found:
        path = tuple(str(part) for part in item["loc"])
        kind = None
        if len(path) > 1 and path[0] == "algorithm" and path[1] in algorithms():
            kind, path = path[1], (path[0], *path[2:])  # pydantic puts the union's tag into the path
        inside = [other for other in found if len(other["loc"]) > len(item["loc"])]
        if any(other["loc"][: len(item["loc"])] == item["loc"] for other in inside):
            continue  # the mistake is further inside, and has a sentence of its own
        if item["type"] == "contradictions":
            for problem in item["ctx"]["problems"]:
                key = tuple(problem.split(":")[0].split("."))
                result.append((f"{origins[key]}: " if key in origins else "") + problem)
        else:
            result.append(_where(path, origins) + (_foreign(path, kind, item) or _sentence(path, item, model)))
    return list(dict.fromkeys(result))


def _foreign(path: Path, kind: str | None, item: Any) -> str | None:
    """Return a sentence on a key of another algorithm."""
    if kind is None or item["type"] != "extra_forbidden":
        return None
    others = [name for name, settings in algorithms().items() if path[1] in settings.model_fields]
    key = ".".join(path)
    return f"{key}: is a setting of {', '.join(others)}; this run's algorithm is {kind}" if others else None


def _sentence(path: Path, item: Any, model: type[BaseModel]) -> str:
    key, kind, value = ".".join(path), item["type"], item["input"]
    if kind == "extra_forbidden":
        keys = [".".join(known) for known, _, _ in fields(model)]
        sections = [name for name in model.model_fields if len(path) == 1]
        return f"{key}: no such setting{nearest(key, sections + keys)}"
    if kind == "missing":
        return f"{key}: missing"
    if (
        kind in ("union_tag_invalid", "union_tag_not_found", "literal_error")
        and path[:1] == ("algorithm",)
        and len(path) < 3
    ):
        kinds = sorted(algorithms())
        given = value.get("kind") if isinstance(value, dict) else value
        return f"algorithm.kind: {given!r} is not an installed algorithm; there are: {', '.join(kinds)}"
    if kind in ("model_type", "model_attributes_type"):
        return f"{key}: {_shown(value)} is not a section; write its keys below it"
    if kind == "string_pattern_mismatch":
        return f"{key}: {_shown(value)} is not allowed: it must match {item['ctx']['pattern']}"
    message = item["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    if kind == "too_short":
        message = f"must have at least {item['ctx']['min_length']} entries"
    return f"{key}: {_shown(value)} is not allowed: {_allowed(message)}"


def _allowed(message: str) -> str:
    return message if message.startswith("must") else f"it must be {message}"


def nearest(name: str, known: list[str]) -> str:
    """Return `; did you mean …?` for the known name nearest to `name`, or an empty string."""
    close = get_close_matches(name, known, n=1, cutoff=0.6)
    if not close:
        # `batch_size` alone, or in the wrong section: compare the last words.
        last = {key.rsplit(".", 1)[-1]: key for key in reversed(known)}
        close = [last[word] for word in get_close_matches(name.rsplit(".", 1)[-1], list(last), n=1, cutoff=0.75)]
    return f"; did you mean {close[0]}?" if close else ""


def _shown(value: Any) -> str:
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _where(path: Path, origins: Origins) -> str:
    for length in range(len(path), 0, -1):
        if origin := origins.get(path[:length]):
            return f"{origin}: "
    return next((f"{origin}: " for known, origin in origins.items() if known[: len(path)] == path), "")
