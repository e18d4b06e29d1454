"""The picture of the terminal view in the README: what `aiorl run` shows of a record of a run.

python -m benchmarks.terminal_view RUN_DIR [--env-steps 20000] [--out docs/terminal.svg]
"""

import argparse
from pathlib import Path

from rich.console import Console

from aiorl.events import Progress, Started
from aiorl.settings.load import load_settings
from aiorl.telemetry.sinks import METRICS_FILE, read_metrics
from aiorl.telemetry.terminal import LiveView


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.terminal_view", description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--env-steps", type=int, default=20_000)
    parser.add_argument("--out", type=Path, default=Path("docs/terminal.svg"))
    arguments = parser.parse_args()
    settings = load_settings(str(arguments.run_dir / "settings.yaml"), environ={})
    records = read_metrics(arguments.run_dir / METRICS_FILE)
    record = next(each for each in records if each["env_steps"] >= arguments.env_steps)
    with Path("/dev/null").open("w") as nowhere:
        console = Console(record=True, width=100, file=nowhere, force_terminal=True)
        view = LiveView(settings, console)
        view.show(Started(Path("runs/mine").absolute(), 0, 0))
        view.show(Progress(record))
        console.export_text(clear=True)  # what the live view has drawn on the way
        console.print(view._panel())
    arguments.out.write_text(console.export_svg(title="aiorl run"), encoding="utf-8")


if __name__ == "__main__":
    main()
