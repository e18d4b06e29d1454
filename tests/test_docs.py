"""What docs/environments.md shows runs as it stands, and the sentences that it quotes are what comes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from aiorl import errors, events, protocol
from aiorl.envs.make import EnvSettingsError, make_vector_env
from aiorl.envs.stepper import VectorStepper
from aiorl.errors import EnvError, SettingsError
from aiorl.settings.explain import fields
from aiorl.settings.run import run_settings_model
from aiorl.settings.sections import EnvSettings

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGE = (DOCS / "environments.md").read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_environment_and_its_test_run_as_they_stand(tmp_path: Path) -> None:
    for block in blocks("python"):
        name = re.match(r"# (\w+\.py)\n", block)
        assert name is not None, "a block begins with the name of its file"
        (tmp_path / name[1]).write_text(block, encoding="utf-8")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["carts.py", "test_carts.py"]
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "-W", "error"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


MINE = """
from types import SimpleNamespace
import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from aiorl.testing import CountEnv, probe_vector_env

class Env(CountEnv):
    def __init__(self, size=3):
        super().__init__(length=3, width=size)

class Levers(Env):
    def __init__(self):
        super().__init__()
        self.action_space = Discrete(3)

class Free(Env):
    def __init__(self):
        super().__init__()
        self.action_space = Box(-np.inf, np.inf, (1,))

class Matrix(Env):
    def __init__(self):
        super().__init__()
        self.action_space = Box(-1, 1, (2, 2))

class Named(Env):
    def __init__(self):
        super().__init__()
        self.observation_space = Dict(position=Box(-1, 1, (3,)), goal=Box(-1, 1, (3,)))

class Room(Env):
    def __init__(self):
        super().__init__()
        self.observation_space = Discrete(5)

def nothing():
    return None

def none_of_them(num_envs):
    return None

def vector(num_envs):
    return probe_vector_env(num_envs, "CountEnv", length=3)

def strange(num_envs):
    env = vector(num_envs)
    env.metadata = {"autoreset_mode": "sometimes"}
    return env

class Short(Env):
    def _observation(self):
        return np.zeros(3 if self._t == 0 else 2, np.float32)

class Nan(Env):
    def _observation(self):
        return np.full(3, 0 if self._t == 0 else np.nan, np.float32)

def forgetful(num_envs):
    env = vector(num_envs)
    step = env.step
    env.step = lambda actions: (*step(actions)[:4], {})
    return env

def one_reward(num_envs):
    env = vector(num_envs)
    step = env.step
    def step_with_one(actions):
        obs, _, terminated, truncated, info = step(actions)
        return obs, 1.0, terminated, truncated, info
    env.step = step_with_one
    return env
"""

AT_START: tuple[dict[str, object], ...] = (
    {"id": "nowhere:Env"},
    {"id": "mine:Other"},
    {"id": "mine:Env", "kwargs": {"noise": 0.1}},
    {"id": "mine:nothing"},
    {"id": "mine:none_of_them"},
    {"id": "mine:Levers"},
    {"id": "mine:Free"},
    {"id": "mine:Matrix"},
    {"id": "mine:Room"},
    {"id": "mine:Named"},
    {"id": "mine:strange"},
    {"id": "mine:vector", "on_nonfinite": "end_episode"},
    {"id": "mine:vector", "max_episode_steps": 100},
    {"id": "mine:vector", "wrappers": ("gymnasium.wrappers:ClipReward",)},
    {"id": "mine:Env", "wrappers": ("gymnasium.wrappers:Nothing",)},
    {"id": "mine:Env", "vectorization": "vector_entry_point"},
)
UNDER_WAY = ("mine:Nan", "mine:Short", "mine:forgetful", "mine:one_reward")


@pytest.fixture
def _mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)


def sentence_of(kind: type[SettingsError | EnvError], work: Callable[[], object]) -> str:
    with pytest.raises(kind) as caught:
        work()
    error = caught.value
    return f"{error.key}: {error}" if isinstance(error, EnvSettingsError) else str(error)


def stepper(**settings: object) -> VectorStepper:
    made = EnvSettings.model_validate(settings)
    env = make_vector_env(made, 2)
    try:
        return VectorStepper(env, made, ("policy", "critic"))
    except SettingsError:
        env.close()
        raise


def walk(env_id: str) -> None:
    made = stepper(id=env_id)
    try:
        made.reset([1, 2])
        for _ in range(3):
            made.step(np.zeros((2, 1), np.float32), {"policy": np.zeros((2, 3), np.float32)})
    finally:
        made.close()


@pytest.mark.usefixtures("_mine")
def test_the_sentences_are_what_comes() -> None:
    at_start, under_way = blocks("text")
    came = [sentence_of(EnvSettingsError, lambda settings=settings: stepper(**settings)) for settings in AT_START]  # type: ignore[misc]
    assert came == at_start.splitlines()
    came = [sentence_of(EnvError, lambda env_id=env_id: walk(env_id)) for env_id in UNDER_WAY]  # type: ignore[misc]
    assert came == under_way.splitlines()


def links(page: Path) -> set[str]:
    return set(re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")))


def test_every_page_is_in_the_index() -> None:
    pages = {path.name for path in DOCS.glob("*.md")}
    assert pages - links(DOCS / "README.md") == {"README.md"}


@pytest.mark.parametrize("page", ["environments.md", "runtime.md", "settings.md", "embedding.md"])
def test_every_link_leads_somewhere(page: str) -> None:
    assert [target for target in links(DOCS / page) if not (DOCS / target).exists()] == []


def words(page: str) -> set[str]:
    """What the page has in backticks, blocks of code apart."""
    text = re.sub(r"^```.*?^```$", "", (DOCS / page).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return set(re.findall(r"`([^`]+)`", text))


def test_the_files_and_messages_of_the_runtime_page_are_there() -> None:
    named = words("runtime.md")
    paths = {word for word in named if re.fullmatch(r"[\w/]+\.py", word)}
    assert len(paths) > 20 and [path for path in paths if not (ROOT / "aiorl" / path).is_file()] == []
    types = {word for word in named if re.fullmatch(r"[A-Z][a-z]+([A-Z][a-z]+)*", word)}
    known = {*vars(protocol), *vars(errors), *vars(events)}
    assert len(types) > 15 and types - known == set()


@pytest.mark.parametrize("page", ["environments.md", "runtime.md"])
def test_the_settings_that_a_page_names_are_there(page: str) -> None:
    keys = {".".join(path) for path, _, _ in fields(run_settings_model())}
    sections = {key.split(".")[0] for key in keys if "." in key} - {"algorithm"}
    named = {word.split("=")[0] for word in words(page) if re.match(rf"({'|'.join(sections)})\.[a-z]\w+(=|$)", word)}
    named = {name for name in named if not name.endswith(".safetensors")}
    assert len(named) > 5 and named - keys == set()
