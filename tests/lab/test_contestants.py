"""The samplers that a comparison knows: all of them run in every design, configured as they say."""

from __future__ import annotations

import numpy as np
import pytest

from sortition.core.designs import DESIGNS
from sortition.lab.algorithms import FedSGD
from sortition.lab.contestants import CONTESTANTS, INDEPENDENT_ONLY, ORACLES, Trial
from sortition.lab.problems import DigitsFederation
from sortition.lab.trajectory import run


def trial_of(problem: DigitsFederation, **changes) -> Trial:
    settings = {
        "client_weights": problem.client_weights,
        "cohort_size": 4,
        "num_rounds": 20,
        "feedback_bound": 0.1,
        "design": "with_replacement",
        "seed": 1,
    }
    return Trial(**{**settings, **changes})


@pytest.fixture(scope="module")
def problem():
    return DigitsFederation(num_clients=20)


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("name", CONTESTANTS)
def test_runs_in_every_design(name, design, problem):
    sampler = CONTESTANTS[name](trial_of(problem, design=design))
    trajectory = run(sampler, problem, FedSGD(0.1), 20)
    assert sampler.design == ("independent" if name in INDEPENDENT_ONLY else design)
    assert np.isfinite(trajectory.losses).all()
    assert (trajectory.variance_ratios >= 1.0 - 1e-12).all()


def test_only_those_that_do_not_learn_stay_where_they_were(problem):
    moved = set()
    for name, contestant in CONTESTANTS.items():
        sampler = contestant(trial_of(problem))
        before = sampler.probabilities()
        run(sampler, problem, FedSGD(0.1), 20)
        if not np.allclose(sampler.probabilities(), before, rtol=1e-9):
            moved.add(name)
    assert set(CONTESTANTS) - moved == {"uniform", "proportional"}


def test_larger_rates_move_further(problem):
    def distance(name):
        sampler = CONTESTANTS[name](trial_of(problem))
        run(sampler, problem, FedSGD(0.1), 20)
        return np.abs(sampler.probabilities() - 1 / 20).sum()

    assert distance("adaptive-osmd-x100") > distance("adaptive-osmd") > 0


def test_the_oracles_come_last():
    assert set(list(CONTESTANTS)[-2:]) == ORACLES
