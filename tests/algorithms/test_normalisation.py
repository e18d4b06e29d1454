"""Observation normalisation: `clip((x − μ) / (σ + 0.01), ±10)`, and the identity before any statistics."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from aiorl.algorithms.normalisation import Normaliser
from aiorl.storage.moments import Moments


def moments_of(values: np.ndarray) -> Moments:
    moments = Moments(values.shape[1])
    moments.add(values)
    return moments


@pytest.mark.parametrize("moments", [None, Moments(3)])
def test_the_identity_before_the_first_statistics(moments: Moments | None) -> None:
    normaliser = Normaliser(3)
    if moments is not None:
        normaliser.set_moments(moments)
    obs = torch.tensor([[1e6, -1e-6, 0.0], [-1e30, 1e30, 12.5]])  # not even clipped

    assert torch.equal(normaliser(obs), obs)


def test_the_formula_afterwards() -> None:
    random = np.random.default_rng(0)
    seen = random.normal(size=(200, 3)) * [10, 1, 0.05] + [50, -3, 0]
    normaliser = Normaliser(3)

    normaliser.set_moments(moments_of(seen))

    obs = (random.normal(size=(40, 3)) * [60, 6, 0.5] + [50, -3, 0]).astype(np.float32)
    expected = np.clip((obs - seen.mean(axis=0)) / (seen.std(axis=0) + 0.01), -10, 10)
    assert (np.abs(expected) == 10).any()  # some are clipped
    np.testing.assert_allclose(normaliser(torch.from_numpy(obs)).numpy(), expected, rtol=1e-5, atol=1e-5)


def test_hand_computed() -> None:
    normaliser = Normaliser(1)

    normaliser.set_moments(moments_of(np.array([[1.0], [3.0]])))  # mean 2, deviation 1

    result = normaliser(torch.tensor([[2.0], [3.01], [0.99], [100.0], [-100.0]])).flatten().tolist()
    assert result == pytest.approx([0, 1, -1, 10, -10], abs=1e-6)


def test_the_first_change_of_a_constant_feature_is_no_jump() -> None:
    normaliser = Normaliser(1)

    normaliser.set_moments(moments_of(np.full((100, 1), 5.0)))

    assert normaliser(torch.tensor([[5.0], [5.001]])).flatten().tolist() == pytest.approx([0, 0.1], abs=1e-4)


def test_newer_statistics_replace_older_ones_in_place() -> None:
    normaliser = Normaliser(1)
    mean = normaliser.mean
    normaliser.set_moments(moments_of(np.array([[1.0], [3.0]])))

    normaliser.set_moments(moments_of(np.array([[5.0], [5.0]])))

    assert normaliser.mean is mean  # a flattened module must keep its views
    assert normaliser(torch.tensor([[5.0]])).item() == 0


def test_all_of_it_is_published_with_the_policy_and_nothing_is_learned() -> None:
    normaliser, other = Normaliser(2), Normaliser(2)
    normaliser.set_moments(moments_of(np.array([[1.0, 2.0], [3.0, 9.0]])))

    other.load_state_dict(normaliser.state_dict())

    obs = torch.randn(5, 2, generator=torch.Generator().manual_seed(0)) * 100
    assert torch.equal(other(obs), normaliser(obs))
    assert not list(normaliser.parameters())
