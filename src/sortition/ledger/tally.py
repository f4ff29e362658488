"""The sums behind a summary, over the draws and replies of a whole run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numba import njit

from sortition.core.errors import LedgerError
from sortition.core.types import FloatArray, IntArray
from sortition.engine.clients import EMPTY, Table
from sortition.ledger.encoding import available_of, unpack, unpack_columns
from sortition.ledger.gain import PresentClients, round_variances

LAST_NORMS = 3
"""How many norms are kept of each client."""
BATCH = 2**26
"""Bytes of rows that are added up at once: row by row in Python would take long."""
MOST_COUNTED = 2**31
"""No client is drawn more often in one round."""


@dataclass(frozen=True, slots=True)
class ClientSummary:
    """One client that was drawn."""

    client: int
    draws: int = 0
    failures: int = 0
    """Rounds in which it did not reply."""
    probability: float = 0.0
    """Its probability in the last round that it was drawn in."""
    norms: tuple[float, ...] | None = ()
    """Its last norms, the newest first; None where the run is private."""
    left: bool = False
    name: str | None = None
    """Its name, if the run has it."""


@njit(cache=True)
def _add_draws(
    sizes: IntArray,
    slots: IntArray,
    counts: IntArray,
    probabilities: FloatArray,
    draws: IntArray,
    latest: FloatArray,
    known: int,
    squares: float,
) -> tuple[IntArray, FloatArray, float]:
    """Add cohorts to ``draws`` and ``latest``: after each the clients seen and sum n_m^2; the last sum."""
    seen, squares_by_round = np.empty(sizes.size, dtype=np.int64), np.empty(sizes.size)
    place = 0
    for i in range(sizes.size):
        for j in range(place, place + sizes[i]):
            slot, count = slots[j], counts[j]
            known += draws[slot] == 0
            squares += float(count) * (2.0 * draws[slot] + count)  # (n + c)^2 - n^2
            draws[slot] += count
            latest[slot] = probabilities[j]
        place += sizes[i]
        seen[i], squares_by_round[i] = known, squares
    return seen, squares_by_round, squares


@njit(cache=True)
def _add_norms(
    sizes: IntArray, slots: IntArray, norms: FloatArray, failures: IntArray, newest: FloatArray
) -> tuple[IntArray, FloatArray]:
    """Add feedback to ``failures`` and ``newest``: of each round the replies, and the median of its norms."""
    replies, medians = np.zeros(sizes.size, dtype=np.int64), np.full(sizes.size, np.nan)
    place = 0
    for i in range(sizes.size):
        for j in range(place, place + sizes[i]):
            if np.isnan(norms[j]):
                failures[slots[j]] += 1
            else:
                newest[slots[j], 1:] = newest[slots[j], :-1].copy()
                newest[slots[j], 0] = norms[j]
                replies[i] += 1
        if replies[i]:
            medians[i] = np.nanmedian(norms[place : place + sizes[i]])
        place += sizes[i]
    return replies, medians


class ClientTable(Sequence[ClientSummary]):
    """All clients that were drawn, the most drawn first."""

    def __init__(self) -> None:
        self.draws = np.zeros(0, dtype=np.int64)
        self.failures = np.zeros(0, dtype=np.int64)
        self.probabilities = np.zeros(0)
        self.norms = np.zeros((0, LAST_NORMS))  # the newest first; nan for none
        self.left: set[int] = set()
        self.names: Mapping[int, str] = {}
        self.private = False
        self._ids = np.zeros(0, dtype=np.int64)
        self._table = Table()  # id -> place in the arrays
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
        slot = int(self._table.slots_of(np.array([client]))[0])
        if slot == EMPTY:
            return ClientSummary(client, left=client in self.left, name=self.names.get(client))
        return self._summary(slot)

    def sort(self) -> None:
        """Put the most drawn first, and among equals the least id."""
        self._order = np.lexsort((self._ids, -self.draws))

    def slots_of(self, clients: IntArray) -> IntArray:
        """The places of ``clients`` in the arrays; those that have none get one."""
        slots = self._table.slots_of(clients)
        new = np.unique(clients[slots == EMPTY])
        if not len(new):
            return slots
        if new[0] < 0:
            raise LedgerError(f"clients must have ids from 0 up, got {new[0]}")
        self._table.put_all(new, np.arange(len(self), len(self) + len(new)))
        self._ids = np.concatenate((self._ids, new))
        self.draws, self.failures = (
            np.concatenate((column, np.zeros_like(new))) for column in (self.draws, self.failures)
        )
        self.probabilities = np.concatenate((self.probabilities, np.zeros(len(new))))
        self.norms = np.concatenate((self.norms, np.full((len(new), LAST_NORMS), np.nan)))
        return self._table.slots_of(clients)

    def _summary(self, slot: int) -> ClientSummary:
        client, norms = int(self._ids[slot]), self.norms[slot]
        return ClientSummary(
            client,
            int(self.draws[slot]),
            int(self.failures[slot]),
            float(self.probabilities[slot]),
            None if self.private else tuple(norms[~np.isnan(norms)].tolist()),
            client in self.left,
            self.names.get(client),
        )


class Tally:
    """Adds up the rows of draws and feedback, given one after another, in batches."""

    def __init__(self, present: PresentClients, cohort_size: int | None, *, inclusion: bool) -> None:
        self.clients = ClientTable()
        self.open: dict[int, tuple[int, bytes, float, int, float]] = {}
        """Of each round that awaits feedback: its place among all rounds, its row, when it was drawn, and how
        many clients were there with which mass."""
        self._present, self._cohort_size, self._inclusion = present, cohort_size, inclusion
        self.rounds = self.draws = self.replies = self.failures = 0
        self._squares = 0.0
        self._drawn: list[bytes] = []
        self._heard: list[tuple[int, bytes, bytes, int, float]] = []
        self._waiting = 0
        self._draws_by_round: list[tuple[IntArray, FloatArray]] = []
        self._replies_by_round: list[tuple[list[int], FloatArray, FloatArray]] = []
        self._variances_by_round: list[tuple[list[int], FloatArray, FloatArray]] = []

    def add_cohort(self, round_index: int, payload: bytes, drawn_at: float) -> None:
        """The row of a cohort."""
        known = self._present
        self.open[round_index] = self.rounds, payload, drawn_at, known.count, known.total
        self.rounds += 1
        self._drawn.append(payload)
        self._wait(payload)

    def add_feedback(self, round_index: int, payload: bytes) -> None:
        """The row of the feedback of an open cohort."""
        place, cohort, _, clients, mass = self.open.pop(round_index)
        self._heard.append((place, cohort, payload, clients, mass))
        self._wait(payload)

    def by_round(self) -> tuple[IntArray, FloatArray, FloatArray, FloatArray]:
        """After each round the clients seen and their effective number; its share of replies and median."""
        self._add_up()
        none = np.zeros(0, dtype=np.int64), np.zeros(0)
        seen, effective = (np.concatenate(c) for c in zip(none, *self._draws_by_round, strict=True))
        replied, medians = np.full((2, self.rounds), np.nan)
        for places, shares, middle in self._replies_by_round:
            replied[places], medians[places] = shares, middle
        return seen, effective, replied, medians

    def variances(self) -> tuple[FloatArray, FloatArray]:
        """Of each round the estimated variance of its draws, and of uniform ones; nan where not known."""
        self._add_up()
        own, uniform = np.full((2, self.rounds), np.nan)
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
            known, of = len(self.clients), self.clients
            slots = of.slots_of(clients)
            seen, squares, self._squares = _add_draws(
                sizes, slots, counts, p, of.draws, of.probabilities, known, self._squares
            )
            ends = np.cumsum(sizes)
            draws = self.draws + np.concatenate(([0], np.cumsum(counts)))[ends].astype(float)
            self._draws_by_round.append((seen, draws**2 / np.maximum(squares, 1.0)))
            self.draws = int(draws[-1])
        if self._heard:
            places, cohorts, feedback, there, totals = (list(c) for c in zip(*self._heard, strict=True))
            names = {"clients": np.int64, "probabilities": np.float64, "weights": np.float64}
            asked, (clients, p, weights) = unpack_columns(cohorts, names)
            sizes, (norms,) = unpack_columns(feedback, {"norms": np.float64})
            if not np.array_equal(sizes, asked):
                raise LedgerError("norms must be as many as the clients of their cohort")
            slots = self.clients.slots_of(clients)
            replies, medians = _add_norms(sizes, slots, norms, self.clients.failures, self.clients.norms)
            self.replies += int(replies.sum())
            self.failures += int(sizes.sum() - replies.sum())
            self._replies_by_round.append((places, replies / np.where(sizes > 0, sizes, np.nan), medians))
            if not self._present.unknown and self._cohort_size is not None:
                both = round_variances(
                    sizes,
                    self._present.masses(clients),
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
