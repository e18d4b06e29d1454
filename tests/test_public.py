"""What `import aiorl` offers, and what it does not import."""

import ast
import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import aiorl


def imported_by(statement: str) -> set[str]:
    """Top-level packages that a fresh interpreter has loaded after a statement."""
    code = f"{statement}\nimport json, sys\nprint(json.dumps(sorted({{name.split('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return set(json.loads(done.stdout))


def type_checked_names() -> set[str]:
    """What a type checker believes that `aiorl` has."""
    tree = ast.parse(Path(aiorl.__file__).read_text(encoding="utf-8"))
    blocks = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    return {
        alias.asname or alias.name
        for block in blocks
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_all_is_what_the_lazy_namespace_offers() -> None:
    assert set(aiorl.__all__) == set(aiorl._HOME)
    assert len(aiorl.__all__) == len(set(aiorl.__all__))
    assert sorted(aiorl.__all__) == aiorl.__all__


@pytest.mark.parametrize("name", sorted({*aiorl.__all__, *type_checked_names()}))
def test_every_name_resolves(name: str) -> None:
    assert getattr(aiorl, name) is not None


def test_type_checkers_see_the_same_names() -> None:
    assert type_checked_names() == set(aiorl.__all__)


def test_public_names_are_explained() -> None:
    kinds = [value for name in aiorl.__all__ if hasattr(value := getattr(aiorl, name), "__module__")]
    assert {kind.__module__.split(".")[0] for kind in kinds} <= {"aiorl", "types"}  # types: a union of events
    assert [kind.__name__ for kind in kinds if hasattr(kind, "__name__") and not kind.__doc__] == []


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'aiorl' has no attribute 'Runner'"):
        aiorl.Runner  # noqa: B018
    assert not hasattr(aiorl, "__wrapped__")


def test_the_version_is_that_of_the_package() -> None:
    assert aiorl.__version__ == version("aiorl")


def test_importing_aiorl_costs_nothing() -> None:
    heavy = {"torch", "numpy", "gymnasium", "mujoco", "pydantic", "msgspec", "yaml", "asyncio", "multiprocessing"}
    assert not heavy & imported_by("import aiorl")


@pytest.mark.parametrize(
    "statement",
    [
        "from aiorl.run import Run",
        "from aiorl import Run, load_settings, train; load_settings(environ={})",
        "import aiorl.coordinator.training, aiorl.runtime.process, aiorl.cli.training",
    ],
)
def test_the_host_never_imports_torch(statement: str) -> None:
    assert not {"torch", "gymnasium", "mujoco"} & imported_by(statement)
