"""States that belong elsewhere or are not whole: the right exception, and no trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sortition import (
    AvareSampler,
    DoublingOSMDSampler,
    FixedSampler,
    MABSSampler,
    StateError,
    VRBSampler,
)
from sortition.samplers.base import STATE_VERSION
from tests.helpers import train
from tests.samplers.builders import K, M, adaptive, assert_refused, build, every_sampler, osmd


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
