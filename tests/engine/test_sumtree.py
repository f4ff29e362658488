"""The segment tree: sums that never drift, and a search that lands where it should."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sortition.engine.sumtree import SumTree

values = hnp.arrays(
    np.float64, st.integers(1, 700), elements=st.sampled_from([0.0, 0.5, 1.0, 3.0, 1e6, 1e-9])
)


@given(values)
def test_total_is_the_sum(leaves: np.ndarray) -> None:
    assert np.isclose(SumTree(leaves).total, leaves.sum(), rtol=1e-12)


@given(values, st.lists(st.floats(0.0, 1.0, exclude_max=True), min_size=1, max_size=20))
def test_find_is_a_search_in_the_cumulated_sums(leaves: np.ndarray, fractions: list[float]) -> None:
    """Whole numbers add up exactly, so that the two must agree to the last point."""
    whole = np.floor(leaves)
    if not whole.any():
        whole[-1] = 1.0
    tree, cumulated = SumTree(whole), np.cumsum(whole)
    for fraction in fractions:
        point = fraction * tree.total
        assert tree.find(point) == np.searchsorted(cumulated, point, side="right")


@given(values)
def test_find_never_lands_on_an_empty_slot(leaves: np.ndarray) -> None:
    leaves[len(leaves) // 2] = 1.0
    tree = SumTree(leaves)
    for point in (0.0, np.nextafter(tree.total, 0.0), tree.total):  # the last one only rounding can give
        assert leaves[tree.find(point)] > 0.0


def test_an_empty_tree_has_nothing_to_find() -> None:
    tree = SumTree(np.zeros(3))
    assert tree.total == 0.0
    assert tree.find(0.0) == -1
    assert SumTree(np.zeros(0)).total == 0.0


@given(values, st.data())
def test_a_changed_tree_equals_a_new_one_to_the_bit(leaves: np.ndarray, data: st.DataObject) -> None:
    """Nodes are recomputed from their children, so no history can be left in the sums."""
    tree = SumTree(leaves)
    for _ in range(5):
        slots = np.array(data.draw(st.lists(st.integers(0, tree.size - 1), min_size=1, unique=True)))
        tree.set(
            slots, np.array(data.draw(st.lists(st.floats(0, 1e9), min_size=len(slots), max_size=len(slots))))
        )
        tree.extend(np.array(data.draw(st.lists(st.floats(0, 1e9), min_size=1, max_size=30))))
    fresh = SumTree(tree.values[: tree.size])
    assert tree.total == fresh.total
    points = np.linspace(0.0, tree.total, 50, endpoint=False)
    assert [tree.find(x) for x in points] == [fresh.find(x) for x in points]


def test_sums_do_not_drift() -> None:
    """A huge value that comes and goes a thousand times leaves no rounding error behind."""
    tree = SumTree(np.full(1000, 0.1))
    before = tree.total
    for i in range(1000):
        tree.set(np.array([i]), np.array([1e300]))
        tree.set(np.array([i]), np.array([0.1]))
    assert tree.total == before


@given(values, st.sampled_from([0.4, 0.5, 1.0, 2.0, 1e7]))
def test_at_least(leaves: np.ndarray, threshold: float) -> None:
    found = np.sort(SumTree(leaves).at_least(threshold))
    assert np.array_equal(found, np.flatnonzero(leaves >= threshold))
