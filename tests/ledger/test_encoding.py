"""Rows as bytes."""

from __future__ import annotations

import numpy as np
import pytest

from sortition import AvareSampler, Cohort, ConfigurationError
from sortition.ledger.encoding import cohort_bytes, cohort_values, pack, same_cohort


@pytest.mark.parametrize("available", [None, [1, 2, 3, 5], [1, 500]])
@pytest.mark.parametrize("size", [1, 3, 300])
def test_a_cohort_is_written_as_its_values_are(size: int, available: list[int] | None) -> None:
    sampler = AvareSampler(num_clients=1000, cohort_size=size, design="fixed_size")
    cohort = sampler.draw(available)
    assert cohort_bytes(cohort) == pack(cohort_values(cohort))


@pytest.mark.parametrize(
    "part", ["round_index", "cohort_size", "clients", "counts", "probabilities", "weights"]
)
def test_cohorts_that_differ_in_one_value_are_not_the_same(part: str) -> None:
    def cohort(**other: int) -> Cohort:
        lists = {name: [other.get(name, 4), 7] for name in ("clients", "counts", "probabilities", "weights")}
        return Cohort(other.get("round_index", 4), other.get("cohort_size", 4), **lists)

    assert same_cohort(cohort(), cohort())
    assert not same_cohort(cohort(), cohort(**{part: 5}))


def test_a_mask_is_not_lost() -> None:
    with pytest.raises(ConfigurationError, match="model must have no mask"):
        pack({"model": np.ma.array([1.0, 2.0], mask=[True, False])})
