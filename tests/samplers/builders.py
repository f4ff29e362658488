"""Small samplers, built with whatever a test wants to be wrong with them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from sortition import (
    AdaptiveOSMDSampler,
    AvareSampler,
    ConfigurationError,
    DoublingOSMDSampler,
    EmpiricalBayesSampler,
    FixedSampler,
    MABSSampler,
    OSMDSampler,
    SortitionError,
    VRBSampler,
)
from tests.helpers import SAMPLERS, same_state

M, K = 5, 2
every_sampler = pytest.mark.parametrize("name", SAMPLERS)


def build(name: str, **changes: Any) -> Any:
    return SAMPLERS[name](**{"num_clients": M, "cohort_size": K, **changes})


def osmd(**changes: Any) -> OSMDSampler:
    return OSMDSampler(**{"num_clients": M, "cohort_size": K, "learning_rate": 0.1, **changes})


def adaptive(**changes: Any) -> AdaptiveOSMDSampler:
    return AdaptiveOSMDSampler(**{"num_clients": M, "cohort_size": K, "num_rounds": 10, **changes})


def doubling(**changes: Any) -> DoublingOSMDSampler:
    return DoublingOSMDSampler(**{"num_clients": M, "cohort_size": K, **changes})


def mabs(**changes: Any) -> MABSSampler:
    return MABSSampler(**{"num_clients": M, "cohort_size": K, "num_rounds": 9, **changes})


def vrb(**changes: Any) -> VRBSampler:
    return VRBSampler(**{"num_clients": M, "cohort_size": K, **changes})


def avare(**changes: Any) -> AvareSampler:
    return AvareSampler(**{"num_clients": M, "cohort_size": K, **changes})


def empirical_bayes(**changes: Any) -> EmpiricalBayesSampler:
    return EmpiricalBayesSampler(**{"num_clients": M, "cohort_size": K, **changes})


def fixed(**changes: Any) -> FixedSampler:
    return FixedSampler(**{"num_clients": M, "cohort_size": K, "probabilities": [1.0 / M] * M, **changes})


def assert_rejects(
    call: Callable[[], object], argument: str, error: type[SortitionError] = ConfigurationError
) -> None:
    """``call`` raises ``error``, and its message names ``argument``."""
    with pytest.raises(error, match=rf"(?<!\w){re.escape(argument)}(?!\w)"):
        call()


def assert_refused(
    sampler: Any, call: Callable[[], object], error: type[SortitionError], argument: str
) -> None:
    """``call`` raises ``error``, which names ``argument``, and leaves ``sampler`` as it was."""
    before = sampler.state_dict()
    assert_rejects(call, argument, error)
    assert same_state(before, sampler.state_dict()), "refused, but not without a trace"
