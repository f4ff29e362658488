"""The first replies are believed, judged when there are more, and learnt again without their lies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sortition import AvareSampler, Cohort, ConfigurationError, EmpiricalBayesSampler, Guard
from sortition.core.variance import log_feedback
from sortition.samplers.guard import COSTLESS
from tests.helpers import same_cohort, same_state

M, K = 40, 4
TEN = replace(COSTLESS, trial_replies=10)


def sampler_with(guard: Guard | None, seed: int = 3) -> EmpiricalBayesSampler:
    return EmpiricalBayesSampler(num_clients=M, cohort_size=K, guard=guard, seed=seed)


def norms_of(cohort: Cohort, liar: int, lie: float) -> Any:
    return np.where(cohort.clients == liar, lie, 1.0 + 0.01 * cohort.clients)


def test_lies_on_trial_are_learnt_again_without() -> None:
    """To the bit what a sampler knows that heard the clipped norms from the start."""
    sampler, other = sampler_with(TEN), sampler_with(None)
    liar, heard = -1, []
    while not sampler.suspects():
        cohort = sampler.draw()
        liar = int(cohort.clients[0]) if liar < 0 else liar
        norms = norms_of(cohort, liar, 1e9)
        sampler.observe(cohort, norms)
        heard.append((cohort, norms))
    assert sum(len(cohort) for cohort, _ in heard) > 10 >= sum(len(cohort) for cohort, _ in heard[:-1])
    assert [suspect.client for suspect in sampler.suspects()] == [liar]
    for cohort, norms in heard:
        believed = np.minimum(norms, sampler.norm_bound)
        other.learn(cohort, log_feedback(np.full(len(cohort), 1.0 / M), believed))
    assert same_state(sampler._state(), other._state())


def test_without_lies_nothing_is_learnt_again(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler, other = sampler_with(TEN), sampler_with(None)
    monkeypatch.setattr(sampler, "_start_anew", None)  # would raise
    for _ in range(10):
        for each in (sampler, other):
            cohort = each.draw()
            each.observe(cohort, norms_of(cohort, -1, 0.0))
        assert np.array_equal(sampler.probabilities(), other.probabilities())


@pytest.mark.parametrize("after", [1, 2, 3, 6])
def test_a_run_is_resumed_on_trial(after: int) -> None:
    """Saved after so many feedbacks; the third ends the trial."""
    whole, resumed = sampler_with(TEN), sampler_with(TEN, seed=8)
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
def test_clients_come_and_leave_on_trial(leaves: str) -> None:
    sampler = sampler_with(replace(COSTLESS, trial_replies=20))
    first = sampler.draw()
    liar, honest = first.clients[:2].tolist()
    sampler.observe(first, norms_of(first, liar, 1e12))
    sampler.add_clients(3)
    gone = liar if leaves == "liar" else honest
    sampler.remove_clients([gone])
    for _ in range(20):
        p = sampler.probabilities()
        assert p[gone] == 0.0
        assert np.delete(p, gone).min() > 0.1 / (M + 3)
        assert p.sum() == pytest.approx(1.0)
        cohort = sampler.draw()
        sampler.observe(cohort, norms_of(cohort, liar, 1e12))


@pytest.mark.parametrize("lie", [1e6, 1e18, 1e300])
def test_a_lie_on_trial_lifts_no_newcomer(lie: float) -> None:
    """Once it is judged, strangers are expected to be like the others."""
    sampler = sampler_with(COSTLESS)
    for t in range(60):
        cohort = sampler.draw()
        sampler.observe(cohort, norms_of(cohort, int(cohort.clients[0]) if t == 2 else -1, lie))
    (newcomer,) = sampler.add_clients(1)
    p = sampler.probabilities()
    assert p[newcomer] < 5.0 / M
    assert p.min() > 0.1 / M


def test_samplers_that_cannot_learn_again_have_no_trial() -> None:
    with pytest.raises(ConfigurationError, match="guard must have trial_replies = 0 for AvareSampler"):
        AvareSampler(num_clients=M, cohort_size=K, guard=COSTLESS)
