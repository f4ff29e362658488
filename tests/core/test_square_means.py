"""Means of squares: what is remembered, what is shrunk, and safety where some units are noisier."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortition.core.square_means import FADING, LEAST_SHARE, POPULATION, TRUST, SquareMeans
from tests.helpers import Array, positive, simplex

EQUAL = np.full(4, 0.25)


def learn(beliefs: SquareMeans, units: Array, squares: Array) -> None:
    """Visits that were drawn by what ``beliefs`` has learnt so far."""
    beliefs.learn(units, squares, 1.0 / beliefs.ratios()[units])


def test_nothing_learnt_is_the_prior() -> None:
    assert np.array_equal(SquareMeans(EQUAL, 4).ratios(), np.ones(4))


def test_zeros_alone_teach_nothing() -> None:
    beliefs = SquareMeans(EQUAL, 4)
    learn(beliefs, np.arange(4), np.zeros(4))
    assert np.array_equal(beliefs.ratios(), np.ones(4))


@given(square=st.floats(1e-200, 1e200))
def test_equal_squares_are_equal_ratios_to_the_bit(square: float) -> None:
    beliefs = SquareMeans(np.full(7, 1 / 7), 7)
    learn(beliefs, np.arange(7), np.full(7, square))
    assert len(set(beliefs.ratios().tolist())) == 1
    assert beliefs.ratios()[0] == pytest.approx(1.0)


@given(masses=simplex(5), squares=positive(5))
def test_a_distribution_above_its_floor(masses: Array, squares: Array) -> None:
    beliefs = SquareMeans(masses, 4)
    learn(beliefs, np.array([0, 1, 1, 3]), squares[:4])
    assert masses @ beliefs.ratios() == pytest.approx(1.0)
    assert beliefs.ratios().min() >= LEAST_SHARE
    learn(beliefs, np.array([0, 2, 4]), squares[2:])
    assert masses @ beliefs.ratios() == pytest.approx(1.0)
    assert beliefs.ratios().min() >= LEAST_SHARE


def test_the_formula_after_one_visit_each() -> None:
    squares = np.array([1.0, 4.0, 0.0, 9.0])
    beliefs = SquareMeans(EQUAL, 4)
    learn(beliefs, np.arange(4), squares)
    roots = np.sqrt((squares + POPULATION * squares.mean()) / (1.0 + POPULATION))
    wanted = 0.5 * roots / roots.mean() + 0.5  # half is the prior's, before there is evidence
    assert beliefs.ratios() == pytest.approx(wanted)


def test_a_unit_that_was_not_seen_is_the_population() -> None:
    beliefs = SquareMeans(EQUAL, 4)
    learn(beliefs, np.array([0, 1, 2]), np.array([4.0, 4.0, 4.0]))
    assert beliefs.ratios() == pytest.approx(np.ones(4))


@given(epochs=st.lists(st.lists(st.floats(0.0, 10.0), max_size=12), min_size=1, max_size=12))
def test_a_visit_counts_for_less_with_every_epoch(epochs: list[list[float]]) -> None:
    """Also with every part of one: after half an epoch, of four draws here, for the root of a half."""
    beliefs, weight, total = SquareMeans(np.ones(1), 4), 0.0, 0.0
    for squares in epochs:
        learn(beliefs, np.zeros(len(squares), dtype=np.int64), np.array(squares))
        kept = FADING ** (len(squares) / 4)
        weight, total = kept * weight + len(squares), kept * total + sum(squares)
        assert beliefs.visits[0] == pytest.approx(weight)
        assert beliefs.visits[0] * beliefs.means[0] == pytest.approx(total)


def test_small_parts_of_an_epoch_keep_what_was_learnt() -> None:
    n = 100
    beliefs, squares = SquareMeans(np.full(n, 1 / n), n), np.arange(1.0, n + 1.0) ** 2
    for _ in range(4):
        learn(beliefs, np.arange(n), squares)
    before = beliefs.ratios()
    for _ in range(20):
        learn(beliefs, np.array([50]), squares[[50]])
    away = np.abs(np.delete(beliefs.ratios() / before, 50) - 1.0)
    assert away.max() < 0.1


def test_a_unit_that_is_not_visited_keeps_its_mean_and_goes_back_to_the_population() -> None:
    beliefs, squares = SquareMeans(EQUAL, 4), np.array([0.0, 4.0, 4.0, 4.0])
    learn(beliefs, np.arange(4), squares)
    learnt = []
    for _ in range(25):
        learnt.append((beliefs.ratios()[0] - beliefs.share) / (1.0 - beliefs.share))
        learn(beliefs, np.arange(1, 4), squares[1:])
    assert beliefs.means[0] == 0.0
    assert np.all(np.diff(learnt) > 0.0)
    assert learnt[0] < 0.3
    assert learnt[-1] > 0.89  # its own 0 is part of the population


# How far it is trusted ----------------------------------------------------------------------------------


def test_the_share_is_the_formula_of_the_evidence() -> None:
    """The second epoch's squares say what q has lost; the third is judged by both, the older for half."""
    epochs = np.array([[1.0, 4.0, 0.0, 9.0], [2.0, 2.0, 1.0, 3.0], [5.0, 1.0, 1.0, 1.0]])
    beliefs, logs = SquareMeans(EQUAL, 4), []
    for number, squares in enumerate(epochs):
        share, p = beliefs.share, beliefs.ratios()
        if number:
            q = (p - share) / (1.0 - share)
            losses = squares / p
            logs.append(np.log((losses / ((1 - LEAST_SHARE) * q + LEAST_SHARE)).sum() / losses.sum()))
        beliefs.learn(np.arange(4), squares, 7.0 / p)
        if not number:
            assert beliefs.share == 0.5
    odds = np.exp(TRUST * (FADING * logs[0] + logs[1]) / (FADING + 1.0))
    assert beliefs.share == pytest.approx(max(LEAST_SHARE, odds / (1.0 + odds)))


def test_a_tenth_of_an_epoch_is_a_tenth_of_the_evidence() -> None:
    shares = []
    for draws in (4, 40):
        beliefs = SquareMeans(EQUAL, draws)
        learn(beliefs, np.arange(4), np.array([1.0, 4.0, 1.0, 9.0]))
        learn(beliefs, np.arange(4), np.array([9.0, 1.0, 4.0, 1.0]))
        shares.append(beliefs.share)
    logits = np.log(shares) - np.log1p(-np.array(shares))
    assert logits[0] > 0.0
    assert logits[1] == pytest.approx(logits[0] / 10)


@pytest.mark.parametrize("deviation", [0.5, 1.0, 1.5])
def test_norms_by_chance_end_as_a_plain_shuffle_nearly(deviation: float) -> None:
    """Squares are drawn afresh at each visit, all units alike: the loss is the mean of 1 / ratio."""
    n, rng = 2000, np.random.default_rng(6)
    beliefs = SquareMeans(np.full(n, 1 / n), n)
    for epoch in range(6):
        learn(beliefs, np.arange(n), np.exp(2.0 * deviation * rng.normal(size=n)))
        loss = np.mean(1.0 / beliefs.ratios())
        assert loss < (1.25 if epoch == 0 else 1.03)


def test_norms_that_stay_are_trusted() -> None:
    n, rng = 2000, np.random.default_rng(6)
    squares = np.exp(2.0 * rng.normal(size=n))
    beliefs = SquareMeans(np.full(n, 1 / n), n)
    for _ in range(3):
        learn(beliefs, np.arange(n), squares)
    assert beliefs.share == LEAST_SHARE
    least = np.sqrt(squares).mean() ** 2 / squares.mean()
    assert np.mean(squares / beliefs.ratios()) / squares.mean() < 1.1 * least


def test_who_was_wrong_can_be_right_again() -> None:
    """The prior draws everything, and what q would lose is still known."""
    n, rng = 500, np.random.default_rng(6)
    beliefs = SquareMeans(np.full(n, 1 / n), n)
    for _ in range(4):
        learn(beliefs, np.arange(n), np.exp(2.0 * rng.normal(size=n)))
    assert beliefs.share > 0.8
    squares = np.exp(2.0 * rng.normal(size=n))
    for _ in range(6):
        learn(beliefs, np.arange(n), squares)
    assert beliefs.share == LEAST_SHARE


def test_groups_with_unequal_noise_are_drawn_by_their_mean_squares() -> None:
    """Two groups with one mean norm: the one whose norms vary has the larger squares, and is drawn more."""
    beliefs = SquareMeans(np.array([0.5, 0.5]), 200)
    norms = np.array([1.0] * 100 + [0.0] * 90 + [10.0] * 10)
    learn(beliefs, np.repeat([0, 1], 100), norms**2)
    learnt = beliefs.ratios() - 0.5
    assert learnt[1] / learnt[0] == pytest.approx(np.sqrt(10.0), rel=0.01)
    variance = float(np.sum(np.array([1.0, 10.0]) * 0.25 / (0.5 * beliefs.ratios())))
    assert variance < np.sum(np.array([1.0, 10.0]) * 0.25 / 0.5)
