"""Settings, rounds and states that make no sense: the right exception, the argument named, no trace left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sortition import (
    AvailabilityError,
    Cohort,
    CohortError,
    ConfigurationError,
    FeedbackError,
    OptimalSampler,
    ProportionalSampler,
    SortitionError,
    StateError,
    UniformSampler,
)
from tests.helpers import SAMPLERS, train
from tests.samplers.builders import (
    K,
    M,
    adaptive,
    assert_refused,
    assert_rejects,
    avare,
    build,
    doubling,
    empirical_bayes,
    every_sampler,
    fixed,
    mabs,
    osmd,
    vrb,
)

# Settings -----------------------------------------------------------------------------------------------


@every_sampler
@pytest.mark.parametrize("size", [0, -1, 2.0, "2", None, True])
def test_cohort_size_is_a_whole_number_above_zero(name: str, size: object) -> None:
    with pytest.raises(ConfigurationError, match=f"cohort_size.*{size!r}"):
        build(name, cohort_size=size)


@every_sampler
@pytest.mark.parametrize("design", ["without_replacement", "independent"])
def test_cohort_size_is_at_most_the_number_of_clients_unless_drawn_with_replacement(
    name: str, design: str
) -> None:
    assert_rejects(lambda: build(name, cohort_size=M + 1, design=design), "cohort_size")
    assert build(name, cohort_size=M, design=design).cohort_size == M
    assert build(name, cohort_size=M + 1).cohort_size == M + 1


@pytest.mark.parametrize(
    ("make", "setting", "wrong"),
    [
        (lambda **changes: UniformSampler(cohort_size=1, **changes), "num_clients", 0),
        (lambda **changes: ProportionalSampler(cohort_size=1, **changes), "num_clients", 0),
        (osmd, "num_clients", -3),
        (osmd, "seed", -1),
        (osmd, "seed", 2**64),
        (osmd, "seed", 0.5),
        (osmd, "design", "stratified"),
        (osmd, "design", np.zeros(2)),
        (osmd, "design", np.zeros(0)),
        (osmd, "cohort_size", 10**400),
        (osmd, "learning_rate", 0.0),
        (osmd, "learning_rate", -1.0),
        (osmd, "learning_rate", np.inf),
        (osmd, "learning_rate", np.nan),
        (osmd, "learning_rate", "fast"),
        (adaptive, "rate_scale", 0),
        (adaptive, "feedback_bound", -2.0),
        (adaptive, "feedback_bound", np.inf),
        (adaptive, "num_rounds", 0),
        (adaptive, "num_rounds", 10**400),
        (lambda **changes: adaptive(num_clients=1, **changes), "num_rounds", 10**400),
        (mabs, "num_rounds", -1),
        (doubling, "restart", "never"),
        (doubling, "restart", np.zeros(2)),
        (avare, "floor_offset", 0.0),
        (avare, "floor_decay", -1.0),
        (avare, "smallest_floor", 0.3),
        (avare, "smallest_floor", np.nan),
        (avare, "smallest_floor", "low"),
    ],
)
def test_constructors_reject(make: Callable[..., object], setting: str, wrong: Any) -> None:
    assert_rejects(lambda: make(**{setting: wrong}), setting)


@pytest.mark.parametrize("value", [0.0, -0.1, 1.0000001, np.nan, np.inf, "much", None])
@pytest.mark.parametrize("make", [osmd, adaptive, doubling, mabs, vrb])
def test_exploration_lies_between_zero_and_one(make: Callable[..., object], value: object) -> None:
    assert_rejects(lambda: make(exploration=value), "exploration")
    make(exploration=1.0)


BAD_MASSES: list[Any] = [
    [0.5, 0.5],
    [[0.2] * 5],
    [0.5, 0.5, 0.5, -0.5, 0.0],
    [0.5, 0.5, np.nan, 0.0, 0.0],
    [0.5, np.inf, 0.1, 0.1, 0.1],
    [0.2, 0.2, 0.2, 0.2, 0.1],
    [2.0, 2.0, 2.0, 2.0, 2.0],
    ["a"] * 5,
    [0.5, 0.5, 1e-200, 0.0, 0.0],
]


@pytest.mark.parametrize("masses", BAD_MASSES)
def test_masses_are_distributions(masses: Any) -> None:
    """client_weights of every sampler, the prior of those that learn, the probabilities of the fixed one."""
    for name in SAMPLERS:
        assert_rejects(lambda name=name: build(name, client_weights=masses), "client_weights")
    for make in (osmd, adaptive, mabs, vrb, avare, empirical_bayes):
        assert_rejects(lambda make=make: make(prior=masses), "prior")
    assert_rejects(lambda: fixed(probabilities=masses), "probabilities")


@pytest.mark.parametrize(
    ("masses", "client"),
    [([0.5, 0.5, 0.5, -0.5, 0.0], 3), ([0.5, np.inf, 0.1, 0.1, 0.1], 1), ([0.5, 0.5, 1e-200, 0.0, 0.0], 2)],
)
def test_an_error_names_the_client_with_the_wrong_mass(masses: Any, client: int) -> None:
    with pytest.raises(ConfigurationError, match=f"client_weights.*client {client}"):
        osmd(client_weights=masses)


def test_a_client_with_a_weight_must_be_possible_to_draw() -> None:
    """A zero in the prior, or in fixed probabilities, of a client with a weight would bias the aggregate."""
    without_2 = [0.25, 0.25, 0.0, 0.25, 0.25]
    learners = (osmd, adaptive, mabs, vrb, avare, empirical_bayes)
    for make, argument in (*((learner, "prior") for learner in learners), (fixed, "probabilities")):
        with pytest.raises(ConfigurationError, match=f"{argument}.*client 2"):
            make(**{argument: without_2})
        make(**{argument: without_2, "client_weights": without_2})  # it has no weight: nothing is lost


def test_given_arrays_are_copied() -> None:
    masses = np.full(M, 0.2)
    sampler = fixed(probabilities=masses, client_weights=masses)
    learner = osmd(prior=masses)
    masses[0] = 5.0
    assert sampler.probabilities().tolist() == [0.2] * M
    assert learner.probabilities() == pytest.approx([0.2] * M)
    sampler.probabilities()[0] = 5.0  # a result is a copy as well
    learner.probabilities()[0] = 5.0
    assert sampler.probabilities().tolist() == [0.2] * M
    assert learner.probabilities() == pytest.approx([0.2] * M)


@pytest.mark.parametrize("clients", [[10**400], ["a"], [None, {}], [[1], [2, 3]]])
def test_a_cohort_is_made_of_numbers(clients: Any) -> None:
    assert_rejects(
        lambda: Cohort(0, 1, clients=clients, counts=[1], probabilities=[0.5], weights=[1.0]),
        "clients",
        CohortError,
    )


def test_one_exception_catches_them_all() -> None:
    for error in (ConfigurationError, AvailabilityError, FeedbackError, CohortError, StateError):
        assert issubclass(error, SortitionError)
        assert issubclass(error, ValueError)


# Rounds -------------------------------------------------------------------------------------------------


@every_sampler
@pytest.mark.parametrize(
    "norms",
    [
        [1.0, -1.0],
        [np.inf, 1.0],
        [-np.inf, 1.0],
        [np.nan, -2.0],
        [1.0],
        [1.0, 1.0, 1.0],
        [[1.0, 1.0]],
        1.0,
        ["big", "small"],
    ],
)
def test_norms_of_the_wrong_kind_or_number(name: str, norms: Any) -> None:
    sampler = build(name, design="without_replacement")
    train(sampler, 3)
    cohort = sampler.draw()
    assert_refused(sampler, lambda: sampler.observe(cohort, norms), FeedbackError, "norms")
    sampler.observe(cohort, [1.0, 2.0])  # it still awaits its feedback


@every_sampler
def test_cohorts_that_are_not_its_own(name: str) -> None:
    sampler = build(name, seed=1)
    train(sampler, 3)
    cohort = sampler.draw()
    ones = np.ones(len(cohort))

    def refused(wrong: Any, argument: str = "cohort") -> None:
        norms = np.ones(len(wrong)) if isinstance(wrong, Cohort) else ones
        assert_refused(sampler, lambda: sampler.observe(wrong, norms), CohortError, argument)

    for other in (build(name, seed=2), build(name, seed=1, cohort_size=K + 1)):
        train(other, 3)
        refused(other.draw(), "cohort of round 3")
    refused(replace(cohort, weights=cohort.weights * 2.0))
    refused(replace(cohort, probabilities=cohort.probabilities / 2.0))
    refused(replace(cohort, clients=(cohort.clients + 1) % M))
    refused(replace(cohort, ticket=cohort.ticket + 1))
    refused(replace(cohort, round_index=9), "cohort of round 9")
    refused(replace(cohort, round_index=-1), "cohort of round -1")
    refused([0, 1])
    refused(None)
    sampler.observe(cohort, ones)
    refused(cohort, "cohort of round 3")


def test_a_cohort_of_the_clients_that_replied_is_not_what_was_drawn() -> None:
    """A client that did not reply is told by nan; the reduced cohort is for the aggregate."""
    sampler = osmd(design="without_replacement")
    cohort = sampler.draw()
    heard = cohort.replied([True, False])
    assert_refused(sampler, lambda: sampler.observe(heard, [1.0]), CohortError, "nan")
    sampler.observe(cohort, [1.0, np.nan])


@every_sampler
@pytest.mark.parametrize(
    "available",
    [[], [0, 5], [0, -1], [0, 1, 2, 2], [0.0, 1.0], [True, False, True], ["a"], 3, [[0, 1]]],
)
def test_available_names_clients(name: str, available: Any) -> None:
    sampler = build(name)
    train(sampler, 3)
    assert_refused(sampler, lambda: sampler.draw(available=available), AvailabilityError, "available")
    assert sampler.draw().round_index == 3


@every_sampler
def test_probabilities_of_clients_that_do_not_exist(name: str) -> None:
    sampler = build(name)
    assert_rejects(lambda: sampler.probabilities([0, 7]), "clients", AvailabilityError)
    assert sampler.probabilities([]).shape == (0,)


def test_the_oracle_must_be_told_before_each_draw() -> None:
    sampler = OptimalSampler(num_clients=M, cohort_size=K)
    assert_refused(sampler, sampler.draw, FeedbackError, "reveal")
    sampler.reveal([1.0, 2.0, 3.0, 4.0, 5.0])
    sampler.draw()
    assert_refused(sampler, sampler.draw, FeedbackError, "reveal")
    for norms in ([1.0, 2.0], [1.0, 2.0, -3.0, 4.0, 5.0], [1.0, 2.0, np.nan, 4.0, 5.0]):
        assert_refused(sampler, lambda norms=norms: sampler.reveal(norms), FeedbackError, "norms")


def test_calibrate_rejects() -> None:
    sampler = adaptive()
    for norms, clients, error, argument in (
        ([1.0, 2.0], None, FeedbackError, "norms"),
        ([1.0, -2.0], [0, 1], FeedbackError, "norms"),
        ([1.0, np.inf], [0, 1], FeedbackError, "norms"),
        ([1.0], [9], AvailabilityError, "clients"),
        ([np.nan, 0.0], [0, 1], FeedbackError, "norms"),
        ([np.nan] * M, None, FeedbackError, "norms"),
    ):
        assert_refused(
            sampler,
            lambda norms=norms, clients=clients: sampler.calibrate(norms, clients),
            error,
            argument,
        )
    train(sampler, 2)
    assert_refused(sampler, lambda: sampler.calibrate([1.0] * M), ConfigurationError, "calibrate")


# States -------------------------------------------------------------------------------------------------


@every_sampler
def test_states_of_the_wrong_kind_or_version(name: str) -> None:
    sampler = build(name)
    train(sampler, 3)
    state = sampler.state_dict()
    for change, argument in (
        ({"kind": "OtherSampler"}, "OtherSampler"),
        ({"version": 99}, "version"),
        ({"version": None}, "version"),
        ({"kind": np.zeros(2)}, "kind"),
        ({"config.design": np.zeros(2)}, "config.design"),
    ):
        wrong = {**state, **change}
        assert_refused(sampler, lambda wrong=wrong: sampler.load_state_dict(wrong), StateError, argument)
    assert_refused(sampler, lambda: sampler.load_state_dict({}), StateError, "kind")
    assert_refused(sampler, lambda: sampler.load_state_dict([]), StateError, "state")


@every_sampler
def test_a_state_with_a_part_missing_or_misshapen(name: str) -> None:
    """Whatever is taken out of a state or replaced by something else: StateError, and nothing has changed."""
    sampler = build(name)
    train(sampler, 3)
    sampler.draw()
    state = sampler.state_dict()
    for part in state:
        without = {key: value for key, value in state.items() if key != part}
        for wrong in (without, {**state, part: "something else"}):
            assert_refused(
                sampler,
                lambda wrong=wrong: sampler.load_state_dict(wrong),
                StateError,
                part.removeprefix("config."),
            )


def saved_with(sampler: Any, other: Any, setting: str) -> None:
    """A state of ``other``, which has another ``setting``, is refused, and the error names the setting."""
    train(other, 2)
    assert_refused(sampler, lambda: sampler.load_state_dict(other.state_dict()), StateError, setting)


@every_sampler
@pytest.mark.parametrize(
    ("setting", "other"),
    [
        ("cohort_size", 3),
        ("design", "independent"),
        ("client_weights", [0.1, 0.2, 0.2, 0.2, 0.3]),
        ("num_clients", 6),
    ],
)
def test_states_of_another_configuration(name: str, setting: str, other: Any) -> None:
    saved_with(build(name), build(name, **{setting: other}), setting)


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
        (doubling, "restart", "prior"),
        (doubling, "rate_scale", 2.0),
        (mabs, "num_rounds", 10),
        (mabs, "exploration", 0.9),
        (vrb, "exploration", 0.9),
        (vrb, "feedback_bound", 0.9),
        (avare, "floor_offset", 7.0),
        (avare, "floor_decay", 0.5),
        (avare, "smallest_floor", 0.01),
        (fixed, "probabilities", [0.1, 0.2, 0.2, 0.2, 0.3]),
        *((make, "prior", [0.1, 0.2, 0.2, 0.2, 0.3]) for make in (mabs, vrb, avare, empirical_bayes)),
    ],
)
def test_states_of_another_setting(make: Callable[..., Any], setting: str, other: Any) -> None:
    saved_with(make(), make(**{setting: other}), setting)
