"""Positional arguments that are presets, files or overrides."""

from __future__ import annotations

from collections.abc import Sequence


def split_inputs(inputs: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return presets and files, and overrides (what has an `=`)."""
    overrides = [text for text in inputs if "=" in text]
    return [text for text in inputs if "=" not in text], overrides
