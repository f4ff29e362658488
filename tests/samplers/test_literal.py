"""Samplers against re-implementations that follow the formulas and nothing else.

Dense loops over all clients, no logarithms, no shared code: the paper for OSMD and its kin, the papers of the
others (see docs/research/paper-map.md) for MABS, VRB and Avare; with a prior, as their docstrings say. Given
the same cohorts, the same probabilities.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from sortition import (
    AdaptiveOSMDSampler,
    AvareSampler,
    Cohort,
    DoublingOSMDSampler,
    EmpiricalBayesSampler,
    KVibSampler,
    MABSSampler,
    OSMDSampler,
    VRBSampler,
)
from sortition.core.designs import DESIGNS
from tests.helpers import UNGUARDED, Array, norms_for, project_by_bisection

M, K, ROUNDS = 6, 5, 30
WEIGHTS = np.array([0.3, 0.25, 0.2, 0.1, 0.1, 0.05])
PRIOR = np.array([0.1, 0.1, 0.15, 0.15, 0.2, 0.3])
BOUND = 1.5
ALPHA = 0.3


def feedback_of(cohort: Cohort) -> Array:
    """a_m = lambda_m^2 ||g_m||^2 of all clients, 0 for those not drawn."""
    a = np.zeros(M)
    a[cohort.clients] = WEIGHTS[cohort.clients] ** 2 * norms_for(cohort) ** 2
    return a


def times_drawn(cohort: Cohort) -> Array:
    """N{m in S} of all clients."""
    times = np.zeros(M)
    times[cohort.clients] = cohort.counts
    return times


def osmd(p_e: Array, p: Array, eta: float, times: Array, a: Array, prior: Array) -> Array:
    """Algorithm 2 for an expert at p_e when the draws came from p: exp(-eta grad), Equation 7, projection."""
    gradient = np.array([-a[m] * times[m] / (K**2 * p_e[m] ** 2 * p[m]) for m in range(M)])
    return project_by_bisection(p_e * np.exp(-eta * gradient), ALPHA * prior)


def estimated_loss(q: Array, p: Array, times: Array, a: Array) -> float:
    """Equation 6."""
    return sum(a[m] * times[m] / (q[m] * p[m]) for m in range(M)) / K**2


def run(sampler: Any, literal: Any) -> None:
    """Both through the same rounds; the distribution must move, and be the same after each."""
    assert sampler.probabilities() == pytest.approx(literal.p(), abs=1e-12)
    start, repeats = literal.p(), 0
    for _ in range(ROUNDS):
        cohort = sampler.draw()
        assert cohort.counts.sum() == K
        assert cohort.weights == pytest.approx(cohort.counts / (K * literal.p()[cohort.clients]), rel=1e-10)
        repeats += int(cohort.counts.max() > 1)
        sampler.observe(cohort, norms_for(cohort))
        literal.learn(times_drawn(cohort), feedback_of(cohort))
        assert sampler.probabilities() == pytest.approx(literal.p(), abs=1e-10)
    assert repeats > ROUNDS / 2, "repeated draws must be tested"
    assert np.abs(literal.p() - start).max() > 0.01, "a distribution that stays put tests nothing"


class LiteralOSMD:
    """Algorithm 1."""

    def __init__(self, eta: float, prior: Array) -> None:
        self.now, self.eta, self.prior = prior, eta, prior

    def p(self) -> Array:
        return self.now

    def learn(self, times: Array, a: Array) -> None:
        self.now = osmd(self.now, self.now, self.eta, times, a, self.prior)


class LiteralAdaptive:
    """Algorithm 5 with the rates of Equation 22, the number of Equation 23 and gamma of Theorem 8."""

    def __init__(
        self, num_rounds: int, prior: Array, start: Array, scale: float, bound: float | None
    ) -> None:
        self.T, self.prior, self.scale, self.bound = num_rounds, prior, scale, bound
        spread = 4 * math.log(M / ALPHA) / math.log(M)
        self.E = math.ceil(0.5 * math.log2(1 + spread * (num_rounds - 1))) + 1
        self.theta = [(1 + 1 / self.E) / (e * (e + 1)) for e in range(1, self.E + 1)]
        self.experts = [start] * self.E

    def p(self) -> Array:
        return np.sum([t * q for t, q in zip(self.theta, self.experts, strict=True)], axis=0)

    def learn(self, times: Array, a: Array) -> None:
        if self.bound is None:
            self.bound = a.max()
        first = K * ALPHA**3 / (M**3 * self.bound) * math.sqrt(2 * math.log(M) / self.T)
        gamma = ALPHA / M * math.sqrt(8 * K / (self.T * self.bound))
        p = self.p()
        shrunk = [
            t * math.exp(-gamma * estimated_loss(q, p, times, a))
            for t, q in zip(self.theta, self.experts, strict=True)
        ]
        self.experts = [
            osmd(q, p, self.scale * 2 ** (e - 1) * first, times, a, self.prior)
            for e, q in enumerate(self.experts, start=1)
        ]
        self.theta = [value / sum(shrunk) for value in shrunk]


class LiteralDoubling:
    """Algorithm 6: Algorithm 5 anew in rounds 1, 2, 4, 8, ... with T = 1, 2, 4, 8, ..."""

    def __init__(self, prior: Array, scale: float, bound: float | None, at_mixture: bool) -> None:
        self.t, self.at_mixture = 1, at_mixture
        self.epoch = LiteralAdaptive(1, prior, prior, scale, bound)

    def p(self) -> Array:
        return self.epoch.p()

    def learn(self, times: Array, a: Array) -> None:
        self.epoch.learn(times, a)
        self.t += 1
        if self.t in (2, 4, 8, 16, 32):
            old = self.epoch
            start = old.p() if self.at_mixture else old.prior
            self.epoch = LiteralAdaptive(self.t, old.prior, start, old.scale, old.bound)


class LiteralMABS:
    """Salehi, Celis and Thiran 2017: one step for each draw."""

    def __init__(self, num_rounds: int, eta: float, abar: float | None, prior: Array) -> None:
        self.T, self.eta, self.abar, self.v, self.prior = num_rounds, eta, abar, np.zeros(M), prior

    def p(self) -> Array:
        masses = self.prior * np.exp(self.v)
        return (1 - self.eta) * masses / masses.sum() + self.eta * self.prior

    def learn(self, times: Array, a: Array) -> None:
        if self.abar is None:
            self.abar = a.max()
        delta = math.sqrt(self.eta**4 * math.log(M) / (self.T * M**5 * self.abar**2))
        p = self.p()
        for m in range(M):
            for _ in range(int(times[m])):
                self.v[m] += delta * a[m] / p[m] ** 3


class LiteralVRB:
    """Borsos, Krause and Levy 2018: one gain for each draw."""

    def __init__(self, theta: float, bound: float | None, prior: Array) -> None:
        self.theta, self.L, self.w, self.prior = theta, bound, np.zeros(M), prior

    def p(self) -> Array:
        roots = self.prior
        if self.L is not None:
            roots = np.sqrt(self.w + (M * self.prior) ** 2 * self.L * M / self.theta)
        return (1 - self.theta) * roots / roots.sum() + self.theta * self.prior

    def learn(self, times: Array, a: Array) -> None:
        p = self.p()
        if self.L is None:
            self.L = a.max()
        for m in range(M):
            for _ in range(int(times[m])):
                self.w[m] += a[m] / p[m]


class LiteralAvare:
    """El Hanchi and Stephens 2020: the last sqrt(a), above a floor that shrinks; rho found by trying all."""

    def __init__(self, p_min: float = 0.0, C: float = M, delta: float = 1.0) -> None:
        self.h, self.t, self.p_min, self.C, self.delta = np.zeros(M), 1, p_min, C, delta

    def p(self) -> Array:
        if not self.h.any():
            return np.full(M, 1 / M)
        third = self.delta / 3
        eps = self.p_min + 1 / (self.C ** (1 - third) * (self.C + K * (self.t - 1)) ** third)
        order = np.argsort(-self.h, kind="stable")
        h = self.h[order]
        rho = max(i for i in range(1, M + 1) if h[i - 1] >= eps * h[:i].sum() / (1 - (M - i) * eps))
        p = np.full(M, eps)
        p[order[:rho]] = h[:rho] * (1 - (M - rho) * eps) / h[:rho].sum()
        return p

    def learn(self, times: Array, a: Array) -> None:
        self.h[times > 0] = np.sqrt(a[times > 0])
        self.t += 1


common: dict[str, Any] = {
    "num_clients": M,
    "cohort_size": K,
    "client_weights": WEIGHTS,
    "seed": 11,
    **UNGUARDED,
}
uniform = np.full(M, 1 / M)
priors = pytest.mark.parametrize("prior", [None, PRIOR], ids=["uniform", "prior"])
bounds = pytest.mark.parametrize("bound", [BOUND, None], ids=["bound", "first-feedback"])


@priors
def test_osmd(prior: Array | None) -> None:
    run(
        OSMDSampler(learning_rate=0.002, exploration=ALPHA, prior=prior, **common),
        LiteralOSMD(0.002, uniform if prior is None else prior),
    )


@priors
@bounds
def test_adaptive_osmd(prior: Array | None, bound: float | None) -> None:
    start = uniform if prior is None else prior
    sampler = AdaptiveOSMDSampler(
        num_rounds=ROUNDS, rate_scale=20.0, exploration=ALPHA, prior=prior, feedback_bound=bound, **common
    )
    literal = LiteralAdaptive(ROUNDS, start, start, 20.0, bound)
    run(sampler, literal)
    assert sampler.expert_weights == pytest.approx(literal.theta, abs=1e-10)
    assert np.ptp(sampler.expert_weights / LiteralAdaptive(ROUNDS, start, start, 1, 1).theta) > 0.01


def test_avare_with_a_prior() -> None:
    """The floor is in proportion to the prior."""
    sampler, h = AvareSampler(prior=PRIOR, **common), np.zeros(M)
    assert sampler.probabilities() == pytest.approx(PRIOR)
    for t in range(1, ROUNDS):
        cohort = sampler.draw()
        sampler.observe(cohort, norms_for(cohort))
        times = times_drawn(cohort) > 0
        h[times] = np.sqrt(feedback_of(cohort)[times])
        floor = M * PRIOR / (M ** (2 / 3) * (M + K * t) ** (1 / 3))
        assert sampler.probabilities() == pytest.approx(project_by_bisection(h, floor), abs=1e-10)


PRIOR_TAKERS = {
    "empirical Bayes": EmpiricalBayesSampler,
    "Avare": AvareSampler,
    "VRB": VRBSampler,
    "MABS": lambda **settings: MABSSampler(num_rounds=20, **settings),
    "K-Vib": lambda **settings: KVibSampler(num_rounds=20, **{**settings, "design": "independent"}),
    "OSMD": lambda **settings: OSMDSampler(learning_rate=0.002, **settings),
    "Adaptive-OSMD": lambda **settings: AdaptiveOSMDSampler(num_rounds=20, **settings),
    "Doubling-OSMD": DoublingOSMDSampler,
}


@pytest.mark.parametrize("name", PRIOR_TAKERS)
def test_a_prior_is_the_start_and_stays_in_force(name: str) -> None:
    """Whatever the weights are. A uniform prior is none, but to empirical Bayes it teaches a slope."""
    make = PRIOR_TAKERS[name]
    assert make(prior=PRIOR, **common).probabilities() == pytest.approx(PRIOR)
    alike = {key: value for key, value in common.items() if key != "client_weights"}
    told, untold, skewed = (make(prior=prior, **alike) for prior in (uniform, None, PRIOR))
    for _ in range(12):
        drawn = []
        for sampler in (told, untold, skewed):
            cohort = sampler.draw()
            sampler.observe(cohort, norms_for(cohort))
            drawn.append(cohort.clients.tolist())
        assert name == "empirical Bayes" or drawn[0] == drawn[1]
    assert name == "empirical Bayes" or told.probabilities() == pytest.approx(untold.probabilities())
    assert not np.allclose(skewed.probabilities(), untold.probabilities(), rtol=1e-3)


@pytest.mark.parametrize("restart", ["mixture", "prior"])
@bounds
def test_doubling_osmd(restart: str, bound: float | None) -> None:
    sampler = DoublingOSMDSampler(
        restart=restart, rate_scale=20.0, exploration=ALPHA, feedback_bound=bound, **common
    )
    run(sampler, LiteralDoubling(uniform, 20.0, bound, at_mixture=restart == "mixture"))


@priors
@bounds
def test_mabs(prior: Array | None, bound: float | None) -> None:
    sampler = MABSSampler(num_rounds=20, exploration=0.25, feedback_bound=bound, prior=prior, **common)
    run(sampler, LiteralMABS(20, 0.25, bound, uniform if prior is None else prior))


@priors
@bounds
def test_vrb(prior: Array | None, bound: float | None) -> None:
    sampler = VRBSampler(exploration=0.25, feedback_bound=bound, prior=prior, **common)
    run(sampler, LiteralVRB(0.25, bound, uniform if prior is None else prior))


def test_avare() -> None:
    run(AvareSampler(**common), LiteralAvare())


def test_avare_with_other_floors() -> None:
    sampler = AvareSampler(floor_offset=20.0, floor_decay=0.6, smallest_floor=0.01, **common)
    run(sampler, LiteralAvare(p_min=0.01, C=20.0, delta=0.6))


@pytest.mark.parametrize("design", DESIGNS)
def test_other_designs_put_the_weight_in_the_place_of_the_count(design: str) -> None:
    """OSMD, MABS and VRB with N / (K p) replaced by the weight that the cohort carries."""
    settings: dict[str, Any] = {**common, "cohort_size": 3, "design": design}
    tuned = OSMDSampler(learning_rate=0.01, exploration=ALPHA, **settings)
    mabs = MABSSampler(num_rounds=20, feedback_bound=BOUND, **settings)
    vrb = VRBSampler(feedback_bound=BOUND, **settings)
    p, v, w = uniform, np.zeros(M), np.zeros(M)
    delta = math.sqrt(0.4**4 * math.log(M) / (20 * M**5 * BOUND**2))
    for _ in range(ROUNDS):
        cohorts = [sampler.draw() for sampler in (tuned, mabs, vrb)]
        weights = [np.bincount(c.clients, c.weights, minlength=M) for c in cohorts]
        a = [feedback_of(c) for c in cohorts]
        p = project_by_bisection(p * np.exp(0.01 / 3 * weights[0] * a[0] / p**2), np.full(M, ALPHA / M))
        v += delta * 3 * weights[1] * a[1] / (0.6 * np.exp(v) / np.exp(v).sum() + 0.4 / M) ** 2
        w += 3 * weights[2] * a[2]
        for sampler, cohort in zip((tuned, mabs, vrb), cohorts, strict=True):
            sampler.observe(cohort, norms_for(cohort))
        assert tuned.probabilities() == pytest.approx(p, abs=1e-10)
        assert mabs.probabilities() == pytest.approx(0.6 * np.exp(v) / np.exp(v).sum() + 0.4 / M, abs=1e-10)
        roots = np.sqrt(w + BOUND * M / 0.4)
        assert vrb.probabilities() == pytest.approx(0.6 * roots / roots.sum() + 0.4 / M, abs=1e-10)
    for moved in (tuned, mabs, vrb):
        assert np.ptp(moved.probabilities()) > 0.01
