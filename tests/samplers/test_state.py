"""A state is plain data: read elsewhere, the run goes on as if unbroken. Bad numbers in it are refused."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sortition import (
    AdaptiveOSMDSampler,
    AvareSampler,
    CohortError,
    EmpiricalBayesSampler,
    Guard,
    KVibSampler,
    MABSSampler,
    OptimalSampler,
    OSMDSampler,
    PortfolioSampler,
    StateError,
    VRBSampler,
)
from sortition.core.designs import DESIGNS
from sortition.engine.belief_update import CLIENT_FIELDS
from tests.helpers import LEARNERS, SAMPLERS, norms_for, same_cohort, same_state, train

M, K = 7, 3
WEIGHTS = np.array([0.3, 0.2, 0.15, 0.1, 0.1, 0.1, 0.05])

State = dict[str, Any]


def through_npz(state: State, folder: Path) -> State:
    """To a file and back; numpy is told not to unpickle anything."""
    path = folder / "state.npz"
    np.savez(path, **state)
    with np.load(path, allow_pickle=False) as stored:
        return {name: stored[name][()] for name in stored.files}  # [()]: a number is a number again


def through_json(state: State, folder: Path) -> State:
    def encode(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return {"dtype": str(value.dtype), "shape": value.shape, "values": value.ravel().tolist()}
        return value.item() if isinstance(value, np.generic) else value

    def decode(value: Any) -> Any:
        if isinstance(value, dict):
            return np.array(value["values"], dtype=value["dtype"]).reshape(value["shape"])
        return value

    path = folder / "state.json"
    path.write_text(json.dumps({name: encode(value) for name, value in state.items()}))
    return {name: decode(value) for name, value in json.loads(path.read_text()).items()}


def through_pickle(state: State, folder: Path) -> State:
    return pickle.loads(pickle.dumps(state))


ways = pytest.mark.parametrize("way", [through_npz, through_json, through_pickle])
every_sampler = pytest.mark.parametrize("name", SAMPLERS)


def build(name: str, seed: int = 5, **changes: Any) -> Any:
    return SAMPLERS[name](num_clients=M, cohort_size=K, client_weights=WEIGHTS, seed=seed, **changes)


@ways
@every_sampler
@pytest.mark.parametrize("design", DESIGNS)
def test_a_stored_state_continues_to_the_bit(
    name: str, design: str, way: Callable[[State, Path], State], tmp_path: Path
) -> None:
    """With two cohorts open when the state is taken; their feedback comes to the resumed sampler."""
    unbroken = build(name, design=design)
    train(unbroken, 5)
    late, later = unbroken.draw(), unbroken.draw()
    state = way(unbroken.state_dict(), tmp_path)
    resumed = build(name, design=design, seed=99)
    resumed.load_state_dict(state)
    assert same_state(resumed.state_dict(), unbroken.state_dict())
    for sampler in (unbroken, resumed):
        sampler.observe(later, norms_for(later))
        sampler.observe(late, norms_for(late))
    assert np.array_equal(resumed.probabilities(), unbroken.probabilities())
    for mine, theirs in zip(train(resumed, 6), train(unbroken, 6), strict=True):
        assert same_cohort(mine, theirs)
    assert np.array_equal(resumed.probabilities(), unbroken.probabilities())
    assert same_state(resumed.state_dict(), unbroken.state_dict())


@every_sampler
def test_before_the_first_round(name: str, tmp_path: Path) -> None:
    """The bound is not known yet, nothing is open: nan and empty arrays survive, too."""
    fresh, resumed = build(name), build(name, seed=99)
    resumed.load_state_dict(through_npz(fresh.state_dict(), tmp_path))
    for mine, theirs in zip(train(resumed, 3), train(fresh, 3), strict=True):
        assert same_cohort(mine, theirs)


@every_sampler
def test_a_state_may_be_the_stored_file_itself(name: str, tmp_path: Path) -> None:
    """np.load gives a mapping in which a number is an array of no dimension: that is accepted."""
    sampler, resumed = build(name), build(name, seed=99)
    train(sampler, 3)
    np.savez(tmp_path / "state.npz", **sampler.state_dict())
    with np.load(tmp_path / "state.npz", allow_pickle=False) as stored:
        resumed.load_state_dict(stored)
    for mine, theirs in zip(train(resumed, 3), train(sampler, 3), strict=True):
        assert same_cohort(mine, theirs)


@every_sampler
def test_a_state_is_a_copy(name: str) -> None:
    """Going on does not change a state that was taken; changing a state does not change the sampler."""
    sampler = build(name)
    train(sampler, 3)
    state = sampler.state_dict()
    frozen = pickle.loads(pickle.dumps(state))
    train(sampler, 5)
    assert same_state(state, frozen)
    sampler.load_state_dict(state)
    for value in state.values():
        if isinstance(value, np.ndarray) and value.size:
            value[...] = 0
    assert same_state(sampler.state_dict(), frozen)


@every_sampler
def test_a_state_holds_nothing_to_unpickle(name: str) -> None:
    sampler = build(name)
    train(sampler, 3)
    for part, value in sampler.state_dict().items():
        assert isinstance(value, (int, float, str, np.ndarray)), part
        if isinstance(value, np.ndarray):
            assert value.dtype.kind in "iuf", part


@pytest.mark.parametrize("name", LEARNERS)
def test_loading_goes_back(name: str) -> None:
    """A sampler that went on can be set back; it does not know the cohorts that it drew in between."""
    sampler = build(name)
    train(sampler, 3)
    state, p = sampler.state_dict(), sampler.probabilities()
    open_later = sampler.draw()
    train(sampler, 4)
    sampler.load_state_dict(state)
    assert np.array_equal(sampler.probabilities(), p)
    with pytest.raises(CohortError, match="cohort"):
        sampler.observe(open_later, norms_for(open_later))
    assert same_cohort(sampler.draw(), open_later)


def test_the_seed_comes_from_the_state() -> None:
    sampler, other = build("osmd", seed=1), build("osmd", seed=2)
    other.load_state_dict(sampler.state_dict())
    assert same_cohort(sampler.draw(), other.draw())
    assert other.state_dict()["seed"] == 1


def test_calibration_is_part_of_the_state(tmp_path: Path) -> None:
    sampler, resumed = build("adaptive"), build("adaptive")
    sampler.calibrate(np.arange(1.0, M + 1.0))
    resumed.load_state_dict(through_npz(sampler.state_dict(), tmp_path))
    assert resumed.feedback_bound == sampler.feedback_bound


@pytest.mark.parametrize("rounds", [0, 1, 3, 6, 7, 8])
def test_doubling_resumes_within_and_between_epochs(rounds: int, tmp_path: Path) -> None:
    whole, resumed = build("doubling"), build("doubling")
    train(whole, rounds)
    resumed.load_state_dict(through_npz(whole.state_dict(), tmp_path))
    assert len(resumed.expert_weights) == len(whole.expert_weights)
    train(whole, 10)
    train(resumed, 10)
    assert same_state(whole.state_dict(), resumed.state_dict())


def test_the_oracle_resumes_between_reveal_and_draw(tmp_path: Path) -> None:
    sampler, resumed = (OptimalSampler(num_clients=M, cohort_size=K, seed=4) for _ in range(2))
    sampler.reveal(np.arange(1.0, M + 1.0))
    resumed.load_state_dict(through_npz(sampler.state_dict(), tmp_path))
    assert same_cohort(sampler.draw(), resumed.draw())


def test_a_state_of_the_oracle_with_a_part_missing() -> None:
    sampler = OptimalSampler(num_clients=M, cohort_size=K)
    sampler.reveal(np.ones(M))
    state = sampler.state_dict()
    for part in state:
        with pytest.raises(StateError, match=part.removeprefix("config.")):
            sampler.load_state_dict({key: value for key, value in state.items() if key != part})
        assert same_state(sampler.state_dict(), state)


def portfolio(**common: Any) -> PortfolioSampler:
    seed = common.pop("seed")
    return PortfolioSampler(experts=[AvareSampler(**common), VRBSampler(**common)], seed=seed)


WITH_STATES: dict[str, Callable[..., Any]] = {
    **SAMPLERS,
    "kvib": lambda **common: KVibSampler(num_rounds=40, **common),
    "empirical bayes": EmpiricalBayesSampler,
    "guarded": lambda **common: EmpiricalBayesSampler(
        guard=Guard(outlier_factor=1.1, outlier_fence=0.1), **common
    ),
    "portfolio": portfolio,
}


def damaged_states(state: State) -> dict[str, State]:
    """The state without each of its parts, and with each of them, in turn, a text or of another length."""
    found = {}
    for part, value in state.items():
        found[f"no {part}"] = {name: kept for name, kept in state.items() if name != part}
        found[f"text for {part}"] = {**state, part: "x"}
        if isinstance(value, np.ndarray):
            found[f"longer {part}"] = {**state, part: np.concatenate((value, value[-1:]))}
    return found


@pytest.mark.parametrize("name", WITH_STATES)
def test_a_damaged_state_changes_nothing(name: str) -> None:
    """The other sampler has seen other clients, and some joined or left; its state stays, to the bit."""
    common = {"num_clients": M, "cohort_size": K, "client_weights": WEIGHTS, "seed": 5}
    saved, sampler, twin = (WITH_STATES[name](**common) for _ in range(3))
    train(saved, 4)
    saved.remove_clients([0])
    train(saved, 1)
    newcomers = sampler.add_clients(2)
    sampler.observe(sampler.draw(available=newcomers), [3.0, 9.0])
    train(sampler, 7)
    sampler.remove_clients([6])
    before, p = sampler.state_dict(), sampler.probabilities()
    for how, state in damaged_states(saved.state_dict()).items():
        try:
            sampler.load_state_dict(state)
        except StateError:
            assert same_state(sampler.state_dict(), before), how
            assert np.array_equal(sampler.probabilities(), p), how
        else:
            assert how.startswith("longer"), how  # an empty array becomes no longer
            sampler.load_state_dict(before)
    twin.load_state_dict(before)
    for mine, theirs in zip(train(sampler, 3), train(twin, 3), strict=True):
        assert same_cohort(mine, theirs)
    assert np.array_equal(sampler.probabilities(), twin.probabilities())


# Numbers that can't be: the error names the entry --------------------------------------------------------

MIXTURE = ("ratios", "scales", "bases", "log_expert_weights", "joined_masses", "weights.joined_masses")
LOG_RATIOS = (*MIXTURE, "logs", "shift")
REWEIGHTED = (*LOG_RATIOS, "unseen_log", "share")
GUARD = ("guard.window_log", "guard.window_rate")
ENGINES: dict[str, tuple[Any, tuple[str, ...]]] = {
    "osmd": (lambda **common: OSMDSampler(learning_rate=0.01, **common), MIXTURE),
    "adaptive": (
        lambda **common: AdaptiveOSMDSampler(num_rounds=40, **common),
        (*MIXTURE, "log_feedback_bound"),
    ),
    "avare": (AvareSampler, (*LOG_RATIOS, "exploration", "floors")),
    "mabs": (lambda **common: MABSSampler(num_rounds=40, **common), REWEIGHTED),
    "vrb": (VRBSampler, REWEIGHTED),
    "empirical bayes": (
        EmpiricalBayesSampler,
        (*REWEIGHTED, *GUARD, "beliefs", "noise", "met", "level", "log_loss", "theta"),
    ),
    "k-vib": (lambda **common: KVibSampler(num_rounds=40, **common), ("log_omega", "masses")),
    "portfolio": (
        lambda **common: PortfolioSampler(experts=[AvareSampler(**common)]),
        ("log_expert_weights", "log_loss"),
    ),
}
FINE = {
    ("logs", "-inf"),
    ("log_omega", "-inf"),
    ("level", "nan"),
    ("log_loss", "nan"),
    ("log_feedback_bound", "nan"),
}
"""Good states have these too: the logarithm of no feedback, and what is not known yet."""


def trained(build: Any) -> Any:
    sampler = build(num_clients=7, cohort_size=3, seed=5)
    train(sampler, 3)
    sampler.add_clients(2)
    sampler.remove_clients([0])
    train(sampler, 3)
    return sampler


def with_number(state: State, entry: str, bad: float) -> State:
    value = state[entry]
    if isinstance(value, np.ndarray):
        value = value.copy()
        value.flat[-1] = bad
    else:
        value = bad
    return {**state, entry: value}


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("name", "entry"), [(name, e) for name, (_, found) in ENGINES.items() for e in found]
)
def test_no_entry_is_nan_or_infinite(name: str, entry: str, bad: float) -> None:
    sampler = trained(ENGINES[name][0])
    before, p = sampler.state_dict(), sampler.probabilities()
    if (entry, str(bad)) in FINE and (name, entry) != ("avare", "logs"):  # its heights are what these say
        sampler.load_state_dict(with_number(before, entry, bad))
        return
    with pytest.raises(StateError, match=rf"\b{re.escape(entry)}\b"):
        sampler.load_state_dict(with_number(before, entry, bad))
    assert same_state(sampler.state_dict(), before)
    assert np.array_equal(sampler.probabilities(), p)


@pytest.mark.parametrize(
    ("name", "entry", "bad"),
    [
        ("avare", "exploration", -0.1),
        ("vrb", "share", 1.5),
        ("vrb", "share", -0.5),
        ("osmd", "bases", -1.0),
        ("empirical bayes", "theta", -0.1),
        ("empirical bayes", "theta", 2.1),
    ],
)
def test_no_share_or_base_is_out_of_bounds(name: str, entry: str, bad: float) -> None:
    sampler = trained(ENGINES[name][0])
    before = sampler.state_dict()
    with pytest.raises(StateError, match=entry):
        sampler.load_state_dict(with_number(before, entry, bad))
    assert same_state(sampler.state_dict(), before)


@pytest.mark.parametrize("below", [0.5, 1e3])
def test_no_mean_square_is_below_the_square_of_the_mean(below: float) -> None:
    sampler = trained(EmpiricalBayesSampler)
    before = sampler.state_dict()
    beliefs = before["beliefs"].copy()
    mean, square = CLIENT_FIELDS.index("mean"), CLIENT_FIELDS.index("square")
    assert (beliefs[:, square] >= beliefs[:, mean] - 1e-12).all()
    beliefs[-1, square] = beliefs[-1, mean] - below
    with pytest.raises(StateError, match="beliefs"):
        sampler.load_state_dict({**before, "beliefs": beliefs})
    assert same_state(sampler.state_dict(), before)


@pytest.mark.parametrize("name", ENGINES)
def test_no_state_that_a_sampler_can_reach_is_refused(name: str) -> None:
    """Silence, norms of 0 and of 1e300, joins and leaves: the state of every round loads."""
    sampler, rng = ENGINES[name][0](num_clients=7, cohort_size=3, seed=5), np.random.default_rng(2)
    for round_index in range(40):
        cohort = sampler.draw()
        odd = rng.choice([0.0, 1e-300, 1.0, 1e300, np.nan], size=len(cohort))
        sampler.observe(cohort, np.where(odd == 1.0, norms_for(cohort), odd))
        if round_index % 5 == 4:
            newcomer = sampler.add_clients([1e-6])
            sampler.remove_clients(newcomer if round_index % 2 else [round_index // 10])
        before = sampler.state_dict()
        sampler.load_state_dict(before)
        assert same_state(sampler.state_dict(), before)
