"""Nothing that comes from a disk or a pipe is ever unpickled: who can write a file must not run code with it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import aiorl

PACKAGE = Path(aiorl.__file__).parent
PICKLERS = {"pickle", "cPickle", "_pickle", "pickle5", "dill", "marshal", "shelve", "joblib", "jsonpickle", "copyreg"}
SAFE_LOADERS = {"SafeLoader", "CSafeLoader", "BaseLoader"}
YAML_READERS = {"load", "load_all", "compose", "compose_all", "scan", "parse"}
FACTORY = ("runtime/worker.py", "cloudpickle.loads(start.env_factory)")
"""The env factory, which the host's own process hands over when it starts a worker."""


def complaints(source: str, name: str = "x.py") -> list[str]:
    """What in a module reads, or might read, a pickle."""
    tree = ast.parse(source)
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    found: list[str] = []
    for node in ast.walk(tree):
        found += [f"{name}:{node.lineno}: {what}" for what in _of_import(node) + _of_call(node, name)]
        if isinstance(node, ast.Attribute | ast.Name):
            found += [f"{name}:{node.lineno}: {what}" for what in _of_name(ast.unparse(node), id(node) in called)]
    return sorted(found)


def _of_import(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        modules = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
    else:
        return []
    own = [f"imports {name}" for name in modules if name.split(".")[0] in PICKLERS]
    # Under another name none of the checks below would know them.
    wanted = {f"{module}.{name}" for module in ("cloudpickle", "torch", "numpy") for name in ("load", "loads")}
    wanted |= {f"yaml.{name}" for name in YAML_READERS | {"unsafe_load", "full_load", "unsafe_load_all"}}
    return own + [f"imports {name}" for name in modules if name in wanted]


def _of_call(node: ast.AST, name: str) -> list[str]:
    if not isinstance(node, ast.Call):
        return []
    function, last = ast.unparse(node.func), ast.unparse(node.func).rpartition(".")[2]
    keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
    if function in ("np.load", "numpy.load") and keywords.get("allow_pickle") != "False":
        return [f"{function} without allow_pickle=False"]
    if last in ("fromfile", "loadtxt", "genfromtxt") and "allow_pickle" in keywords:
        return [f"{function} with allow_pickle"]
    if last == "recv" and not node.args and not keywords:
        return [f"{function}() unpickles what comes; recv_bytes does not"]
    if function in ("cloudpickle.load", "cloudpickle.loads") and (name, ast.unparse(node)) != FACTORY:
        return [f"{function} anywhere but on the factory of a start"]
    if function.startswith("yaml.") and last in YAML_READERS:
        loader = keywords.get("Loader", ast.unparse(node.args[1]) if len(node.args) > 1 else "")
        if loader.rpartition(".")[2] not in SAFE_LOADERS:
            return [f"{function} without a safe loader"]
    return []


def _of_name(text: str, is_called: bool) -> list[str]:
    if text in ("torch.load", "pickle.loads", "pickle.load", "torch.package", "torch.serialization.load"):
        return [text]
    if text.startswith("yaml.") and any(word in text for word in ("unsafe", "Unsafe", "full_load", "FullLoader")):
        return [text]
    if text in ("cloudpickle.loads", "cloudpickle.load", "np.load", "numpy.load") and not is_called:
        return [f"{text} under another name"]
    return []


MODULES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))


def test_the_walk_sees_the_package() -> None:
    assert {"runtime/worker.py", "settings/yaml_text.py", "checkpoint/tensors.py", "policy.py"} <= set(MODULES)


@pytest.mark.parametrize("module", MODULES)
def test_no_module_reads_pickles(module: str) -> None:
    assert complaints((PACKAGE / module).read_text(encoding="utf-8"), module) == []


def test_the_one_exception_is_where_it_is_expected() -> None:
    module, call = FACTORY
    assert (PACKAGE / module).read_text(encoding="utf-8").count(call) == 1


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import pickle as p",
        "from pickle import loads",
        "def f():\n    import marshal",
        "from joblib import load",
        "import torch\ntorch.load('x')",
        "import torch\ntorch.load('x', weights_only=True)",
        "read = torch.load",
        "from torch import load",
        "import numpy as np\nnp.load('x')",
        "import numpy as np\nnp.load('x', allow_pickle=True)",
        "read = np.load",
        "message = connection.recv()",
        "message = self._connection.recv()",
        "import cloudpickle\ncloudpickle.loads(data)",
        "read = cloudpickle.loads",
        "from cloudpickle import loads",
        "import yaml\nyaml.load(text)",
        "import yaml\nyaml.load(text, yaml.Loader)",
        "import yaml\nyaml.compose(text)",
        "import yaml\nyaml.load(text, Loader=yaml.UnsafeLoader)",
        "import yaml\nyaml.unsafe_load(text)",
        "from yaml import full_load",
    ],
)
def test_what_reads_pickles_is_found(source: str) -> None:
    assert complaints(source)


@pytest.mark.parametrize(
    "source",
    [
        "import numpy as np\nnp.load('x', allow_pickle=False)",
        "data = connection.recv_bytes(10)",
        "data = sock.recv(10)",
        "import cloudpickle\ncloudpickle.dumps(factory)",
        "import yaml\nyaml.load(text, Loader=yaml.SafeLoader)",
        "import yaml\nyaml.safe_load(text)",
        "from safetensors.numpy import load_file\nload_file('x')",
    ],
)
def test_what_reads_none_is_left_alone(source: str) -> None:
    assert complaints(source) == []
