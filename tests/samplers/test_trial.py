"""The first replies are believed, judged when there are more, and learnt again without their lies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sortition import (
    AvareSampler,
    Cohort,
    EmpiricalBayesSampler,
    Guard,
    KVibSampler,
    PortfolioSampler,
    ProportionalSampler,
    VRBSampler,
)
from sortition.core.variance import log_feedback
from tests.helpers import SAMPLERS, same_cohort, same_state

M, K = 40, 4
TEN = Guard(trial_replies=10)


def portfolio(*, guard: Guard | None, seed: int, **common: Any) -> PortfolioSampler:
    """Of one sampler of each kind that begins with uniform probabilities, a portfolio among them."""
    nested = PortfolioSampler(experts=[VRBSampler(**common), ProportionalSampler(**common)])
    kinds = ("osmd", "adaptive", "doubling", "mabs", "avare")
    experts = [nested, *(SAMPLERS[kind](**common) for kind in kinds), EmpiricalBayesSampler(**common)]
    return PortfolioSampler(experts=experts, guard=guard, seed=seed)


BUILD: dict[str, Any] = {
    **SAMPLERS,
    "k-vib": lambda **common: KVibSampler(num_rounds=40, exploration=0.4, **common),
    "empirical-bayes": EmpiricalBayesSampler,
    "portfolio": portfolio,
}
BOUNDED = ("adaptive", "doubling", "mabs", "vrb", "k-vib")


def sampler_with(guard: Guard | None, seed: int = 3, name: str = "empirical-bayes") -> Any:
    return BUILD[name](num_clients=M, cohort_size=K, guard=guard, seed=seed)


def norms_of(cohort: Cohort, liar: int, lie: float) -> Any:
    return np.where(cohort.clients == liar, lie, 1.0 + 0.01 * cohort.clients)


@pytest.mark.parametrize("name", BUILD)
def test_lies_on_trial_are_learnt_again_without(name: str) -> None:
    """To the bit what a sampler knows that heard the clipped norms from the start."""
    sampler, other = (sampler_with(guard, name=name) for guard in (TEN, None))
    liar, heard = -1, []
    while not sampler.suspects():
        cohort = sampler.draw()
        liar = int(cohort.clients[0]) if liar < 0 and len(cohort) else liar
        norms = norms_of(cohort, liar, 1e9)
        sampler.observe(cohort, norms)
        heard.append((cohort, norms))
    assert sum(len(cohort) for cohort, _ in heard) > 10 >= sum(len(cohort) for cohort, _ in heard[:-1])
    assert [suspect.client for suspect in sampler.suspects()] == [liar]
    for cohort, norms in heard:
        believed = np.minimum(norms, sampler.norm_bound)
        other.learn(cohort, log_feedback(np.full(len(cohort), 1.0 / M), believed))
    assert same_state(sampler._state(), other._state())


@pytest.mark.parametrize("name", BUILD)
def test_without_lies_nothing_is_learnt_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    guard = replace(TEN, largest_rise=1e9)  # one of them is made to go too fast
    sampler, other = (sampler_with(guard, name=name) for guard in (guard, None))
    monkeypatch.setattr(sampler, "_start_anew", None)  # would raise
    for _ in range(10):
        for each in (sampler, other):
            cohort = each.draw()
            each.observe(cohort, norms_of(cohort, -1, 0.0))
        assert np.array_equal(sampler.probabilities(), other.probabilities())


@pytest.mark.parametrize("after", [1, 2, 3, 6])
@pytest.mark.parametrize("name", BUILD)
def test_a_run_is_resumed_on_trial(name: str, after: int) -> None:
    """Saved after so many feedbacks; the third or so ends the trial."""
    whole, resumed = sampler_with(TEN, name=name), sampler_with(TEN, seed=8, name=name)
    first = whole.draw()
    liar = int(first.clients[0])
    whole.observe(first, norms_of(first, liar, 1e9))
    for t in range(1, 10):
        if t == after:
            resumed.load_state_dict(whole.state_dict())
        cohort = whole.draw()
        whole.observe(cohort, norms_of(cohort, liar, 1e9))
        if t >= after:
            again = resumed.draw()
            assert same_cohort(again, cohort)
            resumed.observe(again, norms_of(again, liar, 1e9))
    assert same_state(resumed.state_dict(), whole.state_dict())
    assert [suspect.client for suspect in whole.suspects()] == [liar]


@pytest.mark.parametrize("leaves", ["liar", "honest"])
@pytest.mark.parametrize("name", BUILD)
def test_clients_come_and_leave_on_trial(name: str, leaves: str) -> None:
    sampler = sampler_with(Guard(trial_replies=20), name=name)
    first = sampler.draw()
    liar, honest = first.clients[:2].tolist()
    sampler.observe(first, norms_of(first, liar, 1e12))
    sampler.add_clients(3)
    gone = liar if leaves == "liar" else honest
    sampler.remove_clients([gone])
    for _ in range(20):
        p = sampler.probabilities()
        assert p[gone] == 0.0
        assert np.delete(p, gone).min() > (0.0 if name == "fixed" else 0.1 / (M + 3))
        assert p.sum() == pytest.approx(1.0)
        cohort = sampler.draw()
        sampler.observe(cohort, norms_of(cohort, liar, 1e12))


@pytest.mark.parametrize("name", BUILD)
def test_who_joined_on_trial_is_there_from_the_start(name: str) -> None:
    """Learnt again with newcomers and without those who left, all are as in a federation begun so."""
    sampler = sampler_with(Guard(trial_replies=20), name=name)
    first = sampler.draw()
    liar, gone = first.clients[:2].tolist()
    sampler.observe(first, norms_of(first, liar, 1e12))
    newcomers = sampler.add_clients(3)
    sampler.remove_clients([gone])
    fresh = sampler_with(None, name=name)
    fresh.add_clients(3)
    fresh.remove_clients([gone])
    sampler.start_anew()
    assert sampler.distribution.everybody() == pytest.approx(fresh.distribution.everybody(), rel=1e-12)
    for each in (sampler, fresh):
        here = np.setdiff1d(np.arange(M), gone)[:K]
        ones = np.ones(K)
        cohort = Cohort(0, K, np.append(here[:-1], newcomers[0]), ones.astype(int), ones / M, ones)
        each.learn(cohort, np.log(np.linspace(0.1, 1.0, K)))
    assert sampler.distribution.everybody() == pytest.approx(fresh.distribution.everybody(), rel=1e-12)


@pytest.mark.parametrize("name", BOUNDED)
@pytest.mark.parametrize("known", ["given", "calibrated", "from feedback"])
def test_a_bound_is_that_of_before_the_lies(name: str, known: str) -> None:
    """Given or calibrated it stays; taken from a first feedback that was a lie, it is taken again."""
    bound = {"feedback_bound": 3.0} if known == "given" else {}
    build = BUILD[name]
    sampler = build(num_clients=M, cohort_size=K, guard=TEN, seed=3, **bound)
    if known == "calibrated":
        sampler.calibrate(np.full(M, 2.0))
    before = sampler.feedback_bound
    liar = -1
    while not sampler.suspects():
        cohort = sampler.draw()
        liar = int(cohort.clients[0]) if liar < 0 and len(cohort) else liar
        sampler.observe(cohort, norms_of(cohort, liar, 1e9))
    if known == "from feedback":
        assert sampler.feedback_bound == pytest.approx((sampler.norm_bound / M) ** 2)
    else:
        assert sampler.feedback_bound == before


@pytest.mark.parametrize("lie", [1e6, 1e18, 1e300])
@pytest.mark.parametrize("name", ["empirical-bayes", "portfolio"])
def test_a_lie_on_trial_lifts_no_newcomer(name: str, lie: float) -> None:
    """Once it is judged, strangers are expected to be like the others."""
    sampler = sampler_with(Guard(), name=name)
    for t in range(60):
        cohort = sampler.draw()
        sampler.observe(cohort, norms_of(cohort, int(cohort.clients[0]) if t == 2 else -1, lie))
    (newcomer,) = sampler.add_clients(1)
    p = sampler.probabilities()
    assert p[newcomer] < 5.0 / M
    assert p.min() > 0.1 / M


def test_avare_forgets_the_first_lie() -> None:
    """It keeps what it heard last of a client that falls silent: once judged, that is the clip."""
    held = []
    for guard in (Guard(), Guard(trial_replies=0)):
        sampler = AvareSampler(num_clients=M, cohort_size=2, guard=guard, seed=3, floor_offset=100 * M)
        first = sampler.draw()
        liar = int(first.clients[0])
        sampler.observe(first, norms_of(first, liar, 1e6))
        for _ in range(300):
            cohort = sampler.draw()
            sampler.observe(cohort, norms_of(cohort, liar, np.nan))
        held.append(float(sampler.distribution.look_up(np.array([liar]))[0]))
    assert held[1] > 0.99  # two replies do not judge each other
    assert held[0] < 0.85  # by a clip at a hundred times their ninth decile it would be 0.74
