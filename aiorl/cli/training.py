"""`aiorl run` and `aiorl resume`: loop, signals, view, and the last line."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from aiorl.cli.inputs import split_inputs
from aiorl.cli.report import exit_code, report_failure, say
from aiorl.errors import AiorlError, SettingsError
from aiorl.events import Finished, Outcome
from aiorl.run import Run, refuse_unsupported
from aiorl.settings import RunSettings, load_settings
from aiorl.telemetry.log import configure_cli
from aiorl.telemetry.terminal import make_view, shown

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_new(inputs: Sequence[str], run_dir: Path | None) -> int:
    """Start a new run and follow it to its end."""
    refuse_unsupported()
    names, overrides = split_inputs(inputs)
    settings = load_settings(*names, overrides=overrides)
    return _follow_to_end(Run(settings, run_dir=run_dir))


def run_again(run_dir: Path, overrides: Sequence[str]) -> int:
    """Go on with a run and follow it to its end."""
    refuse_unsupported()
    run = Run.reopen(run_dir, overrides=overrides)
    say(f"resuming {run_dir} from {run.resumes_from}")
    return _follow_to_end(run)


def run_loop(settings: RunSettings, main: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Run a coroutine on the event loop that the settings ask for.

    Raises:
        SettingsError: it is not installed.

    """
    factory = None
    if settings.runtime.loop != "asyncio":
        try:
            import uvloop
        except ImportError:
            if settings.runtime.loop == "uvloop":
                raise SettingsError("runtime.loop: uvloop is not installed: pip install uvloop") from None
        else:
            factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main())


def _follow_to_end(run: Run) -> int:
    configure_cli()
    return run_loop(run.settings, lambda: _follow(run))


async def _follow(run: Run) -> int:
    orders = _Orders(run)
    view = make_view(run.settings)
    try:
        with orders, view:
            async with run:
                orders.may_act()
                async for event in run:
                    view.show(event)
                    if isinstance(event, Finished):
                        outcome = event.outcome
    except AiorlError as error:
        if orders.first is not None and orders.is_second:
            say(f"stopped at once by a second signal; {_next_step(run.run_dir)}")
            return 128 + orders.first
        return report_failure(error, _next_step(run.run_dir) if exit_code(error) != 2 else "")
    return _last_words(outcome, orders)


class _Orders:
    """The first signal finishes the tick, saves and ends the run; the second ends it at once."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._may_act = False
        self.first: signal.Signals | None = None
        self.is_second = False

    def __enter__(self) -> None:
        self._loop = asyncio.get_running_loop()
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP, and so do we then
                self._loop.add_signal_handler(number, self._on_signal, number)

    def __exit__(self, *error: object) -> None:
        for number in SIGNALS:
            self._loop.remove_signal_handler(number)

    def may_act(self) -> None:
        """Note that the run is entered, and pass on what came before."""
        self._may_act = True
        if self.first is not None:
            self._run.stop(self.first.name)

    def _on_signal(self, number: signal.Signals) -> None:
        # First act, then speak: the terminal may be what has just gone.
        if self.first is None:
            self.first = number
            if self._may_act:
                self._run.stop(number.name)
            say(f"{number.name}: saving and stopping; once more stops at once")
        elif self._may_act:
            self.is_second = True
            self._run.abort()


def _last_words(outcome: Outcome, orders: _Orders) -> int:
    done = f"{outcome.env_steps} env steps, {outcome.gradient_steps} gradient steps, {outcome.seconds:.0f} s"
    if outcome.state == "completed":
        result = f"; evaluation return {outcome.evaluation.return_mean:.4g}" if outcome.evaluation else ""
        say(f"completed: {outcome.reason} ({done}){result}")
        run_dir = shown(outcome.run_dir)
        say(f"look at {run_dir}, or `aiorl evaluate {run_dir}`")
        return 0
    say(f"interrupted by {outcome.reason} after {done}; {_next_step(outcome.run_dir)}")
    return 128 + orders.first if orders.first is not None else 0


def _next_step(run_dir: Path) -> str:
    if (run_dir / "checkpoints" / "latest").exists():
        return f"go on with `aiorl resume {shown(run_dir)}`"
    return f"no checkpoint was written yet, so there is nothing to resume; see {shown(run_dir)}"
