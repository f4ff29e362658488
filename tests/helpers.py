"""What tests share: random distributions, every outcome of a draw, and comparisons of states."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import combinations, permutations, product
from typing import Any

import numpy as np
from hypothesis import strategies as st

from sortition import (
    AdaptiveOSMDSampler,
    AvareSampler,
    Cohort,
    DoublingOSMDSampler,
    FixedSampler,
    MABSSampler,
    OSMDSampler,
    ProportionalSampler,
    Sampler,
    UniformSampler,
    VRBSampler,
)
from sortition.core.designs import (
    Weighed,
    inclusion_probabilities,
    weigh_by_inclusion,
    weigh_with_replacement,
    weigh_without_replacement,
)

Array = np.ndarray[Any, np.dtype[np.float64]]


def positive(size: int, least: float = 0.01, most: float = 10.0) -> st.SearchStrategy[Array]:
    """Vectors of positive numbers."""
    entries = st.floats(least, most)
    return st.lists(entries, min_size=size, max_size=size).map(np.array)


def simplex(size: int, least: float = 0.02) -> st.SearchStrategy[Array]:
    """Distributions, no entry below about ``least / size``."""
    return positive(size, least, 1.0).map(lambda values: values / values.sum())


def vectors(rows: int, columns: int) -> st.SearchStrategy[Array]:
    """One update a row."""
    entries = st.floats(-3.0, 3.0)
    flat = st.lists(entries, min_size=rows * columns, max_size=rows * columns)
    return flat.map(lambda values: np.array(values).reshape(rows, columns))


def outcomes(design: str, p: Array, cohort_size: int) -> Iterator[tuple[float, Weighed]]:
    """Every outcome of a draw by ``design`` with its probability, worked out from the design's definition."""
    clients = range(len(p))
    if design == "with_replacement":
        for draws in product(clients, repeat=cohort_size):
            chosen = np.array(draws)
            yield float(p[chosen].prod()), weigh_with_replacement(chosen, p[chosen], cohort_size)
    elif design == "without_replacement":
        for draws in permutations(clients, cohort_size):
            probability, left = 1.0, 1.0
            for client in draws:
                probability *= p[client] / left
                left -= p[client]
            chosen = np.array(draws)
            yield probability, weigh_without_replacement(chosen, p[chosen], cohort_size)
    elif design == "fixed_size":
        inclusion = inclusion_probabilities(p, cohort_size)
        for probability, draws in duels(inclusion):
            chosen = np.array(draws, dtype=np.int64)
            yield probability, weigh_by_inclusion(chosen, inclusion[chosen])
    elif design == "independent":
        inclusion = inclusion_probabilities(p, cohort_size)
        for size in range(len(p) + 1):
            for draws in combinations(clients, size):
                chosen = np.array(draws, dtype=np.int64)
                inside = np.isin(np.arange(len(p)), chosen)
                probability = float(np.where(inside, inclusion, 1.0 - inclusion).prod())
                if probability > 0.0:
                    yield probability, weigh_by_inclusion(chosen, inclusion[chosen])
    else:
        raise NotImplementedError(f"enumerate the outcomes of {design} here")


def duels(inclusion: Array) -> Iterator[tuple[float, tuple[int, ...]]]:
    """Every outcome of the duels of ordered pivotal sampling with its probability."""

    def play(client: int, held: int, a: float, taken: tuple[int, ...]) -> Iterator[tuple[float, Any]]:
        if client == len(inclusion):
            yield 1.0, taken + ((held,) if a > 0.5 else ())
            return
        b = float(inclusion[client])
        if b in (0.0, 1.0):
            yield from play(client + 1, held, a, taken + ((client,) if b else ()))
            return
        if a + b < 1.0 - 1e-12:
            turns = [(a / (a + b), held, a + b, taken), (b / (a + b), client, a + b, taken)]
        else:
            held_wins = (1.0 - b) / (2.0 - a - b)
            turns = [
                (held_wins, client, a + b - 1.0, (*taken, held)),
                (1.0 - held_wins, held, a + b - 1.0, (*taken, client)),
            ]
        for probability, left, has, won in turns:
            if probability > 0.0:
                for further, outcome in play(client + 1, left, has, won):
                    yield probability * further, outcome

    yield from play(0, -1, 0.0, ())


def cohorts(design: str, p: Array, cohort_size: int) -> Iterator[tuple[float, Cohort]]:
    """Every cohort of a draw by ``design`` with its probability."""
    for probability, weighed in outcomes(design, p, cohort_size):
        yield probability, Cohort(0, cohort_size, *weighed)


def expectation(design: str, p: Array, cohort_size: int, of: Callable[[Cohort], Any]) -> Any:
    """The mean of ``of(cohort)`` over every outcome."""
    return sum(probability * of(cohort) for probability, cohort in cohorts(design, p, cohort_size))


def dense(cohort: Cohort, values: Array, num_clients: int) -> Array:
    """``values``, aligned with the cohort, as a vector over all clients: 0 if not drawn."""
    everybody = np.zeros(num_clients)
    everybody[cohort.clients] = values
    return everybody


def project_by_bisection(values: Array, floor: Array) -> Array:
    """The point max(floor, c v) of the simplex, the plainest way: halve an interval for c, 200 times."""
    low, high = 0.0, 1.0 / values.max()
    for _ in range(200):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if np.maximum(floor, middle * values).sum() < 1.0 else (low, middle)
    return np.maximum(floor, high * values)


def same_cohort(one: Cohort, other: Cohort) -> bool:
    """Whether two cohorts say the same, to the bit."""
    return (one.round_index, one.cohort_size, one.ticket) == (
        other.round_index,
        other.cohort_size,
        other.ticket,
    ) and all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("clients", "counts", "probabilities", "weights", "available")
    )


def same_state(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two states of samplers are the same, to the bit; nan is the same as nan."""
    return one.keys() == other.keys() and all(
        np.array_equal(one[name], other[name], equal_nan=np.asarray(one[name]).dtype.kind == "f")
        for name in one
    )


def norms_for(cohort: Cohort) -> Array:
    """Norms that differ between clients, up to some thirty times, and change from round to round."""
    return np.asarray(
        np.exp(0.7 * cohort.clients) * (1.3 + np.sin(cohort.round_index + 2.0 * cohort.clients))
    )


# Every sampler that needs no oracle: name -> build(num_clients=..., cohort_size=..., **common).
SAMPLERS: dict[str, Callable[..., Any]] = {
    "uniform": UniformSampler,
    "proportional": ProportionalSampler,
    "fixed": lambda **common: FixedSampler(
        probabilities=np.arange(1.0, common["num_clients"] + 1.0) / sum(range(1, common["num_clients"] + 1)),
        **common,
    ),
    "osmd": lambda **common: OSMDSampler(learning_rate=0.01, **common),
    "adaptive": lambda **common: AdaptiveOSMDSampler(num_rounds=40, rate_scale=30.0, **common),
    "doubling": lambda **common: DoublingOSMDSampler(rate_scale=30.0, **common),
    "mabs": lambda **common: MABSSampler(num_rounds=40, **common),
    "vrb": VRBSampler,
    "avare": AvareSampler,
}
UNGUARDED: dict[str, Any] = {"guard": None}  # as in the paper: no norm is clipped, no probability capped
LEARNERS = ("osmd", "adaptive", "doubling", "mabs", "vrb", "avare")


def train(sampler: Sampler, rounds: int) -> list[Cohort]:
    """Run whole rounds; the cohorts that were drawn."""
    drawn = []
    for _ in range(rounds):
        cohort = sampler.draw()
        sampler.observe(cohort, norms_for(cohort))
        drawn.append(cohort)
    return drawn
