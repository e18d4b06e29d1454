"""What a person reads: shares, times left, and one line for everything that happens."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from aiorl import Evaluated, Evaluation, Progress, Saved, Started
from aiorl.telemetry.terminal import LiveView, PlainView, budget_share, eta_text
from tests.conftest import small_settings

RECORD = {
    "tick": 10,
    "env_steps": 160,
    "gradient_steps": 14,
    "seconds": 30.0,
    "rate/env_steps_per_s": 1234.5,
    "rate/gradient_steps_per_s": 50.0,
    "rate/replay_ratio": 4.0,
    "episode/return_mean": 12.5,
    "share/env_step": 0.75,
    "share/coordination": 0.25,
    "time/learner_wait_ms": 1.0,
    "time/learner_train_ms": 3.0,
}
EVENTS = [
    Started(Path("runs/x"), 0, 0),
    Progress(RECORD),
    Saved(Path("runs/x/checkpoints/10"), 10, 160),
    Evaluated(Evaluation(160, Path("c"), (1.0, 3.0), (20, 20), 0, 2)),
]


@pytest.mark.parametrize(
    ("budget", "share"),
    [
        (["budget.env_steps=320"], 0.5),
        (["budget.env_steps=1000", "budget.gradient_steps=56"], 0.25),
        (["budget.env_steps=16000", "budget.seconds=40"], 0.75),
    ],
)
def test_the_budget_that_ends_first_counts(budget: list[str], share: float) -> None:
    assert budget_share(small_settings(*budget), RECORD) == share


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "--:--"), (0.5, "0:30 left"), (0.01, "49:30 left"), (0.001, "8:19:30 left"), (1.0, "done")],
)
def test_the_time_left(share: float, text: str) -> None:
    assert eta_text(share, RECORD) == text


def test_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with PlainView(small_settings("budget.env_steps=320")) as view:
        for event in [*EVENTS, Progress({**RECORD, "env_steps": 176}), Progress({**RECORD, "env_steps": 192})]:
            view.show(event)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "training in runs/x"
    assert lines[1].startswith(" 50%  env steps 160  gradient steps 14  return 12.5  env steps/s 1,234")
    assert lines[2] == "saved runs/x/checkpoints/10 at 160 env steps"
    assert lines[3] == "evaluation at 160 env steps: mean return 2 over 2 episodes (min 1, max 3)"
    assert len(lines) == 5 and "env steps 192" in lines[4], "too many records: the last one only, at the end"


def test_the_live_view_shows_what_matters() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=110, height=40)
    with LiveView(small_settings("budget.env_steps=320"), console) as view:
        for event in EVENTS:
            view.show(event)
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    for text in (
        "50%",
        "0:30 left",
        "12.5",
        "1,234",
        "replay ratio",
        "env step 75%",
        "train 75%",
        "mean return 2 over",
    ):
        assert text in shown, text


def test_the_live_view_of_an_on_policy_run_shows_what_is_its_own() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=110, height=40)
    with LiveView(small_settings(algorithm="appo"), console) as view:
        view.show(Progress({**RECORD, "policy/kl": 0.0123, "rollout/waiting": 0.75}))
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    for text in ("appo on", "KL of an update", "0.0123", "rollouts waiting", "0.75"):
        assert text in shown, text
