"""A hash table from client ids to slots: which of a billion clients have been met, and where they are kept.

Open addressing with linear probing over a power of two of places, at most half full. Nothing is ever deleted.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from sortition.core.types import IntArray

EMPTY = -1


@njit(cache=True)
def place_of(keys: IntArray, key: int) -> int:
    """The place that holds ``key``, or the empty one where it belongs."""
    mask = keys.size - 1
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)  # Fibonacci hashing: neighbours are scattered
    place: int = np.int64((mixed ^ (mixed >> np.uint64(32))) & np.uint64(mask))  # type: ignore[assignment]
    while keys[place] != key and keys[place] != EMPTY:
        place = (place + 1) & mask
    return place


@njit(cache=True)
def slot_of(keys: IntArray, slots: IntArray, key: int) -> int:
    """The slot of ``key``, or -1."""
    place = place_of(keys, key)
    return int(slots[place]) if keys[place] == key else EMPTY


@njit(cache=True)
def slots_of(keys: IntArray, slots: IntArray, wanted: IntArray) -> IntArray:
    """The slots of the ``wanted`` keys, -1 for those that are not there."""
    found = np.empty(wanted.size, dtype=np.int64)
    for i in range(wanted.size):
        found[i] = slot_of(keys, slots, wanted[i])
    return found


@njit(cache=True)
def put(keys: IntArray, slots: IntArray, key: int, slot: int) -> None:
    """Let ``key`` stand in ``slot``; there must be an empty place."""
    place = place_of(keys, key)
    keys[place] = key
    slots[place] = slot


@njit(cache=True)
def _put_all(keys: IntArray, slots: IntArray, new_keys: IntArray, new_slots: IntArray) -> None:
    for i in range(new_keys.size):
        put(keys, slots, new_keys[i], new_slots[i])


class Table:
    """A table that grows.

    >>> table = Table()
    >>> table.put_all(np.array([10**9, 5]), np.array([0, 1]))
    >>> table.slots_of(np.array([5, 6, 10**9]))
    array([ 1, -1,  0])
    """

    def __init__(self) -> None:
        self.count = 0
        self.keys = np.full(16, EMPTY, dtype=np.int64)
        self.slots = np.zeros(16, dtype=np.int64)

    def reserve(self, more: int) -> None:
        """Make room for ``more`` keys."""
        needed = 2 * (self.count + more)
        if needed <= len(self.keys):
            return
        places = 1 << (needed - 1).bit_length()
        keys, slots = np.full(places, EMPTY, dtype=np.int64), np.zeros(places, dtype=np.int64)
        held = self.keys != EMPTY
        _put_all(keys, slots, self.keys[held], self.slots[held])
        self.keys, self.slots = keys, slots

    def put_all(self, keys: IntArray, slots: IntArray) -> None:
        """Let each key stand in its slot; a key that is there moves."""
        self.reserve(len(keys))
        self.count += int(np.count_nonzero(self.slots_of(keys) == EMPTY))
        _put_all(self.keys, self.slots, keys, slots)

    def slots_of(self, keys: IntArray) -> IntArray:
        """The slots of ``keys``, -1 for those that are not there."""
        return np.asarray(slots_of(self.keys, self.slots, keys))
