"""Importance reshuffling: exact expectations, and random reshuffling as a special case."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortition.core.reshuffling import expected_copies, reshuffled, systematic_copies
from tests.helpers import Array, positive


def outcomes(expected: Array) -> list[tuple[Fraction, Array]]:
    """Every outcome of systematic sampling with its probability: the copies change only at these starts."""
    ends = [sum((Fraction(e) for e in expected[: k + 1]), Fraction(0)) for k in range(len(expected))]
    breaks = sorted({Fraction(0), *((-end) % 1 for end in ends), Fraction(1)})
    return [
        (high - low, systematic_copies(expected, float((low + high) / 2))) for low, high in pairwise(breaks)
    ]


QUARTERS = st.lists(st.integers(1, 12), min_size=2, max_size=6).map(
    lambda parts: np.array([*parts, 4 - sum(parts) % 4]) / 4.0
)
"""Lengths in quarters, which sum to a whole number."""


@given(expected=QUARTERS)
def test_every_example_has_its_expected_copies_exactly(expected: Array) -> None:
    found = outcomes(expected)
    assert sum(probability for probability, _ in found) == 1
    for i, length in enumerate(expected):
        assert sum(probability * int(copies[i]) for probability, copies in found) == Fraction(length)


@given(expected=QUARTERS)
def test_copies_are_the_floor_or_the_ceiling_and_fill_the_epoch(expected: Array) -> None:
    for _, copies in outcomes(expected):
        assert np.all((copies == np.floor(expected)) | (copies == np.ceil(expected)))
        assert copies.sum() == expected.sum()


@given(expected=QUARTERS, values=positive(7, -3.0, 3.0))
def test_the_weighted_sum_of_an_epoch_is_unbiased(expected: Array, values: Array) -> None:
    """With weights 1 / (n p) the mean over all starts is the plain sum."""
    values = values[: len(expected)]
    mean = sum(
        float(probability) * float(copies @ (values / expected)) for probability, copies in outcomes(expected)
    )
    assert mean == pytest.approx(values.sum())


@given(masses=positive(9), draws=st.integers(1, 40), start=st.floats(0.0, 1.0, exclude_max=True))
def test_the_epoch_is_full_with_any_masses(masses: Array, draws: int, start: float) -> None:
    expected = expected_copies(masses, draws)
    copies = systematic_copies(expected, start)
    assert copies.sum() == draws
    assert np.all(np.abs(copies - expected) < 1.0 + 1e-9)


@given(mass=st.floats(1e-30, 1e30), size=st.integers(1, 2000), seed=st.integers(0, 2**32))
def test_equal_masses_are_random_reshuffling_to_the_bit(mass: float, size: int, seed: int) -> None:
    expected = expected_copies(np.full(size, mass), size)
    assert np.all(expected == 1.0)
    generator, plain = np.random.default_rng(seed), np.random.default_rng(seed)
    plain.random()  # the start, which decides nothing here
    assert np.array_equal(reshuffled(expected, generator), plain.permutation(size))


def test_rounding_leaves_no_negative_copies() -> None:
    """The largest start below 1, and a last stretch too short to be seen in the sum."""
    copies = systematic_copies(np.array([1.0, 1e-18]), start=1.0 - 2.0**-53)
    assert copies.tolist() == [1, 0]
