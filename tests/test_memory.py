"""The memory of earlier updates: exactly unbiased, whatever it holds; coefficient, storage, resume."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from sortition import (
    Cohort,
    CohortError,
    ConfigurationError,
    FeedbackError,
    Memory,
    StateError,
    UniformSampler,
    default_sampler,
)
from sortition.core.designs import DESIGNS
from sortition.memory import KEPT, LEAST_FACTOR, SUM_TOLERANCE
from tests.helpers import cohorts, same_state, simplex, vectors

M, D = 4, 3


def filled(updates: np.ndarray[Any, Any], weights: np.ndarray[Any, Any], **options: Any) -> Memory:
    """A memory that has seen some rounds: clients 0, 2, 0 and 3, so that client 1 is not remembered."""
    memory = Memory(num_parameters=D, num_clients=M, **{"dtype": "float64", **options})
    for turn, client in enumerate((0, 2, 0, 3)):
        cohort = Cohort(10 + turn, 1, [client], [1], [0.25], [4.0])
        memory.combine(cohort, [updates[client] * (1.0 + 0.3 * turn)], weights[[client]])
    return memory


@pytest.mark.parametrize("design", DESIGNS)
@settings(max_examples=15)
@given(p=simplex(M), weights=simplex(M), past=vectors(M, D), updates=vectors(M, D))
def test_the_aggregate_is_unbiased_whatever_the_memory_holds(
    design: str, p: Any, weights: Any, past: Any, updates: Any
) -> None:
    """Summed over every cohort of two, with its probability, the aggregate is that of all clients."""
    memory = filled(past, weights)
    state = memory.state_dict()
    mean = np.zeros(D)
    for probability, cohort in cohorts(design, p, 2):
        memory.load_state_dict(state)
        mean += probability * memory.combine(cohort, updates[cohort.clients], weights[cohort.clients])[0]
    assert mean == pytest.approx(weights @ updates, abs=1e-9)


@pytest.mark.parametrize("design", DESIGNS)
@settings(max_examples=10)
@given(p=simplex(3), weights=simplex(M), past=vectors(M, D), updates=vectors(M, D))
def test_with_some_clients_available_it_is_unbiased_for_these(
    design: str, p: Any, weights: Any, past: Any, updates: Any
) -> None:
    """Client 2 is remembered and offline: its memory counts b times."""
    here = np.array([0, 1, 3])
    memory = filled(past, weights)
    state = memory.state_dict()
    counted = memory.coefficient * weights[2] * memory.remembered(2)
    mean = np.zeros(D)
    for probability, drawn in cohorts(design, p, 2):
        cohort = replace(drawn, clients=here[drawn.clients], available=here)
        memory.load_state_dict(state)
        mean += probability * memory.combine(cohort, updates[cohort.clients], weights[cohort.clients])[0]
    assert mean == pytest.approx(weights[here] @ updates[here] + counted, abs=1e-9)


def test_norms_are_those_of_the_residuals() -> None:
    rng = np.random.default_rng(0)
    past, weights = rng.normal(size=(M, D)), np.full(M, 0.25)
    memory = filled(past, weights)
    b, y = memory.coefficient, memory.remembered(2)
    assert b > 0.0
    update = rng.normal(size=D)
    _, norms = memory.combine(Cohort(9, 1, [2], [1], [0.25], [4.0]), [update], weights[[2]])
    assert norms[0] == pytest.approx(np.linalg.norm(update - b * y))


def test_by_hand() -> None:
    """Two rounds of one client with weight 1/2, drawn with probability 1/4: y, b and the aggregate."""
    memory = Memory(num_parameters=1, num_clients=2, dtype="float64")
    cohort = Cohort(0, 1, [1], [1], [0.25], [4.0])
    assert memory.combine(cohort, [[2.0]], [0.5])[0] == pytest.approx([4.0])  # 1/2 * 4 * 2
    assert memory.remembered(1) == pytest.approx([2.0])  # all of it, the first time
    assert memory.coefficient == 0.0  # nothing was known when the first update came
    memory.combine(replace(cohort, round_index=1), [[1.0]], [0.5])
    assert memory.coefficient == pytest.approx(0.5)  # <1, 2> / <2, 2>
    assert memory.remembered(1) == pytest.approx([1.5])  # half of the way
    aggregate, norms = memory.combine(replace(cohort, round_index=2), [[3.0]], [0.5])
    residual = 3.0 - 0.5 * 1.5
    assert norms == pytest.approx([residual])
    assert aggregate == pytest.approx([0.5 * 0.5 * 1.5 + 0.5 * 4.0 * residual])
    factor = 0.25 * 4.0 * (3.0 + LEAST_FACTOR)
    numerator = KEPT * factor * 2.0 + factor * 4.5
    denominator = KEPT * factor * 4.0 + factor * 2.25
    assert memory.coefficient == pytest.approx(min(numerator / denominator, 1.0))


def test_a_certain_client_hardly_counts_for_the_coefficient() -> None:
    """Client 0 is always drawn and turns around each time; client 1 sends what it sent before."""
    memory = Memory(num_parameters=1, num_clients=2, dtype="float64")
    for turn in range(20):
        cohort = Cohort(turn, 2, [0, 1], [1, 1], [1.0, 0.5], [1.0, 2.0])
        memory.combine(cohort, [[(-1.0) ** turn], [1.0]], [0.5, 0.5])
    assert memory.coefficient > 0.99


def test_a_useless_memory_is_not_used() -> None:
    rng = np.random.default_rng(1)
    sampler, memory = UniformSampler(num_clients=20, cohort_size=5), Memory(num_parameters=50, num_clients=20)
    used = []
    for _ in range(100):
        cohort = sampler.draw()
        memory.combine(cohort, rng.normal(size=(len(cohort), 50)), sampler.client_weights)
        used.append(memory.coefficient)
    # b is a sum of about 10 * 5 products of independent directions, each of deviation 1/sqrt(50)
    assert np.mean(used[20:]) < 4.0 / np.sqrt(50 * 50) * 2.0


def test_no_reply_is_nan_or_none() -> None:
    memory = Memory(num_parameters=2, num_clients=3)
    cohort = Cohort(0, 2, [0, 2], [1, 1], [0.5, 0.5], [2.0, 2.0])
    aggregate, norms = memory.combine(cohort, [None, [1.0, 0.0]], [0.3, 0.3])
    assert np.isnan(norms[0])
    assert norms[1] == 1.0
    assert aggregate == pytest.approx([0.3 * 4.0, 0.0])  # as Cohort.replied weighs it
    other = Memory(num_parameters=2, num_clients=3)
    other.combine(cohort, np.array([[np.nan, 1.0], [1.0, 0.0]]), [0.3, 0.3])
    assert same_state(memory.state_dict(), other.state_dict())


@pytest.mark.parametrize("leaving", [[0], [2, 3]])
def test_joins_and_leaves_keep_it_exact(leaving: list[int]) -> None:
    """The sum follows the weights of the sampler, and clients that left are forgotten."""
    rng = np.random.default_rng(2)
    weights = np.array([0.1, 0.2, 0.3, 0.4])
    sampler = UniformSampler(num_clients=M, cohort_size=3, client_weights=weights, design="fixed_size")
    memory = Memory(num_parameters=D, num_clients=10, dtype="float64")
    for _ in range(6):
        cohort = sampler.draw()
        memory.combine(cohort, rng.normal(size=(len(cohort), D)), sampler.client_weights)
    sampler.remove_clients(leaving)
    sampler.add_clients(1, client_weights=[0.5])
    cohort = sampler.draw()
    before = memory.state_dict()
    aggregate, _ = memory.combine(cohort, np.zeros((len(cohort), D)), sampler.client_weights)
    rows = {int(client): before[f"row.{client}"] for client in before["clients"]}
    stay = [client for client in rows if client not in leaving]
    lam = sampler.client_weights(np.array(stay, dtype=np.int64))
    b = before["numerator"] / before["denominator"]
    b = min(max(b, 0.0), 1.0)
    expected = b * sum((w * rows[c] for w, c in zip(lam, stay, strict=True)), np.zeros(D))
    for client, w, lam_m in zip(
        cohort.clients, cohort.weights, sampler.client_weights(cohort.clients), strict=True
    ):
        expected = expected - lam_m * w * b * rows.get(int(client), np.zeros(D))
    assert aggregate == pytest.approx(expected)
    assert not set(leaving) & set(memory.state_dict()["clients"].tolist())


def test_changed_weights_without_a_function_are_refused() -> None:
    memory = Memory(num_parameters=1, num_clients=2)
    cohort = Cohort(0, 1, [1], [1], [0.5], [2.0])
    memory.combine(cohort, [[1.0]], [0.5])
    before = memory.state_dict()
    with pytest.raises(FeedbackError, match="client_weights"):
        memory.combine(replace(cohort, round_index=1), [[1.0]], [0.4])
    assert same_state(before, memory.state_dict())


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("in_file", [False, True])
def test_resume_to_the_bit(dtype: Any, in_file: bool, tmp_path: Path) -> None:
    def build(name: str) -> Memory:
        path = tmp_path / f"{name}.npy" if in_file else None
        return Memory(num_parameters=5, num_clients=30, dtype=dtype, path=path)

    def rounds(sampler: Any, memory: Memory, first: int, last: int) -> list[Any]:
        aggregates = []
        for turn in range(first, last):
            cohort = sampler.draw()
            updates = np.random.default_rng(turn).normal(size=(30, 5))[cohort.clients]
            aggregate, norms = memory.combine(cohort, updates, sampler.client_weights)
            sampler.observe(cohort, norms)
            aggregates.append(aggregate)
        return aggregates

    whole = rounds(default_sampler(30, 6), build("whole"), 0, 30)
    sampler, memory = default_sampler(30, 6), build("first")
    rounds(sampler, memory, 0, 12)
    resumed_sampler, resumed = default_sampler(30, 6), build("second")
    resumed_sampler.load_state_dict(sampler.state_dict())
    resumed.load_state_dict(memory.state_dict())
    assert np.array_equal(whole[12:], rounds(resumed_sampler, resumed, 12, 30))


def test_bytes_are_said_beforehand(tmp_path: Path) -> None:
    assert Memory(num_parameters=1000, num_clients=10).bytes_needed == 40_000
    assert Memory(num_parameters=1000, num_clients=10, dtype="float16").bytes_needed == 20_000
    with pytest.raises(ConfigurationError, match="40,000"):
        Memory(num_parameters=1000, num_clients=10, max_bytes=39_999)
    path = tmp_path / "memory.npy"
    Memory(num_parameters=1000, num_clients=10, path=path)
    assert path.stat().st_size >= 40_000


def test_with_max_clients_later_ones_are_not_remembered() -> None:
    memory = Memory(num_parameters=1, num_clients=1000, max_clients=2)
    for client in (5, 7, 9):
        memory.combine(Cohort(client, 1, [client], [1], [0.001], [1000.0]), [[1.0]], [0.001])
    assert memory.clients_remembered == 2
    assert memory.remembered(9) == 0.0


@pytest.mark.parametrize(
    ("updates", "weights", "argument"),
    [
        ([[1.0, 2.0]], [0.5, 0.5], "updates"),
        ([[1.0, 2.0], [1.0]], [0.5, 0.5], "updates"),
        ([[1.0, 2.0], [1.0, np.inf]], [0.5, 0.5], "updates"),
        ([[1.0, 2.0], ["a", "b"]], [0.5, 0.5], "updates"),
        ([[1.0, 2.0], [1e300, 1e300]], [0.5, 0.5], "updates"),
        ([[1.0, 2.0], [1.0, 1.0]], [0.5], "client_weights"),
        ([[1.0, 2.0], [1.0, 1.0]], [0.5, -0.5], "client_weights"),
    ],
)
def test_bad_input_changes_nothing(updates: Any, weights: Any, argument: str) -> None:
    memory = Memory(num_parameters=2, num_clients=3)
    cohort = Cohort(0, 2, [0, 2], [1, 1], [0.5, 0.5], [2.0, 2.0])
    memory.combine(cohort, np.ones((2, 2)), [0.5, 0.5])
    before = memory.state_dict()
    with pytest.raises(FeedbackError, match=argument):
        memory.combine(replace(cohort, round_index=1), updates, weights)
    assert same_state(before, memory.state_dict())


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("kind", "Other"),
        ("version", 0),
        ("dtype", "float16"),
        ("clients", np.array([1, 1, 2])),
        ("row.2", np.full(D, np.nan)),
        ("row.3", None),
        ("rounds", np.array([10])),
        ("rounds", np.array([14, 10])),
        ("client_weights", np.array([0.25, -0.25, 0.25])),
        ("sum", np.ones(D) * 1e9),
        ("rounding", 1.0),
        ("denominator", -1.0),
        ("numerator", np.inf),
        ("replies", -1),
        ("replies", 2.5),
        ("replies", 2**63),
        ("replies", 3),  # fewer than when client 3 was heard
        ("looked", 5),
        ("looked", None),
        ("seen", np.array([3, 2, 5])),
        ("seen", np.array([3, 0, 4])),
        ("seen", np.array([3, 2])),
        ("seen", np.array([3.0, 2.0, 4.0])),
    ],
)
def test_a_damaged_state_changes_nothing(entry: str, value: Any) -> None:
    rng = np.random.default_rng(3)
    memory = filled(rng.normal(size=(M, D)), np.full(M, 0.25))
    before = memory.state_dict()
    with pytest.raises(StateError, match=entry):
        memory.load_state_dict({**before, entry: value})
    assert same_state(before, memory.state_dict())


@pytest.mark.parametrize("wrong", range(1, 5))
def test_settings_are_checked(wrong: int) -> None:
    bad: dict[int, dict[str, Any]] = {
        1: {"num_parameters": 0},
        2: {"num_clients": 0},
        3: {"dtype": "int8"},
        4: {"max_clients": 0},
    }
    (argument,) = bad[wrong]
    with pytest.raises(ConfigurationError, match=argument):
        Memory(**{"num_parameters": 1, "num_clients": 1, **bad[wrong]})
    with pytest.raises(ConfigurationError, match="num_clients"):
        Memory(num_parameters=1, num_client=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "available",
    [np.array([True, True, False, True]), {0, 1, 3}, [], ["3"], [[0, 1, 3]], [1, 2, 3], [0.0, 3.5]],
)
def test_available_are_the_ids_that_the_cohort_was_drawn_from(available: Any) -> None:
    with pytest.raises(CohortError, match="available"):
        Cohort(9, 2, [0, 3], [1, 1], [0.5, 0.5], [2.0, 2.0], available=available)
    if isinstance(available, list):
        ids = np.array(available)
        ids.flags.writeable = False
        with pytest.raises(CohortError, match="available"):
            Cohort(9, 2, [0, 3], [1, 1], [0.5, 0.5], [2.0, 2.0], available=ids)


def exact_sum(state: dict[str, Any]) -> np.ndarray[Any, Any]:
    """The weighted sum of the rows in higher precision, and its scale."""
    parts = np.array(
        [
            lam * state[f"row.{client}"].astype(np.longdouble)
            for client, lam in zip(state["clients"], state["client_weights"], strict=True)
        ]
    )
    return np.array([parts.sum(axis=0), np.abs(parts).max(axis=1).sum() * np.ones(parts.shape[1])])


def check_state(memory: Memory, **options: Any) -> None:
    """The sum is that of the rows, and the state loads."""
    state = memory.state_dict()
    total, scale = exact_sum(state)
    scale += np.finfo(np.float64).tiny  # below it, numbers have fewer digits
    assert np.all(np.abs(state["sum"] - total) <= 1.001 * SUM_TOLERANCE * scale)
    Memory(**options).load_state_dict(state)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("spike", [1e8, 1e16, 1e25])
def test_rounding_does_not_add_up(dtype: Any, spike: float) -> None:
    """One huge update is forgotten by halves. The sum is that of the rows in every turn."""
    options = {"num_parameters": 2, "num_clients": 10, "dtype": dtype}
    memory = Memory(**options)
    for turn in range(1500):
        client = turn % 10
        update = [spike if turn == 5 else 1.0, np.cos(turn)]
        memory.combine(Cohort(turn, 1, [client], [1], [0.1], [10.0]), [update], [0.1])
        check_state(memory, **options)
    rows = [memory.remembered(client) for client in range(10)]
    assert memory.state_dict()["sum"] == pytest.approx(0.1 * np.sum(rows, axis=0), rel=1e-9)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_memory_of_updates_that_go_to_zero(dtype: Any) -> None:
    """Exact gradients of a common optimum become smaller than any number, and every state loads."""
    rng = np.random.default_rng(0)
    options = {"num_parameters": 4, "num_clients": 5, "dtype": dtype}
    memory, model, curvatures = Memory(**options), rng.normal(size=4), rng.uniform(0.5, 1.5, size=(5, 4))
    everybody, ones = np.arange(5), np.ones(5)
    for turn in range(1500):
        cohort = Cohort(turn, 5, everybody, ones, ones, ones)
        model = model - 0.7 * memory.combine(cohort, curvatures * model, ones / 5.0)[0]
        check_state(memory, **options)
    assert np.abs(model).max() < 1e-200


def test_the_sum_is_made_anew_only_when_digits_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(Memory, "_sum_up", lambda memory: made.append(memory) or sum_up(memory))
    memory = Memory(num_parameters=2, num_clients=20)
    sampler, rng = UniformSampler(num_clients=20, cohort_size=5), np.random.default_rng(4)
    for turn in range(1000):
        cohort = sampler.draw()
        updates = rng.normal(size=(len(cohort), 2)) + (1e12 if turn == 500 else 0.0)
        memory.combine(cohort, updates, np.full(len(cohort), 0.05))
        assert turn >= 500 or not made
    assert 1 <= len(made) < 10


sum_up = Memory._sum_up


def test_the_sum_of_a_state_is_checked_at_any_scale() -> None:
    memory = filled(1e-9 * np.ones((M, D)), np.full(M, 1e-3))
    state = memory.state_dict()
    with pytest.raises(StateError, match="sum"):
        memory.load_state_dict({**state, "sum": -state["sum"]})
    with pytest.raises(StateError, match="clients"):
        memory.load_state_dict({**state, "clients": state["clients"] - 7})


def test_refused_updates_do_not_let_weights_follow() -> None:
    memory = Memory(num_parameters=2, num_clients=3)
    cohort = Cohort(0, 2, [0, 1], [1, 1], [0.5, 0.5], [2.0, 2.0])
    memory.combine(cohort, np.ones((2, 2)), lambda clients: np.full(len(clients), 0.3))
    before = memory.state_dict()
    cohort = replace(cohort, round_index=1)
    for wrong in (1e300, np.inf):
        with pytest.raises(FeedbackError, match="updates"):
            memory.combine(cohort, [[wrong, 1.0], [1.0, 1.0]], lambda clients: (clients == 0).astype(float))
    for weight in (np.nan, -1.0, np.inf):
        with pytest.raises(FeedbackError, match="client_weights"):
            memory.combine(cohort, np.ones((2, 2)), lambda clients, w=weight: np.full(len(clients), w))  # type: ignore[misc]
    assert same_state(before, memory.state_dict())


def test_forgotten_clients_are_out_of_the_sum() -> None:
    memory = filled(np.ones((M, D)), np.full(M, 0.25))
    memory.forget([0, 1, 3])
    assert memory.clients_remembered == 1
    assert memory.remembered(0) == pytest.approx(np.zeros(D))
    assert memory.state_dict()["sum"] == pytest.approx(0.25 * memory.remembered(2))


def test_a_file_that_exists_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "model.npy"
    path.write_bytes(b"precious")
    with pytest.raises(ConfigurationError, match="path"):
        Memory(num_parameters=1, num_clients=1, path=path)
    assert path.read_bytes() == b"precious"


@pytest.mark.parametrize("wrong", [OSError("No space left on device"), OverflowError("too large")])
def test_a_file_without_room_is_removed(wrong: Exception, tmp_path: Path, monkeypatch: Any) -> None:
    def refuse(*args: Any) -> None:
        raise wrong

    monkeypatch.setattr("os.posix_fallocate", refuse)
    with pytest.raises(ConfigurationError, match=f"path.*{wrong}"):
        Memory(num_parameters=1, num_clients=1, path=tmp_path / "rows")
    assert not list(tmp_path.iterdir())


def test_a_file_is_made_where_the_disk_can_not_be_asked_for_room(tmp_path: Path, monkeypatch: Any) -> None:
    """As on macOS."""
    monkeypatch.delattr("os.posix_fallocate")
    memory = Memory(num_parameters=3, num_clients=2, path=tmp_path / "rows")
    memory.combine(Cohort(0, 1, [1], [1], [0.5], [2.0]), [[1.0, 2.0, 3.0]], [0.5])
    assert memory.remembered(1) == pytest.approx([1.0, 2.0, 3.0])
    assert (tmp_path / "rows").stat().st_size == 24


def test_if_nobody_replies_there_is_no_step() -> None:
    """But where nobody was drawn, by independent draws, the estimate is what is remembered."""
    memory = filled(np.ones((M, D)), np.full(M, 0.25))
    expected = memory.coefficient * memory.state_dict()["sum"]
    aggregate, _ = memory.combine(Cohort(9, 1, [0], [1], [0.25], [4.0]), [None], [0.25])
    assert aggregate == pytest.approx(np.zeros(D))
    aggregate, _ = memory.combine(Cohort(8, 1, [], [], [], []), [], [])
    assert aggregate == pytest.approx(expected)


@pytest.mark.parametrize("updates", [{0: [1.0]}, 3.0, None, "ab", [[[1.0]]], [[1.0 + 2.0j]]])
def test_other_kinds_of_updates_are_refused(updates: Any) -> None:
    with pytest.raises(FeedbackError, match="updates"):
        Memory(num_parameters=1, num_clients=1).combine(Cohort(0, 1, [0], [1], [1.0], [1.0]), updates, [1.0])


def test_each_round_is_combined_once_in_any_order() -> None:
    """Late cohorts and gaps are allowed; a state knows what was combined."""
    memory = Memory(num_parameters=1, num_clients=1)

    def combine(round_index: int, update: Any = 1.0) -> None:
        memory.combine(Cohort(round_index, 1, [0], [1], [1.0], [1.0]), [[update]], [1.0])

    done: set[int] = set()
    for round_index in (4, 5, 9, 0, 8, 3, 6, 1):
        combine(round_index, np.nan if round_index == 8 else 1.0)  # nobody replied: that was its turn
        done.add(round_index)
        state = memory.state_dict()
        memory = Memory(num_parameters=1, num_clients=1)
        memory.load_state_dict(state)
        for again in done:
            with pytest.raises(CohortError, match=f"round {again} "):
                combine(again)
        assert same_state(state, memory.state_dict())
    assert state["rounds"].tolist() == [0, 2, 3, 7, 8, 10]


def test_a_state_does_not_change_with_its_memory_nor_with_a_copy_of_it() -> None:
    memory = filled(np.ones((M, D)), np.full(M, 0.25))
    state, kept = memory.state_dict(), {name: np.copy(v) for name, v in memory.state_dict().items()}
    for one in (copy.deepcopy(memory), memory):
        for turn in range(2):
            cohort = Cohort(20 + turn, 2, [0, 1], [1, 1], [0.5, 0.5], [2.0, 2.0])
            one.combine(cohort, np.full((2, D), 5.0), [0.25, 0.25])
        assert same_state(state, kept)
        assert one.remembered(0) == pytest.approx(5.0 - (5.0 - kept["row.0"]) / 4.0)
    assert same_state(memory.state_dict(), one.state_dict())


def test_a_refused_combine_was_not_the_turn_of_its_round() -> None:
    memory = Memory(num_parameters=1, num_clients=1)
    cohort = Cohort(3, 1, [0], [1], [1.0], [1.0])
    with pytest.raises(FeedbackError):
        memory.combine(cohort, [[np.inf]], [1.0])
    memory.combine(cohort, [[1.0]], [1.0])


@pytest.mark.parametrize("design", DESIGNS)
def test_a_late_cohort_of_some_clients(design: Any) -> None:
    """The others count by what is remembered of them now."""
    rng = np.random.default_rng(5)
    sampler = UniformSampler(num_clients=6, cohort_size=2, design=design)
    memory = Memory(num_parameters=D, num_clients=6, dtype="float64")
    late = sampler.draw(available=[5, 0, 1, 2])
    for turn in range(12):
        cohort = sampler.draw()
        memory.combine(cohort, 1.0 + 0.1 * rng.normal(size=(len(cohort), D)), sampler.client_weights)
        assert cohort.available is None, turn
    assert late.available is not None
    assert late.available.tolist() == [0, 1, 2, 5]
    y, b = {client: memory.remembered(client) for client in range(6)}, memory.coefficient
    assert b > 0.5
    assert all(np.any(y[client]) for client in (3, 4))
    updates = rng.normal(size=(len(late), D))
    expected = b / 6.0 * sum(y.values())
    for client, weight, update in zip(late.clients.tolist(), late.weights, updates, strict=True):
        expected = expected + weight / 6.0 * (update - b * y[client])
    assert memory.combine(late, updates, sampler.client_weights)[0] == pytest.approx(expected)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int8, ">f4", np.float16])
def test_one_pass_over_rows_equals_the_formulas(dtype: Any, kind: Any) -> None:
    """Aggregate, norms and sum against plain numpy, for each type of row and of update."""
    rng = np.random.default_rng(6)
    memory, b = Memory(num_parameters=257, num_clients=9, dtype=dtype), 0.0
    y, sums = np.zeros((9, 257)), np.zeros(2)
    for turn in range(6):
        clients = rng.permutation(9)[:4]
        cohort = Cohort(turn, 4, clients, np.ones(4), np.full(4, 4 / 9), np.full(4, 9 / 4))
        updates = (8.0 * np.sin(clients[:, None] + np.arange(257)) + rng.normal(size=(4, 257))).astype(kind)
        aggregate, norms = memory.combine(cohort, updates, np.full(4, 1 / 9))
        residuals = updates.astype(np.float64) - b * y[clients]
        assert norms == pytest.approx(np.linalg.norm(residuals, axis=1), rel=1e-12)
        assert aggregate == pytest.approx(b * y.mean(axis=0) + residuals.mean(axis=0), rel=1e-9, abs=1e-12)
        sums = KEPT * sums + [np.sum(updates * y[clients]), np.sum(y[clients] ** 2)]
        b = memory.coefficient
        assert b == pytest.approx(np.clip(sums[0] / sums[1], 0.0, 1.0) if sums[1] else 0.0)
        y[clients] = [memory.remembered(client) for client in clients]
        assert memory.state_dict()["sum"] == pytest.approx(y.mean(axis=0), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("in_file", [False, True])
def test_the_room_of_forgotten_clients_is_used_again(in_file: bool, tmp_path: Path) -> None:
    path = tmp_path / "rows" if in_file else None
    memory = Memory(num_parameters=1, num_clients=3, path=path)

    def see(round_index: int, client: int) -> None:
        memory.combine(Cohort(round_index, 1, [client], [1], [1.0], [1.0]), [[1.0 + client]], [0.1])

    for client in range(3):
        see(client, client)
    memory.forget([0, 2])
    for client in (7, 8, 9):
        see(client, client)
    assert [float(memory.remembered(client)[0]) for client in (1, 7, 8, 9)] == [2.0, 8.0, 9.0, 0.0]
    assert memory.clients_remembered == 3


# Clients that are away ---------------------------------------------------------------------------------


def everybody_once(num_clients: int) -> Memory:
    """A memory in which all clients were heard in round 0."""
    memory = Memory(num_parameters=1, num_clients=num_clients, dtype="float64")
    everybody = np.arange(num_clients)
    cohort = Cohort(0, num_clients, everybody, *np.ones((3, num_clients)), available=everybody)
    memory.combine(cohort, np.ones((num_clients, 1)), np.full(num_clients, 0.25))
    return memory


def hear(memory: Memory, round_index: int, client: int, available: Any) -> float:
    """The aggregate of a round in which ``client`` is drawn, and sends 1 again."""
    cohort = Cohort(round_index, 1, [client], [1], [0.5], [2.0], available=available)
    return float(memory.combine(cohort, [[1.0]], [0.25])[0][0])


@pytest.mark.parametrize("order", [1, -1])
def test_a_client_away_for_eight_sweeps_is_forgotten(order: int) -> None:
    """Client 3 is away. Client 2 is online and never drawn. The order of the rounds is of no account.

    A sweep is four replies, and the memory looks after each four. Client 3 was there when there were 4, so it
    is forgotten at 4 + 8 * 4 = 36, after the aggregate of that round.
    """
    memory = everybody_once(4)
    for drawn in range(5, 60):
        b, was_known = memory.coefficient, drawn <= 36
        assert memory.clients_remembered == (4 if was_known else 3), drawn
        # each counts 1/4, also those that are not drawn; the one that is drawn sends what is remembered
        expected = 0.25 * (b * (4.0 if was_known else 3.0) + 2.0 * (1.0 - b))
        assert hear(memory, 100 + order * drawn, drawn % 2, [0, 1, 2]) == pytest.approx(expected)
    assert memory.remembered(2) == 1.0
    assert memory.remembered(3) == 0.0
    state = memory.state_dict()
    assert state["sum"] == pytest.approx([0.75])
    assert (state["clients"].tolist(), state["seen"].tolist()) == ([0, 1, 2], [58, 59, 57])


@pytest.mark.parametrize("case", ["everybody could be drawn", "heard again"])
def test_others_are_not_forgotten(case: str) -> None:
    memory = everybody_once(4)
    for drawn in range(5, 68):
        if case == "heard again" and drawn == 36:
            hear(memory, drawn, 3, range(4))
        else:
            hear(memory, drawn, drawn % 2, None if case == "everybody could be drawn" else [0, 1, 2])
    assert memory.clients_remembered == 4


def test_draws_without_a_reply_do_not_count_for_a_sweep() -> None:
    """Where most are silent, a client that comes back every day would be forgotten too early."""
    memory = everybody_once(4)
    for round_index in range(1, 100):
        silent = Cohort(round_index, 2, [0, 1], [1, 1], [0.5, 0.5], [2.0, 2.0], available=[0, 1, 2])
        memory.combine(silent, [None, [1.0] if round_index % 4 == 0 else None], [0.25, 0.25])
    assert memory.clients_remembered == 4
    assert memory.state_dict()["replies"] == 4 + 24


def test_where_all_room_is_taken_who_is_gone_makes_room() -> None:
    """Clients 0 and 1 send 1 and go for good; 2 and 3 send -1, and there is room for two."""
    memory = Memory(num_parameters=1, num_clients=4, max_clients=2, dtype="float64")
    for turn in range(40):
        here, update = ([0, 1], 1.0) if turn < 4 else ([2, 3], -1.0)
        cohort = Cohort(turn, 2, here, [1, 1], [0.5, 0.5], [1.0, 1.0], available=here)
        aggregate, _ = memory.combine(cohort, [[update], [update]], [0.25, 0.25])
    assert memory.clients.tolist() == [2, 3]
    assert aggregate == pytest.approx([-0.5])


def test_who_is_rarely_drawn_and_away_for_a_round_is_not_forgotten() -> None:
    """Eight sweeps count from when it went away, not from when it was drawn."""
    memory = everybody_once(4)
    for turn in range(5, 205):
        hear(memory, turn, turn % 2, range(4) if turn % 20 else [0, 1, 2])
    assert memory.clients_remembered == 4


def test_rows_are_summed_anew_at_most_once_a_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients go away one after another, and so become due one after another."""
    memory, made = everybody_once(20), [(0, 0)]

    def counted(memory: Memory) -> None:
        made.append((memory.state_dict()["replies"], memory.clients_remembered))
        sum_up(memory)

    monkeypatch.setattr(Memory, "_sum_up", counted)
    for drawn in range(21, 500):
        first = min((drawn - 20) // 2, 18)
        hear(memory, drawn, first, range(first, 20))
    assert memory.clients_remembered == 2
    assert len(made) > 2
    assert all(later[0] - earlier[0] >= later[1] for earlier, later in pairwise(made))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_resume_to_the_bit_across_the_moment_of_forgetting(dtype: Any) -> None:
    """From a state or a copy of any round; neither is changed by what comes after."""
    weights = np.random.default_rng(8).dirichlet(np.ones(8))

    def one_round(memory: Memory, turn: int) -> Any:
        rng = np.random.default_rng(turn)
        here = np.arange(8 if turn < 6 else 5)
        drawn = rng.permutation(here)[:2]
        cohort = Cohort(turn, 2, drawn, [1, 1], [0.4, 0.4], [2.5, 2.5], available=here)
        return memory.combine(cohort, 1.0 + 0.3 * rng.normal(size=(2, 5)), weights[drawn])[0]

    def build() -> Memory:
        return Memory(num_parameters=5, num_clients=8, dtype=dtype)

    memory, states, copies, whole, remembered = build(), [], [], [], []
    for turn in range(60):
        states.append(memory.state_dict())
        copies.append(memory.copied())
        whole.append(one_round(memory, turn))
        remembered.append(memory.clients_remembered)
    assert remembered[5] > 5
    assert remembered[-1] == 5
    for first in range(0, 60, 3):
        resumed = build()
        resumed.load_state_dict(states[first])
        assert same_state(resumed.state_dict(), states[first])
        for one in (resumed, copies[first]):
            assert np.array_equal([one_round(one, turn) for turn in range(first, 60)], whole[first:])
            assert same_state(one.state_dict(), memory.state_dict())


def test_who_is_forgotten_is_heard_anew() -> None:
    memory = everybody_once(4)
    memory.forget([1, 3])
    assert memory.state_dict()["seen"].tolist() == [4, 4]
    hear(memory, 1, 3, [0, 3])
    state = memory.state_dict()
    assert (state["clients"].tolist(), state["seen"].tolist()) == ([0, 2, 3], [4, 4, 5])
