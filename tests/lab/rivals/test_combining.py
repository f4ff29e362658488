"""FedVARP, MIFA and FedAU against their papers."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

import sortition.memory
from sortition import Cohort, Memory, UniformSampler
from sortition.lab.rivals.combining import MIFA, FedAU, FedVARP
from sortition.lab.rivals.subsets import UniformSubsetSampler
from sortition.testing import check_sampler


def cohorts(rounds, weights):
    sampler = UniformSampler(num_clients=len(weights), cohort_size=3, client_weights=weights, seed=5)
    rng = np.random.default_rng(1)
    for _ in range(rounds):
        cohort = sampler.draw()
        updates = rng.normal(size=(len(cohort), 4))
        yield cohort, updates, weights[cohort.clients]
        sampler.observe(cohort, np.ones(len(cohort)))


class TestFedVARP:
    WEIGHTS = np.array([0.3, 0.1, 0.1, 0.2, 0.1, 0.2])

    def test_is_memory_with_b_of_one_that_moves_all_the_way(self, monkeypatch):
        monkeypatch.setattr(sortition.memory, "STEP", 1.0)
        monkeypatch.setattr(sortition.memory.Coefficient, "value", 1.0)
        memory = Memory(num_parameters=4, num_clients=6, dtype="float64")
        fedvarp = FedVARP(num_parameters=4)
        for cohort, updates, weights in cohorts(20, self.WEIGHTS):
            ours, theirs = (each.combine(cohort, updates, weights) for each in (fedvarp, memory))
            assert ours[0] == pytest.approx(theirs[0], abs=1e-12)
            assert ours[1] == pytest.approx(theirs[1])

    def test_is_the_papers_estimate_with_equal_weights(self):
        """v = mean of y + (1/|S|) sum over S of (g - y), Algorithm 1."""
        sampler = UniformSubsetSampler(num_clients=5, cohort_size=2, seed=1)
        fedvarp, y = FedVARP(num_parameters=3), np.zeros((5, 3))
        rng = np.random.default_rng(2)
        for _ in range(15):
            cohort = sampler.draw()
            g = rng.normal(size=(2, 3))
            v = y.mean(axis=0) + (g - y[cohort.clients]).mean(axis=0)
            step, _ = fedvarp.combine(cohort, g, np.full(2, 0.2))
            assert step == pytest.approx(v)
            y[cohort.clients] = g
            sampler.observe(cohort, np.ones(2))

    def test_is_unbiased_whatever_it_remembers(self):
        """The mean over all subsets of two out of four clients."""
        rng = np.random.default_rng(0)
        old, new, weights = rng.normal(size=(4, 3)), rng.normal(size=(4, 3)), np.array([0.1, 0.2, 0.3, 0.4])
        everybody = Cohort(0, 4, np.arange(4), np.ones(4), np.ones(4), np.ones(4))
        steps = []
        for subset in combinations(range(4), 2):
            fedvarp = FedVARP(num_parameters=3)
            fedvarp.combine(everybody, old, weights)
            chosen = list(subset)
            cohort = Cohort(1, 2, chosen, np.ones(2), np.full(2, 0.5), np.full(2, 2.0))
            steps.append(fedvarp.combine(cohort, new[chosen], weights[chosen])[0])
        assert np.mean(steps, axis=0) == pytest.approx(weights @ new)


def test_mifa_steps_along_the_mean_of_all_last_updates():
    weights = np.array([0.3, 0.1, 0.1, 0.2, 0.1, 0.2])
    mifa, y = MIFA(num_parameters=4), np.zeros((6, 4))
    for cohort, updates, lam in cohorts(20, weights):
        step, norms = mifa.combine(cohort, updates, lam)
        assert norms == pytest.approx(np.linalg.norm(updates - y[cohort.clients], axis=1))
        y[cohort.clients] = updates
        assert step == pytest.approx(weights @ y)
        assert mifa.remembered(int(cohort.clients[0])) == pytest.approx(updates[0])


class TestFedAU:
    def test_weights_are_the_mean_intervals(self):
        """In rounds 0, 3 and 4: intervals of 1, 3 and 1 rounds; a weight uses only earlier rounds."""
        fedau = FedAU(num_clients=1)
        seen = [float(fedau.take_part([0] if t in (0, 3, 4) else [])[0]) for t in range(7)]
        assert seen == [1.0, 1.0, 1.0, 1.0, 2.0, pytest.approx(5 / 3), pytest.approx(5 / 3)]

    def test_an_interval_ends_at_the_cutoff(self):
        """Never in, with a cutoff of 3: intervals of 3 rounds each, and the weight becomes 3."""
        fedau = FedAU(num_clients=1, cutoff=3)
        assert [float(fedau.take_part([])[0]) for _ in range(8)] == [1, 1, 1, 3, 3, 3, 3, 3]

    def test_is_algorithm_2_written_out(self):
        rng = np.random.default_rng(4)
        table = rng.random((5, 60)) < np.array([0.05, 0.1, 0.3, 0.6, 0.9])[:, None]
        fedau = FedAU(num_clients=5, cutoff=8)
        found = np.array([fedau.take_part(np.flatnonzero(table[:, t])) for t in range(60)]).T
        for client in range(5):
            intervals, length, weight = [], 0, 1.0
            for t in range(60):
                if t > 0:
                    length += 1
                    if table[client, t - 1] or length == 8:
                        intervals.append(length)
                        length, weight = 0, float(np.mean(intervals))
                assert found[client, t] == pytest.approx(weight)

    def test_aggregate_has_these_weights_and_not_the_cohorts(self):
        fedau = FedAU(num_clients=3)
        cohort = Cohort(0, 1, [1], [1], [0.2], [5.0])
        step, norms = fedau.combine(cohort, np.array([[3.0, 4.0]]), np.array([0.5]))
        assert step == pytest.approx([1.5, 2.0])
        assert norms == pytest.approx([5.0])
        for _ in range(3):
            fedau.take_part([])
        step, _ = fedau.combine(cohort, np.array([[3.0, 4.0]]), np.array([0.5]))
        assert step == pytest.approx([1.5, 2.0])  # one interval so far, of one round
        step, _ = fedau.combine(cohort, np.array([[3.0, 4.0]]), np.array([0.5]))
        assert step == pytest.approx([3.75, 5.0])  # (1 + 4) / 2


def test_uniform_subsets_keep_every_promise():
    check_sampler(lambda seed: UniformSubsetSampler(num_clients=7, cohort_size=3, seed=seed))
