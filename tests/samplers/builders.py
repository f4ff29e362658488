"""Small samplers, built with whatever a test wants to be wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sortition import AdaptiveOSMDSampler, OSMDSampler, SortitionError
from tests.helpers import SAMPLERS, same_state

M, K = 5, 2
every_sampler = pytest.mark.parametrize("name", SAMPLERS)


def build(name: str, **changes: Any) -> Any:
    return SAMPLERS[name](**{"num_clients": M, "cohort_size": K, **changes})


def osmd(**changes: Any) -> OSMDSampler:
    return OSMDSampler(**{"num_clients": M, "cohort_size": K, "learning_rate": 0.1, **changes})


def adaptive(**changes: Any) -> AdaptiveOSMDSampler:
    return AdaptiveOSMDSampler(**{"num_clients": M, "cohort_size": K, "num_rounds": 10, **changes})


def assert_refused(
    sampler: Any, call: Callable[[], object], error: type[SortitionError], complaint: str
) -> None:
    before = sampler.state_dict()
    with pytest.raises(error, match=complaint):
        call()
    assert same_state(before, sampler.state_dict()), "refused, but not without a trace"
