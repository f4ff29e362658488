"""Means of squares: what is remembered, what is shrunk, and safety where some units are noisier."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortition.core.square_means import FADING, LEAST_SHARE, POPULATION, SquareMeans
from tests.helpers import Array, positive, simplex

EQUAL = np.full(4, 0.25)


def test_nothing_learnt_is_the_prior() -> None:
    assert np.array_equal(SquareMeans(EQUAL).ratios(), np.ones(4))


def test_zeros_alone_teach_nothing() -> None:
    beliefs = SquareMeans(EQUAL)
    beliefs.learn(np.arange(4), np.zeros(4))
    assert np.array_equal(beliefs.ratios(), np.ones(4))


@given(square=st.floats(1e-200, 1e200))
def test_equal_squares_are_equal_ratios_to_the_bit(square: float) -> None:
    beliefs = SquareMeans(np.full(7, 1 / 7))
    beliefs.learn(np.arange(7), np.full(7, square))
    assert len(set(beliefs.ratios().tolist())) == 1
    assert beliefs.ratios()[0] == pytest.approx(1.0)


@given(masses=simplex(5), squares=positive(5))
def test_a_distribution_above_its_floor(masses: Array, squares: Array) -> None:
    beliefs = SquareMeans(masses)
    beliefs.learn(np.array([0, 1, 1, 3]), squares[:4])
    assert masses @ beliefs.ratios() == pytest.approx(1.0)
    assert beliefs.ratios().min() >= LEAST_SHARE


def test_the_formula_after_one_visit_each() -> None:
    squares = np.array([1.0, 4.0, 0.0, 9.0])
    beliefs = SquareMeans(EQUAL)
    beliefs.learn(np.arange(4), squares)
    roots = np.sqrt((squares + POPULATION * squares.mean()) / (1.0 + POPULATION))
    wanted = (1.0 - LEAST_SHARE) * roots / roots.mean() + LEAST_SHARE
    assert beliefs.ratios() == pytest.approx(wanted)


def test_a_unit_that_was_not_seen_is_the_population() -> None:
    beliefs = SquareMeans(EQUAL)
    beliefs.learn(np.array([0, 1, 2]), np.array([4.0, 4.0, 4.0]))
    assert beliefs.ratios() == pytest.approx(np.ones(4))


@given(epochs=st.lists(st.lists(st.floats(0.0, 10.0), max_size=4), min_size=1, max_size=12))
def test_a_visit_counts_for_less_with_every_epoch(epochs: list[list[float]]) -> None:
    beliefs, weight, total = SquareMeans(np.ones(1)), 0.0, 0.0
    for squares in epochs:
        beliefs.learn(np.zeros(len(squares), dtype=np.int64), np.array(squares))
        weight, total = FADING * weight + len(squares), FADING * total + sum(squares)
        assert beliefs.visits[0] == pytest.approx(weight)
        assert beliefs.visits[0] * beliefs.means[0] == pytest.approx(total)


def test_a_unit_that_is_not_visited_keeps_its_mean_and_goes_back_to_the_population() -> None:
    beliefs, squares = SquareMeans(EQUAL), np.array([0.0, 4.0, 4.0, 4.0])
    beliefs.learn(np.arange(4), squares)
    ratios = [beliefs.ratios()[0]]
    for _ in range(12):
        beliefs.learn(np.arange(1, 4), squares[1:])
        ratios.append(beliefs.ratios()[0])
    assert beliefs.means[0] == 0.0
    assert np.all(np.diff(ratios) > 0.0)
    assert ratios[-1] > 0.85


def test_groups_with_unequal_noise_are_drawn_by_their_mean_squares() -> None:
    """Two groups with one mean norm: the one whose norms vary has the larger squares, and is drawn more."""
    beliefs = SquareMeans(np.array([0.5, 0.5]))
    norms = np.array([1.0] * 100 + [0.0] * 90 + [10.0] * 10)
    beliefs.learn(np.repeat([0, 1], 100), norms**2)
    learnt = beliefs.ratios() - LEAST_SHARE
    assert learnt[1] / learnt[0] == pytest.approx(np.sqrt(10.0), rel=0.01)
    variance = float(np.sum(np.array([1.0, 10.0]) * 0.25 / (0.5 * beliefs.ratios())))
    assert variance < np.sum(np.array([1.0, 10.0]) * 0.25 / 0.5)
