"""The command line: `aiorl run`, `resume`, `evaluate`, `trace`, `settings`, `doctor`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

from cyclopts import App, CycloptsError, Parameter

from aiorl import __version__

app = App(
    name="aiorl",
    help="Train robot policies by reinforcement learning.",
    version=__version__,
    help_format="plaintext",
    default_parameter=Parameter(negative=()),
)
settings_app = App(
    name="settings", help="Presets, resolved settings, their reference, and the JSON schema of all of them."
)
app.command(settings_app)


@app.command
def run(*inputs: str, run_dir: Path | None = None) -> int:
    """Train: presets and YAML files, merged from left to right, then section.key=value overrides.

    Parameters
    ----------
    inputs
        Presets (`aiorl settings list`), YAML files, and overrides such as `budget.env_steps=1e5`.
        Without any preset or file: the quick start, sac/pendulum.
    run_dir
        Directory of this run; it must not exist. The default is runs/<name>-<time>.

    """
    from aiorl.cli.training import run_new

    return run_new(inputs, run_dir)


@app.command
def resume(run_dir: Path, *overrides: str) -> int:
    """Go on with a run from its newest whole checkpoint, in the same directory.

    Parameters
    ----------
    run_dir
        The run's directory.
    overrides
        section.key=value for budget, telemetry, evaluation, checkpoint and runtime.

    """
    from aiorl.cli.training import run_again

    return run_again(run_dir, overrides)


@app.command
def evaluate(path: Path, *, episodes: int | None = None) -> int:
    """Play episodes with a run's deterministic policy; print JSON, and draw the run's learning curve.

    Parameters
    ----------
    path
        A run directory (its newest checkpoint), or one checkpoint.
    episodes
        How many; rounded up to the same number for each env.

    """
    from aiorl.cli.evaluating import evaluate_path

    return evaluate_path(path, episodes)


@app.command
def trace(run_dir: Path, *, tick: int | None = None) -> int:
    """Say where a run's time went, if it was run with telemetry.trace=true; draw one cycle as a picture.

    Parameters
    ----------
    run_dir
        The run's directory; the run may be going on.
    tick
        Which cycle to draw; else a typical one.

    """
    from aiorl.cli.trace import show_trace

    return show_trace(run_dir, tick)


@app.command
def doctor(*inputs: str) -> int:
    """Say what this machine offers, and what settings would need of it.

    Parameters
    ----------
    inputs
        As for `run`.

    """
    from aiorl.cli.doctor import examine

    return examine(inputs)


@settings_app.command(name="list")
def list_presets() -> int:
    """List the presets."""
    from aiorl.cli.settings import list_presets

    return list_presets()


@settings_app.command
def show(*inputs: str) -> int:
    """Print settings as resolved, with where each value comes from.

    Parameters
    ----------
    inputs
        As for `run`.

    """
    from aiorl.cli.settings import show

    return show(inputs)


@settings_app.command
def schema() -> int:
    """Print the JSON schema of a settings file."""
    from aiorl.cli.settings import print_schema

    return print_schema()


@settings_app.command
def reference() -> int:
    """Print every setting in tables, as Markdown."""
    from aiorl.cli.reference import print_reference

    return print_reference()


def main() -> NoReturn:
    """Run the command line and exit."""
    from aiorl.cli.report import report_failure
    from aiorl.errors import AiorlError

    # As `python -m aiorl` has it: modules beside where one stands, such as an environment of one's own.
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        if not sys.argv[1:]:
            app.help_print()
            sys.exit(2)
        code = app(exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        print(f"aiorl: {' '.join(str(error).split())} (`aiorl --help` shows the commands)", file=sys.stderr)
        code = 2
    except AiorlError as error:
        code = report_failure(error)
    except KeyboardInterrupt:
        print("aiorl: interrupted", file=sys.stderr)
        code = 130
    except BrokenPipeError:  # whoever read our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 0
    sys.exit(code if isinstance(code, int) else 0)
