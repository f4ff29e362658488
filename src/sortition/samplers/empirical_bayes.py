"""Empirical Bayes: the default sampler. It needs no horizon, no bound and no pre-training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Unpack

import numpy as np

from sortition.core.cohort import Cohort
from sortition.core.state import array, scalar
from sortition.core.types import FloatArray
from sortition.engine.lifted import Lifted
from sortition.engine.roster import Roster
from sortition.samplers.base import BaseSampler, Common

PRIOR_UNIFORM = 0.1
MOST_VISITS = 20.0


@dataclass
class Population:
    """What has been learnt of the clients as a whole."""

    level: float = math.nan
    log_loss: float = math.nan
    sighted: float = 0.0
    sighted_squares: float = 0.0
    sighted_sum: float = 0.0
    sighted_sum2: float = 0.0
    noise: float = 1.0
    noise_count: float = 2.0


class EmpiricalBayesSampler(BaseSampler):
    r"""Draws by the root of the expected squared norm, given all that was seen.

    >>> sampler = EmpiricalBayesSampler(num_clients=100, cohort_size=5)
    >>> for _ in range(200):
    ...     cohort = sampler.draw()
    ...     sampler.observe(cohort, 1.0 + 9.0 * (cohort.clients == 3))
    >>> bool(sampler.probabilities([3]) > 0.05)
    True
    """

    def __init__(self, **common: Unpack[Common]) -> None:
        super().__init__(**common)
        if self._given_weights is not None:
            mixed = (1.0 - PRIOR_UNIFORM) * self._given_weights + PRIOR_UNIFORM / self._founders
            self._roster = Roster(self._founders, mixed)
        self._distribution = self._lifted = Lifted(self._roster, share=0.1)
        self._population = Population()
        self._seen = np.zeros((0, 3))  # by slot: mean, visits, last surprise

    def _learn(self, cohort: Cohort, log_feedback: FloatArray) -> None:
        crowd, people = self._lifted, self._population
        clients, k = cohort.clients, self._cohort_size
        prior = self._roster.masses(clients) / self._roster.total
        log_ratio = log_feedback - 2.0 * np.log(prior)
        if math.isnan(people.level):
            if log_ratio.max() == -np.inf:
                return
            people.level = _log_mean(log_ratio, cohort.counts)
        p = crowd.look_up(clients)
        q = np.maximum(p - crowd.share * prior, 0.0) / (1.0 - crowd.share) if crowd.share < 1 else prior
        log_v = math.log(k) + np.log(cohort.weights) + log_feedback - np.log(p)
        self._tune_share(log_v, prior / p)
        x = log_ratio - people.level
        mean_sighted = people.sighted_sum / people.sighted if people.sighted else 0.0
        x = np.clip(x, mean_sighted - 60.0, 300.0)
        h = crowd.logs(clients)
        slots = crowd.meet(clients)
        if len(self._seen) < len(crowd.ratios):
            more = np.zeros((len(crowd.ratios) - len(self._seen), 3))
            self._seen = np.concatenate((self._seen, more))
        y, n, e = self._seen[slots].T
        old = n > 0
        omega = k * cohort.weights * q
        if old.any():
            s = np.average(np.minimum(np.exp(np.minimum(x[old] - 2 * h[old], 5.0)), 10.0), weights=omega[old])
            d = math.log(1.0 + 0.1 * min(1.0, omega[old].sum() / k) * (min(s, 4.0) - 1.0))
            people.level += d
            x = x - d
            for xi, yi, ni in zip(x[old], y[old], n[old], strict=True):
                people.noise = 0.998 * people.noise + min((xi - yi) ** 2, 25.0) * ni / (ni + 1.0)
                people.noise_count = 0.998 * people.noise_count + 1.0
        new = ~old
        people.sighted += new.sum()
        people.sighted_squares += np.exp(x[new]).sum()
        people.sighted_sum += x[new].sum()
        people.sighted_sum2 += (x[new] ** 2).sum()
        noise = people.noise / people.noise_count
        fn = people.sighted
        spread = max(people.sighted_sum2 / fn - (people.sighted_sum / fn) ** 2, 1e-3)
        kappa = noise / max(spread - noise, 0.05 * spread)
        h_u = 0.5 * math.log(people.sighted_squares / fn)
        surprise = np.where(old, (x - y) / np.sqrt(noise * (1.0 + 1.0 / np.maximum(n, 1.0))), 0.0)
        visits = np.minimum(n + 1.0, MOST_VISITS)
        jump = old & (surprise * e > 0) & (np.abs(surprise) > 0.7) & (np.abs(e) > 0.7)
        visits = np.where(jump, np.maximum(visits / 2.0, 2.0), visits)
        y = np.where(old, y + (x - y) / visits, x)
        w = visits / (visits + kappa)
        self._seen[slots] = np.stack((y, visits, surprise), axis=1)
        crowd.lift(clients, 0.5 * (w * y + (1.0 - w) * 2.0 * h_u), h_u)

    def _tune_share(self, log_v: FloatArray, prior_ratio: FloatArray) -> None:
        people, k = self._population, self._cohort_size
        top = log_v.max()
        if top == -np.inf:
            return
        log_total = float(top + math.log(np.exp(log_v - top).sum()))
        if math.isnan(people.log_loss):
            people.log_loss = log_total - math.log(k)
        else:
            people.log_loss = float(
                np.logaddexp(math.log(0.9) + people.log_loss, math.log(0.1) + log_total - math.log(k))
            )
        log_d = max(log_total, math.log(k) + people.log_loss)
        r = float(np.sum(np.exp(log_v - log_d) * prior_ratio)) + 1.0 - math.exp(log_total - log_d)
        share = self._lifted.share
        self._lifted.share = min(max(0.997 * share * (0.7 + 0.3 * r) + 0.0015, 0.05), 1.0)

    def _state(self) -> dict[str, Any]:
        return {
            **self._lifted.state(),
            **asdict(self._population),
            "seen": self._seen[: self._lifted.count].copy(),
        }

    def _restore(self, state: Mapping[str, Any]) -> None:
        population = Population(**{f.name: float(scalar(state, f.name)) for f in fields(Population)})
        seen = array(state, "seen", np.float64, (None, 3))
        self._lifted.restore(state)
        self._population, self._seen = population, seen


def _log_mean(logs: FloatArray, counts: Any) -> float:
    top = logs.max()
    return float(top + math.log(np.average(np.exp(logs - top), weights=counts)))
