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
    StateError,
    VRBSampler,
)
from sortition.core.variance import log_feedback
from sortition.samplers.guard import GuardState, among
from tests.helpers import SAMPLERS, same_cohort, same_state

M, K = 40, 4
TEN = Guard(trial_replies=10)


def portfolio(*, guard: Guard | None, seed: int, **common: Any) -> PortfolioSampler:
    """Of one sampler of each kind that begins with uniform probabilities, a portfolio among them.

    Then joins and leaves change no weights before anything is learnt.
    """
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
    assert np.array_equal(sampler.distribution.everybody(), other.distribution.everybody())


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
    sampler._start_anew()
    assert sampler.distribution.everybody() == pytest.approx(fresh.distribution.everybody(), rel=1e-12)
    for each in (sampler, fresh):
        here = np.setdiff1d(np.arange(M), gone)[:K]
        ones = np.ones(K)
        cohort = Cohort(0, K, np.append(here[:-1], newcomers[0]), ones.astype(int), ones / M, ones)
        each.learn(cohort, np.log(np.linspace(0.1, 1.0, K)))
    assert sampler.distribution.everybody() == pytest.approx(fresh.distribution.everybody(), rel=1e-12)


def until_caught(sampler: Any, liar: int = -1) -> None:
    """The first client drawn lies, until it is a suspect."""
    while not sampler.suspects():
        cohort = sampler.draw()
        liar = int(cohort.clients[0]) if liar < 0 and len(cohort) else liar
        sampler.observe(cohort, norms_of(cohort, liar, 1e9))


@pytest.mark.parametrize("name", BOUNDED)
@pytest.mark.parametrize("known", ["given", "calibrated", "from feedback"])
@pytest.mark.parametrize("change", ["nobody", "joined", "resumed"])
def test_a_bound_is_that_of_before_the_lies(name: str, known: str, change: str) -> None:
    """Given or calibrated it stays; taken from a first feedback that was a lie, it is taken again.

    When clients join, client weights fall by a factor, and the bound by its square.
    """
    bound = {"feedback_bound": 3.0} if known == "given" else {}
    sampler, other = (BUILD[name](num_clients=M, cohort_size=K, guard=TEN, seed=3, **bound) for _ in range(2))
    if known == "calibrated":
        sampler.calibrate(np.full(M, 2.0))
    before, clients = sampler.feedback_bound, M
    cohort = sampler.draw()
    liar = int(cohort.clients[0])
    sampler.observe(cohort, norms_of(cohort, liar, 1e9))
    if change == "joined":
        sampler.add_clients(M)
        clients = 2 * M
    elif change == "resumed":
        other.load_state_dict(sampler.state_dict())
        sampler = other
    until_caught(sampler, liar)
    if known == "from feedback":
        assert sampler.feedback_bound == pytest.approx((sampler.norm_bound / clients) ** 2)
    else:
        assert sampler.feedback_bound == pytest.approx(before * (M / clients) ** 2, rel=1e-12)


@pytest.mark.parametrize("name", BOUNDED)
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("log_first_bound", np.nan),
        ("log_first_bound", 1e300),
        ("log_feedback_bound", np.nan),
        ("log_feedback_bound", -1e4),
    ],
)
def test_a_state_without_the_bound_that_was_given_is_refused(name: str, key: str, value: float) -> None:
    sampler = BUILD[name](num_clients=M, cohort_size=K, guard=TEN, feedback_bound=3.0)
    state = sampler.state_dict()
    with pytest.raises(StateError, match=f"'{key}', a finite number"):
        sampler.load_state_dict({**state, key: value})
    assert same_state(sampler.state_dict(), state)


def damaged(state: dict[str, Any], key: str, place: tuple[int, ...], value: float) -> dict[str, Any]:
    wrong = state[key].copy()
    wrong[place] = value
    return {**state, key: wrong}


@pytest.mark.parametrize(
    ("key", "place", "value", "message"),
    [
        ("trial.told", (0, 0), 0.0, "'trial.told', numbers that are above 0"),  # a probability
        ("trial.told", (1, 0), 0.0, "'trial.told', numbers that are above 0"),  # a weight
        ("trial.told", (2, 0), 0.0, "all replies on trial and no others"),  # a norm
        ("trial.told", (2, 0), np.inf, "'trial.told', numbers that are finite"),
        ("trial.drawn", (0, 0), -1, "'trial.drawn', numbers that are from 0 to 39"),
        ("trial.drawn", (0, 0), M, "'trial.drawn', numbers that are from 0 to 39"),
        ("trial.drawn", (1, 0), 0, "'trial.drawn', numbers that are above 0"),
        ("trial.sizes", (0, 1), 0, "'trial.sizes', numbers that are not negative"),
        ("trial.sizes", (0, 2), 1, "'trial.sizes' and 'trial.drawn' that agree"),
        ("trial.heard", (0,), 3, "all replies on trial and no others"),
        ("trial.heard", (1,), 10**6, "all replies on trial and no others"),
    ],
)
def test_a_damaged_trial_is_refused(key: str, place: tuple[int, ...], value: float, message: str) -> None:
    sampler = sampler_with(TEN)
    cohort = sampler.draw()
    sampler.observe(cohort, norms_of(cohort, -1, 0.0))
    state = sampler.state_dict()
    with pytest.raises(StateError, match=message):
        sampler.load_state_dict(damaged(state, key, place, value))
    twice = damaged(state, "trial.drawn", (0, 0), state["trial.drawn"][0, 1])
    with pytest.raises(StateError, match="each client once a round"):
        sampler.load_state_dict(twice)
    with pytest.raises(StateError, match=r"'guard.replies' that agree with 'trial.heard', 4, got 5"):
        sampler.load_state_dict({**state, "guard.replies": 5})
    assert same_state(sampler.state_dict(), state)


@pytest.mark.parametrize("name", ["empirical-bayes", "avare", "mabs", "portfolio"])
@pytest.mark.parametrize("clients", [60, 500])
def test_who_stood_in_the_shadow_of_a_lie_rises_by_the_stated_factor(name: str, clients: int) -> None:
    """One says 1e24 and another 1e6, once; when both are judged, the second counts for more than before."""
    guard = Guard(trial_replies=20)
    sampler = BUILD[name](num_clients=clients, cohort_size=K, guard=guard, seed=1)
    first = sampler.draw()
    great, small = first.clients[:2].tolist()
    lies = np.where(first.clients == great, 1e24, np.where(first.clients == small, 1e6, 1.0))
    sampler.observe(first, lies)
    while len(sampler.suspects()) < 2:
        cohort = sampler.draw()
        before = sampler.probabilities()
        norms = np.where(among(cohort.clients, np.sort([great, small])), np.nan, 1.0)
        sampler.observe(cohort, norms)
        reporters = np.union1d(first.clients, cohort.clients)
        rises = sampler.probabilities()[reporters] / before[reporters]
        assert rises.max() <= guard.largest_rise * (1.0 + 1e-9)


def test_a_trial_ends_where_nearly_all_norms_are_zero() -> None:
    """After twenty times the replies that it needs; no state grows without end."""
    sampler = sampler_with(TEN)
    for _ in range(60):
        cohort = sampler.draw()
        sampler.observe(cohort, np.zeros(len(cohort)))
    state = sampler.state_dict()
    assert state["trial.heard"][0] > 200
    assert state["trial.told"].shape[1] == 0
    resumed = sampler_with(TEN)
    resumed.load_state_dict(state)
    assert same_cohort(resumed.draw(), sampler.draw())


def test_on_trial_no_update_is_longer_than_the_median_allows() -> None:
    """Two liars of a first cohort of five are the third quartile; and three of twenty the ninth decile."""
    watch = GuardState(Guard())
    watch.clip(cohort_of([0, 1, 2, 3, 4]), np.array([1.0, 1e6, 2.0, 1e6, 3.0]))
    assert watch.norm_bound == pytest.approx(300.0)
    watch.clip(cohort_of(list(range(5, 20))), np.full(15, 4.0))
    assert watch.norm_bound == pytest.approx(400.0)
    watch.clip(cohort_of(list(range(20, 25))), np.array([1e6, 4.0, 4.0, 4.0, 4.0]))
    assert watch.norm_bound == pytest.approx(400.0)


def cohort_of(clients: list[int]) -> Cohort:
    ones = np.ones(len(clients))
    return Cohort(0, len(clients), clients, ones.astype(int), ones / 2, ones)


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
