"""Who is an outlier, and what outliers may hold together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sortition import AvareSampler, EmpiricalBayesSampler, Guard
from sortition.samplers.guard import (
    UNCERTAINTY,
    Fences,
    all_ordinary,
    among,
    bounds_of,
    levelled,
    median_and_quantile,
)
from tests.helpers import LEARNERS, SAMPLERS

M, K = 12, 4
BUILD: dict[str, Any] = {
    **{name: SAMPLERS[name] for name in LEARNERS},
    "empirical-bayes": EmpiricalBayesSampler,
}
LIES = st.sampled_from([0.0, 1e-300, 1e-6, 1e-3, 1.0, 2.0, 10.0, 1e3, 1e6, 1e300, np.nan])


def liars_hold(name: str, guard: Guard | None, lie: float, colluders: int, rounds: int = 150) -> float:
    """What colluders hold at the end, of 100 clients whose honest norms differ by a factor of two."""
    honest = np.linspace(1.0, 2.0, 100)
    sampler = BUILD[name](num_clients=100, cohort_size=10, guard=guard, seed=4)
    for _ in range(rounds):
        cohort = sampler.draw()
        sampler.observe(cohort, honest[cohort.clients] * np.where(cohort.clients < colluders, lie, 1.0))
    return float(sampler.probabilities()[:colluders].sum())


@pytest.mark.parametrize("colluders", [1, 5])
@pytest.mark.parametrize("lie", [1e3, 1e6, 1e300])
@pytest.mark.parametrize("name", BUILD)
def test_outliers_hold_no_more_than_their_share(name: str, lie: float, colluders: int) -> None:
    for share in (0.5, 0.2):
        assert liars_hold(name, Guard(outliers_share=share), lie, colluders) <= share * (1.0 + 1e-9)
    assert liars_hold("avare", None, lie, colluders) > 0.5


@settings(max_examples=50)
@given(data=st.data())
def test_the_share_of_outliers_is_kept_in_every_round(data: st.DataObject) -> None:
    """Whatever they report, however few they are: those whose last norm is beyond the bound, together."""
    guard = Guard(outliers_share=0.3, trial_replies=data.draw(st.sampled_from([0, 10, 50])))
    sampler = AvareSampler(num_clients=M, cohort_size=K, guard=guard, seed=2)
    watch = sampler._defences._watch
    assert watch is not None
    for _ in range(12):
        cohort = sampler.draw()
        sampler.observe(cohort, data.draw(st.lists(LIES, min_size=len(cohort), max_size=len(cohort))))
        if not len(watch._outliers):
            continue
        share = max(0.3, watch._yardstick.expected_share, sampler.client_weights(watch._outliers).sum())
        p = sampler.probabilities()
        everybody = len(watch._outliers) + len(np.setdiff1d(watch._held, watch._outliers)) >= M
        assert everybody or p[watch._outliers].sum() <= share * (1.0 + 1e-9)
        assert p.sum() == pytest.approx(1.0)


def test_honest_heavy_clients_keep_half_of_the_draws() -> None:
    """Two of a hundred with fifty times the norms of the others should have half: they do."""
    held = liars_hold("avare", Guard(), 50.0, 2)
    assert held == pytest.approx(liars_hold("avare", None, 50.0, 2), rel=0.02)
    assert held > 0.35


def test_who_is_no_outlier_any_more_is_free() -> None:
    guarded, plain = (AvareSampler(num_clients=M, cohort_size=K, guard=g, seed=1) for g in (Guard(), None))
    for sampler in (guarded, plain):
        for t in range(60):
            cohort = sampler.draw()
            sampler.observe(cohort, np.where((cohort.clients == 5) & (t < 30), 1e3, 1.0))
    assert np.array_equal(guarded.probabilities(), plain.probabilities())


@given(data=st.data())
def test_levelling(data: st.DataObject) -> None:
    """The sum is the share; nobody has more than before; whoever has less stands at the one level."""
    size = data.draw(st.integers(1, 8))
    p = np.array(data.draw(st.lists(st.floats(1e-6, 1.0), min_size=size, max_size=size)))
    weights = np.array(data.draw(st.lists(st.floats(1e-3, 1.0), min_size=size, max_size=size)))
    share = data.draw(st.floats(0.01, 1.0)) * p.sum()
    found = levelled(p, weights, share)
    assert found.sum() == pytest.approx(share)
    assert np.all(found <= p * (1.0 + 1e-12))
    cut = found < p * (1.0 - 1e-9)
    if cut.any():
        level = (found / weights)[cut]
        assert level == pytest.approx(np.full(cut.sum(), level[0]))
        assert np.all((found / weights)[~cut] <= level[0] * (1.0 + 1e-6))


def test_the_share_that_log_normal_norms_explain(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred thousand of them: those above the bound hold what the formula says."""
    norms = np.exp(2.0 * np.random.default_rng(0).standard_normal(100_000))
    fences = Fences(outlier_factor=5.0, outlier_fence=1.0, clip_factor=100.0, clip_fence=3.0)
    monkeypatch.setattr("sortition.samplers.guard.UNCERTAINTY", 1.0)
    bounds = bounds_of(np.log(norms), np.ones(len(norms)), fences)
    held = norms[np.log(norms) > bounds.outlier].sum() / norms.sum()
    assert bounds.expected_share == pytest.approx(held, abs=0.02)


def test_the_uncertainty_of_a_hundred_clients() -> None:
    """Of estimates with a hundred norms, raised by it, all but some 8% reach the deviation itself.

    The margin is five times the deviation of such a count in 2,000 trials.
    """
    logs = np.sort(np.random.default_rng(0).standard_normal((2000, 100)), axis=1)
    found = [np.subtract(*median_and_quantile(row, np.ones(100), 0.9)[::-1]) for row in logs]
    missed = np.mean(UNCERTAINTY * np.array(found) / 1.2815515655446004 < 1.0)
    assert missed == pytest.approx(0.08, abs=0.03)


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=60), st.data())
def test_the_quick_test_agrees_with_the_bounds(norms: list[float], data: st.DataObject) -> None:
    logs = np.log(np.array(norms))
    weights = np.array(data.draw(st.lists(st.floats(0.01, 10.0), min_size=len(norms), max_size=len(norms))))
    fences = Fences(outlier_factor=5.0, outlier_fence=1.0, clip_factor=100.0, clip_fence=3.0)
    if all_ordinary(logs.max(), logs, weights, 5.0):
        assert logs.max() <= bounds_of(logs, weights, fences).outlier + 1e-9


def test_many_outliers_are_summed_up_where_it_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond so many the last replies say whether it is worth while; when it matters, they say so."""
    monkeypatch.setattr("sortition.samplers.guard.MANY", 3)
    assert liars_hold("avare", Guard(outliers_share=0.3), 1e6, 5) <= 0.3 * (1.0 + 1e-9)


def test_many_outliers_do_not_escape_by_falling_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever lies once and is silent from then on makes up for no replies, but is summed up all the same."""
    monkeypatch.setattr("sortition.samplers.guard.MANY", 100)
    clients, liars = 1200, 110
    sampler = AvareSampler(
        num_clients=clients, cohort_size=600, design="without_replacement", guard=Guard(), seed=0
    )
    told = np.zeros(clients, dtype=bool)
    for _ in range(20):
        cohort = sampler.draw()
        lying = cohort.clients < liars
        norms = np.where(lying, np.where(told[cohort.clients], np.nan, 1e6), 1.0)
        told[cohort.clients] = True
        sampler.observe(cohort, norms)
        assert sampler.probabilities()[:liars].sum() <= 0.5 * (1.0 + 1e-9)
    assert sampler.probabilities()[:liars].sum() == pytest.approx(0.5)


@pytest.mark.parametrize("leaves", [True, False])
def test_what_outliers_may_hold_follows_who_is_there(leaves: bool) -> None:
    """With a client of weight 0.9 among them they may have 0.9; not once it has left, or has become small."""
    weights = np.concatenate(([0.9], np.full(99, 0.1 / 99)))
    sampler = AvareSampler(num_clients=100, cohort_size=20, client_weights=weights, guard=Guard(), seed=0)
    for t in range(200):
        if t == 100:
            assert sampler.probabilities()[:6].sum() > 0.6
            if leaves:
                sampler.remove_clients([0])
            else:
                sampler.add_clients(50, client_weights=np.ones(50))
        if t >= 100:
            assert sampler.probabilities()[:6].sum() <= 0.5 * (1.0 + 1e-9)
        cohort = sampler.draw()
        sampler.observe(cohort, np.where(cohort.clients < 6, 1e9, 1.0))
    watch = sampler._defences._watch
    assert watch is not None
    assert watch._outliers.tolist() == ([1, 2, 3, 4, 5] if leaves else [0, 1, 2, 3, 4, 5])


def test_where_most_norms_are_zero_liars_are_judged_by_the_rest() -> None:
    """What the documents own up to: 5% of the clients lie, 4% have norms, 91% have none."""
    sampler = EmpiricalBayesSampler(num_clients=200, cohort_size=20, seed=1)
    for _ in range(300):
        cohort = sampler.draw()
        sampler.observe(cohort, np.select([cohort.clients < 10, cohort.clients < 18], [1e6, 1.5], 0.0))
    assert sampler.probabilities()[:10].sum() == pytest.approx(0.886, abs=0.02)


@pytest.mark.parametrize("share", [0.01, 0.05])
def test_the_share_that_colluders_can_hold(share: float) -> None:
    """Avare believes every report, so its colluders reach the bound of the documents, and not more.

    With c the colluders' share, equal weights and honest norms of one: c F / (c F + 1 - c).
    """
    clients, factor = 200, 10.0
    colluders = np.arange(clients) < share * clients
    sampler = AvareSampler(
        num_clients=clients, cohort_size=20, guard=Guard(clip_factor=factor, fence=6.0), seed=0
    )
    for _ in range(150):
        cohort = sampler.draw()
        sampler.observe(cohort, np.where(colluders[cohort.clients], 1e6, 1.0))
    held = sampler.probabilities()[colluders].sum()
    assert held == pytest.approx(share * factor / (share * factor + 1.0 - share), rel=0.05)
    assert {suspect.client for suspect in sampler.suspects()} == set(np.flatnonzero(colluders).tolist())
    unguarded = AvareSampler(num_clients=clients, cohort_size=20, seed=0)
    for _ in range(150):
        cohort = unguarded.draw()
        unguarded.observe(cohort, np.where(colluders[cohort.clients], 1e6, 1.0))
    assert unguarded.probabilities()[colluders].sum() > 1.5 * held


@pytest.mark.parametrize("calm", [1, 2, 4])
@pytest.mark.parametrize("guard", [Guard(), Guard(outliers_share=0.2, clip_factor=20.0)], ids=["0.5", "0.2"])
def test_alternating_lies_do_not_beat_the_share(guard: Guard, calm: int) -> None:
    """Five of a hundred lie once in so many replies: what was learnt of a lie is not undone by one reply."""
    sampler = EmpiricalBayesSampler(num_clients=100, cohort_size=10, guard=guard, seed=0)
    told = np.zeros(100, dtype=int)
    for t in range(200):
        if t > 20:
            held = sampler.probabilities(np.flatnonzero(told[:5])).sum()  # of the others nothing is known
            assert held <= guard.outliers_share * (1.0 + 1e-9)
        cohort = sampler.draw()
        lying = (cohort.clients < 5) & (told[cohort.clients] % (calm + 1) == 0)
        told[cohort.clients] += 1
        sampler.observe(cohort, np.where(lying, 1e4, 1.0 + 0.005 * cohort.clients))


@pytest.mark.parametrize("trial", [0, 50])
@pytest.mark.parametrize("cohort_size", [2, 3])
@pytest.mark.parametrize("name", ["avare", "empirical-bayes"])
def test_who_lies_at_first_and_falls_silent_is_found_later(name: str, cohort_size: int, trial: int) -> None:
    """In a cohort of two or three a lie is no outlier; it is, when more is known, heard again or not."""
    guard = Guard(trial_replies=trial)
    sampler = BUILD[name](num_clients=100, cohort_size=cohort_size, guard=guard, seed=1)
    first = sampler.draw()
    liar = int(first.clients[0])
    sampler.observe(first, np.where(first.clients == liar, 1e6, 1.0))
    for t in range(100):
        cohort = sampler.draw()
        sampler.observe(cohort, np.where(cohort.clients == liar, np.nan, 1.0 + 0.001 * cohort.clients))
        assert t < 40 or sampler.probabilities([liar])[0] <= 0.5 * (1.0 + 1e-9)


def test_who_has_left_is_no_yardstick() -> None:
    """Colluders who leave and come back under other names are no more of the clients than before."""
    sampler = AvareSampler(num_clients=100, cohort_size=20, guard=Guard(), seed=0)
    liars = np.arange(5)
    for _ in range(60):
        cohort = sampler.draw()
        sampler.observe(cohort, np.where(among(cohort.clients, liars), 1e6, 1.0))
        sampler.remove_clients(liars)
        liars = sampler.add_clients(5)
        assert sampler.norm_bound <= 100.0 * (1.0 + 1e-9)
