"""Every sampler of ours keeps every promise, in every design, with and without weights."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from sortition import (
    AdaptiveOSMDSampler,
    AvareSampler,
    DoublingOSMDSampler,
    EmpiricalBayesSampler,
    FixedSampler,
    KVibSampler,
    MABSSampler,
    OptimalClientSampler,
    OptimalSampler,
    OSMDSampler,
    ProportionalSampler,
    Sampler,
    UniformSampler,
    VRBSampler,
)
from sortition.core.designs import DESIGNS
from sortition.testing import check_sampler

M, K = 8, 3
SKEWED = np.array([0.3, 0.2, 0.15, 0.1, 0.1, 0.08, 0.05, 0.02])

# name -> (build(**common), the floor it promises)
SAMPLERS: dict[str, tuple[Callable[..., Sampler], float]] = {
    "uniform": (UniformSampler, 1 / M),
    "proportional": (ProportionalSampler, 0.0),
    "fixed": (lambda **common: FixedSampler(probabilities=SKEWED, **common), 0.02),
    "osmd": (lambda **common: OSMDSampler(learning_rate=0.05, exploration=0.3, **common), 0.3 / M),
    "adaptive": (lambda **common: AdaptiveOSMDSampler(num_rounds=50, rate_scale=10.0, **common), 0.4 / M),
    "adaptive-prior": (
        lambda **common: AdaptiveOSMDSampler(num_rounds=50, rate_scale=10.0, prior=SKEWED, **common),
        0.4 * 0.02,
    ),
    "doubling-mixture": (lambda **common: DoublingOSMDSampler(rate_scale=10.0, **common), 0.4 / M),
    "doubling-restarted": (lambda **common: DoublingOSMDSampler(restart="prior", **common), 0.4 / M),
    "mabs": (lambda **common: MABSSampler(num_rounds=50, **common), 0.4 / M),
    "vrb": (VRBSampler, 0.4 / M),
    "avare": (AvareSampler, 0.0),
    "empirical-bayes": (EmpiricalBayesSampler, 0.0),
    "mabs-prior": (lambda **common: MABSSampler(num_rounds=50, prior=SKEWED, **common), 0.4 * 0.02),
    "vrb-prior": (lambda **common: VRBSampler(prior=SKEWED, **common), 0.4 * 0.02),
    "avare-prior": (lambda **common: AvareSampler(prior=SKEWED, **common), 0.0),
    "empirical-bayes-prior": (lambda **common: EmpiricalBayesSampler(prior=SKEWED, **common), 0.0),
}


@pytest.mark.parametrize("weights", [None, SKEWED[::-1]], ids=["alike", "skewed"])
@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("name", SAMPLERS)
def test_promises(name: str, design: str, weights: np.ndarray | None) -> None:
    build, floor = SAMPLERS[name]
    check_sampler(
        lambda seed: build(num_clients=M, cohort_size=K, client_weights=weights, design=design, seed=seed),
        floor=floor,
    )


@pytest.mark.parametrize("design", DESIGNS)
def test_promises_of_the_oracle(design: str) -> None:
    check_sampler(
        lambda seed: OptimalSampler(num_clients=M, cohort_size=K, design=design, seed=seed),
        before_draw=lambda sampler: sampler.reveal(1.0 + np.arange(M)),
    )


@pytest.mark.parametrize("weights", [None, SKEWED[::-1]], ids=["alike", "skewed"])
def test_promises_of_samplers_with_independent_draws_only(weights: np.ndarray | None) -> None:
    common = {"num_clients": M, "cohort_size": K, "client_weights": weights}
    check_sampler(
        lambda seed: KVibSampler(num_rounds=50, exploration=0.4, seed=seed, **common), floor=0.4 / M
    )
    check_sampler(
        lambda seed: OptimalClientSampler(seed=seed, **common),
        before_draw=lambda sampler: sampler.reveal(1.0 + np.arange(M)),
    )


def test_more_draws_than_clients() -> None:
    check_sampler(lambda seed: OSMDSampler(learning_rate=0.1, num_clients=3, cohort_size=10, seed=seed))


@pytest.mark.parametrize(
    "name", [name for name in SAMPLERS if name != "fixed" and not name.endswith("-prior")]
)
def test_a_federation_of_one(name: str) -> None:
    """All but those with a distribution that is given for 8 clients."""
    sampler = SAMPLERS[name][0](num_clients=1, cohort_size=1, seed=0)
    for norm in (2.0, 0.0, 1e300):
        cohort = sampler.draw()
        assert cohort.clients.tolist() == [0]
        assert cohort.weights == pytest.approx([1.0], rel=1e-12)
        sampler.observe(cohort, [norm])
        assert sampler.probabilities() == pytest.approx([1.0], rel=1e-12)
