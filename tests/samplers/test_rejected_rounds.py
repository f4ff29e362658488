"""Feedback, availability and calibration that make no sense: the right exception, and no trace."""

from __future__ import annotations

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
    SortitionError,
)
from tests.helpers import train
from tests.samplers.builders import K, M, adaptive, assert_refused, build, every_sampler, osmd


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
