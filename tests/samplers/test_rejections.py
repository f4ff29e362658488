"""Settings that make no sense: the right exception, which names the argument and what came."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sortition import (
    AvailabilityError,
    AvareSampler,
    Cohort,
    CohortError,
    ConfigurationError,
    DoublingOSMDSampler,
    FeedbackError,
    FixedSampler,
    MABSSampler,
    ProportionalSampler,
    SortitionError,
    StateError,
    UniformSampler,
    VRBSampler,
)
from tests.helpers import SAMPLERS
from tests.samplers.builders import K, M, adaptive, build, every_sampler, osmd


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


def test_one_exception_catches_them_all() -> None:
    for error in (ConfigurationError, AvailabilityError, FeedbackError, CohortError, StateError):
        assert issubclass(error, SortitionError)
        assert issubclass(error, ValueError)
