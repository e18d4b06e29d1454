"""Signals and deaths of the coordinator in every phase, through the command line; a handful in the normal suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import ALGORITHMS
from tests.endings.play_cli import CliCase, check_cli, cli_matrix, play_cli

NORMAL = {
    "sac: SIGINT to the group · mid-chunk",
    "sac: SIGTERM to the parent, twice · saving",
    "sac: SIGKILL to the coordinator · saving",
    "sac: SIGKILL to the group · packing",
    "appo: SIGHUP to the parent · start-up",
    "appo: SIGINT to the parent · saving",
    "appo: SIGINT to the group, twice · waiting for the learner",
    "appo: SIGKILL to the coordinator · waiting for the learner",
}
CASES = [
    pytest.param(case, marks=() if str(case) in NORMAL else pytest.mark.slow, id=str(case))
    for algorithm in ALGORITHMS
    for case in cli_matrix(algorithm)
]


@pytest.mark.parametrize("case", CASES)
def test_the_ending(case: CliCase, tmp_path: Path) -> None:
    check_cli(case, play_cli(case, tmp_path), tmp_path)
