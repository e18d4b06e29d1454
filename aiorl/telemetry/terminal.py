"""What a person sees of a run: a live view in a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from aiorl.events import Evaluated, Event, Progress, Saved, Started
from aiorl.protocol import PhaseTimes
from aiorl.settings import RunSettings

PLAIN_INTERVAL_S = 5.0
_OF_A_FAMILY = {
    "rate/replay_ratio": "replay ratio",
    "policy/kl": "KL of an update",
    "rollout/waiting": "rollouts waiting",
}


class PlainView:
    """One line for each thing that happened; progress at most every five seconds."""

    def __init__(self, settings: RunSettings) -> None:
        self._settings = settings
        self._shown_at = -float("inf")
        self._hidden: Mapping[str, float] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._hidden is not None:
            self._line(progress_line(self._settings, self._hidden))

    def show(self, event: Event) -> None:
        """Show an event."""
        if isinstance(event, Progress):
            self._hidden = event.record
            if time.monotonic() - self._shown_at >= PLAIN_INTERVAL_S:
                self._shown_at, self._hidden = time.monotonic(), None
                self._line(progress_line(self._settings, event.record))
        elif text := event_line(event):
            self._line(text)

    def _line(self, text: str) -> None:
        print(text, file=sys.stdout, flush=True)  # noqa: T201  # this is the command line's output


class LiveView:
    """A panel that is redrawn at every metrics record; log lines scroll above it."""

    def __init__(self, settings: RunSettings, console: Console) -> None:
        self._settings = settings
        self._record: Mapping[str, float] = {}
        self._note = "starting workers …"
        # No refresh thread: the view changes when a record comes, and only then.
        self._live = Live(self._panel(), console=console, auto_refresh=False, transient=False)

    def __enter__(self) -> Self:
        self._live.start(refresh=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, event: Event) -> None:
        """Show an event."""
        if isinstance(event, Progress):
            self._record = event.record
        elif text := event_line(event):
            self._note = text
        self._live.update(self._panel(), refresh=True)

    def _panel(self) -> Panel:
        settings, record = self._settings, self._record
        share = budget_share(settings, record)
        bar = Table.grid(padding=(0, 1), expand=True)
        bar.add_column(ratio=1)
        bar.add_column(justify="right", no_wrap=True)
        bar.add_row(ProgressBar(total=1.0, completed=share), f"{share:4.0%}  {eta_text(share, record)}")
        numbers = Table.grid(padding=(0, 2), expand=True)
        for _ in range(4):
            numbers.add_column(no_wrap=True)
        cells = [(name, value) for name, value in number_texts(record)]
        for left, right in zip(cells[::2], [*cells[1::2], ("", "")], strict=False):
            numbers.add_row(Text(left[0], "dim"), left[1], Text(right[0], "dim"), right[1])
        title = f"{settings.name}  ·  {settings.algorithm.kind} on {settings.env.id}"
        return Panel(
            Group(bar, "", numbers, "", phase_text(record), Text(self._note, "dim")),
            title=title,
            width=100,
            padding=(1, 2),
        )


class MutableView:
    """A view that falls silent when what it writes to goes away: training goes on."""

    def __init__(self, view: PlainView | LiveView) -> None:
        self._view: PlainView | LiveView | None = view

    def __enter__(self) -> Self:
        if self._view is not None:
            self._try(self._view.__enter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        view = self._view
        if view is not None:
            self._try(lambda: view.__exit__(kind, error, trace))

    def show(self, event: Event) -> None:
        """Show an event."""
        view = self._view
        if view is not None:
            self._try(lambda: view.show(event))

    def _try(self, write: Callable[[], object]) -> None:
        try:
            write()
        except (OSError, SystemExit):  # rich turns a broken pipe into an exit
            self._view = None
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still buffered has somewhere to go


def make_view(settings: RunSettings) -> MutableView:
    """Return the view for this stdout."""
    console = Console()
    is_live = console.is_terminal and not console.is_dumb_terminal
    return MutableView(LiveView(settings, console) if is_live else PlainView(settings))


def shown(path: Path) -> Path:
    """Return a path as a person would type it here."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def budget_share(settings: RunSettings, record: Mapping[str, float]) -> float:
    """Return how much of the budget is used, by the one that will end the run."""
    budget = settings.budget
    limits = {"env_steps": budget.env_steps, "gradient_steps": budget.gradient_steps, "seconds": budget.seconds}
    return max((min(1.0, record.get(name, 0) / limit) for name, limit in limits.items() if limit), default=0.0)


def eta_text(share: float, record: Mapping[str, float]) -> str:
    """Return how long the rest takes at the pace so far."""
    if not 0 < share < 1:
        return "done" if share >= 1 else "--:--"
    left = record["seconds"] * (1 - share) / share
    minutes, seconds = divmod(int(left + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02} left" if hours else f"{minutes}:{seconds:02} left"


def number_texts(record: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return the numbers worth watching, by name."""

    def number(name: str, form: str) -> str:
        return format(record[name], form) if name in record else "–"

    window = f"{number('episode/return_mean', '.4g')}   (last 100 episodes)"
    return [
        ("return", window),
        ("episode length", number("episode/length_mean", ".4g")),
        ("env steps", number("env_steps", ",")),
        ("gradient steps", number("gradient_steps", ",")),
        ("env steps/s", number("rate/env_steps_per_s", ",.0f")),
        ("gradient steps/s", number("rate/gradient_steps_per_s", ",.0f")),
        ("policy lag", number("policy/lag", "g")),
        ("critic loss", number("loss/critic", ".3g")),
        ("entropy", number("policy/entropy", ".3g")),
        *((word, number(name, ".3g")) for name, word in _OF_A_FAMILY.items() if name in record),
    ]


def phase_text(record: Mapping[str, float]) -> Text:
    """Return the collector's time by phase, and the learner's."""
    shares = [(name, record.get(f"share/{name}", 0.0)) for name in PhaseTimes.__struct_fields__]
    words = {"coordination": "wait", "replay": "store"}  # it waits for a command: nearly always for the learner
    collector = "  ".join(
        f"{words.get(name, name.replace('_', ' '))} {share:.0%}" for name, share in shares if share >= 0.005
    )
    learner = {name: record.get(f"time/learner_{name}_ms", 0.0) for name in ("wait", "stage", "train", "publish")}
    total = sum(learner.values()) or 1.0
    trained = "  ".join(f"{name} {value / total:.0%}" for name, value in learner.items() if value / total >= 0.005)
    return Text.assemble(("collector  ", "dim"), collector or "–", "\n", ("learner    ", "dim"), trained or "–")


def progress_line(settings: RunSettings, record: Mapping[str, float]) -> str:
    """Return a record as one plain line."""
    share = budget_share(settings, record)
    mean = f"{record['episode/return_mean']:.4g}" if "episode/return_mean" in record else "–"
    replay = f"  replay ratio {record['rate/replay_ratio']:.3g}" if "rate/replay_ratio" in record else ""
    return (
        f"{share:4.0%}  env steps {int(record['env_steps']):,}  gradient steps {int(record['gradient_steps']):,}"
        f"  return {mean}  env steps/s {record['rate/env_steps_per_s']:,.0f}"
        f"{replay}  {eta_text(share, record)}"
    )


def event_line(event: Event) -> str:
    """Return any other event as one plain line."""
    match event:
        case Started():
            at = f" at {event.env_steps:,} env steps" if event.env_steps else ""
            return f"training in {shown(event.run_dir)}{at}"
        case Saved():
            return f"saved {shown(event.checkpoint)} at {event.env_steps:,} env steps"
        case Evaluated():
            result = event.evaluation
            return (
                f"evaluation at {result.env_steps:,} env steps: mean return {result.return_mean:.4g}"
                f" over {len(result.returns)} episodes"
                f" (min {min(result.returns):.4g}, max {max(result.returns):.4g})"
            )
    return ""
