"""Norms are clipped and noised before anything is learnt from them, and the account is right."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from sortition import (
    AdaptiveOSMDSampler,
    AvareSampler,
    Cohort,
    ConfigurationError,
    NormPrivacy,
    OptimalSampler,
    StateError,
    UniformSampler,
)
from sortition.core.accounting import gaussian_epsilon
from sortition.samplers.privacy import BITS, Noise, Uniforms
from sortition.testing import check_sampler
from tests.helpers import same_cohort, train

REPEATABLE = NormPrivacy(norm_bound=2.0, noise_multiplier=0.5, fresh_noise=False)


def cohort(round_index: int, size: int) -> Cohort:
    ones = np.ones(size)
    return Cohort(round_index, size, np.arange(size), ones.astype(int), ones, ones)


def avare(privacy: NormPrivacy | None, seed: int = 0) -> AvareSampler:
    return AvareSampler(num_clients=12, cohort_size=4, seed=seed, privacy=privacy)


def test_private_samplers_keep_every_promise() -> None:
    check_sampler(lambda seed: avare(REPEATABLE, seed))


def test_noise_has_the_stated_size_and_sensitivity() -> None:
    """Whatever the norm, the noise is N(0, (sigma C)^2); norms above C are clipped."""
    noise = Noise(REPEATABLE, seed=1)
    big = noise.apply(cohort(0, 20000), np.full(20000, 1e9))
    at_bound = Noise(REPEATABLE, seed=1).apply(cohort(0, 20000), np.full(20000, 2.0))
    assert np.array_equal(big, at_bound)
    assert big.mean() == pytest.approx(2.0, abs=0.05)
    assert big.std() == pytest.approx(1.0, abs=0.05)


def test_noise_is_the_same_for_the_same_reply_and_another_for_any_other() -> None:
    """So a resumed run equals the unbroken one, and a state continued twice does not give norms away."""
    noise = Noise(REPEATABLE, seed=1)
    first = noise.apply(cohort(3, 5), np.ones(5))
    noise.apply(cohort(4, 5), np.ones(5))
    assert np.array_equal(noise.apply(cohort(3, 5), np.ones(5)), first)
    assert len(set(first.tolist())) > 1  # of another client
    assert not np.array_equal(noise.apply(cohort(4, 5), np.ones(5)), first)
    again = noise.apply(cohort(3, 5), np.full(5, 1.5))
    assert not np.any(np.isclose(again - first, 0.5, atol=1e-9))


def test_noise_is_normal_rounded_to_the_grid() -> None:
    """20,000 draws in cells of a quarter of a standard deviation, against the normal distribution."""
    drawn = np.array([Uniforms(b"%d" % seed).normal() for seed in range(20000)]) / 2.0**BITS
    edges = np.arange(-3.0, 3.01, 0.25)
    expected = np.diff([0.0, *(0.5 * (1.0 + math.erf(edge / math.sqrt(2.0))) for edge in edges), 1.0])
    found = np.bincount(np.searchsorted(edges, drawn), minlength=len(expected))
    chi_square = float(np.sum((found - 20000 * expected) ** 2 / (20000 * expected)))
    assert chi_square < 54.0  # 25 degrees of freedom: above with probability 0.0007


def test_silence_stays_silence_and_nothing_is_negative() -> None:
    found = Noise(REPEATABLE, seed=1).apply(cohort(0, 400), np.where(np.arange(400) % 2, np.nan, 0.0))
    assert np.array_equal(np.isnan(found), np.arange(400) % 2 == 1)
    assert np.nanmin(found) == 0.0


def test_fresh_noise_differs_between_runs_and_survives_saving() -> None:
    private = NormPrivacy(norm_bound=2.0, noise_multiplier=0.5)
    one, other = avare(private), avare(private)
    train(one, 5)
    train(other, 5)
    assert not np.array_equal(one.probabilities(), other.probabilities())
    other.load_state_dict(one.state_dict())
    assert all(map(same_cohort, train(one, 5), train(other, 5)))
    assert np.array_equal(one.probabilities(), other.probabilities())


def test_the_account() -> None:
    """The client that replied most decides; a client that did not reply has spent nothing."""
    sampler = avare(NormPrivacy(norm_bound=1.0, noise_multiplier=2.0))
    assert sampler.privacy_spent().epsilon == 0.0
    for _ in range(3):
        drawn = sampler.draw(available=[1, 2, 3])
        sampler.observe(drawn, np.where(drawn.clients == 1, np.nan, 1.0))
    spent = sampler.privacy_spent(delta=1e-6)
    assert spent.most_replies == 3
    assert spent.epsilon_per_reply == pytest.approx(gaussian_epsilon(1.0 / 2.0, 1e-6))
    assert spent.epsilon == pytest.approx(gaussian_epsilon(np.sqrt(3.0) / 2.0, 1e-6))
    resumed = avare(NormPrivacy(norm_bound=1.0, noise_multiplier=2.0))
    resumed.load_state_dict(sampler.state_dict())
    assert resumed.privacy_spent(delta=1e-6) == spent


@pytest.mark.parametrize("key", [-1, 2**64, 0.5, "x", "0" * 63, "A" * 64])
def test_a_state_with_an_impossible_key(key: Any) -> None:
    sampler = avare(REPEATABLE)
    with pytest.raises(StateError, match="key"):
        sampler.load_state_dict({**sampler.state_dict(), "privacy.key": key})


def test_norms_that_would_not_be_noised_are_refused() -> None:
    """A pre-training pass and an oracle take norms as they are: these would not be in the account."""
    common: dict[str, Any] = {"num_clients": 3, "cohort_size": 1, "privacy": REPEATABLE}
    adaptive = AdaptiveOSMDSampler(num_rounds=10, **common)
    with pytest.raises(ConfigurationError, match=r"calibrate.*privacy"):
        adaptive.calibrate([1.0, 2.0, 777.0])
    assert adaptive.feedback_bound is None
    oracle = OptimalSampler(**common)
    with pytest.raises(ConfigurationError, match=r"reveal.*privacy"):
        oracle.reveal([1.0, 2.0, 777.0])


def test_settings_are_checked() -> None:
    for flag in ("no", 1, None):
        with pytest.raises(ConfigurationError, match="fresh_noise"):
            NormPrivacy(norm_bound=1.0, noise_multiplier=1.0, fresh_noise=flag)  # type: ignore[arg-type]
    for wrong in (0.0, 1e-101, 1e101, np.nan):
        with pytest.raises(ConfigurationError, match="norm_bound"):
            NormPrivacy(norm_bound=wrong, noise_multiplier=1.0)
    for wrong in (-1.0, 0.0, 1e7):
        with pytest.raises(ConfigurationError, match="noise_multiplier"):
            NormPrivacy(norm_bound=1.0, noise_multiplier=wrong)
    with pytest.raises(ConfigurationError, match="privacy"):
        UniformSampler(num_clients=3, cohort_size=1, privacy=1.0)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="privacy_spent"):
        UniformSampler(num_clients=3, cohort_size=1).privacy_spent()
