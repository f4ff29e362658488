"""Cohorts of a fixed size by look-ups on a line: exactly the law of the duels, for every kind of line.

The kernel takes its uniforms as an argument, and its outcome is constant on boxes of them. So every outcome
can be enumerated with its exact probability; no test of a law here depends on luck, except for the names of
unseen clients, which are chosen at random.
"""

from __future__ import annotations

import tracemalloc
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sortition import (
    ConfigurationError,
    EmpiricalBayesSampler,
    FixedSampler,
    Guard,
    OptimalSampler,
    OSMDSampler,
    UniformSampler,
)
from sortition.core.designs import inclusion_probabilities
from sortition.engine import drawing, pivotal
from sortition.engine.capped import Capped, limited
from sortition.engine.clients import Roster
from sortition.engine.drawing import Distribution, draw_cohort
from sortition.engine.fixed import Dense, Prior
from sortition.engine.limit import Limit
from sortition.engine.mixture import ExpertMixture
from sortition.engine.pivotal import ProbabilityLine, draw_fixed_size, line_of_vector
from sortition.engine.reweighted import ReweightedPrior
from tests.helpers import SAMPLERS, UNGUARDED, Array, duels, positive

EXACT = 1e-12
UNSEEN = -1
"""Stands for any unseen client of the block."""
Law = dict[tuple[int, ...], float]


# The truth ---------------------------------------------------------------------------------------------


def in_order(distribution: Distribution) -> list[int]:
    """All ids in the order of the line, those under ceilings too; negative if they are unseen in a block.

    First the clients seen, in the order of their slots, then the unseen with own masses, then the unseen of
    the block. Where the line was made of a vector, by id.
    """
    inner = distribution._inner if isinstance(distribution, Capped) else distribution
    everybody = list(range(len(distribution.everybody())))
    if distribution.line().prior is pivotal._one_client():
        return everybody
    assert isinstance(inner, (ExpertMixture, Prior))
    slots = inner.trees.clients[: inner.count].tolist() if isinstance(inner, ExpertMixture) else []
    unseen = [client for client in everybody if client not in slots]
    block = inner.roster.block
    return slots + [m for m in unseen if m >= block] + [~m for m in unseen if m < block]


def laid_out(distribution: Distribution) -> tuple[list[int], Array]:
    """The clients that can be drawn, in order, ``UNSEEN`` for each unseen of the block; their probabilities.

    Those under a ceiling that binds come last.
    """
    p, listed = distribution.everybody(), Limit(*distribution.line().limit).clients.tolist()
    order = [client for client in in_order(distribution) if client not in listed] + listed
    order = [client for client in order if p[max(client, ~client)] > 0.0]
    return [max(client, UNSEEN) for client in order], p[[max(client, ~client) for client in order]]


def law_of_duels(order: list[int], inclusion: Array) -> Law:
    """The probability of every set of clients."""
    law: Law = defaultdict(float)
    for probability, chosen in duels(inclusion):
        law[tuple(sorted(order[place] for place in chosen))] += probability
    return law


def law_of_kernel(line: ProbabilityLine, order: list[int], inclusion: Array) -> Law:
    """The same by the kernel: a box of uniforms at a time, every corner of which must give the same cohort.

    In turn i the first uniform has a border wherever a client starts between i and the client across i + 1.
    The second has one, (1 - pi) / (1 - b).
    """
    size = round(inclusion.sum())
    uncertain = inclusion[inclusion < 1.0]
    ends = np.cumsum(uncertain)
    turns = round(uncertain.sum())
    borders: list[Array] = []
    for i in range(turns):
        first, second = {0.0, 1.0}, {0.0, 1.0}
        for across in range(len(ends)):
            start, end = float(ends[across] - uncertain[across]), float(ends[across])
            last = i == turns - 1
            if not last and start - EXACT <= i + 1 <= end + EXACT:  # two of them, if one ends there
                second.add(min((1.0 - float(uncertain[across])) / (1.0 - max(end - (i + 1), 0.0)), 1.0))
            elif not (last and across == len(ends) - 1):
                continue
            stop = float(turns) if last else start
            first |= {(between - i) / (stop - i) for between in ends.tolist() if i < between < stop}
        borders += [np.array(sorted(first)), np.array(sorted(second))]
    expected = dict(zip(order, inclusion.tolist(), strict=True))
    law: Law = defaultdict(float)
    for box in product(*(list(pairwise(edges.tolist())) for edges in borders)):
        volume = float(np.prod([high - low for low, high in box])) if box else 1.0
        if volume < 1e-15:
            continue
        found = set()
        for corner in corners(box):
            uniforms = np.full((size, 2), 0.5)
            uniforms[:turns] = np.array(corner).reshape(turns, 2)
            drawn, (clients, counts, pi, weights) = draw_fixed_size(uniforms, *line)
            assert drawn, "no cohort"
            assert len(set(clients.tolist())) == size == counts.sum()
            names = [m if m in expected else UNSEEN for m in clients.tolist()]
            assert pi == pytest.approx([expected[m] for m in names], rel=1e-9)
            assert weights == pytest.approx(1.0 / pi, rel=EXACT)
            found.add(tuple(sorted(names)))
        assert len(found) == 1, "another border inside of a box"
        law[found.pop()] += volume
    return law


def corners(box: tuple[tuple[float, float], ...]) -> Iterator[tuple[float, ...]]:
    """Points near opposite corners of a box, and near those next to them."""
    near, far = (
        zip(*((low + 1e-9 * (high - low), high - 1e-9 * (high - low)) for low, high in box), strict=True)
        if box
        else ((), ())
    )
    yield near
    yield far
    for i in range(len(box)):
        yield (*near[:i], far[i], *near[i + 1 :])


def assert_law(distribution: Distribution, size: int) -> None:
    order, lengths = laid_out(distribution)
    inclusion = inclusion_probabilities(lengths, size)
    expected = law_of_duels(order, inclusion)
    found = law_of_kernel(distribution.line(), order, inclusion)
    assert sum(found.values()) == pytest.approx(1.0, abs=EXACT)
    for cohort in expected.keys() | found.keys():
        assert found.get(cohort, 0.0) == pytest.approx(expected.get(cohort, 0.0), abs=EXACT), cohort


# Lines of every kind -----------------------------------------------------------------------------------


def vector(p: list[float]) -> Dense:
    dense = Dense(Roster(len(p), None))
    dense.set(np.array(p))
    return dense


def mixture(masses: list[float] | None = None, clients: int = 7) -> ExpertMixture:
    """Three experts; clients 5, 0 and 3 were seen, and raised by some of them."""
    roster = Roster(clients, None if masses is None else np.array(masses))
    mixed = ExpertMixture(roster, experts=3)
    mixed._set_experts(np.log([0.5, 0.3, 0.2]), np.array([1.0, 2.0, 0.5]), np.array([0.8, 0.5, 1.0]))
    slots = mixed.see(np.array([5, 0, 3]))
    mixed.set_ratios(slots, np.array([[3.0, 0.0, 9.0], [0.0, 2.0, 0.0], [0.0, 0.0, -4.0]]))
    mixed.rescale()
    return mixed


def first_without_weight(mixed: ExpertMixture) -> ExpertMixture:
    """The first expert weighs nothing, whatever it thinks of the clients."""
    mixed.experts.log_weights[:] = [-1e5, np.log(0.6), np.log(0.4)]
    return mixed


def changed(mixed: ExpertMixture) -> ExpertMixture:
    """Two joined, a seen and an unseen client left, a newcomer was seen."""
    mixed.add(np.array([0.5, 1.5]))
    mixed.remove(np.array([0, 4]))
    slots = mixed.see(np.array([mixed.roster.ids - 1]))
    mixed.set_ratios(slots, np.array([[0.0, 3.0, 0.0]]))
    mixed.rescale()
    return mixed


def with_share(inner: Distribution, clients: list[int], share: float) -> Distribution:
    """Each client has at most an equal part of ``share``."""
    return limited(inner, np.array(clients), np.full(len(clients), 0.1 / len(clients)), 10.0 * share, -99.0)


def reweighted() -> ReweightedPrior:
    mixed = ReweightedPrior(Roster(7, None), share=0.3)
    mixed.reweight(np.array([1, 3, 5]), np.log([30.0, 3.0, 0.5]))
    return mixed


def alike(raised: list[int]) -> ReweightedPrior:
    """Eight clients, all seen; all but the raised have one length, so borders fall on whole numbers."""
    mixed = ReweightedPrior(Roster(8, None), share=0.25)
    order = np.array([2, 0, 3, 1, 5, 4, 7, 6])
    mixed.reweight(order, np.where(np.isin(order, raised), 5.0, 0.0))
    return mixed


LINES: dict[str, Callable[[], Distribution]] = {
    "vector": lambda: vector([0.2, 0.05, 0.1, 0.0, 0.3, 0.15, 0.2]),
    "vector, one certain": lambda: vector([0.1, 0.05, 0.6, 0.08, 0.07, 0.1]),
    "vector, certain first and last": lambda: vector([0.45, 0.05, 0.04, 0.03, 0.03, 0.4]),
    "own masses": lambda: Prior(Roster(6, np.array([0.1, 0.3, 0.2, 0.1, 0.1, 0.2]))),
    "a block": lambda: Prior(Roster(6, None)),
    "mixture": mixture,
    "mixture of own masses": lambda: mixture([0.1, 0.2, 0.1, 0.3, 0.05, 0.05, 0.2]),
    "an expert without weight": lambda: first_without_weight(mixture()),
    "after joins and leaves": lambda: changed(mixture()),
    "own masses after joins and leaves": lambda: changed(mixture([0.1, 0.2, 0.1, 0.3, 0.05, 0.05, 0.2])),
    "everybody seen": lambda: seen_by_all(mixture(clients=6)),
    "a share of a seen client": lambda: with_share(mixture(), [5], 0.2),
    "a share of a vector": lambda: with_share(vector([0.1, 0.05, 0.6, 0.08, 0.07, 0.1]), [2], 0.25),
    "a share of two, one is cut": lambda: with_share(mixture(), [0, 5], 0.3),
    "a share of own masses": lambda: with_share(mixture([0.1, 0.2, 0.1, 0.3, 0.05, 0.05, 0.2]), [1, 3], 0.25),
    "a share of what was learnt": lambda: with_share(reweighted(), [1, 3], 0.3),
    "equal lengths beside a share of half": lambda: with_share(alike([2, 3, 5, 6]), [2, 3, 5, 6], 0.5),
    "equal lengths beside a share of a quarter": lambda: with_share(alike([0, 7]), [0, 7], 0.25),
}


def seen_by_all(mixed: ExpertMixture) -> ExpertMixture:
    mixed.see(np.arange(mixed.roster.ids))
    mixed.set_ratios(np.arange(3, 6), np.array([[0.0, 1.0, 2.0], [2.0, 0.0, 0.0], [0.0, 0.0, 0.0]]))
    mixed.rescale()
    return mixed


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", LINES)
def test_every_set_of_clients_is_as_likely_as_by_the_duels(kind: str, size: int) -> None:
    distribution = LINES[kind]()
    assert distribution.everybody().sum() == pytest.approx(1.0, abs=1e-9)
    assert_law(distribution, size)


@pytest.mark.parametrize(
    ("quarters", "size"),
    [
        ([1, 3, 2, 1, 1], 2),
        ([3, 3, 2], 2),
        ([2, 2, 2, 2], 2),
        ([1, 1, 1, 1, 1, 1, 1, 1], 2),
        ([2, 9, 1, 1, 3, 1], 3),
        ([8, 2, 2, 0, 3, 1], 3),
        ([3, 1, 2, 2, 8], 3),
        ([1, 20, 3, 10, 2, 2], 4),
        ([4, 1, 3], 2),
        ([3, 4, 1], 2),
        ([1, 3, 0, 4], 2),
        ([1, 1, 1, 4, 1], 2),
    ],
)
def test_on_a_grid_of_uniforms(quarters: list[int], size: int) -> None:
    """Inclusion probabilities in quarters: all borders are multiples of 1/12; more than four are certain.

    Borders of clients fall on whole numbers here, where one client across is as right as the other; and with
    four quarters a client may or may not be certain, by rounding.
    """
    p = 0.1 * np.array(quarters)
    p = p / p.sum()
    inclusion = np.minimum(np.array(quarters) / 4.0, 1.0)
    assert inclusion_probabilities(p, size) == pytest.approx(inclusion, abs=EXACT)
    midpoints = (np.arange(12) + 0.5) / 12
    turns = size - sum(quarter > 4 for quarter in quarters)
    found: Law = defaultdict(float)
    line = line_of_vector(p)
    uniforms = np.full((size, 2), 0.5)
    for used in product(midpoints, repeat=2 * turns - 1):
        uniforms[:turns] = np.append(used, 0.5).reshape(turns, 2)
        drawn, (clients, *_) = draw_fixed_size(uniforms, *line)
        assert drawn
        found[tuple(clients.tolist())] += 12.0 ** (1 - 2 * turns)
    expected = law_of_duels(list(range(len(p))), inclusion)
    for cohort in expected.keys() | found.keys():
        assert found.get(cohort, 0.0) == pytest.approx(expected.get(cohort, 0.0), abs=EXACT), cohort


@settings(max_examples=40, deadline=None)
@given(p=positive(6, least=0.05, most=3.0), size=st.integers(1, 4))
def test_any_vector(p: Array, size: int) -> None:
    assert_law(vector(p.tolist()), size)


# Unseen clients of the block ---------------------------------------------------------------------------


def test_unseen_clients_are_distinct_and_have_their_share() -> None:
    """Six seen, 34 unseen, of whom three have left: the unseen alike, and never one that was seen or left.

    Counts of 6000 cohorts, within six standard deviations; a pair of unseen clients is as likely as another.
    """
    mixed = ExpertMixture(Roster(40, None), experts=1)
    mixed.see(np.array([7, 0, 39, 20, 3, 11]))
    mixed.remove(np.array([0, 38, 5, 12]))
    seen, left = {7, 39, 20, 3, 11}, {0, 38, 5, 12}
    unseen = np.array([m for m in range(40) if m not in seen | left])
    rounds, size = 6000, 8
    inclusion = size / 36
    together, pairs = np.zeros((40, 40)), 0
    for uniforms in np.random.default_rng(3).random((rounds, size, 2)):
        drawn, (clients, _, pi, _) = draw_fixed_size(uniforms, *mixed.line())
        assert drawn
        assert len(set(clients.tolist())) == size
        assert not left & set(clients.tolist())
        assert pi == pytest.approx(inclusion, rel=EXACT)
        together[np.ix_(clients, clients)] += 1
        among = np.isin(clients, unseen).sum()
        pairs += among * (among - 1)
    counts = np.diag(together)[unseen]
    spread = np.sqrt(rounds * inclusion * (1.0 - inclusion))
    assert np.abs(counts - rounds * inclusion).max() <= 6.0 * spread
    each = pairs / (len(unseen) * (len(unseen) - 1))  # what each pair would have
    off = together[np.ix_(unseen, unseen)] - np.diag(counts)
    off = off[~np.eye(len(unseen), dtype=bool)]
    assert np.abs(off - each).max() <= 6.5 * np.sqrt(each)


@pytest.mark.parametrize("unseen", [1, 2, 5])
def test_few_unseen_among_many_seen(unseen: int) -> None:
    """3000 seen, hardly weighing anything, and a few unseen: they are found, whoever they are."""
    names = np.array([17, 256, 1999, 2500, 3000])[:unseen]
    mixed = ExpertMixture(Roster(3000 + unseen, None), experts=1)
    slots = mixed.see(np.setdiff1d(np.arange(3000 + unseen), names))
    mixed.set_ratios(slots, np.full((3000, 1), 1e-3))
    mixed.rescale()
    size = unseen + 1
    inclusion = inclusion_probabilities(mixed.everybody(), size)
    counts, rounds = np.zeros(3000 + unseen), 60
    for seed in range(rounds):
        generator = np.random.default_rng(seed)
        clients, _, pi, _ = draw_cohort("fixed_size", mixed, 3000 + unseen, size, generator)
        assert len(set(clients.tolist())) == size
        assert pi == pytest.approx(inclusion[clients], rel=1e-9)
        counts[clients] += 1
    margin = 6.0 * np.sqrt(rounds * inclusion[names] * (1.0 - inclusion[names]))
    assert np.all(np.abs(counts[names] - rounds * inclusion[names]) <= margin + 1e-9)


# The line of any sampler -------------------------------------------------------------------------------


MANY: dict[str, Callable[..., Any]] = {
    **SAMPLERS,
    "empirical-bayes": lambda **common: EmpiricalBayesSampler(**{**UNGUARDED, **common}),
    "osmd, large steps": lambda **common: OSMDSampler(learning_rate=10.0, exploration=1e-3, **common),
}
NORMS: dict[str, Callable[[np.random.Generator, int], Array]] = {
    "mild": lambda rng, n: np.exp(rng.normal(size=n)),
    "some zero": lambda rng, n: np.where(rng.random(n) < 0.5, 0.0, 1.0),
    "silent": lambda rng, n: np.where(rng.random(n) < 0.5, np.nan, rng.random(n)),
    "zero": lambda rng, n: np.zeros(n),
    "tiny": lambda rng, n: np.full(n, 1e-300),
    "huge": lambda rng, n: np.full(n, 1e300),
    "anything": lambda rng, n: 10.0 ** rng.uniform(-300.0, 300.0, n),
}
GUARDS = {
    "none": None,
    "default": Guard(),
    "strict": Guard(clip_factor=1e9, outlier_factor=1.5, outlier_fence=0.1, largest_gain=1.2),
}
steps = st.one_of(
    st.sampled_from([("observe", kind) for kind in NORMS]),
    st.tuples(st.just("join"), st.sampled_from([None, 1e-9, 0.3, 1e9])),
    st.tuples(st.just("leave"), st.integers(0, 50)),
)


@st.composite
def trained(draw: st.DrawFn, most: int) -> Any:
    """Any sampler after any history of at most ``most`` clients at its start."""
    name = draw(st.sampled_from(sorted(MANY)))
    clients = draw(st.integers(1, most))
    size = draw(st.integers(1, clients))
    guard = GUARDS[draw(st.sampled_from(sorted(GUARDS)))]
    seed = draw(st.integers(0, 1000))
    sampler = MANY[name](num_clients=clients, cohort_size=size, design="fixed_size", seed=seed, guard=guard)
    rng = np.random.default_rng(seed)
    for step, what in draw(st.lists(steps, max_size=12)):
        if step == "observe":
            cohort = sampler.draw()
            sampler.observe(cohort, NORMS[what](rng, len(cohort)))
        elif step == "join":
            sampler.add_clients(2 if what is None else [what])
        else:
            here = np.flatnonzero(
                sampler.distribution.roster.present(np.arange(len(sampler.probabilities())))
            )
            with suppress(ConfigurationError):  # nobody would be left
                sampler.remove_clients([here[what % len(here)]])
    return sampler


@settings(max_examples=300, deadline=None)
@given(sampler=trained(most=30))
def test_the_line_of_any_sampler(sampler: Any) -> None:
    """``locate`` finds every client where the dense probabilities, laid end to end, have it.

    Beside the clients under a ceiling: they are out, or what is laid there is their probability without it.
    """
    distribution = sampler._effective_distribution()
    line = distribution.line()
    p = distribution.everybody()
    scale, from_prior, listed, _ = line.limit
    if listed.size:
        p = distribution.scale * distribution._inner.everybody()
        p[listed] *= not line.listed_are_out
    order = [client for client in in_order(distribution) if p[max(client, ~client)] > 0.0]
    lengths = p[[max(client, ~client) for client in order]]
    order = [max(client, UNSEEN) for client in order]
    starts = np.concatenate(([0.0], np.cumsum(lengths)[:-1]))
    segments = pivotal._segments(*line[:6], scale, from_prior)
    long = lengths > 1e-9
    clients, begins, found = pivotal._locate(segments, (starts + 0.5 * lengths)[long])
    named = [UNSEEN if client < 0 else client for client in clients.tolist()]
    assert named == [client for client, enough in zip(order, long, strict=True) if enough]
    assert begins == pytest.approx(starts[long], abs=1e-9 * max(lengths.sum(), 1.0))
    assert found == pytest.approx(lengths[long], rel=1e-9)
    ranks = -1 - clients[clients < 0]
    assert ranks.tolist() == list(range(len(ranks)))


@settings(max_examples=300, deadline=None)
@given(sampler=trained(most=30), rounds=st.integers(1, 3))
def test_cohorts_of_any_sampler(sampler: Any, rounds: int) -> None:
    """K distinct clients that are there, with the inclusion probabilities of the dense vector."""
    for _ in range(rounds):
        p = sampler.probabilities()
        size = sampler.cohort_size
        inclusion = inclusion_probabilities(p, size)
        cohort = sampler.draw()
        assert len(cohort) == min(size, np.count_nonzero(p)) == len(set(cohort.clients.tolist()))
        assert np.all(p[cohort.clients] > 0.0)
        assert cohort.counts.tolist() == [1] * len(cohort)
        # what the certain leave may be a difference of 1e-6, rounded
        assert cohort.probabilities == pytest.approx(inclusion[cohort.clients], rel=1e-8)
        assert cohort.weights == pytest.approx(1.0 / cohort.probabilities, rel=EXACT)


@settings(max_examples=60, deadline=None)
@given(sampler=trained(most=6))
def test_the_law_of_any_small_sampler(sampler: Any) -> None:
    """Where the line is used: the law of the duels, box by box, after any history."""
    distribution = sampler._effective_distribution()
    p = distribution.everybody()
    size = min(sampler.cohort_size, 3)
    inclusion = inclusion_probabilities(p, size)
    between = inclusion[(inclusion > 0.0) & (inclusion < 1.0)]
    if np.any(between < 1e-4) or np.any(between > 1.0 - 1e-4) or len(p) > 8:
        return  # boxes too thin to find their corners
    if not draw_fixed_size(np.full((size, 2), 0.5), *distribution.line())[0]:
        return
    assert_law(distribution, size)


# Where the line is of no use ---------------------------------------------------------------------------


def fallbacks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The cohort sizes for which the vector of all probabilities was drawn from."""
    calls: list[int] = []
    dense = drawing.designs.draw_fixed_size

    def counted(p: Array, size: int, generator: np.random.Generator) -> Any:
        calls.append(size)
        return dense(p, size, generator)

    monkeypatch.setattr(drawing.designs, "draw_fixed_size", counted)
    return calls


@pytest.mark.parametrize(
    ("p", "size", "dense"),
    [
        ([1.0 - 9e-12, *[1e-12] * 9], 3, True),
        ([*[1e-12] * 5, 0.5, *[2e-12] * 3, 0.5 - 1.1e-11], 4, True),
        ([0.5, 0.0, 0.5, 0.0, 0.0], 3, True),
        ([0.5, 0.0, 0.5, 0.0, 0.0], 2, False),
        ([0.25, 0.25, 0.25, 0.25], 4, False),
        ([0.1, 0.2, 0.3, 0.4], 4, False),
        ([0.1, 0.2, 0.3, 0.4], 1, False),
        ([1.0], 1, False),
        ([1.0 - 3e-6, 1e-6, 1e-6, 1e-6], 2, False),
        ([0.5, 0.5 - 1e-16, 1e-16], 2, None),
        ([1.0, 1e-300, 1e-300, 1e-300], 3, True),
    ],
)
def test_the_certain_leave_little_or_nothing(
    p: list[float], size: int, dense: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = fallbacks(monkeypatch)
    distribution = vector(p)
    inclusion = inclusion_probabilities(distribution.everybody(), size)
    counts, rounds = np.zeros(len(p)), 400
    for seed in range(rounds):
        clients, _, pi, weights = draw_cohort(
            "fixed_size", distribution, len(p), size, np.random.default_rng(seed)
        )
        assert len(set(clients.tolist())) == len(clients) == min(size, np.count_nonzero(p))
        assert pi == pytest.approx(inclusion[clients], rel=1e-8)
        assert np.all(np.isfinite(weights))
        counts[clients] += 1
    margin = 6.0 * np.sqrt(rounds * inclusion * (1.0 - inclusion))
    assert np.all(np.abs(counts - rounds * inclusion) <= margin + 1e-6)
    assert dense is None or bool(calls) == dense


def test_rounding_of_the_sum_does_not_count() -> None:
    """The probabilities sum to one less 1e-9, and the certain client leaves 1e-5: c follows the latter."""
    p = np.array([1.0 - 1e-5, 4e-6, 3e-6, 2e-6]) * (1.0 - 1e-9)
    inclusion = inclusion_probabilities(p, 2)
    for seed in range(20):
        drawn, (clients, _, pi, _) = draw_fixed_size(
            np.random.default_rng(seed).random((2, 2)), *line_of_vector(p)
        )
        assert drawn
        assert pi == pytest.approx(inclusion[clients], rel=1e-9)


@pytest.mark.parametrize("clients", [1, 2, 3, 9, 30])
def test_nearly_everybody_or_everybody_of_a_block(clients: int) -> None:
    """K = M and K close to M, nobody ever seen; and beside heavy newcomers, where the block is certain."""
    for size in {1, max(clients - 1, 1), clients}:
        sampler = UniformSampler(num_clients=clients, cohort_size=size, design="fixed_size")
        for _ in range(20):
            cohort = sampler.draw()
            assert len(set(cohort.clients.tolist())) == size
            assert cohort.probabilities == pytest.approx(np.full(size, size / clients), rel=EXACT)
    prior = Prior(Roster(clients, None))
    prior.add(np.array([0.01, 0.02, 0.03]))
    inclusion = inclusion_probabilities(prior.everybody(), clients + 1)
    assert inclusion[:clients] == pytest.approx(np.ones(clients))
    for seed in range(20):
        drawn, *_ = draw_fixed_size(np.random.default_rng(seed).random((clients + 1, 2)), *prior.line())
        assert not drawn
        found, _, pi, _ = draw_cohort(
            "fixed_size", prior, clients + 3, clients + 1, np.random.default_rng(seed)
        )
        assert len(set(found.tolist())) == clients + 1
        assert pi == pytest.approx(inclusion[found], rel=1e-9)


def test_an_oracle_that_reveals_zeros() -> None:
    """K = 4 of 8, of which three have an update: these three; and with one that is nearly zero, all four."""
    sampler = OptimalSampler(num_clients=8, cohort_size=4, design="fixed_size")
    norms = np.array([0.0, 1.0, 0.0, 0.0, 2.0, 0.0, 1e-200, 0.0])
    for _ in range(10):
        sampler.reveal(norms)
        assert sampler.draw().clients.tolist() == [1, 4, 6]
    norms[2] = 1e-300
    sampler.reveal(norms)
    cohort = sampler.draw()
    assert cohort.clients.tolist() == [1, 2, 4, 6]
    assert cohort.weights.tolist() == [1.0] * 4
    sampler.reveal(np.zeros(8))
    assert len(sampler.draw()) == 4


@pytest.mark.parametrize("point", [0.0, 1.0 - 2.0**-53], ids=["first", "last"])
@pytest.mark.parametrize("kind", LINES)
def test_the_ends_of_the_unit_interval(kind: str, point: float) -> None:
    """The smallest and the largest number that a generator can give."""
    distribution = LINES[kind]()
    inclusion = inclusion_probabilities(distribution.everybody(), 3)
    drawn, (clients, _, pi, _) = draw_fixed_size(np.full((3, 2), point), *distribution.line())
    if drawn:  # two neighbours at once by rounding would be drawn anew
        assert len(set(clients.tolist())) == 3
        assert pi == pytest.approx(inclusion[clients], rel=1e-9)


# Many clients ------------------------------------------------------------------------------------------


def test_a_certain_client_among_a_billion_unseen() -> None:
    """Memory for the clients seen only; one is certain, the others have what is left, alike."""
    mixed = ExpertMixture(Roster(10**9, None), experts=1)
    mixed.set_ratios(mixed.see(np.array([123456789])), np.array([[2.5e8]]))
    mixed.rescale()  # p = 0.2 for one
    mixed.add(np.array([1e7, 3e7]))
    draw_fixed_size(np.full((10, 2), 0.5), *mixed.line())  # compiled before memory is counted
    own = mixed.look_up(np.array([0, 123456789, 10**9, 10**9 + 1]))
    tracemalloc.start()
    for seed in range(200):
        drawn, (clients, _, pi, _) = draw_fixed_size(
            np.random.default_rng(seed).random((10, 2)), *mixed.line()
        )
        assert drawn
        assert len(set(clients.tolist())) == 10
        assert 123456789 in clients
        expected = np.where(clients == 10**9, own[2], np.where(clients == 10**9 + 1, own[3], own[0]))
        expected = np.where(clients == 123456789, 1.0, 9.0 * expected / (1.0 - own[1]))
        assert pi == pytest.approx(expected, rel=1e-9)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1e6


def test_a_large_tree() -> None:
    """Two thousand clients seen, several levels of nodes: every one is where the cumulated vector has it."""
    rng = np.random.default_rng(4)
    mixed = ExpertMixture(Roster(5000, None), experts=4)
    slots = mixed.see(rng.permutation(5000)[:2000])
    mixed.set_ratios(slots, np.where(rng.random((2000, 4)) < 0.5, 0.0, 1.0 + rng.exponential(size=(2000, 4))))
    mixed.rescale()
    mixed.remove(rng.permutation(5000)[:500])
    order, lengths = laid_out(mixed)
    starts = np.cumsum(lengths) - lengths
    segments = pivotal._segments(*mixed.line()[:6], 1.0, 0.0)
    for inside in (1e-3, 0.5, 1.0 - 1e-3):
        clients, begins, found = pivotal._locate(segments, starts + inside * lengths)
        assert np.maximum(clients, UNSEEN).tolist() == order
        assert begins == pytest.approx(starts, abs=1e-12)
        assert found == pytest.approx(lengths, rel=1e-12)
    seen = [client for client in order if client != UNSEEN]
    for place in range(0, len(seen), 97):
        assert pivotal._span_of(segments, seen[place]) == pytest.approx((starts[place], lengths[place]))
    for threshold in np.quantile(lengths, [0.1, 0.9, 0.999]):
        heavy = pivotal._at_least(segments, threshold, np.zeros(0, dtype=np.int64)).tolist()
        assert heavy == [client for client, length in zip(seen, lengths, strict=False) if length >= threshold]


def test_fixed_sampler_and_the_vector_agree() -> None:
    """A FixedSampler draws from the tree of own masses, an ``available`` list from a vector: the same."""
    p = np.random.default_rng(0).dirichlet(np.ones(30))
    whole, listed = (
        FixedSampler(num_clients=30, cohort_size=6, probabilities=p, design="fixed_size", seed=5)
        for _ in range(2)
    )
    for _ in range(50):
        one, other = whole.draw(), listed.draw(available=range(30))
        assert one.clients.tolist() == other.clients.tolist()
        assert one.weights == pytest.approx(other.weights, rel=1e-9)


def test_a_border_at_a_whole_number_is_no_obstacle() -> None:
    """Clients that are listed with one half of the mass together end the others' part of the line at 2 of 4.

    A draw that can't be finished is made anew from all probabilities. It must not depend on who was drawn.
    """
    listed = np.array([8, 9, 10, 11])
    mixture = ReweightedPrior(Roster(12, None), share=0.1)
    order = np.array([0, 5, 8, 9, 1, 6, 4, 3, 2, 7, 11, 10])  # the last on the line are listed
    mixture.reweight(order, np.log(np.arange(1.0, 13.0)))
    learnt = (mixture.everybody() - 0.1 / 12) / 0.9
    scale = float((0.5 - 0.1 * 8 / 12) / (0.9 * learnt[:8].sum()))
    line = mixture.line()._replace(limit=(scale, 0.0, listed, np.full(4, (0.125 - 0.1 / 12) / 0.9)))
    generator = np.random.default_rng(0)
    drawn = [draw_fixed_size(generator.random((4, 2)), *line)[0] for _ in range(2000)]
    assert all(drawn)


def test_a_vector_has_no_masses_to_look_up() -> None:
    """Ids of listed clients were read beyond the one client of its prior; nan there made an endless loop."""
    line = line_of_vector(np.array([0.7, 0.1, 0.1, 0.1]))
    *prior, own = line.prior
    beyond = np.array([1.0, np.nan, np.nan, np.nan])
    limit = Limit(0.6 / 0.9, 0.0, np.array([3]), np.array([0.4]))
    line = line._replace(prior=(*prior, (beyond[:1], *own[1:])), limit=tuple(limit))
    segments = pivotal._segments(*line[:6], limit.scale, limit.from_prior)
    found = pivotal._listed_probabilities(segments, line.experts, limit.clients, limit.learnt)
    assert found.tolist() == [0.4]
    drawn, (clients, _, inclusion, _) = draw_fixed_size(np.random.default_rng(0).random((2, 2)), *line)
    assert drawn
    expected = 2.0 * np.array([0.7 * limit.scale, *np.full(2, 0.1 * limit.scale), 0.4])
    assert inclusion == pytest.approx(expected[clients], rel=1e-12)
