"""Clustered sampling: exact by enumeration of every draw from the K distributions."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import pdist, squareform

from sortition import Cohort, ConfigurationError
from sortition.core.designs import weigh_with_replacement
from sortition.lab.rivals.clustered import (
    ClusteredBySimilaritySampler,
    ClusteredBySizeSampler,
    strata_by_similarity,
    strata_by_size,
)
from sortition.testing import check_sampler

sizes = st.lists(st.integers(1, 60), min_size=4, max_size=6)


def expected_weights(matrix, shares, cohort_size):
    """E[weight] of every client: the sum over all ways to draw one client from each row."""
    mean = np.zeros(len(shares))
    for draws in product(*(np.flatnonzero(row) for row in matrix)):
        chance = np.prod([matrix[k, client] for k, client in enumerate(draws)])
        drawn = np.array(draws)
        clients, _, _, weights = weigh_with_replacement(drawn, shares[drawn], cohort_size)
        mean[clients] += chance * weights
    return mean


def weight_variances(matrix):
    """Variance of each client's share of the K draws: K draws from row k are independent."""
    return (matrix * (1.0 - matrix)).sum(axis=0) / len(matrix) ** 2


class TestDistributions:
    @given(sizes=sizes, cohort_size=st.integers(1, 3), seed=st.integers(0, 99))
    @settings(max_examples=60, deadline=None)
    def test_both_algorithms_are_unbiased(self, sizes, cohort_size, seed):
        """Rows sum to one, columns to K lambda (Proposition 1), and so every weight has mean one."""
        shares = np.array(sizes) / sum(sizes)
        rng = np.random.default_rng(seed)
        distances = squareform(pdist(rng.normal(size=(len(sizes), 3))))
        for strata in (
            strata_by_size(shares, cohort_size),
            strata_by_similarity(shares, distances, cohort_size, rng),
        ):
            matrix = strata.matrix(len(sizes))
            assert matrix.shape == (cohort_size, len(sizes))
            assert matrix.sum(axis=1) == pytest.approx(np.ones(cohort_size))
            assert matrix.sum(axis=0) == pytest.approx(cohort_size * shares)
            assert expected_weights(matrix, shares, cohort_size) == pytest.approx(np.ones(len(sizes)))

    @given(sizes=sizes, cohort_size=st.integers(1, 3), seed=st.integers(0, 99))
    @settings(max_examples=60, deadline=None)
    def test_weights_vary_no_more_than_with_draws_from_lambda(self, sizes, cohort_size, seed):
        """Section 3.2, Equation 17."""
        shares = np.array(sizes) / sum(sizes)
        rng = np.random.default_rng(seed)
        distances = squareform(pdist(rng.normal(size=(len(sizes), 3))))
        multinomial = shares * (1.0 - shares) / cohort_size
        for strata in (
            strata_by_size(shares, cohort_size),
            strata_by_similarity(shares, distances, cohort_size, rng),
        ):
            assert np.all(weight_variances(strata.matrix(len(sizes))) <= multinomial + 1e-12)

    def test_by_size_is_the_algorithm_written_out(self):
        """Whole numbers, as in the paper: K n_i samples go to distributions with room for n each."""
        rng = np.random.default_rng(0)
        counts, cohort_size = rng.integers(1, 50, 12), 4
        total = int(counts.sum())
        table = np.zeros((cohort_size, 12), dtype=int)
        k = 0
        for client in np.argsort(-counts, kind="stable"):
            left = cohort_size * int(counts[client])
            while left:
                poured = min(total - table[k].sum(), left)
                table[k, client] += poured
                left -= poured
                k += int(table[k].sum() == total)
        matrix = strata_by_size(counts / total, cohort_size).matrix(12)
        assert matrix == pytest.approx(table / total)

    def test_similar_clients_share_a_distribution(self):
        """Three kinds of clients, of one size each: each kind is one distribution."""
        kinds = np.repeat(np.eye(3), 4, axis=0) * 10.0
        strata = strata_by_similarity(
            np.full(12, 1 / 12), squareform(pdist(kinds)), 3, np.random.default_rng(0)
        )
        rows = strata.matrix(12) > 1e-9
        assert sorted(map(tuple, (np.flatnonzero(row) for row in rows))) == [
            (0, 1, 2, 3),
            (4, 5, 6, 7),
            (8, 9, 10, 11),
        ]

    def test_clusters_that_are_too_light_fill_the_room_that_is_left(self):
        """Five pairs and K = 2: each pair weighs 0.4; two pairs are kernels and the others are poured."""
        pairs = np.repeat(np.arange(5) * 100.0, 2)[:, None] + np.tile([0.0, 1.0], 5)[:, None]
        pairs[8:] += 1000.0
        strata = strata_by_similarity(np.full(10, 0.1), squareform(pdist(pairs)), 2, np.random.default_rng(3))
        matrix = strata.matrix(10)
        assert matrix.sum(axis=1) == pytest.approx([1.0, 1.0])
        assert matrix.sum(axis=0) == pytest.approx(np.full(10, 0.2))

    def test_a_large_client_fills_whole_distributions(self):
        shares = np.array([0.7, 0.1, 0.1, 0.1])
        for strata in (
            strata_by_size(shares, 3),
            strata_by_similarity(shares, squareform(pdist(np.eye(4))), 3, np.random.default_rng(0)),
        ):
            matrix = strata.matrix(4)
            assert np.count_nonzero(np.isclose(matrix[:, 0], 1.0)) == 2
            assert matrix.sum(axis=0) == pytest.approx(3 * shares)

    def test_all_draws_are_as_likely_as_the_rows_say(self):
        """The uniforms at which a row's draw changes are its cumulated masses."""
        strata = strata_by_size(np.array([0.2, 0.5, 0.3]), 2)
        grid = (np.arange(1000) + 0.5) / 1000
        draws = np.array([strata.draw(np.array([u, u])) for u in grid])
        for row, matrix_row in enumerate(strata.matrix(3)):
            assert np.bincount(draws[:, row], minlength=3) / 1000 == pytest.approx(matrix_row, abs=1e-3)


class TestSamplers:
    WEIGHTS = np.array([0.3, 0.05, 0.1, 0.15, 0.1, 0.2, 0.1])

    def test_by_size_keeps_every_promise(self):
        check_sampler(
            lambda seed: ClusteredBySizeSampler(
                num_clients=7, cohort_size=3, client_weights=self.WEIGHTS, seed=seed
            )
        )

    def test_by_similarity_keeps_every_promise(self):
        check_sampler(
            lambda seed: ClusteredBySimilaritySampler(
                num_clients=7, cohort_size=3, num_parameters=4, client_weights=self.WEIGHTS, seed=seed
            )
        )

    def make(self, **more):
        return ClusteredBySimilaritySampler(
            num_clients=7, cohort_size=3, num_parameters=4, client_weights=self.WEIGHTS, **more
        )

    def play(self, sampler, rounds):
        cohorts = []
        for _ in range(rounds):
            cohort = sampler.draw()
            kinds = np.eye(4)[cohort.clients % 3] + 0.01 * np.random.default_rng(cohort.round_index).normal(
                size=(len(cohort), 4)
            )
            step, norms = sampler.combine(cohort, kinds, self.WEIGHTS[cohort.clients])
            assert step == pytest.approx((self.WEIGHTS[cohort.clients] * cohort.weights) @ kinds)
            assert norms == pytest.approx(np.linalg.norm(kinds, axis=1))
            sampler.observe(cohort, norms)
            cohorts.append(cohort)
        return cohorts

    @pytest.mark.parametrize("every", [1, 4])
    def test_updates_survive_a_restart(self, every):
        whole, broken = self.make(recluster_every=every, seed=1), self.make(recluster_every=every, seed=1)
        self.play(whole, 13)
        self.play(broken, 6)
        resumed = self.make(recluster_every=every)
        resumed.load_state_dict(broken.state_dict())
        self.play(resumed, 7)
        for one, other in zip(self.play(whole, 5), self.play(resumed, 5), strict=True):
            assert np.array_equal(one.clients, other.clients)
            assert np.array_equal(one.weights, other.weights)

    def test_angles_are_those_of_the_last_updates(self):
        sampler = self.make()
        updates = {}
        for cohort in self.play(sampler, 12):
            kinds = np.eye(4)[cohort.clients % 3] + 0.01 * np.random.default_rng(cohort.round_index).normal(
                size=(len(cohort), 4)
            )
            updates |= dict(zip(cohort.clients.tolist(), kinds, strict=True))
        for i, one in updates.items():
            for j, other in updates.items():
                cosine = one @ other / np.linalg.norm(one) / np.linalg.norm(other)
                angle = np.arccos(min(cosine, 1.0))
                assert sampler._angles[i, j] == pytest.approx(angle, abs=2e-3)
        assert not sampler._angles[[c for c in range(7) if c not in updates]].any()

    def test_needs_the_size_of_the_model(self):
        with pytest.raises(ConfigurationError, match="num_parameters must be"):
            ClusteredBySimilaritySampler(num_clients=3, cohort_size=1, num_parameters=0)

    def test_clients_without_weight_are_never_drawn(self):
        sampler = ClusteredBySizeSampler(num_clients=4, cohort_size=2, client_weights=[0.4, 0.0, 0.3, 0.3])
        drawn = {client for _ in range(50) for client in self._drawn(sampler)}
        assert drawn == {0, 2, 3}

    @staticmethod
    def _drawn(sampler) -> list[int]:
        cohort: Cohort = sampler.draw()
        sampler.observe(cohort, np.ones(len(cohort)))
        return cohort.clients.tolist()
