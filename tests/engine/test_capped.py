"""Ceilings over a distribution, against the plainest way to compute them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortition.engine.capped import LARGEST_SCALE, Capped
from sortition.engine.clients import Roster
from sortition.engine.drawing import draw_cohort
from sortition.engine.fixed import Prior
from tests.helpers import simplex

SIZE = 6


def filled_by_bisection(p: Any, ceilings: Any) -> Any:
    """min(c, s p) that sums to one: halve an interval for s."""
    low, high = 1.0, 1e12
    for _ in range(300):
        middle = np.sqrt(low * high)
        low, high = (middle, high) if np.minimum(ceilings, middle * p).sum() < 1.0 else (low, middle)
    return np.minimum(ceilings, low * p)


def prior(p: Any) -> Prior:
    return Prior(Roster(len(p), np.asarray(p)))


@given(
    p=simplex(SIZE),
    limits=st.lists(st.floats(0.001, 0.5), min_size=SIZE - 1, max_size=SIZE - 1),
    cap=st.floats(1.0 / SIZE + 0.01, 1.0),
)
def test_equals_the_plainest_way(p: Any, limits: list[float], cap: float) -> None:
    """Five clients have ceilings, the sixth has only the cap."""
    ceilings = np.minimum(np.array([*limits, 1.0]), cap)
    if ceilings.sum() <= 1.0:
        return  # nobody could take the rest
    capped = Capped(prior(p), np.arange(SIZE - 1), np.array(limits), cap)
    expected = filled_by_bisection(p, ceilings)
    assert capped.everybody() == pytest.approx(expected, rel=1e-6)
    assert capped.everybody().sum() == pytest.approx(1.0, abs=1e-9)
    assert np.array_equal(capped.look_up(np.array([4, 1])), capped.everybody()[[4, 1]])
    free = capped.everybody() < ceilings * (1.0 - 1e-9)
    assert capped.everybody()[free] == pytest.approx(capped.scale * p[free])


def test_nothing_changes_if_nobody_is_above_its_ceiling() -> None:
    inner = prior([0.5, 0.3, 0.2])
    capped = Capped(inner, np.array([1]), np.array([0.3]), cap=0.5)
    uniforms = np.random.default_rng(0).random((50, 2))
    assert capped.scale == 1.0
    for one, other in zip(capped.draw(uniforms), inner.draw(uniforms), strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("ceiling", [0.2, 0.001], ids=["by rejection", "from the vector"])
def test_draws_follow_the_capped_distribution(ceiling: float) -> None:
    heavy = 1.0 - 1e-3 if ceiling < 0.01 else 0.9
    rest = (1.0 - heavy) / 3.0
    capped = Capped(prior([heavy, rest, rest, rest]), np.array([0]), np.array([ceiling]), cap=1.0)
    assert (capped.scale > LARGEST_SCALE) == (ceiling < 0.01)
    generator = np.random.default_rng(5)
    draws, p = capped.with_generator(generator).draw(generator.random((40000, 2)))
    expected = capped.everybody()
    assert np.array_equal(p, expected[draws])
    found = np.bincount(draws, minlength=4) / len(draws)
    errors = np.abs(found - expected) / np.sqrt(expected * (1.0 - expected) / len(draws))
    assert errors.max() < 5.0


@pytest.mark.parametrize("design", ["with_replacement", "without_replacement", "independent"])
def test_every_design_draws_from_it(design: Any) -> None:
    """Among 1000 clients the engine's own draws are used, not the dense ones; weights have mean one."""
    p = np.full(1000, 0.1 / 999)
    p[0] = 0.9
    capped = Capped(prior(p), np.array([0]), np.array([0.05]), cap=1.0)
    totals = np.zeros(1000)
    rounds = 3000
    for seed in range(rounds):
        generator = np.random.default_rng(seed)
        clients, _, _, weights = draw_cohort(design, capped.with_generator(generator), 1000, 4, generator)
        totals[clients] += weights
    assert totals[0] / rounds == pytest.approx(1.0, abs=0.2)  # standard error 0.04
    assert totals[1:].mean() / rounds == pytest.approx(1.0, abs=0.02)


def test_ceilings_that_sum_to_less_than_one_are_raised() -> None:
    """All the mass under ceilings that do not add up to one: they are raised in proportion."""
    capped = Capped(prior([0.6, 0.4, 0.0]), np.array([0, 1]), np.array([0.1, 0.3]), cap=1.0)
    assert capped.everybody() == pytest.approx([0.25, 0.75, 0.0])


def test_a_rest_too_small_to_be_seen_as_a_difference() -> None:
    """1 - p is all rounding error here; the rest is summed up by itself."""
    p = np.array([1.0, 1e-20, 3e-20])
    capped = Capped(prior(p), np.array([0]), np.array([0.2]), cap=1.0)
    assert capped.everybody() == pytest.approx([0.2, 0.2, 0.6])
