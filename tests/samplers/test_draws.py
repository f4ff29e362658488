"""A sampler draws what its probabilities say, from a randomness that is its own."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pytest

from sortition import AdaptiveOSMDSampler, FixedSampler, Guard, NormPrivacy, OSMDSampler
from sortition.core.designs import DESIGNS, inclusion_probabilities, restrict
from tests.helpers import SAMPLERS, norms_for, outcomes, same_cohort, train

M, K = 5, 2
DRAWS = 4000
DEVIATIONS = 6.0
every_sampler = pytest.mark.parametrize("name", SAMPLERS)


def build(name: str, **changes: Any) -> Any:
    return SAMPLERS[name](**{"num_clients": M, "cohort_size": K, "seed": 1, **changes})


def assert_frequencies(seen: Counter[Any], expected: dict[Any, float], draws: int) -> None:
    assert seen.keys() <= expected.keys(), "an outcome that can't be, or weights that are not its own"
    for outcome, probability in expected.items():
        margin = DEVIATIONS * np.sqrt(draws * probability * (1.0 - probability)) + 1.0
        assert abs(seen[outcome] - draws * probability) <= margin, outcome


@pytest.mark.parametrize("here", [None, [0, 2, 3, 4]], ids=["everybody", "available"])
@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize(
    "learner",
    [
        lambda **common: OSMDSampler(learning_rate=0.002, exploration=0.2, **common),
        lambda **common: AdaptiveOSMDSampler(num_rounds=20, rate_scale=50.0, **common),
    ],
    ids=["osmd", "adaptive"],
)
def test_every_outcome_comes_as_often_as_the_probabilities_say(
    learner: Any, design: str, here: list[int] | None
) -> None:
    """After some learning, each cohort, weights and all, of a draw by the sampler; no feedback in between.

    With somebody away the probabilities are those of the available, rescaled (Appendix D.2).
    """
    sampler = learner(num_clients=M, cohort_size=K, design=design, seed=8)
    train(sampler, 6)
    p = sampler.probabilities()
    assert np.ptp(p) > 0.05
    present = np.arange(M) if here is None else np.array(here)
    expected: dict[Any, float] = defaultdict(float)
    for probability, (chosen, counts, _, weights) in outcomes(design, restrict(p[present]), K):
        expected[key(present[chosen], counts, weights)] += probability
    seen: Counter[Any] = Counter()
    for _ in range(DRAWS):
        cohort = sampler.draw(available=here)
        seen[key(cohort.clients, cohort.counts, cohort.weights)] += 1
    assert_frequencies(seen, expected, DRAWS)


def key(clients: Any, counts: Any, weights: Any) -> tuple[tuple[float, ...], ...]:
    return tuple(clients.tolist()), tuple(counts.tolist()), tuple(weights.round(8).tolist())


@pytest.mark.parametrize(
    "make",
    [
        lambda **common: OSMDSampler(learning_rate=3e-5, **common),
        lambda **common: AdaptiveOSMDSampler(num_rounds=20, rate_scale=3.0, **common),
        SAMPLERS["fixed"],
    ],
    ids=["osmd", "adaptive", "fixed"],
)
def test_each_client_of_many_is_included_as_often_as_it_should(make: Any) -> None:
    """Independent draws from 300 clients, where nobody tosses a coin for each: min(1, c p), sum K.

    Clients are alone in their coins: the size of a cohort has the variance that independence gives it.
    """
    clients, draws = 300, 1500
    sampler = make(num_clients=clients, cohort_size=3, design="independent", seed=4)
    for _ in range(8):
        cohort = sampler.draw()
        sampler.observe(cohort, np.where(cohort.clients % 7 == 0, 30.0, 1.0))
    inclusion = inclusion_probabilities(sampler.probabilities(), 3)
    assert 2.0 * inclusion.min() < inclusion.max(), "nothing was learnt"
    assert np.sum(inclusion >= 1.0) <= 1, "too much was"
    seen, sizes = np.zeros(clients), []
    for _ in range(draws):
        cohort = sampler.draw()
        seen[cohort.clients] += 1
        sizes.append(len(cohort))
        assert cohort.weights == pytest.approx(1.0 / inclusion[cohort.clients], rel=1e-9)
    spread = inclusion * (1.0 - inclusion)
    # a count as small as these is skewed to the right: two more for the far tail of a Poisson
    assert np.all(np.abs(seen - draws * inclusion) <= DEVIATIONS * np.sqrt(draws * spread) + 2.0)
    assert np.mean(sizes) == pytest.approx(3.0, abs=DEVIATIONS * np.sqrt(spread.sum() / draws))
    # the variance of a sample variance is about 2 sigma^4 / n, and a little more for the kurtosis
    assert np.var(sizes) == pytest.approx(spread.sum(), rel=DEVIATIONS * np.sqrt(2.5 / draws))


def test_without_replacement_when_one_client_has_nearly_all() -> None:
    """Three of four, the first with 99.9 %: those left are drawn in their proportions, whatever it takes."""
    p = np.array([0.999, 0.0005, 0.0003, 0.0002])
    sampler = FixedSampler(
        num_clients=4, cohort_size=3, probabilities=p, design="without_replacement", seed=2
    )
    expected: dict[Any, float] = defaultdict(float)
    for probability, (clients, counts, _, weights) in outcomes("without_replacement", p, 3):
        expected[key(clients, counts, weights)] += probability
    seen: Counter[Any] = Counter()
    for _ in range(1500):
        cohort = sampler.draw()
        seen[key(cohort.clients, cohort.counts, cohort.weights)] += 1
    assert_frequencies(seen, expected, 1500)


@every_sampler
def test_a_cohort_carries_the_probabilities_of_its_draw(name: str) -> None:
    sampler = build(name)
    for t in range(10):
        assert sampler.round_index == t
        p = sampler.probabilities()
        cohort = sampler.draw()
        assert (cohort.round_index, cohort.cohort_size) == (t, K)
        assert cohort.probabilities == pytest.approx(p[cohort.clients], rel=1e-12)
        assert np.all(np.diff(cohort.clients) > 0)
        assert cohort.counts.sum() == K
        sampler.observe(cohort, norms_for(cohort))


@every_sampler
def test_a_cohort_of_a_fixed_size(name: str) -> None:
    """In every round K distinct clients, with the inclusion probabilities of that moment; the certain too."""
    sampler = build(name, num_clients=9, cohort_size=4, design="fixed_size")
    for t in range(12):
        here = np.arange(9) if t % 3 else np.array([8, 0, 3, 5, 2, 6])
        present = np.sort(here)
        inclusion = np.zeros(9)
        inclusion[present] = inclusion_probabilities(restrict(sampler.probabilities()[present]), 4)
        cohort = sampler.draw(available=here if t % 3 == 0 else None)
        assert len(cohort) == 4
        assert np.all(np.diff(cohort.clients) > 0)
        assert cohort.counts.tolist() == [1] * 4
        assert cohort.probabilities == pytest.approx(inclusion[cohort.clients], rel=1e-9)
        assert cohort.weights == pytest.approx(1.0 / inclusion[cohort.clients], rel=1e-9)
        assert set(np.flatnonzero(inclusion == 1.0).tolist()) <= set(cohort.clients.tolist())
        sampler.observe(cohort, norms_for(cohort))


@every_sampler
@pytest.mark.parametrize(
    "privacy", [None, NormPrivacy(norm_bound=10.0, noise_multiplier=0.5)], ids=["plain", "private"]
)
def test_a_fixed_size_through_everything_at_once(name: str, privacy: NormPrivacy | None) -> None:
    """Guard, privacy, joins, leaves, silence and late feedback; stopped and resumed, to the bit."""

    def new() -> Any:
        guard = Guard(outlier_factor=1.5, outlier_fence=0.1, largest_gain=2.0)
        return build(
            name, num_clients=12, cohort_size=4, design="fixed_size", guard=guard, privacy=privacy, seed=3
        )

    def run(sampler: Any, late: list[Any], rounds: range) -> list[Any]:
        drawn = []
        for t in rounds:
            p = sampler.probabilities()
            cohort = sampler.draw()
            inclusion = inclusion_probabilities(p, 4)
            assert len(cohort) == len(set(cohort.clients.tolist())) == 4
            assert p[cohort.clients].min() > 0.0
            assert cohort.probabilities == pytest.approx(inclusion[cohort.clients], rel=1e-8)
            norms = norms_for(cohort)
            norms[t % 4 :: 3] = np.nan
            late.append((cohort, norms))
            if t % 3 == 2:
                for one in (late.pop(), late.pop(0)):
                    sampler.observe(*one)
            if t % 5 == 3:
                sampler.add_clients([0.3, 0.01])
                sampler.remove_clients([t])
            drawn.append(cohort)
        return drawn

    whole, late = new(), []
    run(whole, late, range(10))
    resumed, late_too = new(), list(late)
    resumed.load_state_dict(whole.state_dict())
    for one, other in zip(
        run(whole, late, range(10, 16)), run(resumed, late_too, range(10, 16)), strict=True
    ):
        assert same_cohort(one, other)


@every_sampler
@pytest.mark.parametrize("design", DESIGNS)
def test_as_many_available_as_draws_all_take_part(name: str, design: str) -> None:
    """Appendix D.2: with at most K available, all of them, once, with weight one; in whatever order named."""
    sampler = build(name, design=design)
    train(sampler, 4)
    for available in ([3], [4, 0], np.array([1, 2], dtype=np.int32)):
        cohort = sampler.draw(available=available)
        assert cohort.clients.tolist() == sorted(available)
        assert cohort.counts.tolist() == [1] * len(available)
        assert cohort.weights.tolist() == [1.0] * len(available)
        sampler.observe(cohort, norms_for(cohort))


@every_sampler
def test_everybody_available_is_nobody_away(name: str) -> None:
    """The probabilities need no rescaling: weights are counts / (K p) with the p that was looked up."""
    sampler = build(name)
    train(sampler, 4)
    p = sampler.probabilities()
    cohort = sampler.draw(available=range(M))
    assert cohort.probabilities == pytest.approx(p[cohort.clients], rel=1e-12)
    assert cohort.weights == pytest.approx(cohort.counts / (K * p[cohort.clients]), rel=1e-12)


def test_clients_that_can_not_be_drawn_may_still_be_available() -> None:
    """Weight 0 and prior 0: available on their own they take part, count for nothing and spoil nothing."""
    masses = np.array([0.5, 0.3, 0.2, 0.0, 0.0])
    for make in (
        lambda **common: OSMDSampler(learning_rate=0.01, **common),
        lambda **common: AdaptiveOSMDSampler(num_rounds=9, **common),
    ):
        sampler = make(num_clients=M, cohort_size=K, client_weights=masses, prior=masses, seed=1)
        for available in ([0, 3], [3, 4], [0, 1, 3, 4], None):
            cohort = sampler.draw(available=available)
            sampler.observe(cohort, norms_for(cohort))
            p = sampler.probabilities()
            assert p.sum() == pytest.approx(1.0)
            assert p[3:].tolist() == [0.0, 0.0]
            assert np.all(p[:3] >= 0.4 * masses[:3] * (1 - 1e-12))


@pytest.mark.parametrize("seed", range(3))
def test_equal_winners_with_different_floors_stay_above_them(seed: int) -> None:
    """Feedback beyond all doubles for two clients whose floors are 0.09 and 0.54: both floors hold."""
    prior = np.array([0.3, 0.1, 0.6])
    sampler = OSMDSampler(
        num_clients=3, cohort_size=2, learning_rate=1.0, exploration=0.9, prior=prior, seed=seed
    )
    for _ in range(3):
        sampler.observe(sampler.draw(available=[1, 2]), [1e200, 1e200])
        assert np.all(sampler.probabilities() >= 0.9 * prior * (1 - 1e-12))


# Randomness -------------------------------------------------------------------------------------------


@every_sampler
def test_the_global_random_state_has_no_say_and_is_left_alone(name: str) -> None:
    np.random.seed(0)
    sampler = build(name)
    first = train(sampler, 5)
    untouched = np.random.random()
    np.random.seed(12345)
    again = train(build(name), 5)
    assert all(same_cohort(one, other) for one, other in zip(first, again, strict=True))
    np.random.seed(0)
    assert np.random.random() == untouched


@every_sampler
def test_two_samplers_do_not_disturb_each_other(name: str) -> None:
    alone = train(build(name), 6)
    sampler, neighbour = build(name), build(name, seed=2)
    for expected in alone:
        other = neighbour.draw()
        cohort = sampler.draw()
        neighbour.probabilities()
        neighbour.observe(other, norms_for(other))
        sampler.observe(cohort, norms_for(cohort))
        assert same_cohort(cohort, expected)


@pytest.mark.parametrize("name", ["uniform", "proportional", "fixed"])
def test_a_draw_depends_on_seed_and_round_only(name: str) -> None:
    """Not on what was drawn or observed before: round 5 after five draws is round 5 of a state set to it."""
    sampler = build(name)
    cohorts = [sampler.draw() for _ in range(6)]
    jumped = build(name)
    jumped.load_state_dict({**jumped.state_dict(), "round_index": 5})
    assert same_cohort(jumped.draw(), cohorts[5])
    observed = build(name)
    for cohort in cohorts:
        observed.probabilities()
        same = observed.draw()
        assert same_cohort(same, cohort)
        observed.observe(same, norms_for(same))


@every_sampler
def test_looking_does_not_change_the_run(name: str) -> None:
    plain, observed = build(name), build(name)
    for _ in range(6):
        observed.probabilities()
        observed.probabilities([1, 1, 0])
        observed.state_dict()
        cohort, same = plain.draw(), observed.draw()
        assert same_cohort(cohort, same)
        plain.observe(cohort, norms_for(cohort))
        observed.observe(same, norms_for(same))


@every_sampler
def test_seeds_differ(name: str) -> None:
    runs = {
        tuple(tuple(cohort.clients.tolist()) for cohort in train(build(name, seed=s), 12)) for s in range(6)
    }
    assert len(runs) == 6


@every_sampler
def test_probabilities_of_some(name: str) -> None:
    sampler = build(name)
    train(sampler, 4)
    p = sampler.probabilities()
    assert np.array_equal(sampler.probabilities([3, 0, 3]), p[[3, 0, 3]])
