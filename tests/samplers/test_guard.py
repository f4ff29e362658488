"""What the guard promises, to the letter, against clients that report anything at all."""

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
    KVibSampler,
    OSMDSampler,
    PortfolioSampler,
    ProportionalSampler,
    StateError,
    VRBSampler,
)
from sortition.core.designs import DESIGNS
from sortition.core.types import FloatArray, IntArray
from sortition.core.variance import log_feedback
from sortition.samplers.base import BaseSampler
from sortition.samplers.guard import (
    BELIEVED,
    OUTDATED,
    REMEMBERED,
    UNCERTAINTY,
    Fences,
    GuardState,
    all_ordinary,
    among,
    bounds_of,
    levelled,
    median_and_quantile,
)
from sortition.testing import check_sampler
from tests.helpers import LEARNERS, SAMPLERS, norms_for, same_cohort, same_state, train

M, K = 12, 4
NO_TRIAL = Guard(clip_factor=10.0, fence=6.0, trial_replies=0)
STRICT = Guard(clip_factor=1.5, largest_rise=1.3, largest_probability=0.2, trial_replies=10)
SLOW = Guard(largest_rise=1.3, clip_factor=1e6, outlier_factor=1e5)
TRIAL_OF_TEN = Guard(trial_replies=10)
TRIAL_CLIENTS = 40
LIES = [0.0, 1e-300, 1e-6, 1e-3, 1.0, 2.0, 10.0, 1e3, 1e6, 1e300, np.nan]
BOUNDED = ("adaptive", "doubling", "mabs", "vrb", "k-vib")


def portfolio_of_two(guard: Guard, seed: int = 0, **common: Any) -> PortfolioSampler:
    experts = [kind(**common, guard=None) for kind in (AvareSampler, EmpiricalBayesSampler)]
    return PortfolioSampler(experts=experts, guard=guard, seed=seed)


def portfolio_of_all_kinds(*, guard: Guard | None, seed: int, **common: Any) -> PortfolioSampler:
    """Of one sampler of each kind that begins with uniform probabilities, a portfolio among them.

    Then joins and leaves change no weights before anything is learnt.
    """
    nested = PortfolioSampler(experts=[VRBSampler(**common), ProportionalSampler(**common)])
    kinds = ("osmd", "adaptive", "doubling", "mabs", "avare")
    experts = [nested, *(SAMPLERS[kind](**common) for kind in kinds), EmpiricalBayesSampler(**common)]
    return PortfolioSampler(experts=experts, guard=guard, seed=seed)


BUILD: dict[str, Any] = {
    **{name: SAMPLERS[name] for name in LEARNERS},
    "empirical-bayes": EmpiricalBayesSampler,
}
BUILD_RISING: dict[str, Any] = {
    **BUILD,
    "k-vib": lambda **common: KVibSampler(num_rounds=40, **common),
    "portfolio": portfolio_of_two,
}
BUILD_ALL: dict[str, Any] = {
    **SAMPLERS,
    "k-vib": lambda **common: KVibSampler(num_rounds=40, exploration=0.4, **common),
    "empirical-bayes": EmpiricalBayesSampler,
    "portfolio": portfolio_of_all_kinds,
}


def guard_of(sampler: BaseSampler) -> GuardState:
    assert sampler._guard is not None
    return sampler._guard


def cohort_of(clients: list[int], weights: list[float] | None = None, round_index: int = 0) -> Cohort:
    ones = np.ones(len(clients))
    given = ones if weights is None else weights
    return Cohort(round_index, len(clients), clients, ones.astype(int), ones / 2, given)


# The clip and the cap -----------------------------------------------------------------------------------


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
        sampler.observe(
            cohort, data.draw(st.lists(st.sampled_from(LIES), min_size=len(cohort), max_size=len(cohort)))
        )
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


def test_a_norm_counts_for_at_most_the_stated_bound() -> None:
    """Median 2 and third quartile 3 of (1, 2, 3, 1e6): the factor 10 decides, or the fence if it is more."""
    cohort, norms = cohort_of([4, 5, 6, 7], [1.0] * 4), np.array([1.0, 2.0, 3.0, 1e6])
    for guard, bound in ((Guard(clip_factor=10.0, fence=1.0), 30.0), (Guard(fence=12.0), 3.0 * 1.5**12)):
        guard_state = GuardState(replace(guard, trial_replies=0))
        assert guard_state.norm_bound == np.inf
        clipped = guard_state.clip(cohort, norms)
        assert clipped.tolist() == [1.0, 2.0, 3.0, pytest.approx(bound)]
        assert guard_state.norm_bound == pytest.approx(bound)
        (suspect,) = guard_state.suspects()
        assert (suspect.client, suspect.hits) == (7, 1)
        assert suspect.largest_excess == pytest.approx(1e6 / bound)


def test_replying_often_does_not_move_the_quantile() -> None:
    """A colluder that has replied in a hundred cohorts is one of twenty clients."""
    guard_state = GuardState(NO_TRIAL)
    guard_state.clip(cohort_of(list(range(1, 20)), [1.0] * 19), np.ones(19))
    for t in range(1, 101):
        clipped = guard_state.clip(cohort_of([0], [0.1], round_index=t), np.array([1e9]))
        assert clipped.tolist() == [pytest.approx(10.0)]


def test_being_drawn_often_does_not_move_the_quantile() -> None:
    """Of clients that are seldom drawn, those ten times as likely to be weigh a tenth."""
    guard_state, unweighted = GuardState(NO_TRIAL), GuardState(NO_TRIAL)
    clients, norms = list(range(29)), np.array([1e9] * 10 + [1.0] * 19)
    guard_state.clip(cohort_of(clients, [100.0] * 10 + [1000.0] * 19), norms)
    assert guard_state.norm_bound == pytest.approx(10.0)
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
    """A client that is hardly ever drawn has a great weight when it is: its lie must not decide alone."""
    guard_state = GuardState(NO_TRIAL)
    clipped = guard_state.clip(
        cohort_of([0, 1, 2, 3, 4], [500.0, 1.0, 1.0, 1.0, 1.0]), np.array([1e6, 1.0, 1.0, 1.0, 1.0])
    )
    assert clipped[0] == pytest.approx(10.0)


@pytest.mark.parametrize("scale", [1e-100, 1.0, 1e100])
def test_the_clip_has_no_scale(scale: float) -> None:
    sampler = AvareSampler(num_clients=M, cohort_size=K, guard=NO_TRIAL, seed=1)
    for _ in range(10):
        cohort = sampler.draw()
        sampler.observe(cohort, scale * np.where(cohort.clients == 2, 1e6, 1.0))
    assert sampler.norm_bound == pytest.approx(10.0 * scale)
    assert [suspect.client for suspect in sampler.suspects()] == [2]


def test_the_bound_follows_the_norms() -> None:
    """Training makes norms fall, and a new phase makes them rise: earlier norms do not count."""
    guard_state = GuardState(NO_TRIAL)
    for level in (1.0, 1e-3, 1e3):
        guard_state.clip(cohort_of(list(range(10)), [1.0] * 10), np.full(10, level))
        assert guard_state.norm_bound == pytest.approx(10.0 * level)


def test_norms_of_silent_clients_are_outdated() -> None:
    """Thirty clients with norms of 1 count for more than ten with smaller ones, until they are outdated."""
    guard_state, others = GuardState(NO_TRIAL), cohort_of(list(range(30, 40)), [1.0] * 10)
    guard_state.clip(cohort_of(list(range(30)), [1.0] * 30), np.ones(30))
    for replies in range(30, OUTDATED + 20, 10):
        guard_state.clip(others, np.full(10, 1e-3))
        assert guard_state.norm_bound == pytest.approx(10.0 if replies <= OUTDATED else 0.01)


def test_the_last_replies_are_remembered() -> None:
    """Of a cohort larger than what is remembered, the last ones judge."""
    size = 20 * REMEMBERED
    guard_state = GuardState(NO_TRIAL)
    guard_state.clip(
        cohort_of(list(range(size)), [1.0] * size), np.repeat([1.0, 1e-3], [size - REMEMBERED, REMEMBERED])
    )
    assert guard_state.norm_bound == pytest.approx(0.01)


def test_trial_replies_are_believed() -> None:
    """The first ten are; the bound that they set holds for updates from the start, and then for norms."""
    guard_state = GuardState(Guard(clip_factor=10.0, fence=6.0, trial_replies=10))
    for t, believed in enumerate((1e6, 1e6, 10.0)):
        cohort = cohort_of(list(range(5 * t, 5 * t + 5)), [1.0] * 5, round_index=t)
        assert guard_state.clip(cohort, np.array([1.0, 1.0, 1.0, 1.0, 1e6]))[-1] == pytest.approx(believed)
        assert guard_state.norm_bound == pytest.approx(10.0)
    assert [suspect.client for suspect in guard_state.suspects()] == [14]
    fresh = GuardState(Guard(clip_factor=10.0, fence=6.0, trial_replies=10))
    lie = fresh.clip(cohort_of(list(range(5)), [1.0] * 5), np.array([1.0, 1.0, 1.0, 1.0, 1e300]))[-1]
    assert lie == pytest.approx(10.0 * BELIEVED)


def test_zeros_do_not_lower_the_bound() -> None:
    """Clients with norms of zero are left out of the quantiles."""
    guard_state = GuardState(NO_TRIAL)
    clipped = guard_state.clip(cohort_of([0, 1, 2, 3, 4], [1.0] * 5), np.array([0.0, 0.0, 0.0, 0.0, 5.0]))
    assert clipped.tolist() == [0.0, 0.0, 0.0, 0.0, 5.0]


def test_one_lie_in_the_first_cohort_does_not_stop_the_learning() -> None:
    """The bound A_max is the largest of the first feedback; unguarded, one lie makes all rates vanish."""
    spread = []
    for guard in (NO_TRIAL, None):
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
    "chosen",
    [
        {"clip_factor": 1.0},
        {"clip_factor": 10**5000},
        {"clip_factor": list(range(9999))},
        {"largest_rise": 0.5},
        {"largest_rise": float("inf")},
        {"fence": 0.0},
        {"fence": "4"},
        {"outlier_factor": 1.0},
        {"outliers_share": True},
        {"outliers_share": 0.0},
        {"trial_replies": -1},
        {"trial_replies": 10**9},
        {"largest_probability": 0.0},
    ],
)
def test_settings_are_checked(chosen: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(chosen))) as caught:
        Guard(**chosen)
    assert len(str(caught.value)) < 600  # a long value is shortened


def test_guard_must_be_a_guard() -> None:
    with pytest.raises(ConfigurationError, match="guard"):
        OSMDSampler(num_clients=3, cohort_size=1, learning_rate=0.1, guard=True)  # type: ignore[arg-type]


def test_whole_numbers_are_the_same_setting() -> None:
    assert repr(Guard(clip_factor=100, fence=4, outliers_share=np.float64(0.5))) == repr(Guard())


# The rise -----------------------------------------------------------------------------------------------


def reported_norms(clients: IntArray, liars_only: bool, rng: np.random.Generator) -> FloatArray:
    """Anything at all from anybody; or clients 0 and 1, with the heaviest lie or none beside honest ones."""
    if not liars_only:
        return rng.choice(LIES, len(clients))
    return np.where(clients < 2, rng.choice([1.0, 1e6]), 1.0)


def missing(sampler: BaseSampler) -> float:
    """The factor by which ceilings had to be raised: every client has one, and they sum to less than one."""
    clients, ceilings = guard_of(sampler)._all_ceilings(sampler.distribution, sampler._weights)
    p = sampler.distribution.everybody()
    possible = p[clients] > 0.0
    return 1.0 if np.delete(p, clients).any() else 1.0 / min(1.0, float(ceilings[possible].sum()))


@pytest.mark.parametrize("rise", [1.3, 10.0])
@pytest.mark.parametrize("name", BUILD_RISING)
@settings(max_examples=15)
@given(
    seed=st.integers(0, 1000),
    concentration=st.sampled_from([0.3, 1.0, None]),
    share=st.sampled_from([0.02, 0.2, 0.5, 1.0]),
    trial=st.sampled_from([0, 10, 50]),
    liars_only=st.booleans(),
    changing=st.booleans(),
)
def test_no_report_raises_its_sender_by_more_than_the_stated_factor(
    name: str,
    rise: float,
    seed: int,
    concentration: float | None,
    share: float,
    trial: int,
    liars_only: bool,
    changing: bool,
) -> None:
    """p(after) <= rise * p(before) for all that replied: by each feedback, and by all between two draws.

    Whatever the client weights, the share of outliers, the joins and leaves, and the delay.
    """
    rng = np.random.default_rng(seed)
    weights = None if concentration is None else rng.dirichlet(np.full(M, concentration)) + 1e-6
    guard = Guard(largest_rise=rise, outliers_share=share, trial_replies=trial)
    sampler = BUILD_RISING[name](
        num_clients=M,
        cohort_size=K,
        guard=guard,
        seed=seed,
        client_weights=None if weights is None else weights / weights.sum(),
    )
    late = []
    for _ in range(40):
        if changing and rng.random() < 0.1:
            sampler.add_clients(rng.dirichlet([1.0, 1.0]), client_weights=rng.random(2) + 0.01)
            sampler.remove_clients([rng.choice(np.flatnonzero(sampler.probabilities() > 0.0)[2:])])
        late.append(sampler.draw())
        at_first: dict[int, float] = {}
        for _ in range(int(rng.integers(0, len(late) + 1))):
            cohort = late.pop(int(rng.integers(len(late))))
            norms = reported_norms(cohort.clients, liars_only, rng)
            before = sampler.probabilities()
            sampler.observe(cohort, norms)
            after = sampler.probabilities()
            assert after.sum() == pytest.approx(1.0, abs=1e-9)
            heard = cohort.clients[~np.isnan(norms)]
            room = missing(sampler) * (1.0 + 1e-9)
            assert np.all(after[heard] <= rise * before[heard] * room)
            for client in heard.tolist():
                at_first.setdefault(client, before[client])
            assert all(after[client] <= rise * p * room for client, p in at_first.items())


@pytest.mark.parametrize("name", ["osmd", "avare", "empirical-bayes"])
def test_a_ceiling_rises_by_the_factor_until_it_is_not_needed(name: str) -> None:
    """What a client asks for it gets in the end, if it keeps asking: the rise delays, the clip decides."""
    guard = Guard(largest_rise=1.2, clip_factor=1e6)
    guarded, plain = (
        BUILD_RISING[name](num_clients=M, cohort_size=K, guard=g, seed=1) for g in (guard, None)
    )
    for sampler in (guarded, plain):
        for _ in range(100):
            cohort = sampler.draw()
            sampler.observe(cohort, np.where(cohort.clients == 5, 8.0, 1.0))
    assert guarded.probabilities([5])[0] == pytest.approx(plain.probabilities([5])[0], rel=0.3)


def test_ceilings_go_up_once_between_two_draws() -> None:
    """However many late replies of others come in between, a liar that has fallen silent gets one factor."""
    sampler = AvareSampler(num_clients=1000, cohort_size=50, guard=SLOW, seed=0)
    cohort = sampler.draw()
    liar = cohort.clients[0]
    sampler.observe(cohort, np.where(cohort.clients == liar, 1e6, 1.0))
    for _ in range(3):
        late = [sampler.draw() for _ in range(4)]
        before = sampler.probabilities([liar])[0]
        for cohort in late:
            sampler.observe(cohort, np.where(cohort.clients == liar, np.nan, 1.0))
        assert sampler.probabilities([liar])[0] == pytest.approx(1.3 * before)


def test_late_reports_between_two_draws_count_as_one() -> None:
    sampler = AvareSampler(num_clients=M, cohort_size=M, design="without_replacement", guard=SLOW, seed=0)
    cohorts = [sampler.draw() for _ in range(5)]
    before = sampler.probabilities([3])[0]
    for cohort in cohorts:
        sampler.observe(cohort, np.where(cohort.clients == 3, 1e6, 1.0))
    assert sampler.probabilities([3])[0] == pytest.approx(1.3 * before)
    sampler.observe(sampler.draw(), np.ones(M))


def test_a_run_is_resumed_between_two_late_reports() -> None:
    whole, resumed = (AvareSampler(num_clients=M, cohort_size=K, guard=SLOW, seed=1) for _ in range(2))
    cohorts = [whole.draw() for _ in range(6)]
    for cohort in cohorts[:3]:
        whole.observe(cohort, np.where(cohort.clients < 4, 1e6, 1.0))
    resumed.load_state_dict(whole.state_dict())
    for sampler in (whole, resumed):
        for cohort in cohorts[3:]:
            sampler.observe(cohort, np.where(cohort.clients < 4, 1e6, norms_for(cohort)))
    assert np.array_equal(whole.probabilities(), resumed.probabilities())
    assert same_cohort(whole.draw(), resumed.draw())


# Outliers and their share -------------------------------------------------------------------------------


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
    state = guard_of(sampler)
    for _ in range(12):
        cohort = sampler.draw()
        sampler.observe(
            cohort, data.draw(st.lists(st.sampled_from(LIES), min_size=len(cohort), max_size=len(cohort)))
        )
        if not len(state._outliers):
            continue
        share = max(0.3, state._window.expected_share, sampler.client_weights(state._outliers).sum())
        p = sampler.probabilities()
        everybody = len(state._outliers) + len(np.setdiff1d(state._held, state._outliers)) >= M
        assert everybody or p[state._outliers].sum() <= share * (1.0 + 1e-9)
        assert p.sum() == pytest.approx(1.0)


def test_honest_heavy_clients_keep_half_of_the_draws() -> None:
    """Two of a hundred with fifty times the norms of the others should have half: they do."""
    held = liars_hold("avare", Guard(), 50.0, 2)
    assert held == pytest.approx(liars_hold("avare", None, 50.0, 2), rel=0.02)
    assert held > 0.35


def test_a_client_that_is_no_outlier_any_more_has_no_ceiling() -> None:
    guarded, plain = (AvareSampler(num_clients=M, cohort_size=K, guard=g, seed=1) for g in (Guard(), None))
    for sampler in (guarded, plain):
        for t in range(60):
            cohort = sampler.draw()
            sampler.observe(cohort, np.where((cohort.clients == 5) & (t < 30), 1e3, 1.0))
    assert np.array_equal(guarded.probabilities(), plain.probabilities())


@given(data=st.data())
def test_levelling(data: st.DataObject) -> None:
    """The sum is the share; nobody has more than before; every client that has less is at the one level."""
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
    """With more outliers than MANY, the last replies say whether summing up is worth while; here it is."""
    monkeypatch.setattr("sortition.samplers.guard.MANY", 3)
    assert liars_hold("avare", Guard(outliers_share=0.3), 1e6, 5) <= 0.3 * (1.0 + 1e-9)


def test_many_outliers_do_not_escape_by_falling_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that lie once and never reply again are summed up all the same."""
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
def test_what_outliers_may_hold_follows_joins_and_leaves(leaves: bool) -> None:
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
    assert guard_of(sampler)._outliers.tolist() == ([1, 2, 3, 4, 5] if leaves else [0, 1, 2, 3, 4, 5])


def test_where_most_norms_are_zero_liars_are_judged_by_the_rest() -> None:
    """As docs/hostile-clients.md says: 5% of the clients lie, 4% have norms, 91% have none."""
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
    """Five of a hundred lie in some of their replies: one honest reply does not undo a lie."""
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
def test_a_client_that_lies_at_first_and_falls_silent_is_found_later(
    name: str, cohort_size: int, trial: int
) -> None:
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


def test_clients_that_have_left_do_not_set_the_bound() -> None:
    """Colluders that leave and join again with new ids count no more than before."""
    sampler = AvareSampler(num_clients=100, cohort_size=20, guard=Guard(), seed=0)
    liars = np.arange(5)
    for _ in range(60):
        cohort = sampler.draw()
        sampler.observe(cohort, np.where(among(cohort.clients, liars), 1e6, 1.0))
        sampler.remove_clients(liars)
        liars = sampler.add_clients(5)
        assert sampler.norm_bound <= 100.0 * (1.0 + 1e-9)


# The first replies, on trial ----------------------------------------------------------------------------


def sampler_with(guard: Guard | None, seed: int = 3, name: str = "empirical-bayes") -> Any:
    return BUILD_ALL[name](num_clients=TRIAL_CLIENTS, cohort_size=K, guard=guard, seed=seed)


def norms_of(cohort: Cohort, liar: int, lie: float) -> Any:
    return np.where(cohort.clients == liar, lie, 1.0 + 0.01 * cohort.clients)


@pytest.mark.parametrize("name", BUILD_ALL)
def test_first_replies_are_learnt_again_without_their_lies(name: str) -> None:
    """To the bit what a sampler knows that was given the clipped norms from the start."""
    sampler, other = (sampler_with(guard, name=name) for guard in (TRIAL_OF_TEN, None))
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
        other.learn(cohort, log_feedback(np.full(len(cohort), 1.0 / TRIAL_CLIENTS), believed))
    assert same_state(sampler._state(), other._state())
    assert np.array_equal(sampler.distribution.everybody(), other.distribution.everybody())


@pytest.mark.parametrize("name", BUILD_ALL)
def test_without_lies_nothing_is_learnt_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    guard = replace(TRIAL_OF_TEN, largest_rise=1e9)  # one of them is made to go too fast
    sampler, other = (sampler_with(guard, name=name) for guard in (guard, None))
    monkeypatch.setattr(sampler, "_begin", None)  # would raise
    for _ in range(10):
        for each in (sampler, other):
            cohort = each.draw()
            each.observe(cohort, norms_of(cohort, -1, 0.0))
        assert np.array_equal(sampler.probabilities(), other.probabilities())


@pytest.mark.parametrize("after", [1, 2, 3, 6])
@pytest.mark.parametrize("name", BUILD_ALL)
def test_a_run_is_resumed_on_trial(name: str, after: int) -> None:
    """Saved after one to six feedbacks; about the third ends the trial."""
    whole, resumed = sampler_with(TRIAL_OF_TEN, name=name), sampler_with(TRIAL_OF_TEN, seed=8, name=name)
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
@pytest.mark.parametrize("name", BUILD_ALL)
def test_clients_join_and_leave_on_trial(name: str, leaves: str) -> None:
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
        assert np.delete(p, gone).min() > (0.0 if name == "fixed" else 0.1 / (TRIAL_CLIENTS + 3))
        assert p.sum() == pytest.approx(1.0)
        cohort = sampler.draw()
        sampler.observe(cohort, norms_of(cohort, liar, 1e12))


@pytest.mark.parametrize("name", BUILD_ALL)
def test_clients_that_joined_on_trial_are_there_from_the_start(name: str) -> None:
    """Learnt again with the newcomers and without those that left: as if the run had begun like this."""
    sampler = sampler_with(Guard(trial_replies=20), name=name)
    first = sampler.draw()
    liar, gone = first.clients[:2].tolist()
    sampler.observe(first, norms_of(first, liar, 1e12))
    newcomers = sampler.add_clients(3)
    sampler.remove_clients([gone])
    fresh = sampler_with(None, name=name)
    fresh.add_clients(3)
    fresh.remove_clients([gone])
    sampler._begin()
    assert sampler.distribution.everybody() == pytest.approx(fresh.distribution.everybody(), rel=1e-12)
    for each in (sampler, fresh):
        here = np.setdiff1d(np.arange(TRIAL_CLIENTS), gone)[:K]
        ones = np.ones(K)
        cohort = Cohort(
            0, K, np.append(here[:-1], newcomers[0]), ones.astype(int), ones / TRIAL_CLIENTS, ones
        )
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
def test_the_feedback_bound_does_not_come_from_lies(name: str, known: str, change: str) -> None:
    """Given or calibrated it stays; taken from a first feedback that was a lie, it is taken again.

    When clients join, client weights fall by a factor, and the bound by its square.
    """
    bound = {"feedback_bound": 3.0} if known == "given" else {}
    sampler, other = (
        BUILD_ALL[name](num_clients=TRIAL_CLIENTS, cohort_size=K, guard=TRIAL_OF_TEN, seed=3, **bound)
        for _ in range(2)
    )
    if known == "calibrated":
        sampler.calibrate(np.full(TRIAL_CLIENTS, 2.0))
    before, clients = sampler.feedback_bound, TRIAL_CLIENTS
    cohort = sampler.draw()
    liar = int(cohort.clients[0])
    sampler.observe(cohort, norms_of(cohort, liar, 1e9))
    if change == "joined":
        sampler.add_clients(TRIAL_CLIENTS)
        clients = 2 * TRIAL_CLIENTS
    elif change == "resumed":
        other.load_state_dict(sampler.state_dict())
        sampler = other
    until_caught(sampler, liar)
    if known == "from feedback":
        assert sampler.feedback_bound == pytest.approx((sampler.norm_bound / clients) ** 2)
    else:
        assert sampler.feedback_bound == pytest.approx(before * (TRIAL_CLIENTS / clients) ** 2, rel=1e-12)


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
    sampler = BUILD_ALL[name](
        num_clients=TRIAL_CLIENTS, cohort_size=K, guard=TRIAL_OF_TEN, feedback_bound=3.0
    )
    state = sampler.state_dict()
    with pytest.raises(StateError, match=key):
        sampler.load_state_dict({**state, key: value})
    assert same_state(sampler.state_dict(), state)


def damaged(state: dict[str, Any], key: str, place: tuple[int, ...], value: float) -> dict[str, Any]:
    wrong = state[key].copy()
    wrong[place] = value
    return {**state, key: wrong}


@pytest.mark.parametrize(
    ("key", "place", "value"),
    [
        ("trial.told", (0, 0), 0.0),  # a probability
        ("trial.told", (1, 0), 0.0),  # a weight
        ("trial.told", (2, 0), np.inf),
        ("trial.drawn", (0, 0), -1),
        ("trial.drawn", (0, 0), TRIAL_CLIENTS),
        ("trial.drawn", (1, 0), 0),
        ("trial.sizes", (0, 1), 0),
        ("trial.sizes", (0, 2), 1),
        ("trial.heard", (0,), 3),
        ("trial.heard", (1,), 10**6),
    ],
)
def test_damaged_first_replies_are_refused(key: str, place: tuple[int, ...], value: float) -> None:
    sampler = sampler_with(TRIAL_OF_TEN)
    cohort = sampler.draw()
    sampler.observe(cohort, norms_of(cohort, -1, 0.0))
    state = sampler.state_dict()
    with pytest.raises(StateError, match=key):
        sampler.load_state_dict(damaged(state, key, place, value))
    assert same_state(sampler.state_dict(), state)


def test_first_replies_that_contradict_each_other_are_refused() -> None:
    """A norm of zero where one above zero was counted, a client twice in a round, other counts of replies."""
    sampler = sampler_with(TRIAL_OF_TEN)
    cohort = sampler.draw()
    sampler.observe(cohort, norms_of(cohort, -1, 0.0))
    state = sampler.state_dict()
    for wrong, entry in (
        (damaged(state, "trial.told", (2, 0), 0.0), "trial.heard"),
        (damaged(state, "trial.drawn", (0, 0), state["trial.drawn"][0, 1]), "trial.drawn"),
        ({**state, "guard.replies": 5}, "guard.replies"),
    ):
        with pytest.raises(StateError, match=entry):
            sampler.load_state_dict(wrong)
        assert same_state(sampler.state_dict(), state)


@pytest.mark.parametrize("name", ["empirical-bayes", "avare", "mabs", "portfolio"])
@pytest.mark.parametrize("clients", [60, 500])
def test_a_smaller_lie_beside_a_larger_one_rises_by_the_stated_factor(name: str, clients: int) -> None:
    """One says 1e24 and another 1e6, once; when both are judged, the second counts for more than before."""
    guard = Guard(trial_replies=20)
    sampler = BUILD_ALL[name](num_clients=clients, cohort_size=K, guard=guard, seed=1)
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
    sampler = sampler_with(TRIAL_OF_TEN)
    for _ in range(60):
        cohort = sampler.draw()
        sampler.observe(cohort, np.zeros(len(cohort)))
    state = sampler.state_dict()
    assert state["trial.heard"][0] > 200
    assert state["trial.told"].shape[1] == 0
    resumed = sampler_with(TRIAL_OF_TEN)
    resumed.load_state_dict(state)
    assert same_cohort(resumed.draw(), sampler.draw())


def test_on_trial_no_update_is_longer_than_the_median_allows() -> None:
    """Two liars of a first cohort of five are the third quartile; and three of twenty the ninth decile."""
    guard_state = GuardState(Guard())
    guard_state.clip(cohort_of([0, 1, 2, 3, 4]), np.array([1.0, 1e6, 2.0, 1e6, 3.0]))
    assert guard_state.norm_bound == pytest.approx(300.0)
    guard_state.clip(cohort_of(list(range(5, 20))), np.full(15, 4.0))
    assert guard_state.norm_bound == pytest.approx(400.0)
    guard_state.clip(cohort_of(list(range(20, 25))), np.array([1e6, 4.0, 4.0, 4.0, 4.0]))
    assert guard_state.norm_bound == pytest.approx(400.0)


@pytest.mark.parametrize("lie", [1e6, 1e18, 1e300])
@pytest.mark.parametrize("name", ["empirical-bayes", "portfolio"])
def test_a_lie_on_trial_does_not_raise_newcomers(name: str, lie: float) -> None:
    """Once it is judged, unseen clients are expected to be like the others."""
    sampler = sampler_with(Guard(), name=name)
    for t in range(60):
        cohort = sampler.draw()
        sampler.observe(cohort, norms_of(cohort, int(cohort.clients[0]) if t == 2 else -1, lie))
    (newcomer,) = sampler.add_clients(1)
    p = sampler.probabilities()
    assert p[newcomer] < 5.0 / TRIAL_CLIENTS
    assert p.min() > 0.1 / TRIAL_CLIENTS


def test_avare_forgets_the_first_lie() -> None:
    """It keeps the last norm of a client that falls silent: once judged, the clipped one."""
    held = []
    for guard in (Guard(), Guard(trial_replies=0)):
        sampler = AvareSampler(
            num_clients=TRIAL_CLIENTS, cohort_size=2, guard=guard, seed=3, floor_offset=100 * TRIAL_CLIENTS
        )
        first = sampler.draw()
        liar = int(first.clients[0])
        sampler.observe(first, norms_of(first, liar, 1e6))
        for _ in range(300):
            cohort = sampler.draw()
            sampler.observe(cohort, norms_of(cohort, liar, np.nan))
        held.append(float(sampler.distribution.look_up(np.array([liar]))[0]))
    assert held[1] > 0.99  # two replies do not judge each other
    assert held[0] < 0.85  # by a clip at a hundred times their ninth decile it would be 0.74
