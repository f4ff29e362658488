"""States from others: a state is a distribution, and stays one, or it is refused by a StateError."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.hostile import COMMON, MAKERS, judge, play
from sortition import (
    AvareSampler,
    Cohort,
    CohortError,
    EmpiricalBayesSampler,
    Guard,
    KVibSampler,
    OptimalClientSampler,
    OptimalSampler,
    PortfolioSampler,
    StateError,
    VRBSampler,
)
from sortition.core.designs import Design, inclusion_probabilities
from sortition.engine.belief_update import CLIENT_FIELDS
from sortition.samplers.base import BaseSampler


@pytest.mark.parametrize("name", MAKERS)
def test_one_entry_is_wrong(name: str) -> None:
    counted = {"refused": 0, "fine": 0}
    for entry, change, verdict in judge(name, rounds=8, seed=1, elements=3):
        assert verdict in counted, f"{entry} <- {change}: {verdict}"
        counted[verdict] += 1
    assert counted["refused"] > 10 * len(MAKERS[name]().state_dict())


@pytest.mark.parametrize("norm", [1e300, 1e307])
def test_k_vib_goes_on_when_a_huge_client_leaves(norm: float) -> None:
    sampler = KVibSampler(**COMMON, num_rounds=50, feedback_bound=1e-300)
    for _ in range(20):
        cohort = sampler.draw()
        sampler.observe(cohort, np.where(cohort.clients == 3, norm, 1e-150))
    sampler.remove_clients([3])
    for _ in range(3):
        cohort = sampler.draw()
        sampler.observe(cohort, np.full(len(cohort), 1e-150))
        assert sampler.probabilities().sum() == pytest.approx(1.0)


@pytest.mark.parametrize("make", [OptimalSampler, OptimalClientSampler])
@pytest.mark.parametrize("seed", range(30))
def test_oracles_with_norms_as_far_apart_as_doubles_can_be(make: type[OptimalSampler], seed: int) -> None:
    rng = np.random.default_rng(seed)
    sampler = make(**COMMON)
    for _ in range(20):
        sampler.reveal(10.0 ** rng.uniform(-320.0, 308.0, 12) * (rng.random(12) < 0.9))
        assert sampler.probabilities().sum() == pytest.approx(1.0)
        cohort = sampler.draw()
        assert np.all(np.isfinite(cohort.weights))
        sampler.observe(cohort, np.ones(len(cohort)))


def test_avare_after_spikes_is_avare() -> None:
    """Spikes of one client put all others on the floor and take them off again, many times."""
    spiky = AvareSampler(num_clients=30, cohort_size=3, design="fixed_size")
    rng, last = np.random.default_rng(0), np.zeros(30)
    for index in range(200):
        cohort = spiky.draw()
        norms = rng.lognormal(size=3) * (1e12 if index % 2 else 1.0)
        spiky.observe(cohort, norms)
        last[cohort.clients] = norms
        floor, low, high = spiky.floor(), 0.0, 1e20
        for _ in range(200):  # p = max(floor, c h), with the c that makes it sum to one
            c = 0.5 * (low + high)
            low, high = (c, high) if np.maximum(floor, c * last).sum() < 1.0 else (low, c)
        assert spiky.probabilities() == pytest.approx(np.maximum(floor, c * last), rel=1e-6)


@pytest.mark.parametrize("design", ["fixed_size", "without_replacement"])
@pytest.mark.parametrize("mass", [1e60, 1e-60])
def test_a_state_with_newcomers_of_extreme_mass_can_be_loaded(mass: float, design: Design) -> None:
    """Beside a huge mass the others were lost in a difference, and the sampler's own state was refused."""
    rng = np.random.default_rng(0)
    sampler, other = (EmpiricalBayesSampler(num_clients=9, cohort_size=2, design=design) for _ in range(2))
    for index in range(20):
        cohort = sampler.draw()
        sampler.observe(cohort, rng.lognormal(size=2))
        if index % 5 == 3:
            sampler.add_clients([mass])
        other.load_state_dict(sampler.state_dict())
        assert np.array_equal(other.probabilities(), sampler.probabilities())
        assert sampler.probabilities().sum() == pytest.approx(1.0)


@pytest.mark.parametrize("mass", [1e12, 1e16, 1e24, 1e60])
def test_a_liar_with_all_of_the_prior(mass: float) -> None:
    """What it leaves to others was a difference of ones: losses were 1e290, and the state was refused."""
    rng = np.random.default_rng(0)
    sampler, other = (EmpiricalBayesSampler(num_clients=100, cohort_size=5) for _ in range(2))
    liar = 100
    for index in range(30):
        if index == 3:
            sampler.add_clients([mass])
        cohort = sampler.draw()
        sampler.observe(cohort, np.where(cohort.clients == liar, 1e300, rng.lognormal(size=5)))
        other.load_state_dict(sampler.state_dict())
        assert sampler._people["prior_loss"][0] < 100.0 * 100.0 * mass
        assert sampler.probabilities().sum() == pytest.approx(1.0)


def portfolio(newcomers: int, leaving: list[int]) -> PortfolioSampler:
    experts = [EmpiricalBayesSampler(**COMMON), AvareSampler(**COMMON)]
    sampler, rng = PortfolioSampler(experts=experts), np.random.default_rng(1)
    for index in range(8):
        if index == 4 and newcomers:
            sampler.add_clients(newcomers)
        if index == 4:
            sampler.remove_clients(leaving)
        cohort = sampler.draw()
        sampler.observe(cohort, rng.lognormal(size=len(cohort)))
    return sampler


MEMBERS: list[tuple[int, list[int]]] = [(0, []), (2, []), (0, [3]), (1, [5]), (5, [1, 2])]


@pytest.mark.parametrize("prefix", ["expert0.", "expert1.", "expert"])
@pytest.mark.parametrize("members", MEMBERS)
@pytest.mark.parametrize("others", MEMBERS)
def test_experts_of_another_portfolio(
    prefix: str, members: tuple[int, list[int]], others: tuple[int, list[int]]
) -> None:
    """Each expert was right for itself; together they had other clients, and read beyond their arrays."""
    sampler, stranger = portfolio(*members), portfolio(*others).state_dict()
    before = sampler.state_dict()
    state = {name: stranger[name] if name.startswith(prefix) else before[name] for name in before}
    if members == others:
        sampler.load_state_dict(state)
        return
    with pytest.raises(StateError, match="clients"):
        sampler.load_state_dict(state)
    after = sampler.state_dict()
    assert all(np.array_equal(after[name], before[name], equal_nan=name.endswith("loss")) for name in before)


@pytest.mark.parametrize("make", [EmpiricalBayesSampler, AvareSampler, VRBSampler])
@pytest.mark.parametrize("entry", ["guard.first_client", "guard.window_client", "guard.outlier_client"])
def test_a_guard_that_remembers_clients_that_have_left(make: type[BaseSampler], entry: str) -> None:
    """Their first replies were learnt again, with a prior of 0: sums of 0.9, nan, a division by zero."""
    sampler = make(num_clients=20, cohort_size=5, guard=Guard())  # type: ignore[call-arg]
    for _ in range(4):
        cohort = sampler.draw()
        sampler.observe(cohort, np.where(cohort.clients == 7, 1e9, 1.0 + cohort.clients))
    sampler.remove_clients([3])
    state = sampler.state_dict()
    changed = {
        **state,
        "guard.outlier_client": np.array([7]),
        "guard.outlier_log": np.ones(1),
        "guard.outlier_count": np.ones(1, int),
    }
    sampler.load_state_dict(changed)
    changed[entry] = changed[entry].copy()
    changed[entry][..., :1].flat[0] = 3
    with pytest.raises(StateError, match="have left"):
        sampler.load_state_dict(changed)


def test_inclusion_probabilities_where_next_to_nothing_is_left() -> None:
    """One over 1e-320 is no double: a client of probability 0 had nan."""
    found = inclusion_probabilities(np.array([1.0, 2e-320, 2e-320, 0.0]), cohort_size=2)
    assert found == pytest.approx([1.0, 0.5, 0.5, 0.0], abs=1e-3)


def test_ids_whose_differences_overflow() -> None:
    """From 9 down to -2^63 is more than a whole number holds: the difference looked like a step upwards."""
    sampler = AvareSampler(num_clients=100, cohort_size=20, design="fixed_size", guard=Guard())
    for _ in range(20):
        cohort = sampler.draw()
        sampler.observe(cohort, np.where(cohort.clients < 3, 1e6, 1.0))
    state = sampler.state_dict()
    outliers = state["guard.outlier_client"]
    assert len(outliers) == 3
    with pytest.raises(StateError, match=r"guard\.outlier_client"):
        sampler.load_state_dict({**state, "guard.outlier_client": np.array([*outliers[:2], -(2**63)])})


def test_a_prior_without_a_share() -> None:
    """A weight that is 0 as a double made a draw divide by zero."""
    sampler = EmpiricalBayesSampler(**COMMON)
    play(sampler, 12, np.random.default_rng(5))
    state = sampler.state_dict()
    with pytest.raises(StateError, match="nothing to the prior"):
        sampler.load_state_dict({**state, "log_expert_weights": np.array([0.0, -1e4])})


def test_the_most_replies_that_a_state_may_have() -> None:
    """The sum of two of them is no whole number of 64 bits: a search for their middle never ended."""
    sampler = EmpiricalBayesSampler(num_clients=2000, cohort_size=100)
    for _ in range(8):
        cohort = sampler.draw()
        sampler.observe(cohort, 1.0 + cohort.clients % 7)
    state = sampler.state_dict()
    earlier = 2**62 - state["guard.replies"]
    sampler.load_state_dict(
        {**state, "guard.window_before": state["guard.window_before"] + earlier, "guard.replies": 2**62}
    )
    for _ in range(6):  # full after five
        cohort = sampler.draw()
        sampler.observe(cohort, 1.0 + cohort.clients % 7)
    assert len(sampler.state_dict()["guard.window_client"]) == 500


@pytest.mark.parametrize("client", [100, 50_000_000, -1])
@pytest.mark.parametrize("norm", [1.0, np.nan])
def test_a_forged_cohort_of_clients_that_do_not_exist(client: int, norm: float) -> None:
    """A ticket is a checksum: whoever writes the state can write one that fits."""
    sampler = EmpiricalBayesSampler(num_clients=100, cohort_size=5, guard=None)
    sampler.draw()
    drawn = ([1, client], [1, 1], [0.05, 0.05], [20.0, 20.0])
    ticket = Cohort(0, 5, *drawn).checksum(sampler._name())
    sampler.load_state_dict({**sampler.state_dict(), "open_tickets": np.array([ticket])})
    with pytest.raises(CohortError, match="clients that do not exist"):
        sampler.observe(Cohort(0, 5, *drawn, ticket=ticket), [1.0, norm])


def test_sizes_in_a_state_are_those_of_the_clients() -> None:
    """A client with a size of 1e308 made probabilities that do not sum to one."""
    sampler = EmpiricalBayesSampler(
        num_clients=20, cohort_size=5, client_weights=np.arange(1.0, 21.0) / 210.0
    )
    sampler.observe(sampler.draw(), np.full(5, np.nan))
    state = sampler.state_dict()
    beliefs = state["beliefs"].copy()
    beliefs[0, CLIENT_FIELDS.index("size")] = 1e308
    with pytest.raises(StateError, match="sizes"):
        sampler.load_state_dict({**state, "beliefs": beliefs})


def test_what_clients_never_drawn_have_where_there_are_none() -> None:
    """With a base of 1e308 a draw never ended once somebody had joined."""
    sampler = EmpiricalBayesSampler(**COMMON)
    play(sampler, 40, np.random.default_rng(5))
    state = sampler.state_dict()
    assert state["bases"][0] == 0.0
    with pytest.raises(StateError, match="bases"):
        sampler.load_state_dict({**state, "bases": np.array([1e308, 1.0])})


def test_a_loss_beyond_all_others() -> None:
    """Relative to it all losses are 0, and none can be divided by another."""
    sampler = EmpiricalBayesSampler(num_clients=12, cohort_size=4)
    sampler.load_state_dict({**sampler.state_dict(), "log_loss": 1e4})
    sampler.observe(sampler.draw(), np.ones(4))
    assert sampler.probabilities().sum() == pytest.approx(1.0)


def test_a_cohort_larger_than_the_federation_forgets_no_faster() -> None:
    """With 20 of 5 clients a round was four sweeps, and losses became 0 some hundred rounds after a jump."""
    runs = [EmpiricalBayesSampler(num_clients=5, cohort_size=size, guard=None) for size in (5, 20)]
    for t in range(700):
        for sampler in runs:
            sampler.observe(sampler.draw(), np.full(5, 1e300 if t == 60 else 1e-3))
    assert np.array_equal(runs[0].probabilities(), runs[1].probabilities())


@pytest.mark.parametrize("mass", [1e-40, 1e-80, 1e-100])
def test_a_newcomer_of_next_to_no_mass(mass: float) -> None:
    """Where norms go with a power of the sizes more than a double holds was expected of it: p was nan."""
    weights = np.exp(0.3 * np.random.default_rng(0).standard_normal(400))
    weights /= weights.sum()
    sampler = EmpiricalBayesSampler(num_clients=400, cohort_size=100, client_weights=weights)
    for _ in range(12):
        cohort = sampler.draw()
        sampler.observe(cohort, weights[cohort.clients] ** 2)
    new = sampler.add_clients([mass], client_weights=[mass])
    sampler.observe(sampler.draw(available=np.append(np.arange(99), new)), np.full(100, 1e-5))
    assert sampler.probabilities().sum() == pytest.approx(1.0)
    sampler.load_state_dict(sampler.state_dict())
    assert len(sampler.draw()) == 100
