"""The sums behind a summary, over the draws and replies of a whole run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np

from sortition.core.errors import LedgerError
from sortition.core.types import FloatArray, IntArray
from sortition.ledger.encoding import available_of, unpack, unpack_columns
from sortition.ledger.gain import PresentClients, round_variances

LAST_NORMS = 3
"""How many norms are kept of each client."""
BATCH = 2**26
"""Bytes of rows that are added up at once: row by row in Python would take long."""
LARGEST_MARKED = 2**22
"""Ids up to this are marked in an array; larger ones are searched for."""
MOST_COUNTED = 2**31
"""No client is drawn more often in one round."""


@dataclass(frozen=True, slots=True)
class ClientSummary:
    """One client that was drawn."""

    client: int
    draws: int = 0
    replies: int = 0
    """Rounds in which it replied."""
    failures: int = 0
    """Rounds in which it did not reply."""
    last_reply: int | None = None
    """The round that it replied to last; None if it never did."""
    probability: float = 0.0
    """Its probability in the last round that it was drawn in."""
    norms: tuple[float, ...] | None = ()
    """Its last norms, the newest first; None where the run is private."""
    left: bool = False
    name: str | None = None
    """Its name, if the run has it."""


class ClientTable(Sequence[ClientSummary]):
    """All clients that were drawn, the most drawn first."""

    def __init__(self) -> None:
        self.draws = np.zeros(0, dtype=np.int64)
        self.replies = np.zeros(0, dtype=np.int64)
        self.failures = np.zeros(0, dtype=np.int64)
        self.last_replies = np.zeros(0, dtype=np.int64)  # rounds; -1 for none
        self.probabilities = np.zeros(0)
        self.norms = np.zeros((0, LAST_NORMS))  # the newest first; nan for none
        self.left: set[int] = set()
        self.names: Mapping[int, str] = {}
        self.private = False
        self._ids = np.zeros(0, dtype=np.int64)  # ascending; the arrays are in this order
        self._order = np.zeros(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, place: int) -> ClientSummary: ...
    @overload
    def __getitem__(self, place: slice) -> list[ClientSummary]: ...
    def __getitem__(self, place: int | slice) -> ClientSummary | list[ClientSummary]:
        if isinstance(place, slice):
            return [self._summary(slot) for slot in self._order[place].tolist()]
        return self._summary(int(self._order[place]))

    def of(self, client: int) -> ClientSummary:
        """That client; one that was never drawn has no draws."""
        slot = int(np.searchsorted(self._ids, client))
        if slot == len(self) or self._ids[slot] != client:
            return ClientSummary(client, left=client in self.left, name=self.names.get(client))
        return self._summary(slot)

    def most_silent(self, most: int) -> list[ClientSummary]:
        """At most so many of those that did not reply, by how much more often than all do not."""
        silent = np.flatnonzero(self.failures)
        asked = self.failures + self.replies
        more = self.failures - asked * (self.failures.sum() / max(asked.sum(), 1))
        order = np.lexsort((silent, self.replies[silent], -more[silent]))
        return [self._summary(slot) for slot in silent[order[:most]].tolist()]

    def sort(self) -> None:
        """Put the most drawn first, and among equals the least id."""
        self._order = np.lexsort((self._ids, -self.draws))

    def slots_of(self, clients: IntArray) -> IntArray:
        """The places of ``clients`` in the arrays; those that have none get one."""
        if not len(clients):
            return clients
        if clients.min() < 0:
            raise LedgerError(f"clients must have ids from 0 up, got {clients.min()}")
        largest = max(int(clients.max()), int(self._ids.max(initial=-1)))
        if largest < LARGEST_MARKED:  # a mark for each id: no search among millions of draws
            marks = np.zeros(largest + 1, dtype=bool)
            marks[clients] = True
            marks[self._ids] = True
            self._make_room(np.flatnonzero(marks))
            return np.asarray((np.cumsum(marks) - 1)[clients])
        self._make_room(np.union1d(self._ids, clients))
        return np.searchsorted(self._ids, clients)

    def _make_room(self, ids: IntArray) -> None:
        """Let the arrays be those of ``ids``, ascending, among which are all there were."""
        if len(ids) == len(self):
            return
        old = np.searchsorted(ids, self._ids)

        def wider(column: Any, empty: float) -> Any:
            wide = np.full((len(ids), *column.shape[1:]), empty, dtype=column.dtype)
            wide[old] = column
            return wide

        self._ids = ids
        self.draws, self.last_replies = wider(self.draws, 0), wider(self.last_replies, -1)
        self.replies, self.failures = wider(self.replies, 0), wider(self.failures, 0)
        self.probabilities, self.norms = wider(self.probabilities, 0.0), wider(self.norms, np.nan)

    def add_draws(
        self, slots: IntArray, counts: IntArray, probabilities: FloatArray
    ) -> tuple[IntArray, FloatArray]:
        """Add draws in their order: which were a client's first, and what each adds to sum n_m^2."""
        order, heads, group = _grouped(slots)
        own = counts[order]
        earlier = np.cumsum(own) - own
        before = self.draws[slots[order]] + earlier - earlier[heads][group]
        first, added = np.empty_like(counts), np.empty(len(counts))
        first[order] = before == 0
        added[order] = own * (2.0 * before + own)  # (n + c)^2 - n^2
        np.add.at(self.draws, slots, counts)
        self.probabilities[slots] = probabilities  # of several, the last counts
        return first, added

    def add_norms(self, slots: IntArray, norms: FloatArray, rounds: IntArray) -> None:
        """Add replies in their order, with their rounds; nan for none."""
        heard = ~np.isnan(norms)
        np.add.at(self.failures, slots[~heard], 1)
        slots, norms = slots[heard], norms[heard]
        np.add.at(self.replies, slots, 1)
        np.maximum.at(self.last_replies, slots, rounds[heard])  # feedback may come late
        order, heads, group = _grouped(slots)
        ends = np.append(heads[1:], len(order))
        age = ends[group] - 1 - np.arange(len(order))  # 0 for the newest
        some, recent = slots[order][heads], age < LAST_NORMS
        newest = np.full((len(heads), LAST_NORMS), np.nan)
        newest[group[recent], age[recent]] = norms[order][recent]
        known = np.concatenate((newest, self.norms[some]), axis=1)
        first = np.argsort(np.isnan(known), axis=1, kind="stable")[:, :LAST_NORMS]
        self.norms[some] = np.take_along_axis(known, first, axis=1)

    def _summary(self, slot: int) -> ClientSummary:
        client, norms = int(self._ids[slot]), self.norms[slot]
        return ClientSummary(
            client,
            draws=int(self.draws[slot]),
            replies=int(self.replies[slot]),
            failures=int(self.failures[slot]),
            last_reply=int(self.last_replies[slot]) if self.replies[slot] else None,
            probability=float(self.probabilities[slot]),
            norms=None if self.private else tuple(norms[~np.isnan(norms)].tolist()),
            left=client in self.left,
            name=self.names.get(client),
        )


def _grouped(slots: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """An order in which equal ``slots`` are neighbours; where each group begins; of each entry its group."""
    order = np.argsort(
        (slots & 0xFFFF).astype(np.uint16), kind="stable"
    )  # numpy's radix sort: 16 bits at once
    for shift in range(16, int(slots.max(initial=0)).bit_length(), 16):
        digits = ((slots >> shift) & 0xFFFF).astype(np.uint16)
        order = order[np.argsort(digits[order], kind="stable")]
    begins = np.diff(slots[order], prepend=-1) != 0
    return order, np.flatnonzero(begins), np.cumsum(begins) - 1


def _medians(sizes: IntArray, norms: FloatArray) -> tuple[IntArray, FloatArray]:
    """Of each round the replies, and the median of its norms; nan is no reply.

    >>> _medians(np.array([1, 2, 3]), np.array([np.nan, 1.0, 4.0, 3.0, np.nan, 9.0]))
    (array([0, 2, 2]), array([nan, 2.5, 6. ]))
    """
    replies, medians = np.zeros_like(sizes), np.full(len(sizes), np.nan)
    starts = np.cumsum(sizes) - sizes
    for size in np.unique(sizes[sizes > 0]):
        rounds = np.flatnonzero(sizes == size)
        own = np.sort(norms[starts[rounds][:, None] + np.arange(size)], axis=1)  # nan at the end
        heard = np.count_nonzero(~np.isnan(own), axis=1)
        middle = np.stack((np.maximum(heard - 1, 0) // 2, heard // 2), axis=1)
        replies[rounds], medians[rounds] = heard, (np.take_along_axis(own, middle, axis=1) / 2.0).sum(axis=1)
    return replies, medians


class Tally:
    """Adds up the rows of draws and feedback, given one after another, in batches."""

    def __init__(
        self,
        present: PresentClients,
        cohort_size: int | None,
        *,
        inclusion: bool,
        suspects: IntArray | None = None,
    ) -> None:
        self.clients = ClientTable()
        self._suspects = suspects
        """Their norms are lies, it seems: the variances are those of the others."""
        self.open: dict[int, tuple[int, bytes, float, int, float]] = {}
        """Of each round that awaits feedback: its place among all rounds, its row, when it was drawn, and how
        many clients were there with which mass."""
        self._present, self._cohort_size, self._inclusion = present, cohort_size, inclusion
        self.rounds: list[int] = []
        """The number of each round, in the order of the draws."""
        self.draws = self.replies = self.failures = 0
        self._seen, self._squares = 0, 0.0
        self._drawn: list[bytes] = []
        self._heard: list[tuple[int, int, bytes, bytes, int, float]] = []
        self._waiting = 0
        self._draws_by_round: list[tuple[IntArray, FloatArray]] = []
        self._replies_by_round: list[tuple[list[int], FloatArray, FloatArray]] = []
        self._variances_by_round: list[tuple[list[int], FloatArray, FloatArray]] = []

    def add_cohort(self, round_index: int, payload: bytes, drawn_at: float) -> None:
        """The row of a cohort."""
        known = self._present
        self.open[round_index] = len(self.rounds), payload, drawn_at, known.count, known.total
        self.rounds.append(round_index)
        self._drawn.append(payload)
        self._wait(payload)

    def add_feedback(self, round_index: int, payload: bytes) -> None:
        """The row of the feedback of an open cohort."""
        place, cohort, _, clients, mass = self.open.pop(round_index)
        self._heard.append((round_index, place, cohort, payload, clients, mass))
        self._wait(payload)

    def by_round(self) -> tuple[IntArray, FloatArray, FloatArray, FloatArray]:
        """After each round the clients seen and their effective number; its share of replies and median."""
        self._add_up()
        none = np.zeros(0, dtype=np.int64), np.zeros(0)
        seen, effective = (np.concatenate(c) for c in zip(none, *self._draws_by_round, strict=True))
        replied, medians = np.full((2, len(self.rounds)), np.nan)
        for places, shares, middle in self._replies_by_round:
            replied[places], medians[places] = shares, middle
        return seen, effective, replied, medians

    def variances(self) -> tuple[FloatArray, FloatArray]:
        """Of each round the estimated variance of its draws, and of uniform ones; nan where not known."""
        self._add_up()
        own, uniform = np.full((2, len(self.rounds)), np.nan)
        for places, *both in self._variances_by_round:
            own[places], uniform[places] = both
        return own, uniform

    def _wait(self, payload: bytes) -> None:
        self._waiting += len(payload)
        if self._waiting > BATCH:
            self._add_up()

    def _add_up(self) -> None:
        if self._drawn:
            names = {"clients": np.int64, "counts": np.int64, "probabilities": np.float64}
            sizes, (clients, counts, p) = unpack_columns(self._drawn, names)
            if np.any((counts < 1) | (counts > MOST_COUNTED)):
                raise LedgerError(
                    f"counts must be from 1 to {MOST_COUNTED}, got {counts.min()} to {counts.max()}"
                )
            first, added = self.clients.add_draws(self.clients.slots_of(clients), counts, p)
            ends = np.cumsum(sizes)
            seen, squares, draws = (
                so_far + np.concatenate(([0.0], np.cumsum(each)))[ends]
                for so_far, each in ((self._seen, first), (self._squares, added), (self.draws, counts))
            )
            self._draws_by_round.append((seen.astype(np.int64), draws**2 / np.maximum(squares, 1.0)))
            self._seen, self._squares, self.draws = int(seen[-1]), float(squares[-1]), int(draws[-1])
        if self._heard:
            rounds, places, cohorts, feedback, there, totals = map(list, zip(*self._heard, strict=True))
            names = {"clients": np.int64, "probabilities": np.float64, "weights": np.float64}
            asked, (clients, p, weights) = unpack_columns(cohorts, names)
            sizes, (norms,) = unpack_columns(feedback, {"norms": np.float64})
            if not np.array_equal(sizes, asked):
                raise LedgerError("norms must be as many as the clients of their cohort")
            self.clients.add_norms(self.clients.slots_of(clients), norms, np.repeat(rounds, sizes))
            replies, medians = _medians(sizes, norms)
            self.replies += int(replies.sum())
            self.failures += int(sizes.sum() - replies.sum())
            self._replies_by_round.append((places, replies / np.where(sizes > 0, sizes, np.nan), medians))
            if not self._present.unknown and self._cohort_size is not None:
                masses = self._present.masses(clients)
                if self._suspects is not None:
                    masses[np.isin(clients, self._suspects)] = 0.0
                both = round_variances(
                    sizes,
                    masses,
                    p,
                    weights,
                    norms,
                    np.array([_available(row, some) for row, some in zip(cohorts, there, strict=True)]),
                    np.array(totals),
                    self._cohort_size,
                    inclusion=self._inclusion,
                )
                self._variances_by_round.append((places, *both))
        self._drawn, self._heard, self._waiting = [], [], 0


def _available(cohort: bytes, everybody: int) -> int:
    """How many clients could be drawn: those that the row of a cohort names, or everybody."""
    if b'"available' not in cohort:
        return everybody
    available = available_of(unpack(cohort, copy=False))
    return everybody if available is None else len(available)
