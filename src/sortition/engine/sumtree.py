r"""A segment tree: sums over slots that change one at a time, and the search for a point in them.

Every node has eight children, so that a million slots are seven levels deep and a node's children lie side
by side in memory. A node is always recomputed from its children and never incremented: sums can't drift, and
a tree that was rebuilt from its leaves equals, to the bit, the one that grew.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from sortition.core.types import FloatArray, IntArray

FAN = 8
"""Children of a node."""


class TreeArrays(NamedTuple):
    """A sum tree, as kernels take it."""

    values: FloatArray
    """The leaves, one a slot."""
    nodes: FloatArray
    """The levels above the leaves, from the lowest to the root."""
    starts: IntArray
    """Where each level of nodes begins; the last entry counts the nodes."""


@njit(cache=True)
def level_starts(capacity: int) -> IntArray:
    """Where each level of nodes begins, above ``capacity`` leaves; the last entry counts the nodes."""
    starts = [0]
    width = capacity
    while True:
        width = (width + FAN - 1) // FAN
        starts.append(starts[-1] + width)
        if width <= 1:
            return np.array(starts)


@njit(cache=True)
def _recompute(tree: TreeArrays, level: int, position: int) -> None:
    if level == 0:
        children, end = tree.values, tree.values.size
        first = FAN * position
    else:
        children, end = tree.nodes, tree.starts[level]
        first = tree.starts[level - 1] + FAN * position
    total = 0.0
    for child in range(first, min(first + FAN, end)):
        total += children[child]
    tree.nodes[tree.starts[level] + position] = total


@njit(cache=True)
def rebuild(tree: TreeArrays) -> None:
    """Recompute every node, the lowest level first."""
    for level in range(tree.starts.size - 1):
        for position in range(tree.starts[level + 1] - tree.starts[level]):
            _recompute(tree, level, position)


@njit(cache=True)
def refresh(tree: TreeArrays, slots: IntArray) -> None:
    """Recompute the nodes above ``slots``, whose values have changed."""
    for slot in slots:
        position = slot
        for level in range(tree.starts.size - 1):
            position //= FAN
            _recompute(tree, level, position)


@njit(cache=True)
def find(tree: TreeArrays, point: float) -> int:
    """The slot in which ``point`` of [0, total) falls, when the slots are laid end to end."""
    values, nodes, starts = tree
    position = 0
    for level in range(starts.size - 3, -2, -1):
        first = FAN * position
        if level >= 0:
            children, offset, width = nodes, starts[level], starts[level + 1] - starts[level]
        else:
            children, offset, width = values, 0, values.size
        position = -1
        for child in range(first, min(first + FAN, width)):
            weight = children[offset + child]
            if weight > 0.0:
                position = child
                if point < weight:
                    break
                point -= weight
    return position


@njit(cache=True)
def sum_before(tree: TreeArrays, slot: int) -> float:
    """The sum of all values before ``slot``."""
    values, nodes, starts = tree
    total = 0.0
    position = slot
    for level in range(-1, starts.size - 2):
        first = FAN * (position // FAN)
        for child in range(first, position):
            total += values[child] if level < 0 else nodes[starts[level] + child]
        position //= FAN
    return total


@njit(cache=True)
def at_least(tree: TreeArrays, threshold: float) -> IntArray:
    """The slots whose value is at least ``threshold`` > 0: only nodes that weigh as much are entered."""
    values, nodes, starts = tree
    found = [0]
    for level in range(starts.size - 3, -2, -1):
        below = [0 for _ in range(0)]
        for position in found:
            first = FAN * position
            if level >= 0:
                children, offset, width = nodes, starts[level], starts[level + 1] - starts[level]
            else:
                children, offset, width = values, 0, values.size
            for child in range(first, min(first + FAN, width)):
                if children[offset + child] >= threshold:
                    below.append(child)  # noqa: PERF401 - numba compiles this to faster code
        found = below
    return np.array(found, dtype=np.int64)


class SumTree:
    """Values in slots, their sum, and draws in proportion to them.

    >>> tree = SumTree(np.array([1.0, 0.0, 3.0]))
    >>> tree.total, tree.find(0.5), tree.find(1.5)
    (4.0, 0, 2)
    >>> tree.set(np.array([1]), np.array([6.0]))
    >>> tree.total, tree.find(6.5)
    (10.0, 1)
    """

    arrays: TreeArrays

    def __init__(self, values: FloatArray) -> None:
        self.size = len(values)
        room = np.zeros(max(self.size, 1))
        room[: self.size] = values
        self._build(room)

    @property
    def values(self) -> FloatArray:
        """The value of each slot."""
        return self.arrays.values[: self.size]

    @property
    def total(self) -> float:
        """The sum of all values."""
        return float(self.arrays.nodes[-1])

    def set(self, slots: IntArray, values: FloatArray) -> None:
        """Change the values of ``slots``."""
        self.arrays.values[slots] = values
        refresh(self.arrays, slots)

    def extend(self, values: FloatArray) -> None:
        """Append slots; the room doubles when it runs out."""
        new = np.arange(self.size, self.size + len(values))
        old = self.arrays.values
        self.size += len(values)
        if self.size <= len(old):
            self.set(new, values)
            return
        room = np.zeros(max(2 * len(old), self.size))
        room[: len(old)] = old
        room[new] = values
        self._build(room)

    def find(self, point: float) -> int:
        """The slot in which ``point`` of [0, total) falls."""
        return int(find(self.arrays, point))

    def at_least(self, threshold: float) -> IntArray:
        """The slots whose value is at least ``threshold`` > 0."""
        return np.asarray(at_least(self.arrays, threshold))

    def _build(self, values: FloatArray) -> None:
        starts = level_starts(len(values))
        self.arrays = TreeArrays(values, np.zeros(starts[-1]), starts)
        rebuild(self.arrays)
