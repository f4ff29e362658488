"""A hash table from client ids to slots: which of a billion clients have been met, and where they are kept.

Open addressing with linear probing over a power of two of places, at most half full. Nothing is ever deleted.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numba import njit

from sortition.core.types import IntArray

Places: TypeAlias = tuple[IntArray, IntArray]
"""The keys and their slots, place by place."""

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
def slot_of(places: Places, key: int) -> int:
    """The slot of ``key``, or -1."""
    keys, slots = places
    place = place_of(keys, key)
    return int(slots[place]) if keys[place] == key else EMPTY


@njit(cache=True)
def slots_of(places: Places, wanted: IntArray) -> IntArray:
    """The slots of the ``wanted`` keys, -1 for those that are not there."""
    found = np.empty(wanted.size, dtype=np.int64)
    for i in range(wanted.size):
        found[i] = slot_of(places, wanted[i])
    return found


@njit(cache=True)
def put(places: Places, key: int, slot: int) -> None:
    """Let ``key`` stand in ``slot``; there must be an empty place."""
    keys, slots = places
    place = place_of(keys, key)
    keys[place] = key
    slots[place] = slot


@njit(cache=True)
def _put_all(places: Places, new_keys: IntArray, new_slots: IntArray) -> None:
    for i in range(new_keys.size):
        put(places, new_keys[i], new_slots[i])


def _empty(number: int) -> Places:
    return np.full(number, EMPTY, dtype=np.int64), np.zeros(number, dtype=np.int64)


class Table:
    """A table that grows.

    >>> table = Table()
    >>> table.put_all(np.array([10**9, 5]), np.array([0, 1]))
    >>> table.slots_of(np.array([5, 6, 10**9]))
    array([ 1, -1,  0])
    """

    def __init__(self) -> None:
        self.count = 0
        self.places = _empty(16)

    def reserve(self, more: int) -> None:
        """Make room for ``more`` keys."""
        needed = 2 * (self.count + more)
        keys, slots = self.places
        if needed <= len(keys):
            return
        held = keys != EMPTY
        self.places = _empty(1 << (needed - 1).bit_length())
        _put_all(self.places, keys[held], slots[held])

    def put_all(self, keys: IntArray, slots: IntArray) -> None:
        """Let each key stand in its slot; a key that is there moves."""
        self.reserve(len(keys))
        self.count += int(np.count_nonzero(self.slots_of(keys) == EMPTY))
        _put_all(self.places, keys, slots)

    def keys(self) -> IntArray:
        """All keys there are, in no order."""
        keys = self.places[0]
        return np.asarray(keys[keys != EMPTY])

    def slots_of(self, keys: IntArray) -> IntArray:
        """The slots of ``keys``, -1 for those that are not there."""
        return np.asarray(slots_of(self.places, keys))
