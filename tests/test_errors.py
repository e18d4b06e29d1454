"""The error tree is what its docstring draws, and what a host can catch."""

import pickle
import re

import pytest

from aiorl import errors
from aiorl.errors import AiorlError, RemoteTracebackError, SettingsError, WorkerError

CLASSES = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, BaseException) and kind.__module__ == errors.__name__
}
TREE = {name: kind for name, kind in CLASSES.items() if issubclass(kind, AiorlError)}
WORKER_ERRORS = [kind for kind in TREE.values() if issubclass(kind, WorkerError)]


def drawn() -> dict[str, str]:
    """Parent by class, as the docstring draws them: the deeper the branch, the further right its name."""
    parents: dict[str, str] = {}
    open_branches: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"([│├└─ ]*)([A-Z]\w+Error)\b", line)
        if match is None:
            continue
        column, name = len(match[1]), match[2]
        open_branches = [(other, parent) for other, parent in open_branches if other < column]
        parents[name] = open_branches[-1][1] if open_branches else "Exception"
        open_branches.append((column, name))
    return parents


def test_the_drawing_is_the_tree() -> None:
    assert drawn() == {name: kind.__bases__[0].__name__ for name, kind in TREE.items()}


def test_what_is_not_in_the_tree_is_only_ever_a_cause() -> None:
    assert set(CLASSES) - set(TREE) == {"RemoteTracebackError"}
    assert not issubclass(RemoteTracebackError, AiorlError)


@pytest.mark.parametrize("kind", CLASSES.values())
def test_every_error_says_what_it_means(kind: type[BaseException]) -> None:
    assert kind.__doc__
    assert kind.__name__.endswith("Error")


@pytest.mark.parametrize("problems", ["one", ["one", "two"], ("one",)])
def test_a_settings_error_has_a_line_for_each_problem(problems: str | list[str]) -> None:
    error = SettingsError(problems)
    assert error.problems == ((problems,) if isinstance(problems, str) else tuple(problems))
    assert str(error) == "\n".join(error.problems)


@pytest.mark.parametrize("kind", WORKER_ERRORS)
def test_a_worker_error_says_which_worker(kind: type[WorkerError]) -> None:
    error = kind("collector 3 (pid 7) died", role="collector", index=3, pid=7)
    assert (str(error), error.role, error.index, error.pid) == ("collector 3 (pid 7) died", "collector", 3, 7)
    assert (kind("x").role, kind("x").index, kind("x").pid) == ("", 0, None)


@pytest.mark.parametrize("kind", CLASSES.values())
def test_errors_can_be_sent_to_another_process(kind: type[Exception]) -> None:
    # A sweep that runs its trainings in a process pool gets the error back whole.
    error = kind("first\nsecond")
    if isinstance(error, WorkerError):
        error = type(error)("gone", role="collector", index=3, pid=7)
    if isinstance(error, SettingsError):
        error = SettingsError(["first", "second"])
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is kind
    assert str(back) == str(error)
    assert vars(back) == vars(error)


def test_a_remote_traceback_is_printed_below_an_empty_line() -> None:
    assert str(RemoteTracebackError("Traceback …\nRuntimeError: no")) == "\nTraceback …\nRuntimeError: no"
