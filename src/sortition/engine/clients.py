"""A hash table from client ids to slots: which of a billion clients have been met, and where they are kept.

Open addressing with linear probing over a power of two of places, at most half full. Nothing is ever deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numba import njit

from sortition.core.errors import StateError
from sortition.core.state import array
from sortition.core.types import BoolArray, FloatArray, IntArray
from sortition.engine import sumtree
from sortition.engine.sumtree import SumTree

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


Masses: TypeAlias = tuple[int, int, IntArray, IntArray, FloatArray, FloatArray, IntArray]
"""The block's size at the start and now; who sits on another's seat; the tree of those with own masses."""


@njit(cache=True)
def draw_prior(masses: Masses, point: float) -> int:
    """The client in which ``point`` of [0, W) falls: the block's seats first, then those with own masses."""
    block, seats, moved_keys, moved_slots, values, nodes, starts = masses
    if point < seats:
        seat = int(point)
        client = slot_of((moved_keys, moved_slots), seat)
        return seat if client == EMPTY else client
    slot = sumtree.find(values, nodes, starts, point - seats)
    return block + slot if slot >= 0 else -1


@njit(cache=True)
def mass_of(masses: Masses, client: int) -> float:
    """The mass of a client who is there: one in the block, its own beyond."""
    block, values = masses[0], masses[4]
    return 1.0 if client < block else values[client - block]


@njit(cache=True)
def _leave(
    clients: IntArray,
    seats: int,
    moved: Places,
    moved_count: int,
    seat_of: Places,
    seat_count: int,
) -> tuple[int, int, int]:
    """Let the last one take the seat of each who leaves; both tables must have room."""
    for client in clients:
        seat = slot_of(seat_of, client)
        seat = client if seat == EMPTY else seat
        last = seats - 1
        replacement = slot_of(moved, last)
        replacement = last if replacement == EMPTY else replacement
        moved_count += slot_of(moved, seat) == EMPTY
        seat_count += slot_of(seat_of, replacement) == EMPTY
        put(moved, seat, replacement)
        put(seat_of, replacement, seat)
        seats = last
    return seats, moved_count, seat_count


class Roster:
    """The clients there are: ids from 0 up, never used again after someone left.

    >>> roster = Roster(4, None)
    >>> roster.remove(np.array([1]))
    >>> [roster.draw(x) for x in (0.5, 1.5, 2.5)]
    [0, 3, 2]
    >>> roster.add(np.array([0.5])).tolist(), roster.total
    ([4], 3.5)
    """

    def __init__(self, num_clients: int, masses: FloatArray | None) -> None:
        self.block = num_clients if masses is None else 0  # ids below are of the block
        self.seats = self.block  # how many of the block are left
        self.own = SumTree(np.zeros(0) if masses is None else masses)
        self.count = num_clients
        self.unit = float(num_clients) if masses is None else 1.0  # what a mass of one was at the start
        self._given = num_clients
        self._given_masses = masses
        self._moved = Table()  # seat -> client, where the two differ
        self._seat_of = Table()  # client -> seat, likewise
        self._gone = Table()  # everybody who left
        self._removed: list[int] = []

    @property
    def ids(self) -> int:
        """All ids ever used: they are 0 to this less one."""
        return self.block + self.own.size

    @property
    def total(self) -> float:
        """W, the sum of all masses."""
        return self.seats + self.own.total if self.own.size else float(self.seats)

    @property
    def of_all(self) -> Masses:
        """All masses, as kernels take them."""
        own = self.own
        return self.block, self.seats, *self._moved.places, own.values, own.nodes, own.starts

    def draw(self, point: float) -> int:
        """The client in which ``point`` of [0, W) falls."""
        return int(draw_prior(self.of_all, point))

    def masses(self, clients: IntArray | None) -> FloatArray:
        """The masses of ``clients``, or of every id; 0 for who left."""
        result = np.ones(self.block if clients is None else len(clients))
        if self.all_alike:
            return result
        if clients is None:
            gone = self._gone.keys()
            result[gone[gone < self.block]] = 0.0
            return np.concatenate((result, self.own.values[: self.own.size]))
        own = clients >= self.block
        result[own] = self.own.values[clients[own] - self.block]
        if self._gone.count:
            result[self._gone.slots_of(clients) != EMPTY] = 0.0
        return result

    def present(self, clients: IntArray) -> BoolArray:
        """Which of ``clients`` exist and have not left."""
        known = (clients >= 0) & (clients < self.ids)
        if self._gone.count:
            known &= self._gone.slots_of(clients) == EMPTY
        return known

    def mass_beside(self, clients: IntArray) -> bool:
        """Whether anybody but ``clients``, who are there, once each, has a mass."""
        own = clients[clients >= self.block]
        if len(clients) - len(own) < self.seats:
            return True
        return bool(np.count_nonzero(self.own.values) > np.count_nonzero(self.masses(own)))

    def heavy(self, threshold: float) -> IntArray:
        """Those with a mass of their own that is at least ``threshold`` > 0."""
        return self.own.at_least(threshold) + self.block

    def add(self, masses: FloatArray) -> IntArray:
        """Let newcomers in and give their ids."""
        newcomers = np.arange(self.ids, self.ids + len(masses))
        self.own.extend(masses)
        self.count += len(masses)
        return newcomers

    def remove(self, clients: IntArray) -> None:
        """Let ``clients`` go; each must be there."""
        own = clients[clients >= self.block] - self.block
        self.own.set(own, np.zeros(len(own)))
        self._leave_seats(clients[clients < self.block])
        self._gone.put_all(clients, np.ones(len(clients), dtype=np.int64))
        self.count -= len(clients)
        self._removed.extend(clients.tolist())

    @property
    def all_alike(self) -> bool:
        """Whether everybody has mass one: nobody with an own mass, nobody gone."""
        return not self.own.size and not self._removed

    @property
    def anybody_left(self) -> bool:
        """Whether somebody has left."""
        return bool(self._removed)

    def state(self) -> dict[str, Any]:
        """What has changed since the start."""
        return {
            "joined_masses": self.own.values[self._given - self.block : self.own.size].copy(),
            "left_clients": np.array(self._removed, dtype=np.int64),
        }

    def restored(self, state: Mapping[str, Any], prefix: str) -> Roster:
        """A roster like this one at the start, and the changes of ``state``, where names have a prefix."""
        joined = array(state, f"{prefix}joined_masses", np.float64, (None,))
        left = array(state, f"{prefix}left_clients", np.int64, (None,))
        if not (np.isfinite(joined).all() and (joined >= 0.0).all()):
            raise StateError(f"state must hold {prefix}joined_masses that are finite and not negative")
        roster = Roster(self._given, self._given_masses)
        roster.add(joined)
        if not roster.present(left).all() or len(np.unique(left)) != len(left):
            raise StateError(
                f"state must hold {prefix}left_clients who had been there, once each, got others"
            )
        roster.remove(left)
        return roster

    def become(self, other: Roster) -> None:
        """Take over all of ``other``."""
        self.__dict__.update(other.__dict__)

    def _leave_seats(self, clients: IntArray) -> None:
        self._moved.reserve(len(clients))
        self._seat_of.reserve(len(clients))
        self.seats, self._moved.count, self._seat_of.count = _leave(
            clients,
            self.seats,
            self._moved.places,
            self._moved.count,
            self._seat_of.places,
            self._seat_of.count,
        )
