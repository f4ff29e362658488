"""The hash table against a dict, the roster against a list, its feedback against the specification."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortition import StateError
from sortition.core.variance import log_feedback as specified
from sortition.engine.clients import Roster, Table, all_replied

keys = st.one_of(st.integers(0, 40), st.integers(0, 2**62))


@given(st.lists(st.tuples(keys, st.integers(0, 10**6)), max_size=300), st.lists(keys, max_size=50))
def test_a_table_is_a_dict(entries: list[tuple[int, int]], others: list[int]) -> None:
    table, model = Table(), {}
    for key, slot in entries:
        table.put_all(np.array([key]), np.array([slot]))
        model[key] = slot
    asked = np.array([*model, *others], dtype=np.int64)
    assert table.slots_of(asked).tolist() == [model.get(key, -1) for key in asked.tolist()]
    assert table.count == len(model)
    assert 2 * table.count <= len(table.places)


def test_a_table_takes_many_at_once() -> None:
    ids = np.arange(0, 10**7, 97)
    table = Table()
    table.put_all(ids, ids + 1)
    assert np.array_equal(table.slots_of(ids), ids + 1)
    assert (table.slots_of(ids + 1) == -1).all()


@given(
    st.integers(1, 30),
    st.booleans(),
    st.lists(st.one_of(st.floats(0.01, 5.0), st.integers(0, 60)), max_size=40),
)
def test_a_roster_covers_the_line_with_its_members(size: int, own: bool, changes: list[float]) -> None:
    """Each member owns an interval as long as its mass: found by trying points all along the line."""
    masses = np.arange(1.0, size + 1.0) if own else np.ones(size)
    roster = Roster(size, masses if own else None)
    model = dict(enumerate(masses.tolist()))
    ids = size
    for change in changes:
        if isinstance(change, float):
            assert roster.add(np.array([change])).tolist() == [ids]
            model[ids] = change
            ids += 1
        elif change in model and len(model) > 1:
            roster.remove(np.array([change]))
            del model[change]
    assert roster.count == len(model)
    assert roster.total == pytest.approx(sum(model.values()))
    everybody = np.arange(ids)
    expected = [model.get(client, 0.0) for client in range(ids)]
    assert roster.masses(None) == pytest.approx(expected)
    assert roster.masses(everybody) == pytest.approx(expected)
    assert roster.present(everybody).tolist() == [client in model for client in range(ids)]
    step = roster.total / 4000
    points = (np.arange(4000) + 0.5) * step
    found = np.bincount([roster.draw(x) for x in points], minlength=ids)
    assert np.abs(found * step - expected).max() <= 2.0 * step
    again = Roster(size, masses if own else None).restored(roster.state(), "")
    assert [again.draw(x) for x in points[::37]] == [roster.draw(x) for x in points[::37]]


def test_a_roster_of_a_billion_needs_no_memory() -> None:
    roster = Roster(10**9, None)
    roster.remove(np.array([5, 10**9 - 1]))
    assert roster.draw(5.5) == 10**9 - 2  # took the seat of 5, the last one being gone
    assert roster.draw(4.5) == 4
    assert roster.count == 10**9 - 2


def test_a_state_in_which_an_unknown_client_left_is_refused() -> None:
    state = Roster(5, None).state() | {"left_clients": np.array([7])}
    with pytest.raises(StateError, match="left_clients"):
        Roster(5, None).restored(state, "")


@pytest.mark.parametrize("masses", [None, np.array([0.5, 0.0, 0.25, 0.125, 0.125])], ids=["alike", "own"])
def test_feedback_equals_the_specification(masses: np.ndarray | None) -> None:
    """Zeros, norms whose squares no double holds, newcomers, and clients that have left."""
    weights = Roster(5, masses)
    weights.add(np.array([0.5, 2.0]))
    weights.remove(np.array([3, 5]))
    clients = np.array([6, 0, 2, 4, 1])
    norms = np.array([1e300, 0.0, 1e-300, 3.0, 2.0])
    of_everybody = weights.masses(None) / weights.total
    with np.errstate(divide="ignore"):
        expected = specified(of_everybody[clients], norms)
    assert weights.log_feedback(clients, norms) == pytest.approx(expected, rel=1e-14)


def test_all_replied_only_if_every_norm_is_finite_and_not_negative() -> None:
    assert all_replied(np.array([0.0, 1e300]))
    for wrong in (np.nan, np.inf, -np.inf, -1.0):
        assert not all_replied(np.array([0.0, wrong]))
