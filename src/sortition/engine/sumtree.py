r"""A segment tree: sums over slots that change one at a time, and the search for a point in them.

Every node has eight children, so that a million slots are seven levels deep and a node's children lie side
by side in memory. A node is always recomputed from its children and never incremented: sums can't drift, and
a tree that was rebuilt from its leaves equals, to the bit, the one that grew.

The leaves are an array of their own; ``nodes`` holds the levels above, from the lowest to the root, and
``starts[level]`` says where a level begins.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from sortition.core.types import FloatArray, IntArray

FAN = 8
"""Children of a node."""


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
def _recompute(values: FloatArray, nodes: FloatArray, starts: IntArray, level: int, position: int) -> None:
    if level == 0:
        children, end = values, values.size
        first = FAN * position
    else:
        children, end = nodes, starts[level]
        first = starts[level - 1] + FAN * position
    total = 0.0
    for child in range(first, min(first + FAN, end)):
        total += children[child]
    nodes[starts[level] + position] = total


@njit(cache=True)
def rebuild(values: FloatArray, nodes: FloatArray, starts: IntArray) -> None:
    """Recompute every node, the lowest level first."""
    for level in range(starts.size - 1):
        for position in range(starts[level + 1] - starts[level]):
            _recompute(values, nodes, starts, level, position)


@njit(cache=True)
def refresh(values: FloatArray, nodes: FloatArray, starts: IntArray, slots: IntArray) -> None:
    """Recompute the nodes above ``slots``, whose values have changed."""
    for slot in slots:
        position = slot
        for level in range(starts.size - 1):
            position //= FAN
            _recompute(values, nodes, starts, level, position)


@njit(cache=True)
def find(values: FloatArray, nodes: FloatArray, starts: IntArray, point: float) -> int:
    """The slot in which ``point`` of [0, total) falls, when the slots are laid end to end."""
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
def at_least(values: FloatArray, nodes: FloatArray, starts: IntArray, threshold: float) -> IntArray:
    """The slots whose value is at least ``threshold`` > 0: only nodes that weigh as much are entered."""
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
                    below.append(child)  # noqa: PERF401 - numba is quicker so
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

    def __init__(self, values: FloatArray) -> None:
        self.size = len(values)
        self.values = np.zeros(max(self.size, 1))
        self.values[: self.size] = values
        self._index()

    @property
    def total(self) -> float:
        """The sum of all values."""
        return float(self.nodes[-1])

    def set(self, slots: IntArray, values: FloatArray) -> None:
        """Change the values of ``slots``."""
        self.values[slots] = values
        refresh(self.values, self.nodes, self.starts, slots)

    def extend(self, values: FloatArray) -> None:
        """Append slots; the room doubles when it runs out."""
        new = np.arange(self.size, self.size + len(values))
        self.size += len(values)
        if self.size <= len(self.values):
            self.set(new, values)
            return
        room = np.zeros(max(2 * len(self.values), self.size))
        room[: len(self.values)] = self.values
        room[new] = values
        self.values = room
        self._index()

    def find(self, point: float) -> int:
        """The slot in which ``point`` of [0, total) falls."""
        return int(find(self.values, self.nodes, self.starts, point))

    def at_least(self, threshold: float) -> IntArray:
        """The slots whose value is at least ``threshold`` > 0."""
        return np.asarray(at_least(self.values, self.nodes, self.starts, threshold))

    def _index(self) -> None:
        self.starts = level_starts(len(self.values))
        self.nodes = np.zeros(self.starts[-1])
        rebuild(self.values, self.nodes, self.starts)
