"""The one conversion of actions: [-1, 1] to the env's box, its bounds exactly, and never beyond."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aiorl.algorithms.actions import ActionBounds
from aiorl.protocol import EnvSpec, Group

repeatable = settings(derandomize=True, deadline=None, database=None)


def bounds(low: list[float], high: list[float]) -> ActionBounds:
    return ActionBounds(EnvSpec(1, (Group("policy", 1),), tuple(low), tuple(high), saves_state=False))


@pytest.mark.parametrize(("action", "expected"), [(-1.0, -2.0), (1.0, 6.0), (0.0, 2.0), (-0.5, 0.0), (0.25, 3.0)])
def test_an_asymmetric_box(action: float, expected: float) -> None:
    convert = bounds([-2, -2], [6, 6])

    assert convert(torch.full((3, 2), action)).tolist() == [[expected, expected]] * 3


@pytest.mark.parametrize("action", [-1.0001, 1.0001, -5.0, 5.0, -1e30, 1e30])
def test_actions_beyond_one_stay_inside(action: float) -> None:
    assert bounds([-2], [6])(torch.tensor([[action]])).item() == (6 if action > 0 else -2)


def test_each_dimension_has_bounds_of_its_own() -> None:
    convert = bounds([-2, 0, 5], [6, 0.1, 5])

    assert convert(torch.tensor([[1.0, -1.0, 0.3], [-1.0, 1.0, -1.0]])).tolist() == [
        [6, 0, 5],
        [-2, pytest.approx(0.1), 5],
    ]


numbers = st.floats(-1e6, 1e6, width=32)


@repeatable
@given(st.tuples(numbers, numbers).map(sorted), st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=20))
def test_any_box_is_reached_exactly_and_never_left(box: list[float], actions: list[float]) -> None:
    low, high = box
    convert = bounds([low], [high])

    converted = convert(torch.tensor(sorted(actions))[:, None])[:, 0].double().numpy()

    assert convert(torch.tensor([[-1.0], [1.0]])).flatten().tolist() == [low, high]
    assert (converted >= low).all()
    assert (converted <= high).all()
    expected = low + (high - low) * (np.sort(actions) + 1) / 2
    np.testing.assert_allclose(converted, expected, rtol=0, atol=4e-7 * max(abs(low), abs(high), 1e-30))


def test_the_bounds_are_published_with_the_policy() -> None:
    convert = bounds([-2, 0], [6, 1])

    assert {name: values.tolist() for name, values in convert.state_dict().items()} == {
        "low": [-2, 0],
        "high": [6, 1],
    }
    assert not list(convert.parameters())
