"""Feedback belongs to its cohort: late, out of order, in part, or not at all."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from sortition import (
    AdaptiveOSMDSampler,
    AvareSampler,
    Cohort,
    CohortError,
    DoublingOSMDSampler,
    MABSSampler,
    OptimalSampler,
    OSMDSampler,
    VRBSampler,
)
from sortition.core.designs import DESIGNS
from tests.helpers import (
    LEARNERS,
    SAMPLERS,
    UNGUARDED,
    Array,
    norms_for,
    project_by_bisection,
    same_state,
    train,
)

M, K = 6, 3
WEIGHTS = np.array([0.3, 0.25, 0.2, 0.1, 0.1, 0.05])
common: dict[str, Any] = {
    "num_clients": M,
    "cohort_size": K,
    "client_weights": WEIGHTS,
    "seed": 3,
    **UNGUARDED,
}


def everybody(cohort: Cohort, values: Array) -> Array:
    return np.bincount(cohort.clients, values, minlength=M)


def feedback_of(cohort: Cohort) -> Array:
    return everybody(cohort, (WEIGHTS[cohort.clients] * norms_for(cohort)) ** 2)


ORDER = (2, 0, 3, 1)  # four rounds are drawn before any feedback comes, and then it comes in this order


def out_of_order(sampler: Any) -> list[Cohort]:
    """Cohorts that are all open, in the order in which their feedback comes."""
    train(sampler, 2)
    open_cohorts = [sampler.draw() for _ in ORDER]
    return [open_cohorts[i] for i in ORDER]


@pytest.mark.parametrize("design", DESIGNS)
def test_late_feedback_is_weighted_by_what_held_at_the_draw(design: str) -> None:
    """OSMD, step by step: weight of the draw, gradient where the distribution is when the feedback comes."""
    sampler = OSMDSampler(learning_rate=0.002, exploration=0.3, design=design, **common)
    moved = 0.0
    for cohort in out_of_order(sampler):
        p = sampler.probabilities()
        weight = everybody(cohort, cohort.weights)
        expected = project_by_bisection(
            p * np.exp(0.002 / K * weight * feedback_of(cohort) / p**2), np.full(M, 0.3 / M)
        )
        sampler.observe(cohort, norms_for(cohort))
        assert sampler.probabilities() == pytest.approx(expected, abs=1e-10)
        if design == "with_replacement":
            assert cohort.weights == pytest.approx(cohort.counts / (K * cohort.probabilities))
            moved = max(moved, np.abs(p[cohort.clients] / cohort.probabilities - 1.0).max())
    if design == "with_replacement":
        assert moved > 0.05, "then and now must differ, or nothing is tested"


def test_late_feedback_of_experts() -> None:
    """Adaptive-OSMD in its first rounds, where all experts' states can be followed by hand.

    Losses and gradients take the weights of the draw (the draws came from the mixture of then) and the
    experts' distributions of now.
    """
    alpha, num_rounds, bound, scale = 0.3, 3, 0.5, 30.0
    sampler = AdaptiveOSMDSampler(
        num_rounds=num_rounds, exploration=alpha, feedback_bound=bound, rate_scale=scale, **common
    )
    spread = 4 * math.log(M / alpha) / math.log(M)
    E = math.ceil(0.5 * math.log2(1 + spread * (num_rounds - 1))) + 1
    rates = [
        scale * 2**e * K * alpha**3 / (M**3 * bound) * math.sqrt(2 * math.log(M) / num_rounds)
        for e in range(E)
    ]
    gamma = alpha / M * math.sqrt(8 * K / (num_rounds * bound))
    theta = np.array([(1 + 1 / E) / (e * (e + 1)) for e in range(1, E + 1)])
    experts = [np.full(M, 1 / M)] * E
    waiting = [sampler.draw(), sampler.draw()]
    for _ in range(2):
        waiting.append(sampler.draw())
        cohort = waiting.pop(0)
        weight, a = everybody(cohort, cohort.weights), feedback_of(cohort)
        losses = np.array([np.sum(weight * a / q) / K for q in experts])
        theta = theta * np.exp(-gamma * losses) / np.sum(theta * np.exp(-gamma * losses))
        experts = [
            project_by_bisection(q * np.exp(rate / K * weight * a / q**2), np.full(M, alpha / M))
            for q, rate in zip(experts, rates, strict=True)
        ]
        sampler.observe(cohort, norms_for(cohort))
        assert sampler.expert_weights == pytest.approx(theta, abs=1e-10)
        assert sampler.probabilities() == pytest.approx(theta @ np.array(experts), abs=1e-10)


def test_late_feedback_of_the_others() -> None:
    """MABS: K weight a / p^2 with p of now; VRB: K weight a; Avare: the last one heard of."""
    mabs = MABSSampler(num_rounds=20, exploration=0.4, feedback_bound=0.5, **common)
    delta = math.sqrt(0.4**4 * math.log(M) / (20 * M**5 * 0.5**2))
    for cohort in out_of_order(mabs):
        p = mabs.probabilities()
        log_weights = np.log((p - 0.4 / M) / 0.6)
        log_weights += delta * K * everybody(cohort, cohort.weights) * feedback_of(cohort) / p**2
        mabs.observe(cohort, norms_for(cohort))
        softmax = np.exp(log_weights) / np.exp(log_weights).sum()
        assert mabs.probabilities() == pytest.approx(0.6 * softmax + 0.4 / M, abs=1e-10)

    vrb = VRBSampler(exploration=0.4, feedback_bound=0.5, **common)
    sums = np.zeros(M)
    waiting = [vrb.draw() for _ in ORDER]
    for i in ORDER:
        sums += K * everybody(waiting[i], waiting[i].weights) * feedback_of(waiting[i])
        vrb.observe(waiting[i], norms_for(waiting[i]))
        roots = np.sqrt(sums + 0.5 * M / 0.4)
        assert vrb.probabilities() == pytest.approx(0.6 * roots / roots.sum() + 0.4 / M, abs=1e-10)

    avare = AvareSampler(num_clients=2, cohort_size=2, design="without_replacement")
    first, second = avare.draw(), avare.draw()
    avare.observe(second, [1.0, 3.0])
    avare.observe(first, [3.0, 1.0])
    # eps_3 = 1 / (2^(2/3) * (2 + 2 * 2)^(1/3)) = 1 / 24^(1/3) = 0.3467; h = 3 : 1 would be 1/4
    assert avare.probabilities() == pytest.approx([1 - 24 ** (-1 / 3), 24 ** (-1 / 3)])


@pytest.mark.parametrize("name", LEARNERS)
def test_a_client_that_does_not_reply_counts_as_not_asked(name: str) -> None:
    """nan for one client: the others are learnt from, with weights raised by n / r, and it is not."""
    sampler, twin = (SAMPLERS[name](design="without_replacement", **common) for _ in range(2))
    for each in (sampler, twin):
        train(each, 4)
    cohort, same = sampler.draw(), twin.draw()
    norms = norms_for(cohort)
    sampler.observe(cohort, np.where([True, False, True], norms, np.nan))
    assert not np.allclose(sampler.probabilities(), twin.probabilities(), atol=1e-6)
    # as if 3/2 of the feedback had come from each of the two, and 0 from the third
    if name in ("osmd", "vrb", "mabs"):
        twin.observe(same, np.where([True, False, True], norms * np.sqrt(1.5), 0.0))
        assert sampler.probabilities() == pytest.approx(twin.probabilities(), abs=1e-12)


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_round_without_replies_changes_nothing_and_is_closed(name: str) -> None:
    sampler, twin = (SAMPLERS[name](**common) for _ in range(2))
    for each in (sampler, twin):
        train(each, 4)
    cohort = sampler.draw()
    before = sampler.probabilities()
    sampler.observe(cohort, np.full(len(cohort), np.nan))
    assert np.array_equal(sampler.probabilities(), before)
    with pytest.raises(CohortError, match="cohort"):
        sampler.observe(cohort, np.ones(len(cohort)))
    twin.observe(twin.draw(), np.full(len(cohort), np.nan))
    assert same_state(sampler.state_dict(), twin.state_dict())


@pytest.mark.parametrize("name", LEARNERS)
def test_client_weights_enter_the_feedback_squared(name: str) -> None:
    """a = lambda^2 ||g||^2: half the norm at twice the weight is the same feedback."""
    heavy = np.array([0.4, 0.3, 0.1, 0.1, 0.05, 0.05])
    one = SAMPLERS[name](**{**common, "client_weights": heavy})
    alike = SAMPLERS[name](**{**common, "client_weights": None})
    for _ in range(8):
        cohort, other = one.draw(), alike.draw()
        assert np.array_equal(cohort.clients, other.clients)
        norms = norms_for(cohort)
        one.observe(cohort, norms)
        alike.observe(other, norms * heavy[cohort.clients] * M)
        assert one.probabilities() == pytest.approx(alike.probabilities(), rel=1e-9)


@pytest.mark.parametrize("name", ["adaptive", "doubling", "mabs", "vrb"])
def test_the_bound_is_the_largest_of_the_first_feedback(name: str) -> None:
    """Zeros alone give no bound; then (0.25 * 4)^2 against (0.3 * 2)^2."""
    settings = {**common, "design": "without_replacement", "cohort_size": 2}
    sampler = SAMPLERS[name](**settings)
    assert sampler.feedback_bound is None
    sampler.observe(sampler.draw(available=[0, 1]), [0.0, 0.0])
    assert sampler.feedback_bound is None
    assert sampler.probabilities() == pytest.approx(np.full(M, 1 / M))
    sampler.observe(sampler.draw(available=[0, 1]), [np.nan, np.nan])
    assert sampler.feedback_bound is None
    sampler.observe(sampler.draw(available=[0, 1]), [2.0, 4.0])
    assert sampler.feedback_bound == pytest.approx(1.0)
    sampler.observe(sampler.draw(available=[0, 1]), [20.0, 40.0])
    assert sampler.feedback_bound == pytest.approx(1.0), "the first one, not the largest of all"


@pytest.mark.parametrize("name", ["adaptive", "doubling", "mabs", "vrb"])
def test_calibrate_by_hand(name: str) -> None:
    """max lambda^2 norm^2 over the clients that replied: (0.3 * 1)^2, no reply, (0.2 * 4)^2, ... = 0.64."""
    sampler = SAMPLERS[name](**common)
    sampler.calibrate([1.0, np.nan, 4.0, 5.0, 0.0, 7.0])
    assert sampler.feedback_bound == pytest.approx(0.64)
    sampler.calibrate([10.0, np.nan, 2.0], clients=[5, 0, 1])  # (0.05 * 10)^2 = 0.25 = (0.25 * 2)^2
    assert sampler.feedback_bound == pytest.approx(0.25)
    twin = SAMPLERS[name](**{**common, "feedback_bound": 0.25})
    for _ in range(5):
        cohort, other = sampler.draw(), twin.draw()
        sampler.observe(cohort, norms_for(cohort))
        twin.observe(other, norms_for(other))
        assert sampler.probabilities() == pytest.approx(twin.probabilities(), rel=1e-12)


def test_calibrated_rates() -> None:
    """Equation 22 with A = 0.25 in the paper's setting: four times the rates for A = 1."""
    sampler = AdaptiveOSMDSampler(num_clients=100, cohort_size=5, num_rounds=1000)
    assert sampler.expert_rates is None
    sampler.calibrate([50.0] * 99 + [np.nan])  # (50 / 100)^2
    assert sampler.feedback_bound == pytest.approx(0.25)
    assert sampler.expert_rates == pytest.approx(4 * 3.0710566e-8 * 2.0 ** np.arange(8), rel=1e-7)
    scaled = AdaptiveOSMDSampler(
        num_clients=100, cohort_size=5, num_rounds=1000, rate_scale=100.0, feedback_bound=0.25
    )
    assert scaled.expert_rates == pytest.approx(100 * sampler.expert_rates)


@pytest.mark.parametrize("norm", [1e-300, 1e300])
def test_rates_and_bound_of_feedback_beyond_doubles(norm: float) -> None:
    """They are there to be looked at, and looking must not fail: 0 or inf where no double can hold them."""
    sampler = AdaptiveOSMDSampler(num_clients=3, cohort_size=2, num_rounds=10)
    cohort = sampler.draw()
    sampler.observe(cohort, np.full(len(cohort), norm))
    bound, rates = sampler.feedback_bound, sampler.expert_rates
    assert rates is not None
    assert bound == (0.0 if norm < 1.0 else math.inf)
    assert np.all(rates == (math.inf if norm < 1.0 else 0.0))


# The doubling trick ----------------------------------------------------------------------------------------


def test_doubling_restarts_at_rounds_1_2_4_8() -> None:
    """The number of experts of Equation 28 for b = 1, 2, ...: M = 100, alpha = 0.4 gives 1, 3, 3, 4, 5.

    4 log 250 / log 100 = 4.79588: half of log2 of 1, 5.796, 15.39, 34.57, 72.94 is 0, 1.27, 1.97, 2.56, 3.09.
    """
    sampler = DoublingOSMDSampler(num_clients=100, cohort_size=5, exploration=0.4, feedback_bound=1.0)
    lengths, slowest = [], []
    for _ in range(16):
        lengths.append(len(sampler.expert_weights))
        assert sampler.expert_rates is not None
        slowest.append(sampler.expert_rates[0])
        cohort = sampler.draw()
        sampler.observe(cohort, np.ones(len(cohort)))
    assert lengths == [1, 3, 3, 3, 3, 3, 3, 4, 4, 4, 4, 4, 4, 4, 4, 5]
    # Equation 27, e = 1: 2^(1/2 - b/2) * 3.2e-7 * 3.0348543
    factors = [1, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 4, 4, 4, 4, 5]
    assert slowest == pytest.approx([2 ** (0.5 - b / 2) * 9.7115337e-7 for b in factors], rel=1e-7)


@pytest.mark.parametrize("restart", ["mixture", "prior"])
def test_doubling_forgets_or_carries_on(restart: str) -> None:
    prior = np.array([0.1, 0.1, 0.15, 0.15, 0.2, 0.3])
    sampler = DoublingOSMDSampler(restart=restart, rate_scale=50.0, prior=prior, **common)
    for t in range(1, 17):
        at_prior = np.allclose(sampler.probabilities(), prior, atol=1e-12)
        starts_anew = t in (1, 2, 4, 8, 16)
        assert at_prior == (starts_anew if restart == "prior" else t == 1), f"round {t}"
        if starts_anew:  # all weights are those of Algorithm 5, line 3, again
            E = len(sampler.expert_weights)
            fresh = [(1 + 1 / E) / (e * (e + 1)) for e in range(1, E + 1)]
            assert sampler.expert_weights == pytest.approx(fresh)
        train(sampler, 1)


def test_doubling_counts_the_rounds_that_had_feedback() -> None:
    sampler = DoublingOSMDSampler(num_clients=100, cohort_size=5)
    for _ in range(5):
        cohort = sampler.draw()
        sampler.observe(cohort, np.full(len(cohort), np.nan))
    assert len(sampler.expert_weights) == 1
    train(sampler, 1)
    assert len(sampler.expert_weights) == 3


# The oracle -------------------------------------------------------------------------------------------------


def test_the_oracle_draws_from_the_optimum() -> None:
    """lambda * norm = 0.3 * 1, 0.25 * 2, 0.2 * 0, 0.1 * 10, 0.1 * 5, 0.05 * 4 = 0.3, 0.5, 0, 1, 0.5, 0.2."""
    sampler = OptimalSampler(**common)
    sampler.reveal([1.0, 2.0, 0.0, 10.0, 5.0, 4.0])
    assert sampler.probabilities() == pytest.approx(np.array([0.3, 0.5, 0.0, 1.0, 0.5, 0.2]) / 2.5)
    assert 2 not in sampler.draw().clients
    sampler.reveal(np.zeros(M))
    assert sampler.probabilities() == pytest.approx(np.full(M, 1 / M))
    sampler.reveal([1e300, 1e300, 0.0, 0.0, 0.0, 0.0])
    assert sampler.probabilities()[:2] == pytest.approx([0.3 / 0.55, 0.25 / 0.55])
