"""A share for some clients, against the plainest way to compute it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sortition.engine.capped import LARGEST_SCALE, Capped, limited
from sortition.engine.clients import Roster
from sortition.engine.drawing import draw_cohort
from sortition.engine.expert_trees import ExpertTrees
from sortition.engine.fixed import Prior
from sortition.engine.limit import NEXT_TO_NOTHING, share_of
from sortition.engine.mixture import ExpertMixture
from sortition.engine.reweighted import ReweightedPrior
from tests.helpers import simplex

SIZE = 6
CLIENTS = np.array([1, 2, 4])


def prior(p: Any) -> Prior:
    return Prior(Roster(len(p), np.asarray(p)))


NO_TAIL = -99.0
"""With this deviation S(c) = min(1/2, gain c)."""


def highest_shares(q: Any, weights: Any) -> list[tuple[float, float]]:
    """The weight of the j clients with the highest ratios, and what they hold, for every j."""
    order = np.argsort(-q / weights, kind="stable")
    return list(zip(np.cumsum(weights[order]), np.cumsum(q[order]), strict=True))


def limited_by_bisection(q: Any, clients: Any, weights: Any, gain: float, deviation: float) -> Any:
    """Halve an interval for the level, and one for the scale that belongs to it."""

    def at(level: float) -> Any:
        low, high = 1.0, 1e15
        for _ in range(110):
            scale = math.sqrt(low * high)
            result = scale * q
            result[clients] = np.minimum(level * weights, result[clients])
            low, high = (scale, high) if result.sum() < 1.0 else (low, scale)
        return result

    low, high = 1e-6, 1e6
    for _ in range(80):
        level = math.sqrt(low * high)
        held = highest_shares(at(level)[clients], weights)
        right = all(part <= share_of(weight, gain, deviation) for weight, part in held)
        low, high = (level, high) if right else (low, level)
    return at(low)


@settings(max_examples=30, deadline=None)
@given(
    q=simplex(SIZE), weights=simplex(3), gain=st.floats(1.1, 20.0), deviation=st.sampled_from([NO_TAIL, 1.5])
)
def test_equals_the_plainest_way(q: Any, weights: Any, gain: float, deviation: float) -> None:
    weights = 0.3 * weights
    found = limited(prior(q), CLIENTS, weights, gain, deviation)
    held = highest_shares(q[CLIENTS] / q.sum(), weights)
    if all(part < share_of(weight, gain, deviation) * (1.0 - 1e-9) for weight, part in held):
        assert np.array_equal(found.everybody(), q / q.sum())
        return
    expected = limited_by_bisection(q / q.sum(), CLIENTS, weights, gain, deviation)
    assert found.everybody() == pytest.approx(expected, rel=1e-9)
    assert found.everybody().sum() == pytest.approx(1.0, abs=1e-12)
    assert found.look_up(np.array([4, 0])) == pytest.approx(found.everybody()[[4, 0]], rel=1e-14)


@settings(max_examples=50, deadline=None)
@given(logs=st.lists(st.floats(-30.0, 30.0), min_size=SIZE, max_size=SIZE), prior_share=st.floats(0.0, 0.9))
def test_a_share_of_what_was_learnt(logs: list[float], prior_share: float) -> None:
    """p' = a pi + (1 - a) q': the prior's share stays as it is. Where little is left, some of it is in q'."""
    masses = np.arange(1.0, SIZE + 1.0) / 21.0
    mixed = ReweightedPrior(Roster(SIZE, masses), share=prior_share)
    mixed.reweight(np.arange(SIZE), np.array(logs))
    q, weights, gain = masses * np.exp(logs), np.full(3, 0.1), 3.0
    q /= q.sum()
    found = limited(mixed, CLIENTS, weights, gain, NO_TAIL).everybody()
    assert found.sum() == pytest.approx(1.0, abs=1e-12)
    learnt = (found - prior_share * masses) / (1.0 - prior_share)
    for weight, part in highest_shares(learnt[CLIENTS], weights):
        assert part <= share_of(weight, gain, NO_TAIL) + 1e-9
    missing = max(NEXT_TO_NOTHING - np.delete(q, CLIENTS).sum(), 0.0)
    mixed_in = missing / (missing + np.delete(masses, CLIENTS).sum())
    q = (1.0 - mixed_in) * q + mixed_in * masses
    assert learnt == pytest.approx(
        limited_by_bisection(q, CLIENTS, weights, gain, NO_TAIL), rel=1e-6, abs=1e-12
    )


@pytest.mark.parametrize("rest", [0.1, 1e-4], ids=["by rejection", "from the vector"])
def test_draws_follow_the_distribution(rest: float) -> None:
    p = np.array([1.0 - rest, *np.full(3, rest / 3.0)])
    capped = limited(prior(p), np.array([0]), np.array([0.25]), 0.8, NO_TAIL)
    assert isinstance(capped, Capped)
    assert (capped.scale > LARGEST_SCALE) == (rest < 0.01)
    generator = np.random.default_rng(5)
    draws, drawn = capped.with_generator(generator).draw(generator.random((40000, 2)))
    expected = capped.everybody()
    assert np.array_equal(drawn, expected[draws])
    found = np.bincount(draws, minlength=4) / len(draws)
    errors = np.abs(found - expected) / np.sqrt(expected * (1.0 - expected) / len(draws))
    assert errors.max() < 5.0


@pytest.mark.parametrize("design", ["with_replacement", "without_replacement", "independent"])
def test_every_design_draws_from_it(design: Any) -> None:
    """Among 1000 clients the engine's own draws are used, not the dense ones; weights have mean one."""
    p = np.full(1000, 0.1 / 999)
    p[0] = 0.9
    capped = limited(prior(p), np.array([0]), np.array([0.001]), 50.0, NO_TAIL)
    assert isinstance(capped, Capped)
    totals = np.zeros(1000)
    rounds = 3000
    for seed in range(rounds):
        generator = np.random.default_rng(seed)
        clients, _, _, weights = draw_cohort(design, capped.with_generator(generator), 1000, 4, generator)
        totals[clients] += weights
    assert totals[0] / rounds == pytest.approx(1.0, abs=0.2)  # standard error 0.04
    assert totals[1:].mean() / rounds == pytest.approx(1.0, abs=0.02)


def test_a_rest_too_small_to_be_seen_as_a_difference() -> None:
    """1 - p is all rounding error here; the rest is summed up by itself."""
    p = np.array([1.0, 1e-20, 3e-20])
    capped = limited(prior(p), np.array([0]), np.array([0.4]), 0.5, NO_TAIL)
    assert capped.everybody() == pytest.approx([0.2, 0.2, 0.6], rel=1e-12)


@given(
    clients=st.lists(st.integers(0, 8), min_size=1, max_size=8, unique=True),
    logs=st.lists(st.floats(-200.0, 200.0), min_size=4, max_size=4),
)
def test_the_trees_are_summed_up_without_some(clients: list[int], logs: list[float]) -> None:
    """Of clients seen and unseen, in the block and with masses of their own, one that has left; to rounding.

    The trees are as before.
    """
    mixed = ReweightedPrior(Roster(6, None), share=0.2)
    mixed.add(np.array([1e6, 0.5, 1e-6]))
    mixed.reweight(np.array([0, 2, 6, 8]), np.array(logs), unseen_log=1.0)
    mixed.remove(np.array([3]))
    before = mixed.everybody()
    ids = np.array(sorted(clients))
    others = np.delete(before, ids).sum()
    assert mixed.sum_without(ids) == pytest.approx(others, rel=1e-12)
    assert isinstance(mixed, ExpertMixture)
    assert np.array_equal(mixed.everybody(), before)


@given(data=st.data())
def test_others_are_set_apart_in_each_round(data: st.DataObject) -> None:
    """Whoever is set apart, whatever changes in between: the sums are those of trees that are built anew."""
    mixed = ReweightedPrior(Roster(20, np.arange(1.0, 21.0) / 210.0), share=0.1)
    mixed.reweight(np.arange(12), np.zeros(12))
    for _ in range(4):
        some = np.array(data.draw(st.lists(st.integers(0, 11), min_size=1, max_size=8, unique=True)))
        mixed.reweight(
            some, np.array(data.draw(st.lists(st.floats(-9.0, 9.0), min_size=8, max_size=8)))[: len(some)]
        )
        if data.draw(st.booleans()) and mixed.roster.present(np.array([5])).all():
            mixed.remove(np.array([5]))
        ids = np.unique(data.draw(st.lists(st.integers(0, 11), min_size=1, max_size=8)))
        ids = ids[mixed.roster.present(ids)]
        line = mixed.line_without(ids)
        again = ReweightedPrior(mixed.roster, share=0.1)
        again.restore(mixed.state())
        anew = again.line_without(ids)
        assert line is not None
        assert anew is not None
        for ours, theirs in zip(ExpertTrees(*line.trees)[3:5], ExpertTrees(*anew.trees)[3:5], strict=True):
            assert np.array_equal(ours[-1], theirs[-1])  # the root, to the bit
        others = np.delete(mixed.everybody(), ids).sum()
        assert mixed.sum_without(ids) == pytest.approx(others, rel=1e-12)
