"""Reading a run, also while it is being written: rounds as they were, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np

from sortition.core.cohort import Cohort
from sortition.core.errors import LedgerError
from sortition.core.types import FloatArray, IntArray
from sortition.ledger.attachments import Attachments
from sortition.ledger.codec import available_of, cohort_of, column_of, ids_of, whole_of
from sortition.ledger.files import SealedFiles, run_file, side_directory
from sortition.ledger.good import GoodStore
from sortition.ledger.lock import LOCK, witness
from sortition.ledger.recipe import maker
from sortition.ledger.replay import MakeSampler, rebuild, within
from sortition.ledger.settings import all_experts
from sortition.ledger.store import Event, Store

OnRow: TypeAlias = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Round:
    """One round of the record."""

    cohort: Cohort
    available: IntArray | None
    """Whom the cohort could be drawn from; None for everybody, or not known (see ``drawn_at``)."""
    drawn_at: float | None
    """Seconds since 1970; None for a cohort that was drawn before the run began with a loaded state."""
    norms: FloatArray | None
    """Aligned with ``cohort.clients``, nan for no reply; None while the round is open."""
    observed_at: float | None


@dataclass(frozen=True, slots=True)
class Membership:
    """Clients that joined or left, before the cohort of ``round_index`` was drawn."""

    round_index: int
    time: float
    joined: IntArray | None
    left: IntArray | None


class RunRecord:
    """What is on disk of a run, as it was when it was opened. ``read_run`` makes it."""

    def __init__(self, path: Path, good: bool = False, on_row: OnRow | None = None) -> None:
        known = witness(side_directory(path) / LOCK)
        self._store = store = GoodStore(path, known) if good else Store(path, write=False)
        self.path = path
        self.missing = 0
        """Rows that were left out because they, or one before them, are damaged or lost; as far as known."""
        self.left_out: str | None = None
        """In words, what ``good`` left out, or what is damaged though nothing was; None for a whole run."""
        if on_row is not None:
            self._store.on_row = told(on_row, self._store)
        try:
            if isinstance(store, GoodStore):
                self.missing, self.left_out = store.missing, store.left_out
            else:
                self._store.check_witness(known)
            first = self._store.event(0)
            self.begun_at = first.time
            self._first = self._start = first.values()
            if self._store.last > 0 and (second := self._store.event(1)).kind == "loaded":
                self._start = second.values()  # the run began where another one stood
        except BaseException:
            self._store.close()
            raise

    @property
    def continues(self) -> int | None:
        """The next round of the state that was loaded at the start; None if the run began from nothing."""
        at_start = "state.round_index"
        return None if self._start is self._first else whole_of(self._start, at_start)

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self._store.last + 1

    @property
    def sampler(self) -> str:
        """The kind of sampler."""
        return str(self._first.get("sampler"))

    @property
    def settings(self) -> dict[str, Any]:
        """What the sampler was built with, where the library knows."""
        return within(self._first, "setting.")

    @property
    def founders(self) -> int | None:
        """The clients that there were until the run began, where the sampler's state says so."""
        found, joined = self._start.get("state.config.num_clients"), "state.weights.joined_masses"
        if not isinstance(found, int):
            return None
        return found + (len(column_of(self._start, joined)) if joined in self._start else 0)

    @property
    def gone(self) -> IntArray:
        """Those of them that had left by then."""
        left = "state.weights.left_clients"
        return ids_of(self._start, left) if left in self._start else np.zeros(0, dtype=np.int64)

    @property
    def config(self) -> dict[str, Any]:
        """The settings that the sampler's state belongs to, in words; empty where it does not say."""
        return within(self._first, "state.config.")

    @property
    def cohort_size(self) -> int | None:
        """How many are drawn for a cohort, where the state says so."""
        found = self.config.get("cohort_size")
        return found if isinstance(found, int) else None

    @property
    def seed(self) -> int | None:
        """The seed of the draws, where the state says so."""
        found = self._start.get("state.seed")
        return found if isinstance(found, int) else None

    @property
    def guard(self) -> str | None:
        """The sampler's guard in words, "none" if it has none; None where the state does not say."""
        found = self.config.get("guard")
        return found if isinstance(found, str) else None

    @property
    def experts(self) -> list[tuple[str, str, dict[str, Any]]]:
        """Of a portfolio, the experts: place ("1.0" is the first within the second), kind and ``config``."""
        states = all_experts(within(self._first, "state."))
        return [(place, own["kind"], within(own, "config.")) for place, own in states]

    @property
    def rebuildable(self) -> bool:
        """Whether the record says how to build its sampler; if not, only the program that made it can."""
        return self._first.get("rebuildable") is True

    def replay(self, make_sampler: MakeSampler | None = None) -> Any:
        """The sampler as the last row left it, to look at.

        A sampler of the library is built from the settings in the record; for another one, give
        ``make_sampler``, which builds it as it was when the run began.
        """
        make = make_sampler or maker(self._first)
        if make is None:
            raise LedgerError(
                f"make_sampler must be given, for the record of {self.path} does not say how to build its "
                f"{self.sampler}, got None"
            )
        return rebuild(make, self._store, self._files(), reading=True)[0].sampler

    def attachment(self, round_index: int, name: str) -> dict[str, Any] | None:
        """What was attached to a round by that name; None if nothing is there."""
        return Attachments(self._files()).read(round_index, name)

    def _files(self) -> SealedFiles:
        return SealedFiles(side_directory(self.path), bytes.fromhex(self._first["run_id"]))

    def events(self) -> Iterator[Event]:
        """The rows, each checked."""
        return self._store.events()

    def rounds(self) -> Iterator[Round]:
        """Every round that was drawn, in the order of the draws; also what a loaded state had left open."""
        observed = self._store.numbers("observed")
        for round_index in sorted(observed.keys() - self._store.numbers("drawn").keys()):
            yield self._brought_along(self._store.event(observed[round_index]))
        for event in self._store.events():
            if event.kind == "drawn":
                yield self._round(event, observed.get(event.round_index))

    def memberships(self) -> Iterator[Membership]:
        """Every time that clients joined or left."""
        at_start = "state.round_index"
        next_round = whole_of(self._start, at_start) if at_start in self._start else 0
        for event in self._store.events():
            if event.kind == "drawn":
                next_round = event.round_index + 1
            elif event.kind == "joined":
                yield Membership(next_round, event.time, ids_of(event.values(), "ids"), None)
            elif event.kind == "left":
                yield Membership(next_round, event.time, None, ids_of(event.values(), "clients"))

    def close(self) -> None:
        """Let go of the file."""
        self._store.close()

    def __enter__(self) -> RunRecord:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _brought_along(self, observed: Event) -> Round:
        values = observed.values()
        cohort = cohort_of(observed.round_index, values)
        return Round(cohort, None, None, _norms(observed, cohort), observed.time)

    def _round(self, drawn: Event, number: int | None) -> Round:
        values = drawn.values()
        cohort = cohort_of(drawn.round_index, values)
        available = available_of(values)
        if number is None:
            return Round(cohort, available, drawn.time, None, None)
        observed = self._store.event(number)
        return Round(cohort, available, drawn.time, _norms(observed, cohort), observed.time)


def _norms(observed: Event, cohort: Cohort) -> FloatArray:
    norms: FloatArray = column_of(observed.values(), "norms")
    if observed.kind != "observed" or len(norms) != len(cohort):
        raise LedgerError(
            f"row {observed.number} must hold the feedback of round {cohort.round_index}, got another"
        )
    return norms


def read_run(path: str | os.PathLike[str], *, good: bool = False, on_row: OnRow | None = None) -> RunRecord:
    """The run at ``path``, for reading: it may be written at the same time, and is not changed.

    A damaged row is a LedgerError; with ``good`` the record ends before the first one, and its ``left_out``
    says what is left out. ``on_row`` is told, while rows are read, how many are done of how many.
    """
    return RunRecord(run_file(path), good, on_row)


def told(on_row: OnRow, store: Store) -> Callable[[int], None]:
    """For a store: tells ``on_row`` of each row."""
    return lambda number: on_row(number + 1, store.last + 1)
