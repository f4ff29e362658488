"""Draws are what the weights assume: every outcome comes as often as its probability says.

The weights are tested by enumeration (tests/paper/test_unbiasedness.py), which assumes that draws have the
distribution that their design says. Here that assumption: seeded draws, margins of six standard deviations.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sortition.core.designs import (
    DESIGNS,
    RoundGenerator,
    Weighed,
    draw_dense,
    draw_fixed_size,
    draw_with_replacement,
    draw_without_replacement,
    inclusion_probabilities,
    restrict,
    weigh_by_inclusion,
    weigh_with_replacement,
    weigh_without_replacement,
)
from tests.helpers import Array, duels, outcomes, positive, simplex

DRAWS = 5000
DEVIATIONS = 6.0


def key(weighed: Weighed) -> tuple[object, ...]:
    """An outcome, to be counted: clients, counts and weights. The weights tell the order of draws."""
    clients, counts, probabilities, weights = weighed
    return (
        tuple(clients.tolist()),
        tuple(counts.tolist()),
        tuple(probabilities.round(9).tolist()),
        tuple(weights.round(9).tolist()),
    )


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize(
    ("p", "cohort_size"),
    [([0.1, 0.2, 0.3, 0.4], 2), ([0.7, 0.2, 0.06, 0.04], 3), ([0.25, 0.25, 0.2, 0.3], 4)],
    ids=["mild", "dominated", "all"],
)
def test_every_outcome_comes_as_often_as_it_should(design: str, p: list[float], cohort_size: int) -> None:
    probabilities = np.array(p)
    expected: dict[tuple[object, ...], float] = defaultdict(float)
    for probability, weighed in outcomes(design, probabilities, cohort_size):
        expected[key(weighed)] += probability
    generator = np.random.default_rng(20250115)
    seen = Counter(key(draw_dense(design, probabilities, cohort_size, generator)) for _ in range(DRAWS))
    assert seen.keys() <= expected.keys(), "an outcome that can't be, or weights that are not its own"
    for outcome, probability in expected.items():
        margin = DEVIATIONS * np.sqrt(DRAWS * probability * (1.0 - probability)) + 1e-6
        assert abs(seen[outcome] - DRAWS * probability) <= margin, outcome


@pytest.mark.parametrize("design", DESIGNS)
def test_a_client_without_probability_is_never_drawn(design: str) -> None:
    p = np.array([0.0, 0.5, 0.0, 0.3, 0.2, 0.0])
    generator = np.random.default_rng(1)
    for _ in range(500):
        clients, _, probabilities, weights = draw_dense(design, p, 2, generator)
        assert set(clients.tolist()) <= {1, 3, 4}
        assert np.all(probabilities > 0.0)
        assert np.all(np.isfinite(weights))


@pytest.mark.parametrize("design", ["without_replacement", "independent", "fixed_size"])
def test_fewer_possible_clients_than_draws(design: str) -> None:
    """All of them are drawn; the weights still have mean one (two clients, K = 3)."""
    p = np.array([0.0, 0.4, 0.0, 0.6])
    generator = np.random.default_rng(2)
    total = np.zeros(4)
    for _ in range(4000):
        clients, counts, _, weights = draw_dense(design, p, 3, generator)
        assert clients.tolist() == [1, 3]
        assert counts.tolist() == [1, 1]
        total[clients] += weights
    # of the j-th of two, K = 3: (1 - before) / (3 p) + (3 - j) / 3, so at most 1 / (3 * 0.4) + 2 / 3
    assert total / 4000 == pytest.approx([0.0, 1.0, 0.0, 1.0], abs=DEVIATIONS * 1.5 / np.sqrt(4000))


def test_weights_without_replacement_by_hand() -> None:
    """Clients 2, 0, 1 in this order, p = 0.5, 0.3, 0.2, K = 3: Appendix A.2, draw by draw.

    1 / (3 * 0.5) + 2/3 = 4/3;  (1 - 0.5) / (3 * 0.3) + 1/3 = 8/9;  (1 - 0.8) / (3 * 0.2) = 1/3.
    """
    clients, counts, probabilities, weights = weigh_without_replacement(
        np.array([2, 0, 1]), np.array([0.5, 0.3, 0.2]), cohort_size=3
    )
    assert clients.tolist() == [0, 1, 2]
    assert counts.tolist() == [1, 1, 1]
    assert probabilities.tolist() == [0.3, 0.2, 0.5]
    assert weights == pytest.approx([8 / 9, 1 / 3, 4 / 3])


@settings(max_examples=50)
@given(p=simplex(5), updates=positive(5), data=st.data())
def test_weights_without_replacement_are_algorithm_7(p: Array, updates: Array, data: st.DataObject) -> None:
    """The estimate g~ built line by line as Algorithm 7 prints it (lambda_m g_m = ``updates``)."""
    cohort_size = data.draw(st.integers(1, 5))
    draws = data.draw(st.permutations(range(5)))[:cohort_size]
    estimates = []
    for k, client in enumerate(draws):
        before = draws[:k]
        p_k = p[client] / (1.0 - p[before].sum())
        estimates.append(updates[client] / p_k + updates[before].sum())
    clients, _, _, weights = weigh_without_replacement(np.array(draws), p[draws], cohort_size)
    assert weights @ updates[clients] == pytest.approx(np.mean(estimates), rel=1e-9)


def test_weights_with_replacement_by_hand() -> None:
    """Client 7 twice at 0.4, client 1 once at 0.1, K = 3: 2 / 1.2 and 1 / 0.3."""
    clients, counts, probabilities, weights = weigh_with_replacement(
        np.array([7, 1, 7]), np.array([0.4, 0.1, 0.4]), cohort_size=3
    )
    assert clients.tolist() == [1, 7]
    assert counts.tolist() == [1, 2]
    assert probabilities.tolist() == [0.1, 0.4]
    assert weights == pytest.approx([10 / 3, 5 / 3])


def test_weights_of_independent_draws_by_hand() -> None:
    clients, counts, probabilities, weights = weigh_by_inclusion(np.array([4, 2]), np.array([0.5, 0.8]))
    assert clients.tolist() == [2, 4]
    assert counts.tolist() == [1, 1]
    assert probabilities.tolist() == [0.8, 0.5]
    assert weights.tolist() == [1.25, 2.0]


@given(p=simplex(6, least=1e-6), cohort_size=st.integers(1, 6))
@example(p=np.array([1 - 5e-12, 1e-12, 1e-12, 1e-12, 1e-12, 1e-12]), cohort_size=3)
@example(p=np.full(6, 1 / 6), cohort_size=5)
def test_inclusion_probabilities_are_capped_and_sum_to_the_cohort_size(p: Array, cohort_size: int) -> None:
    """min(1, c p) for one c, and the sum is K."""
    inclusion = inclusion_probabilities(p, cohort_size)
    assert inclusion.sum() == pytest.approx(cohort_size, rel=1e-12)
    assert np.all((inclusion > 0.0) & (inclusion <= 1.0))
    below = inclusion < 1.0
    if below.any():
        factors = inclusion[below] / p[below]
        assert factors == pytest.approx(np.full(below.sum(), factors[0]), rel=1e-12)
        assert np.all(factors[0] * p[~below] >= 1.0 - 1e-12)
    else:
        assert cohort_size == 6


def test_inclusion_probabilities_by_hand() -> None:
    # K p = 1.8, 0.6, 0.3, 0.3: the first is certain; the other two draws: 2 * (0.2, 0.1, 0.1) / 0.4
    assert inclusion_probabilities(np.array([0.6, 0.2, 0.1, 0.1]), 3) == pytest.approx([1.0, 1.0, 0.5, 0.5])
    # nobody above one: K p
    assert inclusion_probabilities(np.array([0.4, 0.3, 0.3]), 2) == pytest.approx([0.8, 0.6, 0.6])
    assert inclusion_probabilities(np.array([0.4, 0.3, 0.3]), 3).tolist() == [1.0, 1.0, 1.0]
    # two clients that can be drawn, K = 2 and 3: both are certain
    for cohort_size in (2, 3):
        assert inclusion_probabilities(np.array([0.9, 0.0, 0.1]), cohort_size).tolist() == [1.0, 0.0, 1.0]
    assert inclusion_probabilities(np.array([0.9, 0.0, 0.1]), 1) == pytest.approx([0.9, 0.0, 0.1])


# A fixed size ----------------------------------------------------------------------------------------


class Given(np.random.Generator):
    """Gives prescribed uniforms, one after another."""

    def __init__(self, uniforms: tuple[float, ...]) -> None:
        super().__init__(np.random.PCG64(0))
        self.left = list(uniforms)

    def random(self) -> float:  # type: ignore[override]
        return self.left.pop(0)


@pytest.mark.parametrize(
    ("quarters", "cohort_size"),
    [
        ([1, 3, 2, 2], 2),
        ([3, 3, 2], 2),
        ([2, 0, 3, 3, 0], 2),
        ([9, 1, 3, 2, 2], 3),
        ([1, 3, 7, 2, 6, 2], 4),
        ([4, 1, 3], 2),
        ([1, 1, 1, 1], 1),
    ],
)
def test_every_outcome_of_a_fixed_size_on_a_grid_of_uniforms(quarters: list[int], cohort_size: int) -> None:
    """With inclusion probabilities in quarters, all borders are multiples of 1/12: every set of clients.

    So are inclusion probabilities, single and joint, those of the duels; more than four quarters are certain.
    """
    inclusion = np.minimum(np.array(quarters) / 4.0, 1.0)
    p = np.array(quarters) / sum(quarters)
    assert inclusion_probabilities(p, cohort_size) == pytest.approx(inclusion, abs=1e-12)
    duellists = int(np.count_nonzero((inclusion > 0.0) & (inclusion < 1.0)))
    midpoints = ((np.arange(12) + 0.5) / 12).tolist()
    found: dict[tuple[int, ...], float] = defaultdict(float)
    for uniforms in product(midpoints, repeat=duellists):
        clients, counts, pi, weights = draw_fixed_size(p, cohort_size, Given(uniforms))
        cohort = tuple(clients.tolist())
        if cohort not in found:
            assert counts.tolist() == [1] * cohort_size
            assert pi == pytest.approx(inclusion[clients], abs=1e-12)
            assert weights == pytest.approx(1.0 / inclusion[clients], rel=1e-12)
        found[cohort] += 12.0**-duellists
    expected: dict[tuple[int, ...], float] = defaultdict(float)
    for probability, chosen in duels(inclusion):
        expected[tuple(sorted(chosen))] += probability
    for cohort in expected.keys() | found.keys():
        assert found[cohort] == pytest.approx(expected[cohort], abs=1e-12), cohort
    single = [sum(share for cohort, share in found.items() if m in cohort) for m in range(len(p))]
    assert single == pytest.approx(inclusion, abs=1e-12)


@settings(max_examples=100)
@given(
    p=simplex(8, least=1e-6),
    zeros=st.sets(st.integers(0, 7), max_size=7),
    cohort_size=st.integers(1, 8),
    seed=st.integers(0, 100),
)
@example(p=np.array([1 - 7e-13, *[1e-13] * 7]), zeros=set(), cohort_size=3, seed=0)
@example(p=np.array([1.0, *[1e-300] * 7]), zeros={3}, cohort_size=5, seed=1)
@example(p=np.full(8, 0.125), zeros=set(), cohort_size=8, seed=0)
@example(p=np.full(8, 0.125), zeros=set(), cohort_size=7, seed=0)
def test_a_fixed_size_is_exactly_that(p: Array, zeros: set[int], cohort_size: int, seed: int) -> None:
    """K distinct clients, or all that can be drawn, with the inclusion probabilities as they are."""
    p = np.where(np.isin(np.arange(8), list(zeros)), 0.0, p)
    p = p / p.sum()
    inclusion = inclusion_probabilities(p, cohort_size)
    generator = np.random.default_rng(seed)
    for _ in range(5):
        clients, counts, pi, weights = draw_fixed_size(p, cohort_size, generator)
        assert len(clients) == min(cohort_size, np.count_nonzero(p)) == len(set(clients.tolist()))
        assert np.all(np.diff(clients) > 0)
        assert np.all(counts == 1)
        assert np.all(p[clients] > 0.0)
        assert pi.tolist() == inclusion[clients].tolist()
        assert weights.tolist() == (1.0 / pi).tolist()
        assert set(np.flatnonzero(inclusion == 1.0).tolist()) <= set(clients.tolist())


def test_duels_have_the_inclusion_probabilities() -> None:
    """Of every single client, for vectors without any pattern."""
    rng = np.random.default_rng(2)
    for _ in range(50):
        p = rng.dirichlet(np.full(7, 0.7))
        inclusion = inclusion_probabilities(p, 3)
        found = np.zeros(7)
        for probability, chosen in duels(inclusion):
            assert len(set(chosen)) == 3
            found[list(chosen)] += probability
        assert found == pytest.approx(inclusion, abs=1e-12)


def worst_ratio(p: Array, cohort_size: int) -> float:
    """The largest variance of an aggregate by a fixed size over that with replacement, whatever the updates.

    The variance of sum_m x_m weight_m is x' C x: with replacement, C = (diag(1 / p) - 1) / K. The updates
    x = p have no variance in either design; beside these it is an eigenvalue.
    """
    inclusion = inclusion_probabilities(p, cohort_size)
    together = np.zeros((len(p), len(p)))
    for probability, chosen in duels(inclusion):
        together[np.ix_(chosen, chosen)] += probability
    fixed = together / np.outer(inclusion, inclusion) - 1.0
    assert fixed @ p == pytest.approx(np.zeros(len(p)), abs=1e-9)
    # in coordinates y = x / sqrt(p), draws with replacement have (1 - s s') / K with s = sqrt(p)
    root = np.sqrt(p)
    return float(cohort_size * np.linalg.eigvalsh(fixed * np.outer(root, root)).max())


def test_no_updates_make_a_fixed_size_worse_than_draws_with_replacement() -> None:
    """200 small cases where nobody is certain (Chauvet and Ruiz-Gazen 2017), and 200 of any kind.

    With certain clients the bound is K / c, which is below 1. The certain have no variance, and the others at
    most that of k draws with replacement among them. K draws from all clients have at least c / K times that,
    whatever the updates of the certain clients are.
    """
    rng = np.random.default_rng(7)
    uncapped, any_kind, largest = 0, 0, 0.0
    while uncapped < 200 or any_kind < 200:
        size, clients = int(rng.integers(2, 5)), int(rng.integers(3, 8))
        p = rng.dirichlet(np.full(clients, rng.choice([0.5, 1.0, 3.0, 20.0])))
        inclusion = inclusion_probabilities(p, size)
        if p.min() < 1e-4 or clients <= size:
            continue
        ratio = worst_ratio(p, size)
        if inclusion.max() < 1.0:
            uncapped, largest = uncapped + 1, max(largest, ratio)
        else:
            any_kind += 1
        scale = float((inclusion / p)[inclusion < 1.0].min())
        assert ratio <= size / scale + 1e-9
    assert 0.99 < largest <= 1.0 + 1e-9, "the bound is sharp"
    for clients in range(2, 8):  # of a single draw, the designs are the same
        assert worst_ratio(rng.dirichlet(np.ones(clients)), 1) == pytest.approx(1.0, abs=1e-9)


def test_a_draw_with_replacement_may_repeat_more_often_than_there_are_clients() -> None:
    _, counts, _, weights = draw_with_replacement(np.array([0.5, 0.5]), 50, np.random.default_rng(0))
    assert counts.sum() == 50
    assert weights == pytest.approx(counts / 25)


@pytest.mark.parametrize("point", [0.0, 1.0 - 2.0**-53], ids=["first", "last"])
def test_the_ends_of_the_unit_interval_fall_to_somebody_possible(point: float) -> None:
    """The smallest and the largest number that a generator can give; clients at both ends are impossible."""

    class Stuck(np.random.Generator):
        def random(self, size: int) -> Array:  # type: ignore[override]
            return np.full(size, point)

    generator = Stuck(np.random.PCG64(0))
    p = np.array([0.0, 0.1, 0.2, 0.7, 0.0])
    clients, counts, _, _ = draw_with_replacement(p, 2, generator)
    assert (clients.tolist(), counts.tolist()) == ([1 if point == 0.0 else 3], [2])
    clients, _, probabilities, _ = draw_dense("independent", p, 2, generator)
    assert clients.tolist() == ([1, 2, 3] if point == 0.0 else [3])  # 0.7 is certain: 2 * 0.7 > 1
    assert np.all(probabilities > 0.0)


def test_a_draw_without_replacement_of_everybody() -> None:
    clients, _, _, _ = draw_without_replacement(
        np.array([1e-12, 1.0 - 2e-12, 1e-12]), 3, RoundGenerator(1).of_round(1)
    )
    assert clients.tolist() == [0, 1, 2]


@settings(max_examples=50)
@given(p=positive(5, least=0.0))
@example(p=np.zeros(5))
def test_restrict(p: Array) -> None:
    """Proportions stay as they are; nobody possible means everybody alike."""
    restricted = restrict(p)
    assert restricted.sum() == pytest.approx(1.0)
    if p.sum() > 0.0:
        assert restricted * p.sum() == pytest.approx(p)
    else:
        assert restricted.tolist() == [0.2] * 5


def uniforms(seed: int, round_index: int, size: int = 4) -> Array:
    return RoundGenerator(seed).of_round(round_index).random(size)


def test_the_randomness_of_a_round_depends_on_seed_and_round_and_nothing_else() -> None:
    first = uniforms(5, 2)
    np.random.seed(0)  # the global state is none of its business
    generator = RoundGenerator(5)
    for used in (0, 1, 7, 1000):  # nor is what was drawn from it before, in this round or in others
        generator.of_round(3).standard_exponential(used)
        generator.of_round(2).integers(0, 10, used)
        assert np.array_equal(generator.of_round(2).random(4), first)
    seen = {tuple(uniforms(seed, t)) for seed in range(20) for t in range(20)}
    assert len(seen) == 400
    assert uniforms(2**64 - 1, 2**40)[0] != uniforms(2**64 - 1, 2**40 + 1)[0]


def test_rounds_of_one_seed_do_not_overlap() -> None:
    """Consecutive rounds are different streams, not one stream started a little later."""
    stream = uniforms(5, 0, 5000)
    assert not np.isin(uniforms(5, 1, 100), stream).any()


@pytest.mark.parametrize(
    ("design", "updates", "expected"),
    [
        ("fixed_size", [1, -1, 1, -1], 1 / 2),
        ("with_replacement", [1, -1, 1, -1], 1 / 2),
        ("independent", [1, -1, 1, -1], 1 / 4),
        ("fixed_size", [1, 1, -1, -1], 0.0),  # the order counts: neighbours are not drawn together
        ("with_replacement", [1, 1, -1, -1], 1 / 2),
    ],
)
def test_no_design_has_the_least_variance_of_all(design, updates, expected):
    """Four clients, K = 2: the exact variance of the mean, from every outcome."""
    values = np.array(updates) / 4.0
    variance = sum(
        probability * float(weights @ values[clients] - values.sum()) ** 2
        for probability, (clients, _, _, weights) in outcomes(design, np.full(4, 0.25), 2)
    )
    assert variance == pytest.approx(expected)
