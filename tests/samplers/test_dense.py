"""The base for a sampler of one's own: two methods, and everything else is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike

from sortition import (
    Cohort,
    ConfigurationError,
    DenseSampler,
    EmpiricalBayesSampler,
    Guard,
    NormPrivacy,
    OptimalClientSampler,
    OptimalSampler,
    PortfolioSampler,
    StateError,
)
from sortition.core.designs import DESIGNS, Design
from sortition.core.types import FloatArray
from sortition.ledger import open_run, verify_run
from sortition.testing import check_sampler
from tests.helpers import norms_for, same_cohort, same_state, train

M, K = 7, 3
WEIGHTS = np.array([0.3, 0.2, 0.15, 0.1, 0.1, 0.1, 0.05])
GUARD = Guard(clip_factor=3.0, outlier_factor=1.5)
PRIVACY = NormPrivacy(norm_bound=20.0, noise_multiplier=0.1, fresh_noise=False)


class MeanContribution(DenseSampler):
    """Draws in proportion to the mean contribution of each client, above a share of the average."""

    def __init__(
        self,
        *,
        num_clients: int,
        cohort_size: int,
        least: float = 0.1,
        client_weights: ArrayLike | None = None,
        design: Design = "with_replacement",
        seed: int = 0,
        guard: Guard | None = None,
        privacy: NormPrivacy | None = None,
    ) -> None:
        super().__init__(
            num_clients,
            cohort_size,
            client_weights,
            design,
            seed,
            guard,
            privacy,
            per_client={"mean": 0.5, "visits": 0.0},
            numbers={"rounds": 0.0},
        )
        self.least = least
        self.settings |= {"least": least}

    def masses(self) -> FloatArray:
        mean = self.per_client["mean"]
        return mean + max(self.least * float(mean.mean()), 1e-300)

    def update(self, cohort: Cohort, contributions: FloatArray) -> None:
        mean, visits = self.per_client["mean"], self.per_client["visits"]
        visits[cohort.clients] += 1.0
        mean[cohort.clients] += (contributions - mean[cohort.clients]) / visits[cohort.clients]
        self.numbers["rounds"] += 1.0


def build(**changes: Any) -> MeanContribution:
    return MeanContribution(**{"num_clients": M, "cohort_size": K, "client_weights": WEIGHTS, **changes})


@pytest.mark.parametrize(
    "defence", [{}, {"guard": GUARD}, {"privacy": PRIVACY}], ids=["", "guard", "privacy"]
)
@pytest.mark.parametrize("design", DESIGNS)
def test_it_keeps_every_promise(design: str, defence: dict[str, Any]) -> None:
    check_sampler(lambda seed: build(design=design, seed=seed, **defence))


def test_rounds_written_out() -> None:
    """The probabilities are the masses, normalised; contributions are lambda times norm."""
    sampler = build(seed=3)
    assert sampler.probabilities() == pytest.approx(np.full(M, 1 / M))
    mean, visits = np.full(M, 0.5), np.zeros(M)
    for _ in range(10):
        cohort = sampler.draw()
        norms = norms_for(cohort)
        sampler.observe(cohort, norms)
        for client, norm in zip(cohort.clients, norms, strict=True):
            visits[client] += 1
            mean[client] += (WEIGHTS[client] * norm - mean[client]) / visits[client]
        expected = mean + 0.1 * mean.mean()
        assert sampler.probabilities() == pytest.approx(expected / expected.sum(), rel=1e-12)
    assert sampler.per_client["visits"] == pytest.approx(visits)
    assert sampler.numbers == {"rounds": 10.0}


def test_clients_that_do_not_reply_are_not_in_an_update() -> None:
    sampler = build(design="without_replacement")
    cohort = sampler.draw()
    sampler.observe(cohort, [np.nan, 2.0, np.nan])
    assert np.flatnonzero(sampler.per_client["visits"]).tolist() == [cohort.clients[1]]


def test_the_guard_clips_what_it_learns_from() -> None:
    contributions = []
    for guard in (GUARD, None):
        sampler = build(guard=guard, client_weights=None, seed=1)
        for _ in range(30):
            cohort = sampler.draw()
            sampler.observe(cohort, np.where(cohort.clients == 2, 1e9, 1.0))
        contributions.append(sampler.per_client["mean"][2])
    assert contributions[0] == pytest.approx(3.0 / M)
    assert contributions[1] == pytest.approx(1e9 / M)


def test_a_newcomer_has_the_start_values_and_the_others_keep_their_proportions() -> None:
    sampler = build()
    train(sampler, 6)
    before, mean = sampler.probabilities(), sampler.per_client["mean"].copy()
    assert sampler.add_clients(2).tolist() == [M, M + 1]
    after = sampler.probabilities()
    assert after.sum() == pytest.approx(1.0)
    assert (after[M:] > 0.0).all()
    assert after[:M] / before == pytest.approx(np.full(M, after[0] / before[0]), rel=1e-12)
    assert np.array_equal(sampler.per_client["mean"], [*mean, 0.5, 0.5])
    assert sampler.per_client["visits"][M:].tolist() == [0.0, 0.0]


def test_the_others_keep_their_proportions_when_clients_leave() -> None:
    sampler = build()
    train(sampler, 6)
    before = sampler.probabilities()
    sampler.remove_clients([1, 4])
    after = sampler.probabilities()
    assert after[[1, 4]].tolist() == [0.0, 0.0]
    here = [0, 2, 3, 5, 6]
    assert after[here] == pytest.approx(before[here] / before[here].sum(), rel=1e-12)
    train(sampler, 5)  # masses() still has an entry for the clients that left; it is not used
    assert sampler.probabilities()[[1, 4]].tolist() == [0.0, 0.0]
    assert sampler.probabilities().sum() == pytest.approx(1.0)


@pytest.mark.parametrize("guard", [None, GUARD])
def test_a_run_is_resumed_to_the_bit(guard: Guard | None) -> None:
    """With clients that joined and left, and a cohort whose feedback is still to come."""
    whole, resumed = build(guard=guard), build(guard=guard, seed=99)
    train(whole, 4)
    whole.add_clients(2)
    whole.remove_clients([0])
    train(whole, 3)
    late = whole.draw()
    resumed.load_state_dict(whole.state_dict())
    for name in ("mean", "visits"):
        assert np.array_equal(whole.per_client[name], resumed.per_client[name])
    assert resumed.numbers == whole.numbers == {"rounds": 7.0}
    for sampler in (whole, resumed):
        sampler.observe(late, norms_for(late))
    assert all(map(same_cohort, train(whole, 6), train(resumed, 6)))
    assert same_state(whole.state_dict(), resumed.state_dict())


def test_a_state_is_a_copy() -> None:
    sampler = build()
    train(sampler, 3)
    state, mean = sampler.state_dict(), sampler.per_client["mean"].copy()
    train(sampler, 3)
    assert np.array_equal(state["per_client.mean"], mean)
    sampler.load_state_dict(state)
    state["per_client.mean"][:] = 123.0
    assert np.array_equal(sampler.per_client["mean"], mean)


@pytest.mark.parametrize("entry", ["per_client.mean", "per_client.visits", "numbers.rounds", "masses"])
def test_a_damaged_state_is_refused(entry: str) -> None:
    sampler = build()
    train(sampler, 4)
    state = sampler.state_dict()
    for wrong in ({name: value for name, value in state.items() if name != entry}, {**state, entry: "x"}):
        with pytest.raises(StateError, match=entry):
            sampler.load_state_dict(wrong)
        assert same_state(sampler.state_dict(), state)


def test_its_own_setting_is_part_of_the_state() -> None:
    with pytest.raises(StateError, match="least"):
        build(least=0.2).load_state_dict(build().state_dict())


class Given(DenseSampler):
    """Returns the masses that a test gives it."""

    given: Any

    def __init__(self, *, client_weights: ArrayLike | None = None) -> None:
        super().__init__(num_clients=3, cohort_size=2, client_weights=client_weights)

    def masses(self) -> FloatArray:
        return np.asarray(self.given)

    def update(self, cohort: Cohort, contributions: FloatArray) -> None:
        """Nothing is learnt."""


@pytest.mark.parametrize(
    "masses",
    [
        [1.0, 2.0],
        [[1.0, 2.0, 3.0]],
        1.0,
        [1.0, np.nan, 3.0],
        [1.0, np.inf, 3.0],
        [1.0, -2.0, 3.0],
        [1.0, 0.0, 3.0],
        [0.0, 0.0, 0.0],
    ],
)
def test_bad_masses_are_refused(masses: Any) -> None:
    sampler = Given()
    sampler.given = masses
    cohort = sampler.draw()
    with pytest.raises(ConfigurationError, match=r"Given\.masses"):
        sampler.observe(cohort, np.ones(len(cohort)))
    assert sampler.probabilities() == pytest.approx(np.full(3, 1 / 3))
    sampler.given = [1.0, 2.0, 5.0]
    sampler.observe(cohort, np.ones(len(cohort)))  # it still awaits its feedback
    assert sampler.probabilities() == pytest.approx([1 / 8, 2 / 8, 5 / 8])


def test_a_client_without_a_weight_may_have_no_mass() -> None:
    sampler = Given(client_weights=[0.5, 0.5, 0.0])
    sampler.given = [1.0, 3.0, 0.0]
    cohort = sampler.draw()
    sampler.observe(cohort, np.ones(len(cohort)))
    assert sampler.probabilities() == pytest.approx([0.25, 0.75, 0.0])


def test_it_can_be_an_expert_of_a_portfolio() -> None:
    common = {"num_clients": M, "cohort_size": K}
    sampler = PortfolioSampler(experts=[MeanContribution(**common), EmpiricalBayesSampler(**common)])
    train(sampler, 10)
    assert np.ptp(sampler.probabilities()) > 0.05
    assert sampler.expert_weights.sum() == pytest.approx(1.0)


def test_both_methods_must_be_implemented() -> None:
    class Half(DenseSampler):
        def masses(self) -> FloatArray:
            return np.ones(3)

    with pytest.raises(TypeError, match="update"):
        Half(num_clients=3, cohort_size=1)  # type: ignore[abstract]


class Breaks(MeanContribution):
    """Its masses are wrong in one round."""

    wrong_in = 4.0

    def masses(self) -> FloatArray:
        return np.full(self.num_ids, 0.0 if self.numbers["rounds"] == self.wrong_in else 1.0)


@pytest.mark.parametrize("defence", [{}, {"guard": GUARD}, {"privacy": PRIVACY}])
def test_an_error_in_its_own_code_changes_nothing(defence: dict[str, Any]) -> None:
    """Neither what was learnt, nor the guard's memory, nor the account of privacy."""
    sampler = Breaks(num_clients=M, cohort_size=K, **defence)
    train(sampler, 3)
    cohort = sampler.draw()
    before = sampler.state_dict()
    with pytest.raises(ConfigurationError, match="masses"):
        sampler.observe(cohort, norms_for(cohort))
    assert same_state(before, sampler.state_dict())
    sampler.wrong_in = -1.0
    sampler.observe(cohort, norms_for(cohort))  # it still awaits its feedback


def test_a_record_stays_true_after_such_an_error(tmp_path: Path) -> None:
    def make() -> Breaks:
        return Breaks(num_clients=M, cohort_size=K, guard=GUARD)

    with open_run(tmp_path / "run.db", make, snapshot_every=5) as run:
        for turn in range(12):
            cohort = run.draw()
            if turn == 3:
                with pytest.raises(ConfigurationError, match="masses"):
                    run.observe(cohort, norms_for(cohort))
                run.sampler.wrong_in = -1.0
            run.observe(cohort, norms_for(cohort))

    def rebuild() -> Breaks:
        sampler = make()
        sampler.wrong_in = -1.0
        return sampler

    assert verify_run(tmp_path / "run.db", rebuild).rounds == 12


def test_contributions_stay_in_one_unit_when_clients_leave() -> None:
    """All clients send the same: one heard after others have left is no heavier than one heard before."""
    sampler = MeanContribution(num_clients=20, cohort_size=10, least=0.0)
    for start in (0, 10):
        cohort = sampler.draw(np.arange(start, start + 10))
        sampler.observe(cohort, np.ones(10))
    sampler.remove_clients(np.arange(16))
    cohort = sampler.draw([16, 17])
    sampler.observe(cohort, np.ones(2))
    assert sampler.probabilities()[16:] == pytest.approx(np.full(4, 0.25))


class Plain(DenseSampler):
    """Two methods, and no constructor."""

    def masses(self) -> FloatArray:
        return np.ones(self.num_ids)

    def update(self, cohort: Cohort, contributions: FloatArray) -> None:
        """Learns nothing."""


def test_two_methods_are_enough() -> None:
    check_sampler(lambda seed: Plain(num_clients=6, cohort_size=2, seed=seed))


def test_start_values_are_numbers() -> None:
    whole = Plain(num_clients=4, cohort_size=1, per_client={"last": 0})
    assert whole.per_client["last"].dtype == np.float64
    for wrong in ({"per_client": {"last": np.ones(4)}}, {"numbers": {"last": "x"}}):
        with pytest.raises(ConfigurationError, match="last"):
            Plain(num_clients=4, cohort_size=1, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "mistake",
    [
        lambda sampler: sampler.numbers.update(new=1.0),
        lambda sampler: sampler.per_client.update(new=np.ones(M)),
        lambda sampler: sampler.per_client.update(mean=np.ones(M + 1)),
        lambda sampler: sampler.numbers.update(rounds=np.ones(2)),
    ],
)
def test_what_could_not_be_restored_is_refused(mistake: Any) -> None:
    class Mistaken(MeanContribution):
        def update(self, cohort: Cohort, contributions: FloatArray) -> None:
            mistake(self)

    sampler = Mistaken(num_clients=M, cohort_size=K)
    cohort = sampler.draw()
    with pytest.raises(ConfigurationError, match=r"numbers|per_client"):
        sampler.observe(cohort, np.ones(len(cohort)))


def test_a_mass_that_vanishes_next_to_the_largest_is_refused() -> None:
    class Vanishing(Plain):
        def masses(self) -> FloatArray:
            return np.array([1e-300, 1e300, 1.0, 1.0])

    sampler = Vanishing(num_clients=4, cohort_size=1)
    with pytest.raises(ConfigurationError, match="masses"):
        sampler.observe(sampler.draw(), [1.0])


@pytest.mark.parametrize("kind", [OptimalSampler, OptimalClientSampler])
def test_an_oracle_with_a_guard_keeps_what_was_revealed(kind: type[OptimalSampler]) -> None:
    """The guard judges norms that were observed, not those that were revealed."""
    sampler = kind(num_clients=8, cohort_size=4, guard=Guard())
    norms = np.arange(1.0, 9.0)
    late = []
    for _ in range(8):
        sampler.reveal(norms)
        late.append(sampler.draw())
    sampler.reveal(norms)
    revealed = sampler.distribution.everybody()
    for cohort in late:
        sampler.observe(cohort, np.where(cohort.clients == 7, 1e6, 1.0))
        assert np.array_equal(sampler.distribution.everybody(), revealed)
