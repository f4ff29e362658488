"""The sampler that a user gets without asking."""

from __future__ import annotations

from typing import Any

from numpy.typing import ArrayLike

from sortition.samplers.empirical_bayes import EmpiricalBayesSampler


def default_sampler(
    num_clients: int, cohort_size: int, client_weights: ArrayLike | None = None, **options: Any
) -> EmpiricalBayesSampler:
    """The best sampler that we know of, with nothing to tune: ``EmpiricalBayesSampler``.

    ``options`` are those of every sampler: ``design``, ``seed``, ``guard`` and ``privacy``.

    >>> default_sampler(100, 5).draw().cohort_size
    5
    """
    return EmpiricalBayesSampler(
        num_clients=num_clients, cohort_size=cohort_size, client_weights=client_weights, **options
    )
