"""How the authors' variant departs from the text, and their published runs replayed."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from sortition import AdaptiveOSMDSampler, Cohort
from sortition.core.experts import log_expert_losses, mixture, osmd_step, reweigh_experts
from sortition.core.rates import expert_rates, initial_expert_weights, meta_rate, num_experts
from sortition.lab.problems.least_squares import authors_heterogeneous
from sortition.lab.problems.softmax import AUTHORS_SIZES, SoftmaxFederation, image_federation
from sortition.lab.reproduce.figures import RunSettings
from sortition.lab.reproduce.simulate import SAMPLERS, replay_published, simulate
from sortition.lab.reproduce.variants import (
    AuthorsAdaptiveOSMDSampler,
    LossSGD,
    ShrinkingSGD,
    Start,
    SummedSGD,
    authors_image_loss,
    make_problem,
    make_sampler,
)

SHORT = RunSettings("text", "heterogeneous", "adaptive-osmd", 12, 5, 0.1, seed=1, spread=3.0)


def images_federation() -> SoftmaxFederation:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (700, 3, 3)).astype(np.uint8)
    labels = rng.integers(0, 10, 700).astype(np.uint8)
    return image_federation(images, labels, num_clients=40, sizes=AUTHORS_SIZES, validation=2, seed=1)


class TestAuthors:
    def test_sampler_is_their_code_written_out(self):
        """Dense, with core's functions: steps count draws once, losses all of them, rates are K/2 as high."""
        clients, size, horizon, alpha, bound = 6, 4, 50, 0.4, 2.0
        sampler = AuthorsAdaptiveOSMDSampler(
            num_clients=clients,
            cohort_size=size,
            num_rounds=horizon,
            exploration=alpha,
            feedback_bound=bound,
            rate_scale=size / 2,
            guard=None,
            seed=3,
        )
        slowest = size**2 * alpha**3 / (clients**3 * bound) * math.sqrt(math.log(clients) / (2 * horizon))
        rates = slowest * 2.0 ** np.arange(num_experts(clients, horizon, alpha))
        assert sampler.expert_rates == pytest.approx(rates)
        assert rates == pytest.approx(size / 2 * expert_rates(clients, size, horizon, alpha, bound))
        gamma = meta_rate(clients, size, horizon, alpha, bound)
        experts = np.full((len(rates), clients), 1 / clients)
        thetas = np.log(initial_expert_weights(len(rates)))
        repeated = 0
        for round_index in range(30):
            assert sampler.probabilities() == pytest.approx(mixture(thetas, experts), rel=1e-9)
            cohort = sampler.draw()
            norms = 10.0 * (1 + np.cos(cohort.clients + round_index))
            sampler.observe(cohort, norms)
            repeated += int(np.any(cohort.counts > 1))
            log_feedback = 2 * np.log(norms / clients)
            losses = log_expert_losses(experts, cohort, log_feedback)
            thetas = reweigh_experts(thetas, math.log(gamma), losses)
            once = Cohort(
                round_index,
                size,
                cohort.clients,
                cohort.counts,
                cohort.probabilities,
                cohort.weights / cohort.counts,
            )
            experts = np.array(
                [
                    osmd_step(expert, np.full(clients, alpha / clients), math.log(rate), once, log_feedback)
                    for expert, rate in zip(experts, rates, strict=True)
                ]
            )
        assert repeated > 5

    def test_where_doubles_give_out_experts_become_uniform_and_equal(self):
        """A step whose exp overflows, and losses that leave no expert any weight."""
        common = {"num_clients": 6, "cohort_size": 2, "num_rounds": 50, "exploration": 0.4, "guard": None}
        sampler = AuthorsAdaptiveOSMDSampler(**common, feedback_bound=1.0)
        cohort = Cohort(0, 2, [1, 2], [1, 1], [1 / 6, 1 / 6], [3.0, 3.0])
        sampler.learn(cohort, np.array([20.0, 20.0]))
        assert sampler.probabilities() == pytest.approx(np.full(6, 1 / 6))
        assert len(set(sampler.expert_weights)) == 1

    def test_a_weight_that_underflows_stays_at_zero(self):
        """Losses of 0 leave the weights alone: an expert with weight 0 does not come back."""
        sampler = AuthorsAdaptiveOSMDSampler(
            num_clients=6, cohort_size=2, num_rounds=50, feedback_bound=1.0, guard=None
        )
        sampler._thetas = np.array([0.0, *np.full(len(sampler._thetas) - 1, 1 / (len(sampler._thetas) - 1))])
        cohort = Cohort(0, 2, [1, 2], [1, 1], [1 / 6, 1 / 6], [3.0, 3.0])
        for feedback in (-3.0, -8.0, -1.0):
            sampler.learn(cohort, np.full(2, feedback))
            assert sampler.expert_weights[0] == 0.0
            assert sampler.expert_weights.sum() == pytest.approx(1.0)

    def test_continues_where_it_stopped(self):
        common = {"num_clients": 6, "cohort_size": 2, "num_rounds": 50, "feedback_bound": 1.0, "guard": None}
        whole, resumed = AuthorsAdaptiveOSMDSampler(**common), AuthorsAdaptiveOSMDSampler(**common, seed=9)
        for _ in range(4):
            cohort = whole.draw()
            whole.observe(cohort, 1.0 + cohort.clients)
        resumed.load_state_dict(whole.state_dict())
        cohort = resumed.draw()
        assert np.array_equal(whole.draw().clients, cohort.clients)
        for sampler in (whole, resumed):
            sampler.observe(cohort, 1.0 + cohort.clients)
        assert np.array_equal(whole.probabilities(), resumed.probabilities())

    def test_draws_without_replacement_are_learnt_from_as_if_they_were_with(self):
        common = {"num_clients": 6, "cohort_size": 4, "num_rounds": 50, "feedback_bound": 2.0, "guard": None}
        without = AuthorsAdaptiveOSMDSampler(**common, design="without_replacement")
        replaced = AuthorsAdaptiveOSMDSampler(**common)
        for round_index in range(5):
            cohort = without.draw()
            weights = cohort.counts / (4 * cohort.probabilities)
            assert not np.allclose(cohort.weights, weights)
            as_if = Cohort(round_index, 4, cohort.clients, cohort.counts, cohort.probabilities, weights)
            without.learn(cohort, 1.0 * cohort.clients)
            replaced.learn(as_if, 1.0 * cohort.clients)
            assert without.probabilities() == pytest.approx(replaced.probabilities())

    def test_samplers_are_fed_sums_and_vrb_losses(self):
        problem = make_problem(replace(SHORT, variant="authors"), None)
        cohort = Cohort(0, 2, clients=[1, 4], counts=[1, 1], probabilities=[0.1, 0.1], weights=[5.0, 5.0])
        model = np.ones(10)
        norms = np.linalg.norm(problem.updates(model, cohort.clients, 0), axis=1)
        after, fed = SummedSGD(0.1)(model, cohort, problem, 0)
        assert fed == pytest.approx(10 * norms)
        same, losses = LossSGD(0.1)(model, cohort, problem, 0)
        assert np.array_equal(after, same)
        assert losses == pytest.approx(problem.batch_losses(model, cohort.clients, 0))

    def test_bounds_of_vrb_and_mabs(self):
        settings = replace(SHORT, variant="authors")
        problem = make_problem(settings, None)
        feedback, losses = np.arange(1.0, 101.0), np.arange(100.0)
        for sampler, bound in (("vrb", 1.5 * (0.01 * 99.0) ** 2), ("mabs", math.sqrt(50.5))):
            built = make_sampler(Start(replace(settings, sampler=sampler), problem, feedback, losses))
            assert built.feedback_bound == pytest.approx(bound)

    def test_batches_shrink_for_good(self):
        problem = images_federation()
        large, single = (int(np.flatnonzero(problem.client_sizes == size)[0]) for size in (100, 1))
        model = np.random.default_rng(0).normal(size=problem.initial_model().size)
        algorithm = ShrinkingSGD(0.1, report_losses=False)

        def fed(*clients: int) -> np.ndarray:
            ones = np.ones(len(clients))
            return algorithm(model, Cohort(0, 1, sorted(clients), ones, ones, ones), problem, 0)[1]

        full = np.linalg.norm(problem.updates(model, np.array([large]), 0))
        assert fed(large) == pytest.approx([full], rel=1e-5)
        assert algorithm.batch_size == 5
        fed(single)
        assert algorithm.batch_size == 1
        one = problem.updates(model, np.array([large]), 0, np.array([1]))
        assert fed(large) == pytest.approx([np.linalg.norm(one)], rel=1e-5)

    def test_loss_is_divided_by_the_images(self):
        problem = images_federation()
        model = problem.initial_model()
        two_batches = np.count_nonzero(problem.client_sizes > 64)
        assert two_batches == 2
        assert authors_image_loss(problem, model) == pytest.approx(
            (40 + two_batches) * math.log(10) / problem.client_sizes.sum(), rel=1e-5
        )

    def test_bound_on_images_is_that_of_clients_that_count_alike(self):
        problem = images_federation()
        norms = np.linspace(1.0, 2.0, 40)
        feedback = (problem.client_weights * norms) ** 2
        settings = replace(SHORT, variant="authors", problem="mnist")
        assert Start(settings, problem, feedback, norms).bound == pytest.approx((2.0 / 40) ** 2)
        text = Start(replace(settings, variant="text"), problem, feedback, norms)
        assert text.bound == pytest.approx(feedback.max())

    def test_text_samplers_are_the_librarys(self):
        problem = make_problem(SHORT, None)
        sampler = make_sampler(Start(SHORT, problem, np.ones(100), np.ones(100)))
        assert type(sampler) is AdaptiveOSMDSampler


class TestReplay:
    SETTINGS = RunSettings("authors", "replayed", "all", 4, 5, 0.1, seed=0, spread=3.0, repeats=2)

    def test_the_stream_serves_all_samplers_in_turn(self):
        """Uniform and optimal sampling written out; what the others take is drawn and thrown away."""
        features, targets = authors_heterogeneous(3.0)
        stream = np.random.RandomState(111)
        curves = replay_published(self.SETTINGS)
        assert curves["loss"].shape == curves["regret"].shape == (2, len(SAMPLERS), 4)

        def batches():
            return np.array([stream.choice(100, size=10, replace=False) for _ in range(100)])

        def gradient(model, client, rows):
            x, y = features[client, rows], targets[client, rows]
            return x.T @ (x @ model - y) / 10

        for repeat in range(2):
            model = np.zeros(10)
            for t in range(4):
                batches()
                draws = stream.choice(100, size=5, p=np.full(100, 0.01))
                rows = [stream.choice(100, size=10, replace=False) for _ in draws]
                steps = [gradient(model, client, own) for client, own in zip(draws, rows, strict=True)]
                model = model - 0.1 * np.mean(steps, axis=0)
                loss = np.mean((features @ model - targets) ** 2) / 2
                assert curves["loss"][repeat, 0, t] == pytest.approx(loss)
            model = np.zeros(10)
            for t in range(4):
                rows = batches()
                all_gradients = np.array([gradient(model, client, rows[client]) for client in range(100)])
                p = np.linalg.norm(all_gradients, axis=1)
                p /= p.sum()
                draws = stream.choice(100, size=5, p=p)
                model = model - 0.1 * np.mean(all_gradients[draws] / (100 * p[draws])[:, None], axis=0)
                loss = np.mean((features @ model - targets) ** 2) / 2
                assert curves["loss"][repeat, 1, t] == pytest.approx(loss)
            for _ in SAMPLERS[2:]:
                batches()  # for the bound
                for _ in range(4):
                    batches()
                    stream.random_sample(5)  # what five draws take, whatever the distribution

    @pytest.mark.parametrize(("kind", "lines"), [("all", 5), ("alphas", 6), ("without-replacement", 1)])
    def test_ticks_are_as_many_as_planned(self, kind, lines):
        ticks = []
        settings = replace(self.SETTINGS, sampler=kind)
        curves = simulate(settings, tick=lambda: ticks.append(1))
        assert curves["loss"].shape == (2, lines, 4)
        assert len(ticks) == settings.rounds_in_all() == 2 * lines * 4

    def test_alphas_take_turns_after_a_pass_that_is_not_used(self):
        """With alpha = 1 nothing can be learnt: its steps, written out after what the others take."""
        features, targets = authors_heterogeneous(3.0)
        stream = np.random.RandomState(111)
        curves = replay_published(replace(self.SETTINGS, sampler="alphas"))

        def batches():
            return np.array([stream.choice(100, size=10, replace=False) for _ in range(100)])

        batches()
        for place in range(6):
            for repeat in range(2):
                model = np.zeros(10)
                batches()  # for the bound
                for t in range(4):
                    rows = batches()
                    draws = stream.choice(100, size=5, p=np.full(100, 0.01))
                    if place < 5:
                        continue
                    step = np.zeros(10)
                    for client in draws:
                        x, y = features[client, rows[client]], targets[client, rows[client]]
                        step += x.T @ (x @ model - y) / 10
                    model = model - 0.1 * step / 5
                    loss = np.mean((features @ model - targets) ** 2) / 2
                    assert curves["loss"][repeat, 5, t] == pytest.approx(loss)

    def test_without_replacement_one_client_after_another(self):
        """The first round written out: five draws, each from those left, and the weights of Appendix A.2."""
        features, targets = authors_heterogeneous(3.0)
        stream = np.random.RandomState(111)
        curves = replay_published(replace(self.SETTINGS, sampler="without-replacement"))
        for _ in range(2):  # for the bound, and for the round
            rows = np.array([stream.choice(100, size=10, replace=False) for _ in range(100)])
        p = np.full(100, 0.01)
        draws, gradients, total = [], [], np.zeros(10)
        for _ in range(5):
            left = p.copy()
            left[draws] = 0.0
            left /= left.sum()
            client = stream.choice(100, size=1, p=left)[0]
            x, y = features[client, rows[client]], targets[client, rows[client]]
            gradient = -x.T @ y / 10
            total = total + gradient / left[client] + sum(gradients)
            draws.append(client)
            gradients.append(gradient)
        model = -0.1 * total / (100 * 5)
        loss = np.mean((features @ model - targets) ** 2) / 2
        assert curves["loss"][0, 0, 0] == pytest.approx(loss)
