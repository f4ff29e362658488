"""What the guard promises, to the letter, against clients that say anything at all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sortition import (
    AvareSampler,
    Cohort,
    ConfigurationError,
    DoublingOSMDSampler,
    EmpiricalBayesSampler,
    Guard,
    OSMDSampler,
)
from sortition.core.designs import DESIGNS
from sortition.samplers.guard import BELIEVED, OUTDATED, REMEMBERED, GuardState, median_and_quantile
from sortition.testing import check_sampler
from tests.helpers import LEARNERS, SAMPLERS, norms_for, same_cohort, train

M, K = 12, 4
TEN = Guard(clip_factor=10.0, fence=6.0, trial_replies=0)
STRICT = Guard(clip_factor=1.5, largest_rise=1.3, largest_probability=0.2, trial_replies=10)
BUILD: dict[str, Any] = {
    **{name: SAMPLERS[name] for name in LEARNERS},
    "empirical-bayes": EmpiricalBayesSampler,
}
LIES = st.sampled_from([0.0, 1e-300, 1e-6, 1e-3, 1.0, 2.0, 10.0, 1e3, 1e6, 1e300, np.nan])


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("name", BUILD)
def test_guarded_samplers_keep_every_promise(name: str, design: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sortition.testing.promises.DRAWS", 500)
    check_sampler(
        lambda seed: BUILD[name](num_clients=M, cohort_size=K, design=design, seed=seed, guard=STRICT)
    )


@pytest.mark.parametrize("name", BUILD)
@settings(max_examples=25)
@given(data=st.data())
def test_nobody_exceeds_the_cap(name: str, data: st.DataObject) -> None:
    sampler = BUILD[name](num_clients=M, cohort_size=K, guard=Guard(largest_probability=0.15), seed=2)
    for _ in range(5):
        cohort = sampler.draw()
        assert np.all(cohort.probabilities <= 0.15 * (1.0 + 1e-12))
        sampler.observe(cohort, data.draw(st.lists(LIES, min_size=len(cohort), max_size=len(cohort))))
        assert sampler.probabilities().max() <= 0.15 * (1.0 + 1e-12)


def test_a_cap_below_the_average_is_the_average() -> None:
    sampler = AvareSampler(num_clients=4, cohort_size=2, guard=Guard(largest_probability=0.01))
    train(sampler, 5)
    assert sampler.probabilities() == pytest.approx(np.full(4, 0.25))


@pytest.mark.parametrize("name", BUILD)
def test_an_honest_run_is_the_same_to_the_bit(name: str) -> None:
    """Norms within the clip and rises within the limit: the guard has nothing to do, and does nothing."""
    build = DoublingOSMDSampler if name == "doubling" else BUILD[name]  # at the paper's rates
    samplers = [build(num_clients=M, cohort_size=K, guard=g, seed=6) for g in (Guard(), None)]
    for _ in range(40):
        one, other = (sampler.draw() for sampler in samplers)
        for part in ("clients", "counts", "probabilities", "weights"):
            assert np.array_equal(getattr(one, part), getattr(other, part))
        norms = 1.0 + 0.5 * np.sin(one.clients + one.round_index)
        samplers[0].observe(one, norms)
        samplers[1].observe(other, norms)
    assert samplers[0].suspects() == []


def cohort_of(clients: list[int], weights: list[float], round_index: int = 0) -> Cohort:
    ones = np.ones(len(clients))
    return Cohort(round_index, len(clients), clients, ones.astype(int), ones / 2, weights)


def test_a_norm_counts_for_at_most_the_stated_bound() -> None:
    """Median 2 and third quartile 3 of (1, 2, 3, 1e6): the factor 10 decides, or the fence if it is more."""
    cohort, norms = cohort_of([4, 5, 6, 7], [1.0] * 4), np.array([1.0, 2.0, 3.0, 1e6])
    for guard, bound in ((Guard(clip_factor=10.0, fence=1.0), 30.0), (Guard(fence=12.0), 3.0 * 1.5**12)):
        watch = GuardState(replace(guard, trial_replies=0))
        assert watch.norm_bound == np.inf
        clipped = watch.clip(cohort, norms)
        assert clipped.tolist() == [1.0, 2.0, 3.0, pytest.approx(bound)]
        assert watch.norm_bound == pytest.approx(bound)
        (suspect,) = watch.suspects()
        assert (suspect.client, suspect.hits) == (7, 1)
        assert suspect.largest_excess == pytest.approx(1e6 / bound)


def test_replying_often_does_not_move_the_quantile() -> None:
    """A colluder that has replied in a hundred cohorts is one of twenty clients."""
    watch = GuardState(TEN)
    watch.clip(cohort_of(list(range(1, 20)), [1.0] * 19), np.ones(19))
    for t in range(1, 101):
        clipped = watch.clip(cohort_of([0], [0.1], round_index=t), np.array([1e9]))
        assert clipped.tolist() == [pytest.approx(10.0)]


def test_being_drawn_often_does_not_move_the_quantile() -> None:
    """Of clients that are seldom drawn, those ten times as likely to be weigh a tenth."""
    watch, unweighted = GuardState(TEN), GuardState(TEN)
    clients, norms = list(range(29)), np.array([1e9] * 10 + [1.0] * 19)
    watch.clip(cohort_of(clients, [100.0] * 10 + [1000.0] * 19), norms)
    assert watch.norm_bound == pytest.approx(10.0)
    unweighted.clip(cohort_of(clients, [1000.0] * 29), norms)
    assert unweighted.norm_bound > 1e9


@given(values=st.lists(st.floats(-50.0, 50.0), min_size=1, max_size=12), data=st.data())
def test_weighted_quantiles(values: list[float], data: st.DataObject) -> None:
    """By definition: the weight up to it reaches the share, and without it does not."""
    weights = np.array(data.draw(st.lists(st.floats(0.1, 5.0), min_size=len(values), max_size=len(values))))
    x = np.array(values)
    for found, share in zip(median_and_quantile(x, weights, 0.9), (0.5, 0.9), strict=True):
        assert weights[x <= found].sum() >= share * weights.sum() * (1.0 - 1e-9)
        assert weights[x < found].sum() <= share * weights.sum() * (1.0 + 1e-9)


def test_colluders_shift_the_quantiles_by_their_share_and_not_further() -> None:
    """95 honest norms 1..95 and 5 liars: the quantiles stay within 5 ranks of the honest ones."""
    honest, ones = np.log(np.arange(1.0, 96.0)), np.ones(100)
    for lie in (-300.0, 300.0):
        found = median_and_quantile(np.concatenate((honest, np.full(5, lie))), ones, 0.9)
        median, high = np.exp(found)
        assert 45.0 - 1e-9 <= median <= 50.0 + 1e-9
        assert 85.0 - 1e-9 <= high <= 90.0 + 1e-9


def test_one_reply_of_great_weight_does_not_decide() -> None:
    """A client that is hardly ever drawn has a great weight when it is: its lie must not become the level."""
    watch = GuardState(TEN)
    clipped = watch.clip(
        cohort_of([0, 1, 2, 3, 4], [500.0, 1.0, 1.0, 1.0, 1.0]), np.array([1e6, 1.0, 1.0, 1.0, 1.0])
    )
    assert clipped[0] == pytest.approx(10.0)


@pytest.mark.parametrize("scale", [1e-100, 1.0, 1e100])
def test_the_clip_has_no_scale(scale: float) -> None:
    sampler = AvareSampler(num_clients=M, cohort_size=K, guard=TEN, seed=1)
    for _ in range(10):
        cohort = sampler.draw()
        sampler.observe(cohort, scale * np.where(cohort.clients == 2, 1e6, 1.0))
    assert sampler.norm_bound == pytest.approx(10.0 * scale)
    assert [suspect.client for suspect in sampler.suspects()] == [2]


def test_the_bound_follows_the_norms() -> None:
    """Training makes norms fall, and a new phase makes them rise: what was said before does not count."""
    watch = GuardState(TEN)
    for level in (1.0, 1e-3, 1e3):
        watch.clip(cohort_of(list(range(10)), [1.0] * 10), np.full(10, level))
        assert watch.norm_bound == pytest.approx(10.0 * level)


def test_who_fell_silent_is_no_yardstick() -> None:
    """Thirty clients with norms of 1 outvote ten with smaller ones, until they are outdated."""
    watch, others = GuardState(TEN), cohort_of(list(range(30, 40)), [1.0] * 10)
    watch.clip(cohort_of(list(range(30)), [1.0] * 30), np.ones(30))
    for replies in range(30, OUTDATED + 20, 10):
        watch.clip(others, np.full(10, 1e-3))
        assert watch.norm_bound == pytest.approx(10.0 if replies <= OUTDATED else 0.01)


def test_the_last_replies_are_remembered() -> None:
    """Of a cohort larger than what is remembered, the last ones judge."""
    size = 20 * REMEMBERED
    watch = GuardState(TEN)
    watch.clip(
        cohort_of(list(range(size)), [1.0] * size), np.repeat([1.0, 1e-3], [size - REMEMBERED, REMEMBERED])
    )
    assert watch.norm_bound == pytest.approx(0.01)


def test_trial_replies_are_believed() -> None:
    """The first ten are; the bound that they set holds for updates from the start, and then for norms."""
    watch = GuardState(Guard(clip_factor=10.0, fence=6.0, trial_replies=10))
    for t, believed in enumerate((1e6, 1e6, 10.0)):
        cohort = cohort_of(list(range(5 * t, 5 * t + 5)), [1.0] * 5, round_index=t)
        assert watch.clip(cohort, np.array([1.0, 1.0, 1.0, 1.0, 1e6]))[-1] == pytest.approx(believed)
        assert watch.norm_bound == pytest.approx(10.0)
    assert [suspect.client for suspect in watch.suspects()] == [14]
    fresh = GuardState(Guard(clip_factor=10.0, fence=6.0, trial_replies=10))
    lie = fresh.clip(cohort_of(list(range(5)), [1.0] * 5), np.array([1.0, 1.0, 1.0, 1.0, 1e300]))[-1]
    assert lie == pytest.approx(10.0 * BELIEVED)


def test_zeros_are_no_level() -> None:
    """Clients that have nothing to send, or say so, do not pull the bound down."""
    watch = GuardState(TEN)
    clipped = watch.clip(cohort_of([0, 1, 2, 3, 4], [1.0] * 5), np.array([0.0, 0.0, 0.0, 0.0, 5.0]))
    assert clipped.tolist() == [0.0, 0.0, 0.0, 0.0, 5.0]


def test_one_lie_in_the_first_cohort_does_not_stop_the_learning() -> None:
    """The bound A_max is the largest of the first feedback; unguarded, one lie makes all rates vanish."""
    spread = []
    for guard in (TEN, None):
        sampler = SAMPLERS["adaptive"](num_clients=M, cohort_size=K, guard=guard, seed=0)
        for t in range(40):
            cohort = sampler.draw()
            norms = 1.0 + cohort.clients.astype(float)
            if t == 0:
                liar = cohort.clients[0]
                norms[0] = 1e8
            sampler.observe(cohort, norms)
        spread.append(np.ptp(np.delete(sampler.probabilities(), liar)))
    assert spread[0] > 100.0 * spread[1]


def test_one_lie_does_not_spoil_the_calibration() -> None:
    """The bound A_max is 1/M^2 for norms of one, and (100/M)^2 with a liar among them: the clip."""
    norms = np.ones(M)
    norms[3] = 1e9
    for guard, bound in ((Guard(), (100.0 / M) ** 2), (None, (1e9 / M) ** 2)):
        sampler = SAMPLERS["adaptive"](num_clients=M, cohort_size=K, guard=guard)
        sampler.calibrate(norms)
        assert sampler.feedback_bound == pytest.approx(bound)
        assert sampler.suspects() == []


def test_the_guard_survives_saving() -> None:
    whole, resumed = (AvareSampler(num_clients=M, cohort_size=K, guard=STRICT, seed=1) for _ in range(2))
    for _ in range(15):
        cohort = whole.draw()
        whole.observe(cohort, np.where(cohort.clients < 2, 1e200, norms_for(cohort)))
    resumed.load_state_dict(whole.state_dict())
    assert resumed.suspects() == whole.suspects() != []
    assert resumed.norm_bound == whole.norm_bound
    assert all(map(same_cohort, train(whole, 5), train(resumed, 5)))


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"clip_factor": 1.0}, "clip_factor must be a finite number above 1, got 1.0"),
        ({"largest_rise": 0.5}, "largest_rise must be a finite number above 1, got 0.5"),
        ({"largest_rise": float("inf")}, "largest_rise must be a finite number"),
        ({"fence": 0.0}, "fence must be a finite number above 0"),
        ({"fence": "4"}, "fence must be a finite number above 0, got '4'"),
        ({"outliers_share": True}, r"outliers_share must lie in \(0, 1\], got True"),
        ({"trial_replies": -1}, "trial_replies must be a whole number"),
        ({"clip_factor": 10**5000}, "above 1, got a number of too many digits"),
        ({"clip_factor": list(range(9999))}, r"above 1, got \[0, 1, .{490,500}\.\.\.$"),
        ({"trial_replies": 10**9}, "trial_replies must be at most 5000, got 1000000000"),
        ({"outlier_factor": 1.0}, "outlier_factor must be a finite number above 1, got 1.0"),
        ({"outliers_share": 0.0}, r"outliers_share must lie in \(0, 1\], got 0.0"),
        ({"largest_probability": 0.0}, r"largest_probability must lie in \(0, 1\], got 0.0"),
    ],
)
def test_settings_are_checked(chosen: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Guard(**chosen)


def test_a_guard_is_a_guard() -> None:
    with pytest.raises(ConfigurationError, match="guard must be a Guard or None, got True"):
        OSMDSampler(num_clients=3, cohort_size=1, learning_rate=0.1, guard=True)  # type: ignore[arg-type]


def test_whole_numbers_are_the_same_setting() -> None:
    assert repr(Guard(clip_factor=100, fence=4, outliers_share=np.float64(0.5))) == repr(Guard())
