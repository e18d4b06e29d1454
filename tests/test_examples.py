"""The examples run as they stand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.conftest import SMALL

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_embed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / "embed.py", "run", *SMALL["sac"]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("completed [")
