"""A loaded state is not believed where it holds numbers that can't be: the error names the entry."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from sortition import (
    AdaptiveOSMDSampler,
    AvareSampler,
    EmpiricalBayesSampler,
    KVibSampler,
    MABSSampler,
    OSMDSampler,
    PortfolioSampler,
    StateError,
    VRBSampler,
)
from tests.helpers import norms_for, same_state, train

CROWD = ("ratios", "scales", "bases", "log_expert_weights", "joined_masses", "weights.joined_masses")
SHIFTED = (*CROWD, "logs", "shift")
LIFTED = (*SHIFTED, "unseen_log", "share")
GUARD = ("guard.logs", "guard.rates", "guard.outlying", "guard.limits", "trial.told")
ENGINES: dict[str, tuple[Any, tuple[str, ...]]] = {
    "osmd": (lambda **common: OSMDSampler(learning_rate=0.01, **common), CROWD),
    "adaptive": (
        lambda **common: AdaptiveOSMDSampler(num_rounds=40, **common),
        (*CROWD, "log_feedback_bound"),
    ),
    "avare": (AvareSampler, (*SHIFTED, "exploration")),
    "mabs": (lambda **common: MABSSampler(num_rounds=40, **common), LIFTED),
    "vrb": (VRBSampler, LIFTED),
    "empirical bayes": (
        EmpiricalBayesSampler,
        (*LIFTED, *GUARD, "seen", "noise", "met", "level", "log_loss"),
    ),
    "k-vib": (lambda **common: KVibSampler(num_rounds=40, **common), ("log_omega", "masses")),
    "portfolio": (
        lambda **common: PortfolioSampler(experts=[AvareSampler(**common)]),
        ("log_expert_weights", "log_loss"),
    ),
}
FINE = {
    ("logs", "-inf"),
    ("log_omega", "-inf"),
    ("level", "nan"),
    ("log_loss", "nan"),
    ("log_feedback_bound", "nan"),
}
"""What good states have too: the logarithm of who left or has no feedback, and what is not known yet."""


def trained(build: Any) -> Any:
    sampler = build(num_clients=7, cohort_size=3, seed=5)
    train(sampler, 3)
    sampler.add_clients(2)
    sampler.remove_clients([0])
    train(sampler, 3)
    return sampler


def damaged(state: dict[str, Any], entry: str, bad: float) -> dict[str, Any]:
    value = state[entry]
    if isinstance(value, np.ndarray):
        value = value.copy()
        value.flat[-1] = bad
    else:
        value = bad
    return {**state, entry: value}


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("name", "entry"), [(name, e) for name, (_, found) in ENGINES.items() for e in found]
)
def test_no_entry_is_nan_or_infinite(name: str, entry: str, bad: float) -> None:
    sampler = trained(ENGINES[name][0])
    before, p = sampler.state_dict(), sampler.probabilities()
    if (entry, str(bad)) in FINE:
        sampler.load_state_dict(damaged(before, entry, bad))
        return
    with pytest.raises(StateError, match=rf"\b{re.escape(entry)}\b"):
        sampler.load_state_dict(damaged(before, entry, bad))
    assert same_state(sampler.state_dict(), before)
    assert np.array_equal(sampler.probabilities(), p)


@pytest.mark.parametrize(
    ("name", "entry", "bad"),
    [("avare", "exploration", -0.1), ("vrb", "share", 1.5), ("vrb", "share", -0.5), ("osmd", "bases", -1.0)],
)
def test_no_share_or_base_is_out_of_bounds(name: str, entry: str, bad: float) -> None:
    sampler = trained(ENGINES[name][0])
    before = sampler.state_dict()
    with pytest.raises(StateError, match=rf"'{entry}'.* got {bad}"):
        sampler.load_state_dict(damaged(before, entry, bad))
    assert same_state(sampler.state_dict(), before)


@pytest.mark.parametrize("name", ENGINES)
def test_what_a_sampler_can_come_to_is_never_refused(name: str) -> None:
    """Silence, norms of 0 and of 1e300, joins and leaves: the state of every round loads."""
    sampler, rng = ENGINES[name][0](num_clients=7, cohort_size=3, seed=5), np.random.default_rng(2)
    for round_index in range(40):
        cohort = sampler.draw()
        odd = rng.choice([0.0, 1e-300, 1.0, 1e300, np.nan], size=len(cohort))
        sampler.observe(cohort, np.where(odd == 1.0, norms_for(cohort), odd))
        if round_index % 5 == 4:
            newcomer = sampler.add_clients([1e-6])
            sampler.remove_clients(newcomer if round_index % 2 else [round_index // 10])
        before = sampler.state_dict()
        sampler.load_state_dict(before)
        assert same_state(sampler.state_dict(), before)
