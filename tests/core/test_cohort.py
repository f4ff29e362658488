"""The cohort: what it promises about itself. That replied() is unbiased: tests/paper/test_unbiasedness.py."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest

from sortition import Cohort, CohortError, ConfigurationError, UniformSampler
from sortition.core.protocols import check_available
from tests.helpers import norms_for, same_cohort


def some_cohort() -> Cohort:
    return Cohort(
        round_index=3,
        cohort_size=4,
        clients=[2, 5, 9],
        counts=[1, 2, 1],
        probabilities=[0.1, 0.2, 0.3],
        weights=[2.5, 2.5, 0.75],
        ticket=77,
    )


def test_it_is_made_of_arrays_that_nobody_can_change() -> None:
    given = np.array([2.5, 2.5, 0.75])
    cohort = replace(some_cohort(), weights=given)
    given[0] = 100.0
    assert cohort.weights.tolist() == [2.5, 2.5, 0.75]
    for name in ("clients", "counts", "probabilities", "weights"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(cohort, name)[0] = 1
    with pytest.raises(FrozenInstanceError):
        cohort.ticket = 1  # type: ignore[misc]
    assert (cohort.clients.dtype, cohort.weights.dtype) == (np.int64, np.float64)
    assert len(cohort) == 3


def test_arrays_must_have_one_length() -> None:
    with pytest.raises(CohortError, match=r"weights.*2"):
        replace(some_cohort(), weights=[1.0, 2.0])


def test_replied_by_hand() -> None:
    """Two of three distinct clients replied: weights times 3/2, all else as drawn."""
    heard = some_cohort().replied([True, False, True])
    assert heard.clients.tolist() == [2, 9]
    assert heard.counts.tolist() == [1, 1]
    assert heard.probabilities.tolist() == [0.1, 0.3]
    assert heard.weights.tolist() == [3.75, 1.125]
    assert (heard.round_index, heard.cohort_size, heard.ticket) == (3, 4, 77)


def test_replied_by_all_and_by_none() -> None:
    cohort = some_cohort()
    assert same_cohort(cohort.replied([True] * 3), cohort)
    assert len(cohort.replied([False] * 3)) == 0


@pytest.mark.parametrize("mask", [[True, False], [1, 0, 1], [1.0, np.nan, 1.0], [[True, True, True]]])
def test_replied_takes_one_boolean_for_each_client(mask: list[object]) -> None:
    with pytest.raises(CohortError, match="mask"):
        some_cohort().replied(mask)


@pytest.mark.parametrize(
    "change",
    [
        {"round_index": 4},
        {"cohort_size": 5},
        {"clients": [2, 5, 8]},
        {"counts": [1, 1, 2]},
        {"probabilities": [0.1, 0.2, np.nextafter(0.3, 1.0)]},
        {"weights": [2.5, 2.5, np.nextafter(0.75, 1.0)]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_checksum_covers_all_that_the_cohort_says(change: dict[str, object]) -> None:
    cohort = some_cohort()
    assert replace(cohort, **change).checksum(1) != cohort.checksum(1)
    assert cohort.checksum(2) != cohort.checksum(1)
    assert replace(cohort, ticket=0).checksum(1) == cohort.checksum(1)


def test_it_can_be_sent_and_come_back() -> None:
    sampler = UniformSampler(num_clients=10, cohort_size=4)
    cohort = sampler.draw()
    returned = pickle.loads(pickle.dumps(cohort))
    assert same_cohort(cohort, returned)
    sampler.observe(returned, norms_for(returned))


@pytest.mark.parametrize("available", [None, [9, 0, 2, 3, 7, 5]])
def test_every_field_of_a_rebuilt_cohort_counts(available: list[int] | None) -> None:
    """What a message carries, field by field as plain lists, is enough to build the cohort again."""
    sampler = UniformSampler(num_clients=10, cohort_size=4)
    cohort = sampler.draw(available)
    rebuilt = Cohort(
        cohort.round_index,
        cohort.cohort_size,
        cohort.clients.tolist(),
        cohort.counts.tolist(),
        cohort.probabilities.tolist(),
        cohort.weights.tolist(),
        cohort.ticket,
        None if cohort.available is None else cohort.available.tolist(),
    )
    assert same_cohort(cohort, rebuilt)
    for other in (None, np.arange(10)):
        if available is not None or other is not None:
            with pytest.raises(CohortError, match="round 0"):
                sampler.observe(replace(rebuilt, available=other), norms_for(rebuilt))
    sampler.observe(rebuilt, norms_for(rebuilt))


def test_parts_of_a_cohort_know_what_it_was_drawn_from() -> None:
    cohort = UniformSampler(num_clients=10, cohort_size=4, design="fixed_size").draw([9, 0, 2, 3, 7, 5])
    heard = cohort.replied(np.array([True, False, True, True]))
    assert heard.available is cohort.available
    assert cohort.available is not None
    assert cohort.available.tolist() == [0, 2, 3, 5, 7, 9]
    assert not cohort.available.flags.writeable


def test_what_it_was_drawn_from_is_a_copy_of_its_own() -> None:
    """Even of a read-only view of every second id: its owner can change it, and it has gaps."""
    given = np.arange(10)
    view = given[::2]
    view.flags.writeable = False
    cohort = replace(some_cohort(), clients=[2, 4, 8], available=view)
    given[:] = 0
    assert cohort.available is not None
    assert cohort.available.tolist() == [0, 2, 4, 6, 8]
    assert cohort.checksum(1) == replace(cohort, available=[0.0, 2.0, 4.0, 6.0, 8.0]).checksum(1)


def test_nobody_drawn_from_nobody() -> None:
    assert len(Cohort(0, 1, [], [], [], [], available=[])) == 0


@pytest.mark.parametrize(
    ("written", "given", "right"),
    [
        (None, None, True),
        ([9, 2, 5], [2, 5, 9], True),
        (None, [2, 5, 9], False),
        ([2, 5, 9], None, False),
        ([2, 5, 9, 10], [2, 5, 9, 11], False),
        ([2, 5, 9, 10], [2, 5, 9], False),
    ],
)
def test_a_sampler_must_write_down_the_clients_that_it_was_given(
    written: list[int] | None, given: list[int] | None, right: bool
) -> None:
    cohort = replace(some_cohort(), available=written)
    if right:
        check_available(None, cohort, given)
    else:
        with pytest.raises(ConfigurationError, match="available"):
            check_available(None, cohort, given)
