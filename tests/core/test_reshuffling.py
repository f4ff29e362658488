"""Importance reshuffling: bounds for any sequence of p, and random reshuffling as a special case."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortition.core.reshuffling import Carried, expected_copies, first_carried, plan_epoch, whole_copies
from tests.helpers import Array, positive


@st.composite
def sequences(draw: Any) -> tuple[list[Array], int]:
    """The expected copies of some epochs, with shares from 1 to 50 of each other, and a seed."""
    size, epochs = draw(st.integers(2, 12)), draw(st.integers(1, 25))
    draws = draw(st.integers(max(1, size - 3), size + 3))
    masses = [draw(positive(size, 0.02, 1.0)) for _ in range(epochs)]
    if draw(st.booleans()):  # some epochs with equal p among the others
        masses = [np.ones(size) if k % 3 == 2 else each for k, each in enumerate(masses)]
    return [expected_copies(each, draws) for each in masses], draw(st.integers(0, 2**32))


@given(case=sequences())
def test_any_sequence_of_p_keeps_the_weighted_counts(case: tuple[list[Array], int]) -> None:
    """The count is the number of epochs less what is owed, which is bounded on both sides."""
    every, seed = case
    generator = np.random.default_rng(seed)
    carried = start = first_carried(every[0], generator)
    size, draws = len(every[0]), round(every[0].sum())
    counts, since = np.zeros(size), np.full(size, np.inf)
    for done, expected in enumerate(every, start=1):
        order, weights, carried = plan_epoch(expected, carried, generator)
        copies = np.bincount(order, minlength=size)
        assert copies.sum() == draws
        drawn = copies > 0
        counts += copies * weights
        since = np.where(drawn, 0.0, since + 1.0)
        assert np.all((copies * weights)[drawn] >= 0.5 * (1.0 - 1e-9))
        least = np.min(every[:done], axis=0)
        assert np.allclose(counts, done + start.debts - carried.debts, rtol=1e-9, atol=1e-9 / least.min())
        assert np.all(carried.debts >= -1.5 / least - 1e-6)
        assert np.all(carried.debts <= 0.5 + since + 1e-6)
        assert np.all(carried.phases > -1.0 - 1e-9)
        assert carried.phases.sum() == pytest.approx(start.phases.sum())


@given(masses=positive(9, 0.1, 1.0), draws=st.integers(1, 20), epochs=st.integers(1, 30), seed=st.integers(0))
def test_with_one_p_the_weights_are_its_inverse_and_counts_follow(
    masses: Array, draws: int, epochs: int, seed: int
) -> None:
    generator, expected = np.random.default_rng(seed), expected_copies(masses, draws)
    carried = first_carried(expected, generator)
    copies, usual = np.zeros(9), True
    for done in range(1, epochs + 1):
        order, weights, carried = plan_epoch(expected, carried, generator)
        drawn = np.unique(order)
        copies += np.bincount(order, minlength=9)
        usual &= bool(np.all((carried.phases >= 0.0) & (carried.phases < 1.0)))  # little was moved to fill up
        assert np.all(np.abs(copies - done * expected) < (1.0 if usual else 2.5))
        if usual:
            assert weights[drawn] == pytest.approx(1.0 / expected[drawn], rel=1e-6)


def test_over_the_random_start_every_epoch_is_unbiased() -> None:
    """For p that were chosen beforehand: the mean of copies is e, in each epoch, to five standard errors."""
    rng, size, runs = np.random.default_rng(3), 400, 300
    every = [expected_copies(np.exp(0.7 * rng.normal(size=size)), size) for _ in range(4)]
    found = np.zeros((runs, len(every), size))
    for run in range(runs):
        carried = first_carried(every[0], rng)
        for epoch, expected in enumerate(every):
            plan = plan_epoch(expected, carried, rng)
            carried = plan.carried
            found[run, epoch] = np.bincount(plan.order, minlength=size)
    for epoch, expected in enumerate(every):
        # delta has a deviation of 1 / sqrt(12 size), and moves a copy with the probability |delta| e
        moved = np.sqrt(2.0 / (12.0 * np.pi * size)) * expected
        errors = np.sqrt((expected % 1.0 * (1.0 - expected % 1.0) + moved) / runs)
        z = (found[:, epoch].mean(axis=0) - expected) / errors
        assert np.abs(z).max() < 5.0
        assert np.mean(z**2) < 1.3


@given(size=st.integers(1, 60), seed=st.integers(0, 2**32), epochs=st.integers(0, 6))
def test_equal_masses_are_random_reshuffling_to_the_bit(size: int, seed: int, epochs: int) -> None:
    """Also after epochs with other p; then what was owed is paid before the weights are one."""
    rng = np.random.default_rng([seed, 1])
    carried = first_carried(np.ones(size), rng)
    for _ in range(epochs):
        carried = plan_epoch(expected_copies(np.exp(rng.normal(size=size)), size), carried, rng).carried
    uniform = expected_copies(np.full(size, 0.3), size)
    for later in range(25):
        generator, plain = np.random.default_rng([seed, later]), np.random.default_rng([seed, later])
        order, weights, carried = plan_epoch(uniform, carried, generator)
        assert np.array_equal(order, plain.permutation(size))
        assert epochs or np.all(weights == 1.0)
    assert np.all(weights == 1.0)


@given(
    wanted=st.lists(st.floats(-0.5, 9.0), min_size=8, max_size=8).map(np.array),
    expected=positive(8, 0.01, 3.0),
    more=st.integers(-60, 4),
)
def test_whole_copies_are_rounded_at_one_threshold(wanted: Array, expected: Array, more: int) -> None:
    least = np.maximum(np.floor(wanted), 0.0)
    draws = max(0, int(least.sum()) + more)
    copies = whole_copies(wanted, expected, draws)
    assert copies.sum() == draws
    assert np.all(copies >= 0)
    if 0 <= more <= 8:  # who got one more needed no larger delta than who did not
        needed = (least + 1.0 - wanted) / expected
        assert needed[copies > least].max(initial=-np.inf) <= needed[copies == least].min(initial=np.inf)


def test_small_expected_copies_are_right_in_every_epoch() -> None:
    """Down to 1e-4 of a copy, beside some with hundreds: the mean count is 1, by five standard errors."""
    rng, size, runs = np.random.default_rng(5), 1000, 1500
    expected = expected_copies(np.exp(3.0 * np.random.default_rng(1).normal(size=size)), size)
    drawn = np.zeros((4, size))
    for _ in range(runs):
        carried = first_carried(expected, rng)
        for copies in drawn:
            order, _, carried = plan_epoch(expected, carried, rng)
            copies += np.bincount(order, minlength=size)
    for least, most in ((1e-4, 1e-3), (1e-3, 1e-2), (1e-2, 0.1), (0.1, 1.0)):
        few = (expected >= least) & (expected < most)
        mean = expected[few].sum()
        for copies in drawn:
            assert abs(copies[few].sum() / runs - mean) < 5.0 * np.sqrt(mean / runs) + 0.02 * mean


def test_phases_decide_and_not_the_numbers_of_examples() -> None:
    """Each of 40 equal examples is as often in half an epoch as any other, over the random start."""
    found, expected, runs = np.zeros(40), np.full(40, 0.5), 2000
    for seed in range(runs):
        generator = np.random.default_rng(seed)
        found += np.bincount(
            plan_epoch(expected, first_carried(expected, generator), generator).order, minlength=40
        )
    assert np.abs(found - runs / 2).max() < 4.5 * np.sqrt(runs / 4)


def test_a_debt_is_paid_when_p_changes() -> None:
    """By hand: it was owed 0.3 epochs beyond its phase, and its two copies have a half of that each."""
    carried = Carried(np.array([0.5, 0.5]), np.array([0.3, 0.0]))
    order, weights, after = plan_epoch(np.array([2.0, 1.0]), carried, np.random.default_rng(0))
    assert sorted(order.tolist()) == [0, 0, 1]
    assert weights.tolist() == [0.65, 1.0]
    assert after.debts.tolist() == [0.0, 0.0]
