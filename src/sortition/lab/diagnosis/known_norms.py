"""The noise of a step from a table of norms: every client's norm is known, the directions are not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from sortition import Sampler
from sortition.core.types import FloatArray
from sortition.core.variance import optimal_probabilities, variance_loss
from sortition.lab.contestants import CONTESTANTS, Trial
from sortition.lab.diagnosis.findings import ADAPTIVE, BEST, PROPORTIONAL, UNIFORM, StepNoise, heterogeneity
from sortition.lab.diagnosis.norm_table import NormTable
from sortition.lab.parallel import Tick
from sortition.lab.training import sampling_variance

HELD = 200
"""Rounds for which one pass of norms is held, so that the default sampler can learn it."""


def measure_norms(
    table: NormTable,
    cohort_size: int,
    *,
    seed: int = 0,
    held: int = HELD,
    smallest: bool = True,
    tick: Tick = lambda: None,
) -> StepNoise:
    r"""S is :math:`\sum_m a_m (1/\pi_m - 1)`, with replacement :math:`\frac1K \sum_m a_m / p_m`.

    The first is exact for independent draws, and about that for draws of fixed size; the second is exact but
    for :math:`G / K`, which is not known. The default sampler hears only the norms of those it draws. One
    pass is repeated ``held`` times for it. A client that does not reply has no part in the aggregate.
    """
    weights, once = table.client_weights, table.num_rounds == 1
    feedback = np.nan_to_num(weights * table.norms) ** 2
    every_round = range(held) if once else range(table.num_rounds)

    def probabilities(choice: str) -> Sequence[FloatArray]:
        if choice == UNIFORM:
            return [np.full(len(weights), 1.0 / len(weights))] * len(every_round)
        if choice == PROPORTIONAL:
            return [weights] * len(every_round)
        return [optimal_probabilities(feedback[t % table.num_rounds]) for t in every_round]

    def variances(choice: str, size: int) -> tuple[FloatArray, FloatArray]:
        sampler = default_of(weights, size, seed) if choice == ADAPTIVE else None
        own: list[float] = []
        replacing: list[float] = []
        known = () if sampler is not None else probabilities(choice)
        for t in every_round:
            a = feedback[t % table.num_rounds]
            if sampler is None and once and t:
                own.append(own[0])
                replacing.append(replacing[0])
                continue
            p = sampler.probabilities() if sampler is not None else known[t]
            own.append(sampling_variance(p, a, "fixed_size", size))
            replacing.append(variance_loss(p, a, size))
            if sampler is not None:
                cohort = sampler.draw()
                sampler.observe(cohort, table.norms[t % table.num_rounds][cohort.clients])
                tick()
        return np.array(own), np.array(replacing)

    choices = [UNIFORM, *([PROPORTIONAL] if np.ptp(weights) > 0.0 else []), ADAPTIVE, BEST]
    both = {choice: variances(choice, cohort_size) for choice in choices}
    rows = np.array([t % table.num_rounds for t in every_round])
    noise = StepNoise(
        num_clients=table.num_clients,
        cohort_size=cohort_size,
        num_rounds=table.num_rounds,
        sampling={choice: own for choice, (own, _) in both.items()},
        replacing={choice: replacing for choice, (_, replacing) in both.items()},
        minibatch=None if table.noise is None else (np.nan_to_num(weights * table.noise) ** 2).sum(1)[rows],
        signal=None,
        largest_signal=(np.sqrt(feedback).sum(axis=1) ** 2)[rows],
        heterogeneity=heterogeneity(feedback, None),
        notes=_notes(table, held),
    )
    if not smallest:
        return noise
    found: dict[str, dict[str, int | None]] = {}

    def enough(choice: str, baseline: str, size: int) -> bool:
        return _no_more(variances(choice, size)[0], noise.sampling[baseline])

    for baseline in choices[:-2]:
        found[baseline] = {
            choice: smallest_cohort(cohort_size, partial(enough, choice, baseline))
            for choice in choices[1:-1]
            if choice != baseline
        }
    return replace(noise, smallest_cohorts=found)


def smallest_cohort(most: int, enough: Callable[[int], bool]) -> int | None:
    """The least K from 1 to ``most`` that is ``enough``, by halving; None if even ``most`` is not."""
    if not enough(most):
        return None
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def default_of(client_weights: FloatArray, cohort_size: int, seed: int) -> Sampler:
    """The default sampler, drawing by its default design."""
    trial = Trial(client_weights, cohort_size, 1, 0.0, "fixed_size", seed)
    return CONTESTANTS["empirical-bayes"](trial)


def _no_more(own: FloatArray, allowed: FloatArray) -> bool:
    some = allowed > 0.0
    return bool(np.mean(own[some] / allowed[some]) <= 1.0) if some.any() else not np.any(own > 0.0)


def _notes(table: NormTable, held: int) -> tuple[str, ...]:
    notes = []
    silent = int(np.isnan(table.norms).sum())
    if silent:
        notes.append(
            f"{silent} of {table.norms.size} norms are empty. They count as 0, as those of clients that do "
            "not reply. If they are only unknown, leave these rows out: zeros make clients look different."
        )
    if table.num_rounds == 1:
        notes.append(
            f"One pass of norms: for the default sampler they were held fixed for {held} rounds, in which "
            "it learns; norms that change are harder."
        )
    if np.ptp(table.sizes) == 0.0:
        notes.append("All clients have the same size, so sampling by size is uniform sampling.")
    return tuple(notes)
