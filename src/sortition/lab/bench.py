"""How long a round of a sampler takes, for a thousand clients and for a billion.

Each number of clients is measured in a process of its own, so that its peak memory is its own. Only ratios
within one run mean anything: machines differ, and so do the hours of one machine.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np

from sortition import AdaptiveOSMDSampler, Cohort, ConfigurationError
from sortition.core.designs import Design, draw_with_replacement
from sortition.core.experts import log_expert_losses, mixture, osmd_step, reweigh_experts
from sortition.core.rates import meta_rate
from sortition.core.types import FloatArray, IntArray
from sortition.core.validation import MOST_REPEATED, whole_number
from sortition.core.variance import log_feedback
from sortition.lab.contestants import (
    EXPLORATION,
    INDEPENDENT_ONLY,
    ORACLES,
    Trial,
    find_contestant,
    make_sampler,
)
from sortition.lab.imported import blaming
from sortition.lab.parallel import Tick, run_tasks

Regime: TypeAlias = Literal["fresh", "adapted"]
REGIMES: tuple[str, ...] = ("fresh", "adapted")

HORIZON = 1000
"""num_rounds of the sampler: Adaptive-OSMD makes eight experts of it."""
DEFAULT_SAMPLER = "adaptive-osmd"
RATE_SCALES = (1.0, 30.0, 300.0, 3e3, 3e4, 3e5)
"""Adaptive-OSMD in the adapted regime: tried in this order, until ``MOVED`` is reached."""
MOVED = 0.5
"""The share of Adaptive-OSMD's distribution that has left the prior in the adapted regime, at least."""
ALL_SEEN_UP_TO = 10**6
CHOICE_UP_TO = 10**7
DENSE_UP_TO = 10**5
DENSE_SAMPLERS_UP_TO = 10**7
"""Oracles and independent draws keep arrays of all clients."""
MOST_CLIENTS = 10**15


@dataclass(frozen=True)
class Measurement:
    """One number of clients; times in microseconds, nan where something was not measured."""

    sampler: str
    num_clients: int
    cohort_size: int
    regime: Regime
    rounds: int
    num_experts: int
    """0 if the sampler has none."""
    draw_median: float
    """For an oracle this includes the reading of all norms."""
    draw_worst: float
    observe_median: float
    observe_worst: float
    spike: float
    """One round in which one client's norm is 1e300."""
    choice_median: float
    """numpy's ``Generator.choice(M, K, p=p)``: a draw alone, nothing learnt."""
    dense_median: float
    """Draw and observe of Adaptive-OSMD's dense specification, in its first rounds, before it has learnt."""
    clients_seen: int
    """Clients drawn at least once."""
    share_of_seen: float
    """The probability of all seen clients together."""
    share_adapted: float
    """The share of the distribution that has left the prior, at most 0.6; nan without experts."""
    peak_megabytes: float
    """Of the whole process, before numpy's and the dense comparison are run."""

    @property
    def round_median(self) -> float:
        """Draw and observe together."""
        return self.draw_median + self.observe_median


@dataclass(frozen=True)
class BenchTrial(Trial):
    """A trial with clients of equal weight, without an array of all clients."""

    num_clients: int = 0

    def common(self) -> dict[str, Any]:
        """The arguments that every sampler takes."""
        return {"num_clients": self.num_clients, "cohort_size": self.cohort_size, "design": self.design}


def most_clients(sampler: str) -> int:
    """The largest number of clients for which the sampler can be measured."""
    dense = sampler in ORACLES | INDEPENDENT_ONLY or ":" in sampler  # one's own may be dense
    return DENSE_SAMPLERS_UP_TO if dense else MOST_CLIENTS


def measure_each(
    clients: Sequence[int],
    cohort_size: int,
    rounds: int,
    regime: Regime,
    sampler: str = DEFAULT_SAMPLER,
    design: Design = "with_replacement",
    on_measured: Callable[[Measurement], None] = lambda measurement: None,
) -> list[Measurement]:
    """Measure one number of clients after another, each in a process of its own."""
    find_contestant(sampler)  # a name that is wrong is an error before the work
    results: list[Measurement] = []
    for num_clients in clients:
        task = partial(_measure_in_worker, num_clients, cohort_size, rounds, regime, sampler, design)
        results += run_tasks([task], jobs=2, names=[f"a federation of {num_clients:,} clients"])
        on_measured(results[-1])
    return results


def _measure_in_worker(
    num_clients: int,
    cohort_size: int,
    rounds: int,
    regime: Regime,
    sampler: str,
    design: Design,
    tick: Tick,
) -> Measurement:
    with blaming(f"sampler {sampler!r}"):
        return measure(num_clients, cohort_size, rounds, regime, sampler, design)


def measure(
    num_clients: int,
    cohort_size: int,
    rounds: int,
    regime: Regime,
    sampler: str = DEFAULT_SAMPLER,
    design: Design = "with_replacement",
) -> Measurement:
    """Time ``rounds`` rounds of a sampler, named as in ``sortition compare``, or ``module:factory``.

    The kernels are compiled before; in the adapted regime the sampler has also learnt before.
    """
    whole_number("rounds", rounds, least=1, most=MOST_REPEATED)
    if num_clients > most_clients(sampler):
        raise ConfigurationError(
            f"num_clients must be at most {most_clients(sampler):.0e} for {sampler}, got {num_clients:.0e}"
        )
    _compile(sampler, design, cohort_size)
    run = (
        _adapted(sampler, design, num_clients, cohort_size, rounds)
        if regime == "adapted"
        else _Run(_make(sampler, design, num_clients, cohort_size))
    )
    draws, observations = np.empty(rounds), np.empty(rounds)
    for i in range(rounds):
        draws[i], observations[i] = run.one_round()
    seen = run.seen()
    share = float(run.sampler.probabilities(seen).sum())
    adapted = share_adapted(run.sampler)
    spike = sum(run.one_round(spike=True))
    memory = peak_megabytes()
    choice = _time_choice(run.sampler) if num_clients <= CHOICE_UP_TO else np.nan
    has_dense = sampler == DEFAULT_SAMPLER and num_clients <= DENSE_UP_TO
    return Measurement(
        sampler=sampler,
        num_clients=num_clients,
        cohort_size=cohort_size,
        regime=regime,
        rounds=rounds,
        num_experts=len(getattr(run.sampler, "expert_weights", ())),
        draw_median=1e6 * float(np.median(draws)),
        draw_worst=1e6 * float(draws.max()),
        observe_median=1e6 * float(np.median(observations)),
        observe_worst=1e6 * float(observations.max()),
        spike=1e6 * spike,
        choice_median=1e6 * choice,
        dense_median=1e6 * _time_dense(run.sampler) if has_dense else np.nan,
        clients_seen=len(seen),
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


def share_adapted(sampler: Any) -> float:
    """The share of the distribution that has left the prior, for samplers with experts; nan for others."""
    return float(sampler.distribution.share_above_base()) if hasattr(sampler, "expert_weights") else np.nan


def peak_megabytes() -> float:
    """Peak memory of this process so far."""
    unit = 1e6 if sys.platform == "darwin" else 1e3
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


class _Run:
    """A sampler and the clients that it has drawn."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self._drawn: list[IntArray] = []
        self._everybody = np.arange(sampler.num_clients) if hasattr(sampler, "reveal") else None

    def one_round(self, *, spike: bool = False) -> tuple[float, float]:
        """Seconds of the draw and of the feedback."""
        if self._everybody is not None:
            all_norms = norms_of(self._everybody, len(self._drawn))
        start = time.perf_counter()
        if self._everybody is not None:
            self.sampler.reveal(all_norms)
        cohort = self.sampler.draw()
        drawn = time.perf_counter() - start
        norms = norms_of(cohort.clients, cohort.round_index)
        if spike and len(norms):
            norms[0] = 1e300
        start = time.perf_counter()
        self.sampler.observe(cohort, norms)
        observed = time.perf_counter() - start
        self._drawn.append(cohort.clients)
        return drawn, observed

    def see_everybody(self) -> None:
        """Draw every client once, in cohorts of available clients.

        Such a draw has weight one, while a draw from all clients would have had weight M / K. So the feedback
        is raised by as much, and the sampler learns as much as from an ordinary draw.
        """
        sampler = self.sampler
        everybody = np.random.default_rng(0).permutation(sampler.num_clients)
        raised = np.sqrt(sampler.num_clients / sampler.cohort_size)
        for first in range(0, sampler.num_clients, sampler.cohort_size):
            if self._everybody is not None:
                sampler.reveal(np.ones(sampler.num_clients))
            cohort = sampler.draw(available=everybody[first : first + sampler.cohort_size])
            sampler.observe(cohort, raised * norms_of(cohort.clients, cohort.round_index))
            self._drawn.append(cohort.clients)

    def seen(self) -> IntArray:
        """The clients drawn so far."""
        return np.unique(np.concatenate(self._drawn))


def _make(sampler: str, design: Design, num_clients: int, cohort_size: int) -> Any:
    trial = BenchTrial(
        client_weights=np.zeros(0),
        cohort_size=cohort_size,
        num_rounds=HORIZON,
        feedback_bound=1.0 / num_clients**2,
        design=design,
        seed=0,
        num_clients=num_clients,
    )
    return make_sampler(sampler, find_contestant(sampler), trial)


def _compile(sampler: str, design: Design, cohort_size: int) -> None:
    """Run every kernel once, on a federation of ten times the cohort."""
    run = _Run(_make(sampler, design, 10 * cohort_size, cohort_size))
    for spike in (False, True, False):
        run.one_round(spike=spike)


def _adapted(sampler: str, design: Design, num_clients: int, cohort_size: int, rounds: int) -> _Run:
    """A run in which all clients were seen where that is feasible, and that has learnt for ``rounds`` rounds.

    Adaptive-OSMD has also left the prior, at the lowest rates that get it there.
    """
    if sampler != DEFAULT_SAMPLER:
        return _learn(_Run(_make(sampler, design, num_clients, cohort_size)), rounds)
    moved = 0.0
    for rate_scale in RATE_SCALES:
        built = AdaptiveOSMDSampler(
            num_clients=num_clients,
            cohort_size=cohort_size,
            num_rounds=HORIZON,
            exploration=EXPLORATION,
            feedback_bound=1.0 / num_clients**2,
            rate_scale=rate_scale,
            design=design,
        )
        run = _learn(_Run(built), rounds)
        moved = max(moved, share_adapted(built))
        if moved >= MOVED:
            return run
    raise ConfigurationError(
        f"rounds must be enough to move {MOVED} of the distribution of {num_clients} clients away from the "
        f"prior, got {rounds}, which move {moved:.2g}"
    )


def _learn(run: _Run, rounds: int) -> _Run:
    if run.sampler.num_clients <= ALL_SEEN_UP_TO:
        run.see_everybody()
    for _ in range(rounds):
        run.one_round()
    return run


def _time_choice(sampler: Any) -> float:
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
