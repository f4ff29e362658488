"""A recorded sampler is the sampler, and it is on disk."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sortition import (
    AvareSampler,
    Cohort,
    CohortError,
    ConfigurationError,
    FeedbackError,
    FixedSampler,
    Guard,
    LedgerError,
    NormPrivacy,
    OSMDSampler,
    Sampler,
    StateError,
    UniformSampler,
)
from sortition.ledger import open_run, read_run, verify_run
from sortition.ledger.encoding import available_of, available_values, same_cohort
from sortition.testing import check_sampler
from tests.helpers import SAMPLERS
from tests.ledger.helpers import CLIENTS, Strange, crash, make, norms_of, own, play, recorded, state_bytes


def test_keeps_every_promise_of_a_sampler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The protocol, to the letter: the same suite that all samplers pass."""
    monkeypatch.setattr("sortition.testing.promises.DRAWS", 100)  # each is a commit
    runs = count()
    check_sampler(
        lambda seed: open_run(
            tmp_path / f"{next(runs)}.db", lambda: AvareSampler(num_clients=6, cohort_size=2, seed=seed)
        )
    )


def test_is_a_sampler(path: Path) -> None:
    with open_run(path, make) as run:
        assert isinstance(run, Sampler)
        assert (run.num_clients, run.cohort_size, run.round_index) == (CLIENTS, 4, 0)
        assert run.open_cohorts() == []
        assert run.last_observed is None


@pytest.mark.parametrize("close", [True, False], ids=["closed", "crashed"])
@pytest.mark.parametrize("snapshot_every", [1, 3, 1000])
def test_goes_on_as_if_nothing_had_happened(path: Path, snapshot_every: int, close: bool) -> None:
    plain = make()
    expected = play(plain, 12)
    drawn: list[Cohort] = []
    for rounds in (1, 4, 0, 7):
        run = open_run(path, make, snapshot_every=snapshot_every)
        drawn += play(run, rounds)
        final = state_bytes(run)
        if close:
            run.close()
        else:
            crash(run)
    assert all(map(same_cohort, expected, drawn))
    assert len(drawn) == 12
    assert final == state_bytes(plain)
    assert verify_run(path).replayed


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_can_be_replayed(path: Path, name: str) -> None:
    """Built again from the record alone, it draws the same cohorts and comes to the same snapshots."""
    weights = np.arange(1.0, 9.0) / 36.0

    def build() -> Any:
        return SAMPLERS[name](num_clients=8, cohort_size=3, client_weights=weights, seed=2**64 - 1)

    for _ in range(2):
        run = open_run(path, build, snapshot_every=4)
        play(run, 6)
        crash(run)
    verified = verify_run(path)
    assert verified.replayed
    assert verified.rounds == 12
    assert verified.snapshots == 2


def test_defences_are_part_of_the_record(path: Path) -> None:
    def build() -> OSMDSampler:
        return OSMDSampler(
            num_clients=20,
            cohort_size=5,
            learning_rate=0.1,
            guard=Guard(largest_gain=2.0),
            privacy=NormPrivacy(norm_bound=5.0, noise_multiplier=0.5),
        )

    with open_run(path, build) as run:
        for _ in range(10):
            cohort = run.draw()
            run.observe(cohort, np.where(cohort.clients == 7, 1e6, 1.0))
        final = state_bytes(run)
    assert verify_run(path).replayed
    with open_run(
        path, build
    ) as run:  # its noise is new entropy each time, but a run keeps that of its start
        assert state_bytes(run) == final


def test_an_open_cohort_is_handed_out_again(path: Path) -> None:
    run = open_run(path, make)
    play(run, 2)
    first, second = run.draw(), run.draw()
    crash(run)
    with open_run(path, make) as run:
        assert [cohort.round_index for cohort in run.open_cohorts()] == [2, 3]
        assert same_cohort(run.draw(available=[1, 2]), first)
        assert same_cohort(run.draw(), second)
        assert run.round_index == 4
        assert run.draw().round_index == 4


def test_feedback_to_a_cohort_from_before_the_crash(path: Path) -> None:
    """A server that kept the cohort may answer it without asking for it again."""
    run = open_run(path, make)
    kept = run.draw()
    crash(run)
    with open_run(path, make) as run:
        run.observe(kept, norms_of(kept))
        assert run.draw().round_index == 1
        assert run.last_observed == 0


def test_feedback_given_twice_is_taken_once(path: Path) -> None:
    run = open_run(path, make)
    cohort = play(run, 3)[1]
    before = state_bytes(run)
    run.observe(cohort, norms_of(cohort))
    crash(run)
    with open_run(path, make) as run:
        run.observe(cohort, norms_of(cohort).tolist())
        assert state_bytes(run) == before
        with pytest.raises(CohortError, match=r"cohort .*round 1"):
            run.observe(cohort, norms_of(cohort) + 1.0)
        assert state_bytes(run) == before
    assert verify_run(path).rows == 7


def test_what_the_sampler_refuses_is_not_recorded(path: Path) -> None:
    with open_run(path, make) as run:
        cohort = run.draw()
        for call, error in (
            (lambda: run.observe(cohort, [-1.0] * len(cohort)), FeedbackError),
            (lambda: run.observe(cohort, ["x"] * len(cohort)), FeedbackError),
            (lambda: run.observe("cohort", [1.0]), CohortError),  # type: ignore[arg-type]
            (lambda: run.draw(available=[]), ValueError),
            (lambda: run.remove_clients([CLIENTS]), ValueError),
            (lambda: run.add_clients(0), ConfigurationError),
            (lambda: run.load_state_dict({}), StateError),
            (lambda: run.attach(0, "../model", {}), ConfigurationError),
            (lambda: run.attach(-1, "model", {}), ConfigurationError),
            (lambda: run.attach(0, "model", {"w": object()}), ConfigurationError),
            (lambda: run.attach(0, "model", {"w": np.array([object()])}), ConfigurationError),
        ):
            with pytest.raises(error):
                call()
        run.observe(cohort, norms_of(cohort))
    assert verify_run(path).rows == 3


def test_what_the_sampler_says_of_hostile_clients_is_passed_on(path: Path) -> None:
    def guarded() -> AvareSampler:
        return AvareSampler(
            num_clients=4, cohort_size=2, client_weights=[0.1, 0.2, 0.3, 0.4], guard=Guard(), seed=1
        )

    def liar(sampler: Any) -> Any:
        for _ in range(40):
            cohort = sampler.draw()
            sampler.observe(cohort, np.where(cohort.clients == 2, 1e6, 1.0))
        return sampler

    plain = liar(guarded())
    with open_run(path, guarded) as run:
        liar(run)
        assert run.suspects() == plain.suspects() != []
        assert run.norm_bound == plain.norm_bound < np.inf
        cohort, rows = run.draw(), run._store.last
        norms = np.full(len(cohort), 5.0)
        assert run.norm_bound_with(cohort, norms) == plain.norm_bound_with(plain.draw(), norms)
        with pytest.raises(FeedbackError, match="norms must have"):
            run.norm_bound_with(cohort, [3.0] * 9)
        assert run._store.last == rows  # nothing is recorded
        assert run.client_weights().tolist() == plain.client_weights().tolist()
        assert run.client_weights([3, 0]).tolist() == plain.client_weights([3, 0]).tolist()
        with pytest.raises(ConfigurationError, match="privacy"):
            run.privacy_spent()

    def private() -> AvareSampler:
        return AvareSampler(
            num_clients=4, cohort_size=2, privacy=NormPrivacy(norm_bound=1.0, noise_multiplier=2.0)
        )

    with open_run(path.with_name("private.db"), private) as run:
        play(run, 3)
        assert run.privacy_spent(1e-6) == run.sampler.privacy_spent(1e-6)


def test_a_method_that_the_sampler_lacks(path: Path) -> None:
    with open_run(path, lambda: UniformSampler(num_clients=4, cohort_size=2)) as run:
        with pytest.raises(
            ConfigurationError, match=r"calibrate .*UniformSampler.*AdaptiveOSMDSampler.*VRBSampler"
        ):
            run.calibrate([1.0, 1.0, 1.0, 1.0])
        play(run, 1)
    assert verify_run(path).rows == 3


def test_membership_and_availability_are_recorded(path: Path) -> None:
    def story(sampler: Any) -> None:
        sampler.calibrate(np.linspace(1.0, 3.0, 10), np.arange(10))
        play(sampler, 2)
        assert sampler.add_clients(2).tolist() == [CLIENTS, CLIENTS + 1]
        sampler.add_clients([0.5, 0.1], client_weights=[0.1, 0.2])
        sampler.remove_clients([5, CLIENTS])
        for available in (np.arange(10, 30), [29, 7, 11, 1, 30 + 1, 8]):
            cohort = sampler.draw(available)
            sampler.observe(cohort, norms_of(cohort))

    plain = make()
    story(plain)
    run = open_run(path, make)
    story(run)
    crash(run)
    with open_run(path, make) as run:
        assert state_bytes(run) == state_bytes(plain)
        assert run.num_clients == CLIENTS + 2
    assert verify_run(path).replayed
    with read_run(path) as record:
        memberships = list(record.memberships())
        rounds = list(record.rounds())
    assert [m.round_index for m in memberships] == [2, 2, 2]
    assert memberships[2].left is not None
    assert memberships[2].left.tolist() == [5, CLIENTS]
    assert rounds[2].cohort.available is not None
    assert rounds[2].cohort.available.tolist() == list(range(10, 30))
    assert rounds[0].cohort.available is None


def test_an_open_cohort_comes_back_with_what_it_was_drawn_from(path: Path) -> None:
    run = open_run(path, make)
    cohort = run.draw([29, 7, 11, 1, 8, 15])
    crash(run)
    with open_run(path, make) as run:
        again = run.draw()  # whoever is available now
        assert same_cohort(cohort, again)
        assert again.available is not None
        assert again.available.tolist() == [1, 7, 8, 11, 15, 29]
        run.observe(again, norms_of(again))


def test_a_sampler_must_say_what_a_cohort_was_drawn_from(path: Path) -> None:
    """A memory could not leave out the others; nothing is recorded then."""

    class Silent(Strange):
        def __init__(self) -> None:
            super().__init__(own())
            self.draw = lambda available=None: replace(self.inner.draw(available), available=None)

    with open_run(path, Silent) as run:
        with pytest.raises(ConfigurationError, match=r"Silent\.draw .*available=available"):
            run.draw([1, 2, 3, 4, 5, 6])
        assert run.round_index == 0
        assert run.draw().available is None


@pytest.mark.parametrize("ids", [[0], [7, 3, 5], list(range(100)), [5, 10**7], []])
def test_available_clients_survive_their_encoding(ids: list[int]) -> None:
    found = available_of(available_values(np.array(ids, dtype=np.int64)))
    assert found is not None
    assert found.tolist() == ids


def test_make_sampler_must_build_the_sampler_of_the_run(path: Path) -> None:
    recorded(path, 2)
    with pytest.raises(LedgerError, match=r"make_sampler .*AdaptiveOSMDSampler"):
        open_run(path, lambda: UniformSampler(num_clients=CLIENTS, cohort_size=4))
    with open_run(path, lambda: make(seed=9)) as run:  # the seed is that of the run
        assert same_cohort(run.draw(), play(make(), 3)[2])


def test_arguments_that_make_no_sense(path: Path) -> None:
    for wrong, message in (
        (lambda: 3, "make_sampler .*3.*draw"),
        (3, "make_sampler .*3"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            open_run(path, wrong)  # type: ignore[arg-type]
    for question in (lambda p: open_run(p, make), read_run, verify_run):
        with pytest.raises(ConfigurationError, match=r"path .*3"):
            question(3)  # type: ignore[arg-type]
    recorded(path, 1)  # nothing is in the way
    with pytest.raises(ConfigurationError, match=r"make_sampler .*None"):
        open_run(path, lambda: None)  # type: ignore[arg-type,return-value]


def test_a_closed_run_says_so(path: Path) -> None:
    run = open_run(path, make)
    run.close()
    run.close()
    for call in (run.draw, run.open_cohorts, run.probabilities, lambda: run.attach(0, "x", {})):
        with pytest.raises(LedgerError, match="closed"):
            call()


def test_a_users_own_sampler(path: Path) -> None:
    """Replayed with the help of the program that made it; without, all but the replay is checked."""

    class Mine(UniformSampler):
        pass

    def build() -> Mine:
        return Mine(num_clients=5, cohort_size=2)

    with open_run(path, build) as run:
        play(run, 3)
    assert not verify_run(path).replayed
    assert verify_run(path, build).replayed


def test_settings_that_are_arrays(path: Path) -> None:
    with open_run(
        path, lambda: FixedSampler(num_clients=2, cohort_size=1, probabilities=[0.25, 0.75])
    ) as run:
        play(run, 2)
    assert verify_run(path).replayed
    with read_run(path) as record:
        assert record.sampler == "FixedSampler"
        assert record.initial_clients == 2
        assert record.settings["probabilities"].tolist() == [0.25, 0.75]


def test_replaying_with_another_sampler_is_noticed(path: Path) -> None:
    """Never a wrong answer: a sampler that passes for the right one but draws otherwise is found out."""

    class Impostor(UniformSampler):
        pass

    Impostor.__name__ = "UniformSampler"
    recorded_by = open_run(path, lambda: UniformSampler(num_clients=9, cohort_size=3))
    play(recorded_by, 3)
    crash(recorded_by)

    def impostor() -> UniformSampler:
        sampler = Impostor(num_clients=9, cohort_size=3)
        sampler.draw = lambda available=None: UniformSampler.draw(sampler, available=[0, 1])  # type: ignore[method-assign]
        return sampler

    with pytest.raises(LedgerError, match="round 0"):
        open_run(path, impostor)


def test_files_are_their_owners_alone(path: Path) -> None:
    """They hold the norms and perhaps the key of the noise."""
    before = os.umask(0o022)
    try:
        run = open_run(path, make, snapshot_every=1)
        play(run, 1)
        run.attach(0, "model", {"w": 1})
        modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.rglob("run.db*/**/*")}
        modes |= {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
        run.close()
    finally:
        os.umask(before)
    assert modes.pop("run.db.d") == 0o700
    assert {"run.db", "run.db-wal", "run.db-shm", "lock", "attachment_model-000000000"} < modes.keys()
    assert set(modes.values()) == {0o600}
