"""Every cause in every phase, through the API, with real processes, on one loop."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.conftest import ALGORITHMS
from tests.endings.cases import Case, matrix
from tests.endings.play import check, play

CASES = [case for algorithm in ALGORITHMS for case in matrix(algorithm)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_ending(case: Case, tmp_path: Path) -> None:
    ending = asyncio.run(play(case, tmp_path))
    asyncio.run(_checked(case, ending, tmp_path))


async def _checked(case: Case, ending: object, folder: Path) -> None:
    check(case, ending, folder)  # type: ignore[arg-type]
