"""Input that makes no sense: the right exception, which names the argument and what came, and no trace."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sortition import (
    AdaptiveOSMDSampler,
    AvailabilityError,
    AvareSampler,
    Cohort,
    CohortError,
    ConfigurationError,
    DoublingOSMDSampler,
    FeedbackError,
    FixedSampler,
    MABSSampler,
    OptimalSampler,
    OSMDSampler,
    ProportionalSampler,
    SortitionError,
    StateError,
    UniformSampler,
    VRBSampler,
)
from sortition.samplers.state import STATE_VERSION
from tests.helpers import SAMPLERS, same_state, train

M, K = 5, 2
every_sampler = pytest.mark.parametrize("name", SAMPLERS)


def build(name: str, **changes: Any) -> Any:
    return SAMPLERS[name](**{"num_clients": M, "cohort_size": K, **changes})


def osmd(**changes: Any) -> OSMDSampler:
    return OSMDSampler(**{"num_clients": M, "cohort_size": K, "learning_rate": 0.1, **changes})


def adaptive(**changes: Any) -> AdaptiveOSMDSampler:
    return AdaptiveOSMDSampler(**{"num_clients": M, "cohort_size": K, "num_rounds": 10, **changes})


# Constructors ---------------------------------------------------------------------------------------------


@every_sampler
@pytest.mark.parametrize("size", [0, -1, 2.0, "2", None, True])
def test_cohort_size_is_a_whole_number_above_zero(name: str, size: object) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"cohort_size must be .* at least 1, got {re.escape(repr(size))}"
    ):
        build(name, cohort_size=size)


@every_sampler
@pytest.mark.parametrize("design", ["without_replacement", "independent"])
def test_cohort_size_is_at_most_the_clients_where_nobody_is_drawn_twice(name: str, design: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"cohort_size must be at most num_clients \({M}\).* got 6"):
        build(name, cohort_size=M + 1, design=design)
    assert build(name, cohort_size=M, design=design).cohort_size == M
    assert build(name, cohort_size=M + 1).cohort_size == M + 1


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: UniformSampler(num_clients=0, cohort_size=1), "num_clients must be .* at least 1, got 0"),
        (lambda: ProportionalSampler(num_clients=0, cohort_size=1), "num_clients must be .* got 0"),
        (lambda: osmd(num_clients=-3), "num_clients must be .* at least 1, got -3"),
        (lambda: osmd(seed=-1), "seed must be .* at least 0, got -1"),
        (lambda: osmd(seed=2**64), "seed must be at most .* got 18446744073709551616"),
        (lambda: osmd(seed=0.5), "seed must be a whole number .* got 0.5"),
        (lambda: osmd(design="stratified"), "design must be one of .*independent.* got 'stratified'"),
        (lambda: osmd(design=np.zeros(2)), r"design must be one of .*independent.* got array\("),
        (lambda: osmd(design=np.zeros(0)), r"design must be one of .*independent.* got array\("),
        (lambda: osmd(cohort_size=10**400), "cohort_size must be at most 9007199254740992, got 1000"),
        # rates and the like
        (lambda: osmd(learning_rate=0.0), r"learning_rate must be .* above 0, got 0\.0"),
        (lambda: osmd(learning_rate=-1.0), r"learning_rate must be .* got -1\.0"),
        (lambda: osmd(learning_rate=np.inf), "learning_rate must be .* finite .* got inf"),
        (lambda: osmd(learning_rate=np.nan), "learning_rate must be .* got nan"),
        (lambda: osmd(learning_rate="fast"), "learning_rate must be .* got 'fast'"),
        (lambda: adaptive(rate_scale=0), "rate_scale must be .* got 0"),
        (lambda: adaptive(feedback_bound=-2.0), r"feedback_bound must be .* got -2\.0"),
        (lambda: adaptive(feedback_bound=np.inf), "feedback_bound must be .* got inf"),
        (lambda: adaptive(num_rounds=0), "num_rounds must be .* at least 1, got 0"),
        (lambda: adaptive(num_rounds=10**400), "num_rounds must be at most 9007199254740992, got 1000"),
        (lambda: adaptive(num_rounds=10**400, num_clients=1), "num_rounds must be at most .* got 1000"),
        (
            lambda: MABSSampler(num_clients=M, cohort_size=K, num_rounds=-1),
            "num_rounds must be .* at least 1, got -1",
        ),
        (
            lambda: DoublingOSMDSampler(num_clients=M, cohort_size=K, restart="never"),
            "restart must be one of mixture, prior, got 'never'",
        ),
        (
            lambda: DoublingOSMDSampler(num_clients=M, cohort_size=K, restart=np.zeros(2)),
            r"restart must be one of mixture, prior, got array\(",
        ),
        (lambda: AvareSampler(num_clients=M, cohort_size=K, floor_offset=0.0), "floor_offset must be .* got"),
        (
            lambda: AvareSampler(num_clients=M, cohort_size=K, floor_decay=-1.0),
            "floor_decay must lie in .* got",
        ),
        (
            lambda: AvareSampler(num_clients=M, cohort_size=K, smallest_floor=0.3),
            r"smallest_floor must lie in .* got 0\.3",
        ),
        (
            lambda: AvareSampler(num_clients=M, cohort_size=K, smallest_floor=np.nan),
            "smallest_floor must lie in .* got nan",
        ),
        (
            lambda: AvareSampler(num_clients=M, cohort_size=K, smallest_floor="low"),
            "smallest_floor must .* got 'low'",
        ),
    ],
)
def test_constructors_reject(make: Callable[[], object], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        make()


@pytest.mark.parametrize("value", [0.0, -0.1, 1.0000001, np.nan, np.inf, "much", None])
@pytest.mark.parametrize(
    "make",
    [
        osmd,
        adaptive,
        lambda **settings: DoublingOSMDSampler(num_clients=M, cohort_size=K, **settings),
        lambda **settings: MABSSampler(num_clients=M, cohort_size=K, num_rounds=9, **settings),
        lambda **settings: VRBSampler(num_clients=M, cohort_size=K, **settings),
    ],
    ids=["osmd", "adaptive", "doubling", "mabs", "vrb"],
)
def test_exploration_lies_between_zero_and_one(make: Callable[..., object], value: object) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"exploration must lie in \(0, 1\], got {re.escape(repr(value))}"
    ):
        make(exploration=value)
    make(exploration=1.0)


BAD_MASSES: list[tuple[Any, str]] = [
    ([0.5, 0.5], r"must have one entry for each of the 5 clients, got shape \(2,\)"),
    ([[0.2] * 5], r"got shape \(1, 5\)"),
    ([0.5, 0.5, 0.5, -0.5, 0.0], r"not negative, got -0\.5 for client 3"),
    ([0.5, 0.5, np.nan, 0.0, 0.0], "finite and not negative, got nan for client 2"),
    ([0.5, np.inf, 0.1, 0.1, 0.1], "finite and not negative, got inf for client 1"),
    ([0.2, 0.2, 0.2, 0.2, 0.1], r"must sum to one, got a sum of 0\.9"),
    ([2.0, 2.0, 2.0, 2.0, 2.0], r"must sum to one, got a sum of 10\.0"),
    (["a"] * 5, "must be numbers, got"),
    ([0.5, 0.5, 1e-200, 0.0, 0.0], "must be 0 or at least 1e-100, got 1e-200 for client 2"),
]


@pytest.mark.parametrize(("masses", "complaint"), BAD_MASSES)
def test_masses_are_distributions(masses: Any, complaint: str) -> None:
    """client_weights of every sampler, the prior of OSMD's kin, the probabilities of the fixed one."""
    for name in SAMPLERS:
        with pytest.raises(
            ConfigurationError,
            match=rf"(client_weights|probabilities) .*{complaint}|(client_weights|probabilities) {complaint}",
        ):
            build(name, client_weights=masses)
    for make in (osmd, adaptive):
        with pytest.raises(ConfigurationError, match="prior must"):
            make(prior=masses)
        with pytest.raises(ConfigurationError, match=complaint):
            make(prior=masses)
    with pytest.raises(ConfigurationError, match="probabilities must"):
        FixedSampler(num_clients=M, cohort_size=K, probabilities=masses)


def test_who_counts_must_be_possible_to_draw() -> None:
    """A zero in the prior, or in fixed probabilities, of a client with a weight would bias the aggregate."""
    without_2 = [0.25, 0.25, 0.0, 0.25, 0.25]
    for make in (osmd, adaptive):
        with pytest.raises(ConfigurationError, match=r"prior must be above 0 .* got 0 for client 2"):
            make(prior=without_2)
        make(prior=without_2, client_weights=without_2)  # it does not count: nothing is lost
    with pytest.raises(ConfigurationError, match=r"probabilities must be above 0 .* got 0 for client 2"):
        FixedSampler(num_clients=M, cohort_size=K, probabilities=without_2)
    FixedSampler(num_clients=M, cohort_size=K, probabilities=without_2, client_weights=without_2)


def test_given_arrays_are_copied() -> None:
    masses = np.full(M, 0.2)
    sampler = FixedSampler(num_clients=M, cohort_size=K, probabilities=masses, client_weights=masses)
    learner = osmd(prior=masses)
    masses[0] = 5.0
    assert sampler.probabilities().tolist() == [0.2] * M
    assert learner.probabilities() == pytest.approx([0.2] * M)
    sampler.probabilities()[0] = 5.0  # nor is a way in what comes out
    learner.probabilities()[0] = 5.0
    assert sampler.probabilities().tolist() == [0.2] * M
    assert learner.probabilities() == pytest.approx([0.2] * M)


@pytest.mark.parametrize("clients", [[10**400], ["a"], [None, {}], [[1], [2, 3]]])
def test_a_cohort_is_made_of_numbers(clients: Any) -> None:
    with pytest.raises(CohortError, match=r"clients must be numbers, got \["):
        Cohort(0, 1, clients=clients, counts=[1], probabilities=[0.5], weights=[1.0])


# Feedback -------------------------------------------------------------------------------------------------


def assert_refused(
    sampler: Any, call: Callable[[], object], error: type[SortitionError], complaint: str
) -> None:
    before = sampler.state_dict()
    with pytest.raises(error, match=complaint):
        call()
    assert same_state(before, sampler.state_dict()), "refused, but not without a trace"


@every_sampler
@pytest.mark.parametrize(
    ("norms", "complaint"),
    [
        ([1.0, -1.0], r"norms must be finite and not negative .* got -1\.0 at position 1"),
        ([np.inf, 1.0], "norms must be finite and not negative .* got inf at position 0"),
        ([-np.inf, 1.0], "norms must be finite and not negative .* got -inf at position 0"),
        ([np.nan, -2.0], r"norms must be finite and not negative .* got -2\.0 at position 1"),
        ([1.0], r"norms must have 2 entries, one for each client of the cohort, got shape \(1,\)"),
        ([1.0, 1.0, 1.0], r"norms must have 2 entries.* got shape \(3,\)"),
        ([[1.0, 1.0]], r"norms must have 2 entries.* got shape \(1, 2\)"),
        (1.0, r"norms must have 2 entries.* got shape \(\)"),
        (["big", "small"], r"norms must be numbers, got \['big', 'small'\]"),
    ],
)
def test_norms_that_are_none(name: str, norms: Any, complaint: str) -> None:
    sampler = build(name, design="without_replacement")
    train(sampler, 3)
    cohort = sampler.draw()
    assert_refused(sampler, lambda: sampler.observe(cohort, norms), FeedbackError, complaint)
    sampler.observe(cohort, [1.0, 2.0])  # it still awaits its feedback


@every_sampler
def test_cohorts_that_are_not_its_own(name: str) -> None:
    sampler = build(name, seed=1)
    train(sampler, 3)
    cohort = sampler.draw()
    ones = np.ones(len(cohort))

    def refused(other: Any, complaint: str) -> None:
        norms = np.ones(len(other)) if isinstance(other, Cohort) else ones
        assert_refused(sampler, lambda: sampler.observe(other, norms), CohortError, complaint)

    stranger = build(name, seed=2)
    train(stranger, 3)
    refused(stranger.draw(), "cohort must be one that this sampler drew.* got one of round 3")
    relative = build(name, seed=1, cohort_size=K + 1)
    train(relative, 3)
    refused(relative.draw(), "cohort must be one that this sampler drew.* got one of round 3")
    refused(replace(cohort, weights=cohort.weights * 2.0), "cohort must be one that this sampler drew")
    refused(replace(cohort, probabilities=cohort.probabilities / 2.0), "cohort must be one that")
    refused(replace(cohort, clients=(cohort.clients + 1) % M), "cohort must be one that this sampler drew")
    refused(replace(cohort, ticket=cohort.ticket + 1), "cohort must be one that this sampler drew")
    refused(replace(cohort, round_index=9), "cohort must be one that this sampler drew.* round 9")
    refused(replace(cohort, round_index=-1), "cohort must be one that this sampler drew.* round -1")
    refused([0, 1], "cohort must be a Cohort that this sampler drew, got list")
    refused(None, "cohort must be a Cohort that this sampler drew, got NoneType")
    sampler.observe(cohort, ones)
    refused(cohort, "cohort must await feedback, but round 3 has had its feedback already")


def test_a_cohort_of_the_repliers_is_not_what_was_drawn() -> None:
    """Who fell silent is told by nan; the reduced cohort is for the aggregate."""
    sampler = osmd(design="without_replacement")
    cohort = sampler.draw()
    heard = cohort.replied([True, False])
    assert_refused(sampler, lambda: sampler.observe(heard, [1.0]), CohortError, "nan for the silent")
    sampler.observe(cohort, [1.0, np.nan])


# Availability and ids ---------------------------------------------------------------------------------------


@every_sampler
@pytest.mark.parametrize(
    ("available", "complaint"),
    [
        ([], "available must name at least one client, got none"),
        ([0, 5], "available must hold ids of existing clients, 0 to 4, got 5"),
        ([0, -1], "available must hold ids of existing clients, 0 to 4, got -1"),
        ([0, 1, 2, 2], "available must name each client once, got 2 more than once"),
        ([0.0, 1.0], r"available must be a sequence of client ids .* got float64 of shape \(2,\)"),
        ([True, False, True], "available must be a sequence of client ids .* got bool"),
        (["a"], "available must be a sequence of client ids"),
        (3, r"available must be a sequence of client ids .* of shape \(\)"),
        ([[0, 1]], r"available must be a sequence of client ids .* of shape \(1, 2\)"),
    ],
)
def test_available_names_clients(name: str, available: Any, complaint: str) -> None:
    sampler = build(name)
    train(sampler, 3)
    assert_refused(sampler, lambda: sampler.draw(available=available), AvailabilityError, complaint)
    assert sampler.draw().round_index == 3


@every_sampler
def test_probabilities_of_clients_that_do_not_exist(name: str) -> None:
    sampler = build(name)
    with pytest.raises(SortitionError, match="clients must hold ids of existing clients, 0 to 4, got 7"):
        sampler.probabilities([0, 7])
    assert sampler.probabilities([]).shape == (0,)


def test_the_oracle_must_be_told_before_each_draw() -> None:
    sampler = OptimalSampler(num_clients=M, cohort_size=K)
    assert_refused(sampler, sampler.draw, FeedbackError, r"reveal\(norms\) must be called .* round 0")
    sampler.reveal([1.0, 2.0, 3.0, 4.0, 5.0])
    sampler.draw()
    assert_refused(sampler, sampler.draw, FeedbackError, r"reveal\(norms\) must be called .* round 1")
    for norms, complaint in (
        ([1.0, 2.0], r"norms must have 5 entries, one for each client, got shape \(2,\)"),
        ([1.0, 2.0, -3.0, 4.0, 5.0], r"norms must be finite and not negative .* got -3\.0"),
        ([1.0, 2.0, np.nan, 4.0, 5.0], "norms must be known for every client, got nan for client 2"),
    ):
        assert_refused(sampler, lambda norms=norms: sampler.reveal(norms), FeedbackError, complaint)


# Calibration ------------------------------------------------------------------------------------------------


def test_calibrate_rejects() -> None:
    sampler = adaptive()
    for norms, clients, error, complaint in (
        ([1.0, 2.0], None, FeedbackError, r"norms must have 5 entries.* got shape \(2,\)"),
        ([1.0, -2.0], [0, 1], FeedbackError, r"norms must be .* not negative .* got -2\.0"),
        ([1.0, np.inf], [0, 1], FeedbackError, "norms must be finite .* got inf"),
        ([1.0], [9], AvailabilityError, "clients must hold ids of existing clients, 0 to 4, got 9"),
        ([np.nan, 0.0], [0, 1], FeedbackError, "norms must hold at least one that is above 0, got none"),
        ([np.nan] * M, None, FeedbackError, "norms must hold at least one that is above 0, got none"),
    ):
        assert_refused(
            sampler,
            lambda norms=norms, clients=clients: sampler.calibrate(norms, clients),
            error,
            complaint,
        )
    train(sampler, 2)
    assert_refused(
        sampler,
        lambda: sampler.calibrate([1.0] * M),
        ConfigurationError,
        "calibrate must be called before the first feedback, got 2 rounds of it",
    )


# States -----------------------------------------------------------------------------------------------------


@every_sampler
def test_states_of_the_wrong_kind_or_version(name: str) -> None:
    sampler = build(name)
    train(sampler, 3)
    state = sampler.state_dict()
    kind = type(sampler).__name__
    for change, complaint in (
        ({"kind": "LotterySampler"}, f"state must be of kind {kind}, got 'LotterySampler'"),
        ({"version": 99}, f"state must have version {STATE_VERSION}, got 99"),
        ({"version": None}, f"state must have version {STATE_VERSION}, got None"),
        ({"kind": np.zeros(2)}, "state must hold one value called 'kind', got an array of shape"),
        ({"config.design": np.zeros(2)}, "state must hold one value called 'config.design', got an array"),
    ):
        wrong = {**state, **change}
        assert_refused(sampler, lambda wrong=wrong: sampler.load_state_dict(wrong), StateError, complaint)
    assert_refused(sampler, lambda: sampler.load_state_dict({}), StateError, "state must be of kind .* None")


@every_sampler
def test_a_state_with_a_part_missing_or_misshapen(name: str) -> None:
    """Whatever is taken out of a state or replaced by something else: StateError, and nothing has changed."""
    sampler = build(name)
    train(sampler, 3)
    sampler.draw()
    state = sampler.state_dict()
    for part in state:
        lacking = {key: value for key, value in state.items() if key != part}
        assert_refused(
            sampler, lambda lacking=lacking: sampler.load_state_dict(lacking), StateError, "state must"
        )
        other = {**state, part: "something else"}
        assert_refused(sampler, lambda other=other: sampler.load_state_dict(other), StateError, "state must")


@every_sampler
@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"cohort_size": 3}, "cohort_size = 2, got 3"),
        ({"design": "independent"}, "design = 'with_replacement', got 'independent'"),
        ({"client_weights": [0.1, 0.2, 0.2, 0.2, 0.3]}, "(client_weights|probabilities) = .*, got '5 values"),
        ({"num_clients": 6}, "num_clients = 5, got 6"),
    ],
)
def test_states_of_another_configuration(name: str, change: dict[str, Any], complaint: str) -> None:
    sampler, other = build(name), build(name, **change)
    train(other, 3)
    assert_refused(
        sampler,
        lambda: sampler.load_state_dict(other.state_dict()),
        StateError,
        f"state must have been saved with {complaint}",
    )


@pytest.mark.parametrize(
    ("make", "setting", "other"),
    [
        (osmd, "learning_rate", 0.2),
        (osmd, "exploration", 0.9),
        (osmd, "prior", [0.1, 0.2, 0.2, 0.2, 0.3]),
        (adaptive, "num_rounds", 11),
        (adaptive, "exploration", 0.9),
        (adaptive, "prior", [0.1, 0.2, 0.2, 0.2, 0.3]),
        (adaptive, "rate_scale", 2.0),
        (adaptive, "feedback_bound", 2.0),
        (lambda **s: DoublingOSMDSampler(num_clients=M, cohort_size=K, **s), "restart", "prior"),
        (lambda **s: DoublingOSMDSampler(num_clients=M, cohort_size=K, **s), "rate_scale", 2.0),
        (lambda **s: MABSSampler(num_clients=M, cohort_size=K, **{"num_rounds": 9, **s}), "num_rounds", 10),
        (lambda **s: MABSSampler(num_clients=M, cohort_size=K, num_rounds=9, **s), "exploration", 0.9),
        (lambda **s: VRBSampler(num_clients=M, cohort_size=K, **s), "exploration", 0.9),
        (lambda **s: VRBSampler(num_clients=M, cohort_size=K, **s), "feedback_bound", 0.9),
        (lambda **s: AvareSampler(num_clients=M, cohort_size=K, **s), "floor_offset", 7.0),
        (lambda **s: AvareSampler(num_clients=M, cohort_size=K, **s), "floor_decay", 0.5),
        (lambda **s: AvareSampler(num_clients=M, cohort_size=K, **s), "smallest_floor", 0.01),
        (
            lambda **s: FixedSampler(num_clients=M, cohort_size=K, **{"probabilities": [0.2] * M, **s}),
            "probabilities",
            [0.1, 0.2, 0.2, 0.2, 0.3],
        ),
    ],
)
def test_states_of_another_setting(make: Callable[..., Any], setting: str, other: Any) -> None:
    sampler, differing = make(), make(**{setting: other})
    train(differing, 2)
    assert_refused(
        sampler,
        lambda: sampler.load_state_dict(differing.state_dict()),
        StateError,
        f"state must have been saved with {setting} = .*, got",
    )


def test_one_exception_catches_them_all() -> None:
    for error in (ConfigurationError, AvailabilityError, FeedbackError, CohortError, StateError):
        assert issubclass(error, SortitionError)
        assert issubclass(error, ValueError)
