"""How long a round takes, for a thousand clients and for a billion.

Each number of clients is measured in a process of its own, so that its peak memory is its own. Only ratios
within one run mean anything: machines differ, and so do the hours of one machine.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from sortition.core.cohort import Cohort
from sortition.core.designs import draw_with_replacement
from sortition.core.errors import ConfigurationError
from sortition.core.experts import log_expert_losses, mixture, osmd_step, reweigh_experts
from sortition.core.rates import meta_rate
from sortition.core.types import FloatArray, IntArray
from sortition.core.variance import log_feedback
from sortition.samplers.osmd import AdaptiveOSMDSampler

Regime: TypeAlias = Literal["fresh", "adapted"]
REGIMES: tuple[str, ...] = ("fresh", "adapted")

HORIZON = 1000
"""num_rounds of the sampler: it makes eight experts."""
RATE_SCALES = (1.0, 30.0, 300.0, 3e3, 3e4, 3e5)
"""Tried in this order in the adapted regime, until ``MOVED`` is reached."""
MOVED = 0.5
"""In the adapted regime at least so much of the distribution is not the prior any more."""
ALL_MET_UP_TO = 10**6
CHOICE_UP_TO = 10**7
DENSE_UP_TO = 10**5
EXPLORATION = 0.4


@dataclass(frozen=True)
class Measurement:
    """One number of clients; times in microseconds, nan where something was not measured."""

    num_clients: int
    cohort_size: int
    regime: Regime
    rounds: int
    num_experts: int
    draw_median: float
    draw_worst: float
    observe_median: float
    observe_worst: float
    spike: float
    """One round in which one client's norm is 1e300."""
    choice_median: float
    """numpy's ``Generator.choice(M, K, p=p)``: a draw alone, nothing learnt."""
    dense_median: float
    """Draw and observe of the dense specification, in its first rounds, where nothing has been learnt."""
    clients_seen: int
    share_of_seen: float
    """The probability of all clients met so far together."""
    share_adapted: float
    """How much of the distribution is not the prior any more; at most 1 - exploration = 0.6."""
    peak_megabytes: float
    """Of the whole process, before numpy's and the dense comparison are run."""

    @property
    def round_median(self) -> float:
        """Draw and observe together."""
        return self.draw_median + self.observe_median


def measure_each(
    clients: Sequence[int],
    cohort_size: int,
    rounds: int,
    regime: Regime,
    on_measured: Callable[[Measurement], None] = lambda measurement: None,
) -> list[Measurement]:
    """Measure one number of clients after another, each in a process of its own."""
    results = []
    for num_clients in clients:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            results.append(process.submit(measure, num_clients, cohort_size, rounds, regime).result())
        on_measured(results[-1])
    return results


def measure(num_clients: int, cohort_size: int, rounds: int, regime: Regime) -> Measurement:
    """Time ``rounds`` rounds, with the kernels compiled before and, if wanted, the distribution adapted."""
    _compile(cohort_size)
    if regime == "adapted":
        sampler = _adapted(num_clients, cohort_size, rounds)
    else:
        sampler = _sampler(num_clients, cohort_size, rate_scale=1.0)
    draws, observations = np.empty(rounds), np.empty(rounds)
    for i in range(rounds):
        draws[i], observations[i] = _one_round(sampler)
    met, share, adapted = sampler.clients_seen, sampler.share_of_seen, sampler.share_adapted
    spike = sum(_one_round(sampler, spike=True))
    memory = peak_megabytes()
    choice = _time_choice(sampler) if num_clients <= CHOICE_UP_TO else np.nan
    dense = _time_dense(sampler) if num_clients <= DENSE_UP_TO else np.nan
    return Measurement(
        num_clients=num_clients,
        cohort_size=cohort_size,
        regime=regime,
        rounds=rounds,
        num_experts=len(sampler.expert_weights),
        draw_median=1e6 * float(np.median(draws)),
        draw_worst=1e6 * float(draws.max()),
        observe_median=1e6 * float(np.median(observations)),
        observe_worst=1e6 * float(observations.max()),
        spike=1e6 * spike,
        choice_median=1e6 * choice,
        dense_median=1e6 * dense,
        clients_seen=met,
        share_of_seen=share,
        share_adapted=adapted,
        peak_megabytes=memory,
    )


def norms_of(clients: IntArray, round_index: int) -> FloatArray:
    """Norms with a heavy tail: a client keeps its own level, and each round adds noise.

    The level is Pareto with exponent 3, so that squares have an infinite variance; it comes from a hash of
    the id, so that no array of all clients is needed.
    """
    mixed = (clients.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(11)
    uniform = (mixed.astype(np.float64) + 0.5) / 2.0**53
    noise = np.random.default_rng(round_index).normal(0.0, 0.3, size=len(clients))
    return np.asarray(uniform ** (-1.0 / 3.0) * np.exp(noise))


def peak_megabytes() -> float:
    """Peak memory of this process so far."""
    unit = 1e6 if sys.platform == "darwin" else 1e3
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def _sampler(num_clients: int, cohort_size: int, rate_scale: float) -> AdaptiveOSMDSampler:
    return AdaptiveOSMDSampler(
        num_clients=num_clients,
        cohort_size=cohort_size,
        num_rounds=HORIZON,
        exploration=EXPLORATION,
        feedback_bound=1.0 / num_clients**2,
        rate_scale=rate_scale,
    )


def _one_round(sampler: AdaptiveOSMDSampler, *, spike: bool = False) -> tuple[float, float]:
    start = time.perf_counter()
    cohort = sampler.draw()
    drawn = time.perf_counter() - start
    norms = norms_of(cohort.clients, cohort.round_index)
    if spike:
        norms[0] = 1e300
    start = time.perf_counter()
    sampler.observe(cohort, norms)
    return drawn, time.perf_counter() - start


def _compile(cohort_size: int) -> None:
    """Run every kernel once, on a federation of ten times the cohort."""
    sampler = AdaptiveOSMDSampler(num_clients=10 * cohort_size, cohort_size=cohort_size, num_rounds=HORIZON)
    for spike in (False, True, False):
        _one_round(sampler, spike=spike)


def _adapted(num_clients: int, cohort_size: int, rounds: int) -> AdaptiveOSMDSampler:
    """A sampler that has left the prior, at the lowest rates that get it there."""
    moved = 0.0
    for rate_scale in RATE_SCALES:
        sampler = _sampler(num_clients, cohort_size, rate_scale)
        _adapt(sampler, rounds)
        if sampler.share_adapted >= MOVED:
            return sampler
        moved = max(moved, sampler.share_adapted)
    raise ConfigurationError(
        f"rounds must be enough to move {MOVED} of the distribution of {num_clients} clients away from the "
        f"prior, got {rounds}, which move {moved:.2g}"
    )


def _adapt(sampler: AdaptiveOSMDSampler, rounds: int) -> None:
    """Meet everybody where that is possible, and learn until the distribution has left the prior.

    Who takes part because all the available do has weight one. A draw would have had weight M / K: the
    feedback is raised by as much, so that meeting a client teaches what drawing it would have.
    """
    if sampler.num_clients <= ALL_MET_UP_TO:
        everybody = np.random.default_rng(0).permutation(sampler.num_clients)
        raised = np.sqrt(sampler.num_clients / sampler.cohort_size)
        for first in range(0, sampler.num_clients, sampler.cohort_size):
            cohort = sampler.draw(available=everybody[first : first + sampler.cohort_size])
            sampler.observe(cohort, raised * norms_of(cohort.clients, cohort.round_index))
    for _ in range(rounds):
        _one_round(sampler)


def _time_choice(sampler: AdaptiveOSMDSampler) -> float:
    p = sampler.probabilities()
    p /= p.sum()
    generator = np.random.default_rng(0)
    times = []
    for _ in range(15):
        start = time.perf_counter()
        generator.choice(len(p), sampler.cohort_size, p=p)
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def _time_dense(sampler: AdaptiveOSMDSampler) -> float:
    """The first rounds of the same setting by ``core.experts``: every entry of every expert."""
    experts, size = len(sampler.expert_weights), sampler.cohort_size
    setting = (sampler.num_clients, size, HORIZON, EXPLORATION)
    log_meta_rate = np.log(meta_rate(*setting, feedback_bound=1.0 / sampler.num_clients**2))
    prior = np.full(sampler.num_clients, 1.0 / sampler.num_clients)
    log_rates = np.log(sampler.expert_rates)  # type: ignore[arg-type]  # known: there was feedback
    probabilities, log_weights = np.tile(prior, (experts, 1)), np.full(experts, -np.log(experts))
    generator = np.random.default_rng(0)
    times = []
    for i in range(5):
        start = time.perf_counter()
        weighed = draw_with_replacement(mixture(log_weights, probabilities), size, generator)
        cohort = Cohort(i, size, *weighed)
        logs = log_feedback(prior[cohort.clients], norms_of(cohort.clients, i))
        losses = log_expert_losses(probabilities, cohort, logs)
        probabilities = np.array(
            [
                osmd_step(expert, EXPLORATION * prior, rate, cohort, logs)
                for expert, rate in zip(probabilities, log_rates, strict=True)
            ]
        )
        log_weights = reweigh_experts(log_weights, log_meta_rate, losses)
        times.append(time.perf_counter() - start)
    return float(np.median(times))
