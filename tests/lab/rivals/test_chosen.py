"""Power-of-Choice and Oort: whom they choose, and what the aggregate is."""

from __future__ import annotations

import numpy as np
import pytest

from sortition import ConfigurationError, FeedbackError
from sortition.core.variance import aggregate
from sortition.lab.algorithms import FedSGD
from sortition.lab.contestants import Trial
from sortition.lab.problems.softmax import digits_federation
from sortition.lab.rivals.chosen import OortSampler, PowerOfChoiceSampler
from sortition.lab.rivals.field import RIVALS
from sortition.lab.training import AsksLosses, HearsLosses, Oracle, all_norms, train

WEIGHTS = np.array([0.3, 0.05, 0.1, 0.15, 0.1, 0.2, 0.1])
LOSSES = np.array([1.0, 7.0, 3.0, 2.0, 6.0, 5.0, 4.0])


class TestPowerOfChoice:
    def make(self, **more) -> PowerOfChoiceSampler:
        return PowerOfChoiceSampler(num_clients=7, cohort_size=2, client_weights=WEIGHTS, **more)

    def test_takes_the_largest_losses_of_the_candidates(self):
        sampler = self.make(num_candidates=4)
        asked = []

        def losses_of(clients):
            asked.append(clients)
            return LOSSES[clients]

        for _ in range(30):
            sampler.ask(losses_of)
            cohort = sampler.draw()
            assert len(asked[-1]) == 4
            best = asked[-1][np.argsort(-LOSSES[asked[-1]])[:2]]
            assert np.array_equal(cohort.clients, np.sort(best))
            updates = np.eye(7)[cohort.clients]
            step = aggregate(cohort, WEIGHTS[cohort.clients], updates)
            assert step == pytest.approx(updates.mean(axis=0))
            sampler.observe(cohort, np.ones(2))

    def test_all_candidates_are_the_greedy_choice(self):
        sampler = self.make(num_candidates=7)
        sampler.ask(LOSSES.__getitem__)
        assert sampler.draw().clients.tolist() == [1, 4]

    def test_as_many_candidates_as_places_are_draws_by_size(self):
        """The first of d = 1 candidates has probability lambda: over many rounds, within 5 deviations."""
        sampler = PowerOfChoiceSampler(
            num_clients=7, cohort_size=1, num_candidates=1, client_weights=WEIGHTS, seed=3
        )
        counts = np.zeros(7)
        for _ in range(4000):
            sampler.ask(LOSSES.__getitem__)
            counts[sampler.draw().clients] += 1
        deviations = np.sqrt(WEIGHTS * (1 - WEIGHTS) / 4000)
        assert np.all(np.abs(counts / 4000 - WEIGHTS) < 5 * deviations)

    def test_losses_must_be_asked_for_each_round(self):
        sampler = self.make()
        with pytest.raises(FeedbackError, match="ask\\(losses_of\\) must come before"):
            sampler.draw()
        sampler.ask(LOSSES.__getitem__)
        sampler.draw()
        with pytest.raises(FeedbackError, match="round 1"):
            sampler.draw()

    def test_candidates_are_at_least_as_many_as_the_cohort(self):
        with pytest.raises(ConfigurationError, match="num_candidates must be"):
            self.make(num_candidates=1)


class TestOort:
    def make(self, **more) -> OortSampler:
        return OortSampler(num_clients=7, cohort_size=2, client_weights=WEIGHTS, **more)

    def play(self, sampler, rounds, losses=LOSSES):
        cohorts = []
        for _ in range(rounds):
            cohort = sampler.draw()
            sampler.hear(cohort, losses[cohort.clients])
            sampler.observe(cohort, np.ones(len(cohort)))
            cohorts.append(cohort)
        return cohorts

    def test_explores_everybody_before_it_repeats(self):
        """With all places for exploration, 7 clients take 4 rounds; the last one is filled up."""
        sampler = self.make(exploration=1.0, exploration_decay=1.0)
        cohorts = self.play(sampler, 4)
        assert set(np.concatenate([cohort.clients for cohort in cohorts])) == set(range(7))
        assert all(len(cohort) == 2 for cohort in cohorts)

    def test_utility_is_the_papers(self):
        """U = n rms, clipped at the 95% quantile and scaled; plus sqrt(0.1 log R / L)."""
        sampler = self.make(exploration=1.0, exploration_decay=1.0)
        last = {}
        for cohort in self.play(sampler, 4):
            last |= dict.fromkeys(cohort.clients.tolist(), cohort.round_index + 1)
        utilities = WEIGHTS * LOSSES
        clipped = np.minimum(utilities, np.sort(utilities)[int(np.ceil(0.95 * 6))])
        low = 0.999 * utilities.min()
        waiting = [np.sqrt(0.1 * np.log(5.0) / last[client]) for client in range(7)]
        expected = (clipped - low) / (utilities.max() - low) + waiting
        assert sampler.scores(np.arange(7)) == pytest.approx(expected)

    def test_slow_clients_pay(self):
        durations = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 70.0])
        plain, timed = self.make(seed=1), self.make(seed=1, durations=durations, pacer_step=50.0)
        for sampler in (plain, timed):
            sampler._last_rounds[:], sampler._utilities[:] = 1, WEIGHTS * LOSSES
        ratio = timed.scores(np.arange(7)) / plain.scores(np.arange(7))
        assert ratio == pytest.approx(np.minimum(4.0 / durations, 1.0) ** 2)

    def test_pacer_relaxes_when_utility_falls(self):
        sampler = self.make(pacer_window=2, durations=np.arange(1.0, 8.0))
        self.play(sampler, 2)
        assert sampler._percentile == 5.0
        self.play(sampler, 2, 0.01 * LOSSES)
        assert sampler._percentile == 10.0
        self.play(sampler, 2, 100.0 * LOSSES)
        assert sampler._percentile == 10.0

    def test_only_useful_clients_are_exploited(self):
        """Everybody was tried: the two places go to clients within 95% of the second best."""
        sampler = self.make()
        sampler._last_rounds[:] = 1
        sampler._utilities[:] = [1.0, 0.99, 0.98, 0.5, 0.4, 0.3, 0.2]
        for _ in range(30):
            assert set(sampler.draw().clients.tolist()) <= {0, 1, 2}

    def test_aggregate_is_the_plain_mean(self):
        cohort = self.make().draw()
        updates = np.eye(7)[cohort.clients]
        step = aggregate(cohort, WEIGHTS[cohort.clients], updates)
        assert step == pytest.approx(updates.mean(axis=0))

    def test_places_for_exploration_are_rounded_down(self):
        """9 of 10 places explore at 0.9, though 10 (1 - 0.9) is less than 1 in floating point."""
        sampler = OortSampler(num_clients=40, cohort_size=10)
        sampler._last_rounds[:20], sampler._utilities[:20] = 1, 1.0
        assert np.count_nonzero(sampler.draw().clients < 20) == 1

    def test_continues_where_it_stopped(self):
        whole, broken = self.make(seed=2), self.make(seed=2)
        self.play(whole, 9)
        self.play(broken, 9)
        resumed = self.make()
        resumed.load_state_dict(broken.state_dict())
        for one, other in zip(self.play(whole, 9), self.play(resumed, 9), strict=True):
            assert np.array_equal(one.clients, other.clients)

    def test_refuses_durations_that_are_none(self):
        with pytest.raises(ConfigurationError, match="durations must be"):
            self.make(durations=np.zeros(7))


@pytest.mark.parametrize("name", RIVALS)
def test_every_rival_trains_in_the_one_loop(name):
    """Digits, 30 rounds: the loss falls; what a rival needs is what it says."""
    problem = digits_federation(num_clients=20, seed=0)
    model = problem.initial_model()
    trial = Trial.at_start(
        problem.client_weights,
        all_norms(problem, model, 0),
        cohort_size=5,
        num_rounds=30,
        design="fixed_size",
        seed=1,
    )
    rival = RIVALS[name]
    sampler, memory = rival.make(trial, len(model))
    kinds = {"all norms": Oracle, "losses before": AsksLosses, "losses after": HearsLosses}
    assert {needs for needs, kind in kinds.items() if isinstance(sampler, kind)} == {rival.needs} - {""}
    done = train(sampler, problem, FedSGD(0.5, memory=memory), 30)
    assert done.losses[-1] < 0.9 * done.initial_loss
