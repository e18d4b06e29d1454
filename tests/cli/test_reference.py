"""The settings reference: as the models have it, in words, and the page in docs is what the command prints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field

from aiorl.cli import app
from aiorl.cli.reference import allowed, reference_text
from aiorl.settings.algorithm import algorithms
from aiorl.settings.base import Count, Section
from aiorl.settings.explain import fields
from aiorl.settings.run import run_settings_model

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"
SAC = "algorithm: sac (off-policy)"
APPO = "algorithm: appo (on-policy)"

ROWS = {
    "text": ("env", "| `env.id` | text | `aiorl/PendulumSwingup-v0` | Gymnasium id, `module:id` (the module is"),
    "pattern": (
        "learner",
        r"| `learner.device` | text that matches `^(auto\|cpu\|cuda(:\d+)?)$` | `auto` | Torch device: auto (cuda",
    ),
    "dict": ("env", "| `env.kwargs` | mapping | `{}` | Arguments for the environment's constructor. |"),
    "tuple": ("env", "| `env.wrappers` | list of texts | `[]` | `module:callable` wrappers for each single env, inner"),
    "tuple of numbers": (
        SAC,
        "| `algorithm.actor_hidden` | list of whole numbers ≥ 1, at least one | `[256, 256]` | Widths of the actor's",
    ),
    "bool": ("telemetry", "| `telemetry.tensorboard` | true or false | `true` | Write TensorBoard event files beside"),
    "literal": (
        "runtime",
        "| `runtime.kind` | one of `process`, `inline` | `process` | process: each worker a process",
    ),
    "literal of numbers": (
        "collection",
        "| `collection.lead` | one of `0`, `1` | `1` | Chunks that the collectors are",
    ),
    "literal of one": (APPO, "| `algorithm.kind` | `appo` | `appo` | The algorithm. |"),
    "whole, at least": (
        "env",
        "| `env.num_envs` | whole number ≥ 1 | `16` | Environments over all collectors together. |",
    ),
    "whole, within": (
        APPO,
        "| `algorithm.max_policy_lag` | whole number from 0 to 1000 | `1` | Updates that a rollout",
    ),
    "huge upper bound": (
        "Every run",
        "| `seed` | whole number ≥ 0 | `0` | Seed of every random generator of the run. |",
    ),
    "more than": ("checkpoint", "| `checkpoint.every_seconds` | number > 0, or null | `600.0` | Save whenever this"),
    "share": (SAC, "| `algorithm.gamma` | number from 0 to 1 | `0.99` | Discount per env step. |"),
    "two bounds": (SAC, "| `algorithm.tau` | number > 0, ≤ 1 | `0.005` | Share of the critic that enters its target"),
    "unbounded": (SAC, "| `algorithm.target_entropy_per_action` | number | `-1.0` | Target entropy in nats per action"),
    "small": (APPO, "| `algorithm.learning_rate_min` | number > 0 | `1.0e-05` | Least learning rate. |"),
    "nullable": ("budget", "| `budget.env_steps` | whole number ≥ 1, or null | `null` | Env steps over the whole run"),
    "off-policy": (
        "replay",
        "| `replay.n_step` | whole number ≥ 1 | `1` | Steps of reward summed into one transition.",
    ),
}


def section(title: str) -> list[str]:
    """The lines of the page from a heading to the next one."""
    return reference_text().split(f"\n## {title}\n")[1].split("\n## ")[0].splitlines()


@pytest.mark.parametrize(("title", "row"), ROWS.values(), ids=ROWS)
def test_a_row_says_key_values_default_and_meaning(title: str, row: str) -> None:
    assert [line for line in section(title) if line.startswith(row)], section(title)


def test_what_only_one_family_uses_says_so() -> None:
    rows = {line.split("`")[1]: line for line in section("collection") if line.startswith("| `")}
    ends = {key: re.search(r"(O(?:ff|n)-policy only\.)? \|$", line) for key, line in rows.items()}
    assert {key: end and end[1] for key, end in ends.items()} == {
        "collection.collectors": None,
        "collection.on_collector_death": None,
        "collection.max_replacements": None,
        "collection.replacement_window_s": None,
        "collection.chunk_steps": "Off-policy only.",
        "collection.lead": "Off-policy only.",
        "collection.learning_starts": "Off-policy only.",
        "collection.random_steps": "Off-policy only.",
        "collection.rollout_steps": "On-policy only.",
        "collection.rollout_slots": "On-policy only.",
    }


def test_every_setting_has_one_row_of_four_cells() -> None:
    rows = [line for line in reference_text().splitlines() if line.startswith("| `")]
    keys = [".".join(path) for path, _, _ in fields(run_settings_model())]
    assert sorted(row.split("`")[1] for row in rows) == sorted(keys)
    assert {len(re.split(r"(?<!\\)\|", row)) - 2 for row in rows} == {4}


def test_algorithms_come_last_each_with_its_family() -> None:
    heads = re.findall(r"^## (.*)$", reference_text(), re.MULTILINE)
    assert heads[:3] == ["Every run", "env", "collection"]
    assert heads[-len(algorithms()) :] == [APPO, SAC]


def test_a_type_that_nobody_foresaw_is_named() -> None:
    class Strange(Section):
        numbers: Annotated[list[int], Field(min_length=1)] = [1]
        either: Count | str | None = None

    assert allowed(Strange.model_fields["numbers"]) == "list[int]"
    assert allowed(Strange.model_fields["either"]) == "whole number ≥ 1, or text, or null"


def test_the_page_in_docs_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert app(["settings", "reference"], result_action="return_value") == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[0].startswith("<!-- Made by `aiorl settings reference > docs/settings.md`")
    assert printed == PAGE.read_text(encoding="utf-8"), "run `aiorl settings reference > docs/settings.md`"
