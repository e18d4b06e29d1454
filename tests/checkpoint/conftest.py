"""Small runs, made once, whose checkpoints tests damage copies of."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.conftest import small_settings
from tests.run.helpers import train

INLINE = "runtime.kind=inline"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small run of each algorithm, and one of another env, stopped in the middle by their budgets."""
    folder = tmp_path_factory.mktemp("runs")
    others = {"sac": (), "appo": (), "other": ("env.id=aiorl.testing:CountEnv", "env.kwargs.width=5")}
    for name, overrides in others.items():
        settings = small_settings(INLINE, *overrides, algorithm="appo" if name == "appo" else "sac")
        asyncio.run(train(settings, folder / name))
    return {name: folder / name for name in others}
