"""A share for some clients, against the plainest way to compute it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortition.engine.capped import Capped, limited
from sortition.engine.clients import Roster
from sortition.engine.drawing import draw_cohort
from sortition.engine.expert_trees import ExpertTrees
from sortition.engine.fixed import Prior
from sortition.engine.limit import LARGEST_SCALE, levelled
from sortition.engine.mixture import ExpertMixture
from sortition.engine.reweighted import ReweightedPrior
from tests.helpers import simplex

SIZE = 6
CLIENTS = np.array([1, 2, 4])


def prior(p: Any) -> Prior:
    return Prior(Roster(len(p), np.asarray(p)))


def limited_by_bisection(q: Any, clients: Any, weights: Any, share: float) -> Any:
    """Scale the others to 1 - share; halve an interval for the level of the clients."""
    others = np.setdiff1d(np.arange(len(q)), clients)
    result = q * (1.0 - share) / q[others].sum()
    low, high = 0.0, 1e12
    for _ in range(300):
        level = 0.5 * (low + high)
        below = np.minimum(level * weights, result[clients]).sum() < share
        low, high = (level, high) if below else (low, level)
    result[clients] = np.minimum(low * weights, result[clients])
    return result


@given(q=simplex(SIZE), weights=simplex(3), share=st.floats(0.01, 0.95))
def test_equals_the_plainest_way(q: Any, weights: Any, share: float) -> None:
    found = limited(prior(q), CLIENTS, weights, share)
    if q[CLIENTS].sum() <= share:
        assert np.array_equal(found.everybody(), q / q.sum())
        return
    expected = limited_by_bisection(q, CLIENTS, weights, share)
    assert found.everybody() == pytest.approx(expected, rel=1e-9)
    assert found.everybody().sum() == pytest.approx(1.0, abs=1e-12)
    assert found.everybody()[CLIENTS].sum() == pytest.approx(share, rel=1e-12)
    assert found.look_up(np.array([4, 0])) == pytest.approx(found.everybody()[[4, 0]], rel=1e-14)


@given(logs=st.lists(st.floats(-30.0, 30.0), min_size=SIZE, max_size=SIZE), prior_share=st.floats(0.0, 0.9))
def test_a_share_of_what_was_learnt(logs: list[float], prior_share: float) -> None:
    """p' = a pi + (1 - a) q': the prior's share stays as it is."""
    masses = np.arange(1.0, SIZE + 1.0) / 21.0
    mixed = ReweightedPrior(Roster(SIZE, masses), share=prior_share)
    mixed.reweight(np.arange(SIZE), np.array(logs))
    q, weights, share = masses * np.exp(logs), np.full(3, 0.1), 0.3
    q /= q.sum()
    if q[CLIENTS].sum() > share:
        left, others = np.delete(q, CLIENTS).sum(), np.delete(masses, CLIENTS).sum()
        q = q + max((1.0 - share) / LARGEST_SCALE - left, 0.0) / others * masses  # where little is left
        q = limited_by_bisection(q, CLIENTS, weights, share)
    found = limited(mixed, CLIENTS, weights, share)
    assert found.everybody() == pytest.approx(prior_share * masses + (1.0 - prior_share) * q, rel=1e-9)
    assert found.everybody().sum() == pytest.approx(1.0, abs=1e-12)


@given(data=st.data())
def test_levelling(data: st.DataObject) -> None:
    """The sum is the share; nobody has more than before; every client that has less is at the one level."""
    size = data.draw(st.integers(1, 8))
    positive = st.lists(st.floats(1e-9, 1.0), min_size=size, max_size=size)
    q, weights = np.array(data.draw(positive)), np.array(data.draw(positive))
    share = data.draw(st.floats(0.01, 0.99)) * float(q.sum())
    found = levelled(q, weights, share)
    assert found.sum() == pytest.approx(share)
    assert (found <= q).all()
    cut = found < q * (1.0 - 1e-9)
    assert np.ptp((found / weights)[cut]) <= 1e-9 * (found / weights)[cut].max()


@pytest.mark.parametrize("rest", [0.1, 1e-4], ids=["by rejection", "from the vector"])
def test_draws_follow_the_distribution(rest: float) -> None:
    p = np.array([1.0 - rest, *np.full(3, rest / 3.0)])
    capped = limited(prior(p), np.array([0]), np.array([0.25]), share=0.2)
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
    capped = limited(prior(p), np.array([0]), np.array([0.001]), share=0.05)
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
    capped = limited(prior(p), np.array([0]), np.array([0.3]), share=0.2)
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
