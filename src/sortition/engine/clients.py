"""Which clients there are: a hash table from ids to slots, and the roster with everybody's prior mass.

The table uses open addressing with linear probing over a power of two of places, at most half full. Nothing
is ever deleted from it.

The roster stores nothing for the clients of its *block*: the initial clients, if all of them have one mass.
Each of them has a seat. When one leaves, the client on the last seat takes its seat.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from sortition.core.errors import StateError
from sortition.core.state import array, check
from sortition.core.types import BoolArray, Fields, FloatArray, IntArray
from sortition.core.validation import LARGEST_MASS, SMALLEST_MASS
from sortition.engine import sumtree
from sortition.engine.sumtree import SumTree, TreeArrays

EMPTY = -1


KEY, SLOT = 0, 1
"""Columns of a hash table, as kernels take it: a key and its slot lie side by side, for one cache miss."""


@njit(cache=True)
def place_of(table: IntArray, key: int) -> int:
    """The place that holds ``key``, or the empty one where it belongs."""
    mask = table.shape[0] - 1
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)  # Fibonacci hashing: neighbours are scattered
    place: int = np.int64((mixed ^ (mixed >> np.uint64(32))) & np.uint64(mask))  # type: ignore[assignment]
    while table[place, KEY] != key and table[place, KEY] != EMPTY:
        place = (place + 1) & mask
    return place


@njit(cache=True)
def slot_of(table: IntArray, key: int) -> int:
    """The slot of ``key``, or -1."""
    place = place_of(table, key)
    return int(table[place, SLOT]) if table[place, KEY] == key else EMPTY


@njit(cache=True)
def slots_of(table: IntArray, wanted: IntArray) -> IntArray:
    """The slots of the ``wanted`` keys, -1 for those that are not there."""
    found = np.empty(wanted.size, dtype=np.int64)
    for i in range(wanted.size):
        found[i] = slot_of(table, wanted[i])
    return found


@njit(cache=True)
def put(table: IntArray, key: int, slot: int) -> None:
    """Store the ``slot`` of ``key``; there must be an empty place."""
    place = place_of(table, key)
    table[place, KEY], table[place, SLOT] = key, slot


@njit(cache=True)
def _put_all(table: IntArray, new_keys: IntArray, new_slots: IntArray) -> None:
    for i in range(new_keys.size):
        put(table, new_keys[i], new_slots[i])


class Table:
    """A hash table that grows.

    >>> table = Table()
    >>> table.put_all(np.array([10**9, 5]), np.array([0, 1]))
    >>> table.slots_of(np.array([5, 6, 10**9]))
    array([ 1, -1,  0])
    """

    def __init__(self) -> None:
        self.count = 0
        self._set_places(16)

    def reserve(self, more: int) -> None:
        """Make room for ``more`` keys."""
        needed = 2 * (self.count + more)
        if needed <= len(self.places):
            return
        held = self.places[self.places[:, KEY] != EMPTY]
        self._set_places(1 << (needed - 1).bit_length())
        _put_all(self.places, held[:, KEY], held[:, SLOT])

    def _set_places(self, number: int) -> None:
        self.places = np.full((number, 2), EMPTY, dtype=np.int64)

    def put_all(self, keys: IntArray, slots: IntArray) -> None:
        """Store the slot of each key; a key that is there already gets the new slot."""
        self.reserve(len(keys))
        self.count += int(np.count_nonzero(self.slots_of(keys) == EMPTY))
        _put_all(self.places, keys, slots)

    def keys(self) -> IntArray:
        """All keys there are, in no order."""
        keys = self.places[:, KEY]
        return np.asarray(keys[keys != EMPTY])

    def slots_of(self, keys: IntArray) -> IntArray:
        """The slots of ``keys``, -1 for those that are not there."""
        return np.asarray(slots_of(self.places, keys))


class PriorMasses(NamedTuple):
    """All masses of a roster, as kernels take them."""

    total: float
    """W, the sum of all masses."""
    block: int
    """Ids below belong to the block: their mass is one."""
    seats: int
    """How many clients of the block are left."""
    moved: IntArray
    """Which client sits on a seat, where it is not the one with the seat's number."""
    own: TreeArrays
    """The masses of all clients beyond the block."""


@njit(cache=True)
def named_prior(prior: Fields) -> PriorMasses:
    """The masses that Python gave as ``Roster.fields``."""
    total, block, seats, moved, own = prior
    return PriorMasses(total, block, seats, moved, TreeArrays(*own))


@njit(cache=True)
def another_uniform(uniform: float) -> float:
    """A uniform made out of another one by scrambling its 53 bits (the finaliser of SplitMix64)."""
    bits = np.uint64(uniform * 2.0**53) + np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return float(bits >> np.uint64(11)) / 2.0**53


@njit(cache=True)
def draw_prior(prior: PriorMasses, point: float) -> int:
    """The client in which ``point`` of [0, W) falls: first the block's seats, then those with own masses."""
    if point < prior.seats:
        seat = int(point)
        client = slot_of(prior.moved, seat)
        return seat if client == EMPTY else client
    slot = sumtree.find(prior.own, point - prior.seats)
    return prior.block + slot if slot >= 0 else -1


@njit(cache=True)
def mass_of(prior: PriorMasses, client: int) -> float:
    """The mass of a client that is there: one in the block, its own beyond."""
    return 1.0 if client < prior.block else prior.own.values[client - prior.block]


@njit(cache=True)
def masses_of(prior: PriorMasses, clients: IntArray) -> FloatArray:
    """The masses of ``clients``, which are there."""
    return _masses(clients, prior.block, prior.own.values)


@njit(cache=True)
def _masses(clients: IntArray, block: int, own: FloatArray) -> FloatArray:
    result = np.ones(clients.size)
    for i in range(clients.size):  # as ``mass_of``, whose call would take longer
        if clients[i] >= block:
            result[i] = own[clients[i] - block]
    return result


@njit(cache=True)
def all_known(clients: IntArray, ids: int) -> bool:
    """Whether all are from 0 to ``ids`` - 1."""
    for client in clients:  # noqa: SIM110 - numba has no generator expressions
        if not 0 <= client < ids:
            return False
    return True


@njit(cache=True)
def masses_differ(masses: FloatArray, least: float, largest: float, rounding: float) -> bool:
    """Whether masses above 0 and these two differ by more than rounding."""
    for mass in masses:
        if mass > 0.0:
            least, largest = min(least, mass), max(largest, mass)
            if largest > (1.0 + rounding) * least:
                return True
    return False


@njit(cache=True)
def all_replied(norms: FloatArray) -> bool:
    """Whether all norms are finite and not negative: none is wrong, and none is nan, for no reply."""
    for norm in norms:  # noqa: SIM110 - numba has no generator expressions
        if not 0.0 <= norm < np.inf:
            return False
    return True


@njit(cache=True)
def _log_feedback(
    clients: IntArray, norms: FloatArray, block: int, own: FloatArray, total: float
) -> FloatArray:
    logs = _masses(clients, block, own) / total
    for i in range(clients.size):
        known = logs[i] > 0.0 and norms[i] > 0.0
        logs[i] = 2.0 * (np.log(logs[i]) + np.log(norms[i])) if known else -np.inf
    return logs


@njit(cache=True)
def _leave(
    clients: IntArray,
    seats: int,
    moved: IntArray,
    moved_count: int,
    seat_of: IntArray,
    seat_count: int,
) -> tuple[int, int, int]:
    """Give the seat of each client that leaves to the last one; both tables must have room."""
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
    """The clients and their masses: ids from 0 up; the id of a client that left is not used again.

    >>> roster = Roster(4, None)
    >>> roster.remove(np.array([1]))
    >>> [roster.draw(x) for x in (0.5, 1.5, 2.5)]
    [0, 3, 2]
    >>> roster.add(np.array([0.5])).tolist(), roster.total
    ([4], 3.5)
    """

    arrays: PriorMasses
    """All masses, as kernels take them."""
    fields: Fields
    """The same, as Python hands them over."""

    def __init__(self, num_clients: int, masses: FloatArray | None) -> None:
        self.block = num_clients if masses is None else 0
        self.own = SumTree(np.zeros(0) if masses is None else masses)
        self.count = num_clients
        self.unit = float(num_clients) if masses is None else 1.0  # what a mass of one was at the start
        self._initial_count = num_clients
        self._initial_masses = masses
        self._moved = Table()  # seat -> client, where the two differ
        self._seat_of = Table()  # client -> seat, likewise
        self._gone = Table()  # the clients that left
        self._removed: list[int] = []
        self._set_arrays(seats=self.block)

    @property
    def ids(self) -> int:
        """All ids ever used: they are 0 to this less one."""
        return self.block + self.own.size

    @property
    def total(self) -> float:
        """W, the sum of all masses."""
        return self.arrays.total

    @property
    def seats(self) -> int:
        """How many clients of the block are left."""
        return self.arrays.seats

    def draw(self, point: float) -> int:
        """The client in which ``point`` of [0, W) falls."""
        return int(draw_prior(self.arrays, point))

    def masses(self, clients: IntArray | None) -> FloatArray:
        """The masses of ``clients``, or of every id; 0 for a client that left."""
        result = np.ones(self.block if clients is None else len(clients))
        if self.all_alike:
            return result
        if clients is None:
            gone = self._gone.keys()
            result[gone[gone < self.block]] = 0.0
            return np.concatenate((result, self.own.values))
        own = clients >= self.block
        result[own] = self.own.values[clients[own] - self.block]
        if self._gone.count:
            result[self._gone.slots_of(clients) != EMPTY] = 0.0
        return result

    def shares(self, clients: IntArray) -> FloatArray:
        """The masses of ``clients`` over W."""
        if self.all_alike:
            return np.full(len(clients), 1.0 / self.total)
        return self.masses(clients) / self.total

    def log_feedback(self, clients: IntArray, norms: FloatArray) -> FloatArray:
        r"""``core.variance.log_feedback`` of ``clients`` that are there, the roster's shares being lambda.

        >>> Roster(2, None).log_feedback(np.array([0, 1]), np.array([0.0, 2.0]))
        array([-inf,   0.])
        """
        own = self.own.arrays.values
        logs: FloatArray = _log_feedback(clients, norms, self.block, own, self.arrays.total)
        return logs

    def present(self, clients: IntArray) -> BoolArray:
        """Which of ``clients`` exist and have not left."""
        known = (clients >= 0) & (clients < self.ids)
        if self._gone.count:
            known &= self._gone.slots_of(clients) == EMPTY
        return known

    def mass_beside(self, clients: IntArray) -> bool:
        """Whether a client other than ``clients``, which are there, once each, has a mass."""
        own = clients[clients >= self.block]
        if len(clients) - len(own) < self.seats:
            return True
        return bool(np.count_nonzero(self.own.values) > np.count_nonzero(self.masses(own)))

    def heavy(self, threshold: float) -> IntArray:
        """Those with a mass of their own that is at least ``threshold`` > 0."""
        return self.own.at_least(threshold) + self.block

    def add(self, masses: FloatArray) -> IntArray:
        """Add newcomers and return their ids."""
        newcomers = np.arange(self.ids, self.ids + len(masses))
        self.own.extend(masses)
        self.count += len(masses)
        self._set_arrays(self.seats)
        return newcomers

    def remove(self, clients: IntArray) -> None:
        """Remove ``clients``; each must be there."""
        own = clients[clients >= self.block] - self.block
        self.own.set(own, np.zeros(len(own)))
        seats = self._leave_seats(clients[clients < self.block])
        self._gone.put_all(clients, np.ones(len(clients), dtype=np.int64))
        self.count -= len(clients)
        self._removed.extend(clients.tolist())
        self._set_arrays(seats)

    @property
    def all_alike(self) -> bool:
        """Whether everybody has mass one: nobody has an own mass, nobody has left."""
        return not self.own.size and not self._removed

    @property
    def anybody_left(self) -> bool:
        """Whether somebody has left."""
        return bool(self._removed)

    def same_clients(self, other: Roster) -> bool:
        """Whether the same clients have joined and left."""
        return self.ids == other.ids and self._removed == other._removed

    @property
    def unchanged(self) -> bool:
        """Whether nobody has joined or left since the start."""
        return self.ids == self._initial_count and not self._removed

    def state(self) -> dict[str, Any]:
        """What has changed since the start."""
        return {
            "joined_masses": self.own.values[self._initial_count - self.block :].copy(),
            "left_clients": np.array(self._removed, dtype=np.int64),
        }

    def restored(self, state: Mapping[str, Any], prefix: str) -> Roster:
        """A roster like this one at the start, with the changes of ``state``, where names have a prefix."""
        joined = array(state, f"{prefix}joined_masses", np.float64, (None,))
        left = array(state, f"{prefix}left_clients", np.int64, (None,))
        least, most = self.unit * SMALLEST_MASS, self.unit * LARGEST_MASS
        gone = np.isin(np.arange(self._initial_count, self._initial_count + len(joined)), left)
        right = np.where(gone, joined == 0.0, (joined >= 0.99 * least) & (joined <= 1.01 * most))
        check(f"{prefix}joined_masses", joined, right, f"from {least:g} to {most:g}, or 0 of those that left")
        roster = Roster(self._initial_count, self._initial_masses)
        roster.add(joined)
        if not roster.present(left).all() or len(np.unique(left)) != len(left):
            raise StateError(f"state has {prefix}left_clients that never joined, or one of them twice")
        roster.remove(left)
        if not roster.total > 0.0:
            raise StateError(f"state has {prefix}left_clients that leave nobody with a mass")
        return roster

    def _set_arrays(self, seats: int) -> None:
        total = seats + self.own.total if self.own.size else float(seats)
        self.arrays = PriorMasses(total, self.block, seats, self._moved.places, self.own.arrays)
        self.fields = (total, self.block, seats, self._moved.places, tuple(self.own.arrays))

    def _leave_seats(self, clients: IntArray) -> int:
        self._moved.reserve(len(clients))
        self._seat_of.reserve(len(clients))
        seats, self._moved.count, self._seat_of.count = _leave(
            clients,
            self.seats,
            self._moved.places,
            self._moved.count,
            self._seat_of.places,
            self._seat_of.count,
        )
        return int(seats)
