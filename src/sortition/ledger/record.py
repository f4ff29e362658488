"""Reading a run, also while it is being written, and what is good of a damaged one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from sortition.core.cohort import Cohort
from sortition.core.errors import LedgerError
from sortition.core.state import part
from sortition.core.types import FloatArray, IntArray
from sortition.core.validation import MOST_CLIENTS, named_keywords, printable, shown
from sortition.ledger.encoding import cohort_of, column_of, ids_of, whole_of
from sortition.ledger.files import ATTACHMENT, SNAPSHOT, RunFiles, run_file, side_directory
from sortition.ledger.lock import LOCK, witness
from sortition.ledger.notes import NOTED, Noted, notes_in
from sortition.ledger.settings_in_words import all_experts
from sortition.ledger.store import Event, OnRow, Store, counted

if TYPE_CHECKING:
    from sortition.ledger.replay import MakeSampler

CLIENT_MEMORY = "client_memory."
"""What entries of a Flower run's attachment start with if the clients hold the memory."""


@dataclass(frozen=True, slots=True)
class Round:
    """One round of the record."""

    cohort: Cohort
    drawn_at: float | None
    """Seconds since 1970; None for a cohort of the state that the run began with."""
    norms: FloatArray | None
    """Aligned with ``cohort.clients``, nan for no reply; None while the round is open."""
    observed_at: float | None


@dataclass(frozen=True, slots=True)
class Membership:
    """Clients that joined or left before the cohort of ``round_index`` was drawn."""

    round_index: int
    time: float
    joined: IntArray | None
    left: IntArray | None
    masses: FloatArray | None = None
    """The client weights of those that joined, in the sampler's unit; None for the average of the first."""


class RunRecord:
    """The record of a run as it was when it was opened. ``read_run`` makes it."""

    def __init__(self, path: Path, good: bool = False, on_row: OnRow | None = None) -> None:
        known = witness(side_directory(path) / LOCK)  # first: it must not know rows that come after
        self._store = Store(path, write=False, good=good)
        self._store.on_row = on_row
        self.path = path
        self.missing = 0
        """With ``good``: the rows that are left out, as far as is known."""
        self.left_out: str | None = None
        """With ``good``: what is left out, in words; None for a whole run."""
        try:
            if good:
                self._count_missing(known)
            else:
                self._store.check_witness(known)
            first = self._store.event(0)
            self.begun_at = first.time
            self._first = self._start = first.values()
            if self._store.last > 0 and (second := self._store.event(1)).kind == "loaded":
                self._start = second.values()  # the run began with a loaded state
        except BaseException:
            self._store.close()
            raise

    def _count_missing(self, known: tuple[int, bytes] | None) -> None:
        """Compare the good rows with the witness, which knows how many were committed."""
        doubt = ""
        if (
            known is not None
            and known[0] <= self._store.last
            and self._store.checksum_of(known[0]) != known[1]
        ):
            doubt = f"; its lock file knows another row {known[0]}: is this the file of another run?"
            known = None
        self.missing = max(self._store.dropped, 0 if known is None else known[0] - self._store.last)
        if self.missing:
            self.left_out = (
                f"{counted(self.rows, 'row')} before the damage, all good; "
                f"{'at least ' if known is None else ''}{counted(self.missing, 'row')} left out{doubt}"
            )
            if known is None and not doubt:
                self.left_out += "; without its lock file it is not known whether there were more"
        elif doubt:
            self.left_out = f"all {counted(self.rows, 'row')} are good{doubt}"

    @property
    def continues(self) -> int | None:
        """The next round of the state that was loaded at the start; None if none was loaded."""
        at_start = "state.round_index"
        return None if self._start is self._first else whole_of(self._start, at_start)

    @property
    def first_round(self) -> int:
        """The round of the first cohort that can be drawn."""
        at_start = "state.round_index"
        return whole_of(self._start, at_start) if at_start in self._start else 0

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self._store.last + 1

    @property
    def sampler(self) -> str:
        """The class of the sampler."""
        return printable(str(self._first.get("sampler")))

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that the sampler was built with, if the library knows them."""
        return part(self._first, "setting.")

    @property
    def initial_clients(self) -> int | None:
        """The number of clients that had joined before the run began, if the sampler's state says so."""
        found, joined = _size_in(self._start, "num_clients"), "state.weights.joined_masses"
        if found is None:
            return None
        return found + (len(column_of(self._start, joined)) if joined in self._start else 0)

    @property
    def initially_left(self) -> IntArray:
        """Those of ``initial_clients`` that had left before the run began."""
        left = "state.weights.left_clients"
        return ids_of(self._start, left) if left in self._start else np.zeros(0, dtype=np.int64)

    @property
    def config(self) -> dict[str, Any]:
        """The settings in the sampler's state, in words; empty if it has none."""
        return part(self._first, "state.config.")

    @property
    def cohort_size(self) -> int | None:
        """K, the draws of a round, if the state says so."""
        return _size_in(self._first, "cohort_size")

    @property
    def seed(self) -> int | None:
        """The seed of the draws, if the state says so."""
        found = self._start.get("state.seed")
        return found if isinstance(found, int) else None

    @property
    def private(self) -> bool:
        """Whether the sampler noises norms; then neither norms nor the seed may be shown."""
        return str(self.config.get("privacy", "none")) != "none"

    @property
    def guard(self) -> str | None:
        """The sampler's guard in words, "none" if it has none; None if the state does not say."""
        found = self.config.get("guard")
        return found if isinstance(found, str) else None

    @property
    def experts(self) -> list[tuple[str, str, dict[str, Any]]]:
        """The experts of a portfolio: place ("1.0" is the first within the second), class and ``config``."""
        states = all_experts(part(self._first, "state."))
        return [(place, own["kind"], part(own, "config.")) for place, own in states]

    @property
    def rebuildable(self) -> bool:
        """Whether the record says how to build its sampler; if not, only the program that made it can."""
        return self._first.get("rebuildable") is True

    def replay(self, make_sampler: MakeSampler | None = None) -> Any:
        """The sampler as the last row left it, to look at.

        A sampler of the library is built from the settings in the record. For a class of your own, give
        ``make_sampler``, which builds it as it was when the run began.
        """
        from sortition.ledger.replay import maker_from, rebuild  # the samplers take most of a second

        make = make_sampler or maker_from(self._first)
        if make is None:
            raise LedgerError(
                f"make_sampler must be given: the record of {self.path} does not say how to build its "
                f"{self.sampler}"
            )
        return rebuild(make, self._store, self._files(), reading=True)[0].sampler

    def last_state(self) -> dict[str, Any]:
        """The sampler's state after the last row: out of its snapshot or, if there is none, by ``replay``.

        A run that was closed has that snapshot.
        """
        files = self._files()
        with suppress(LedgerError, OSError):
            snapshot = files.read(SNAPSHOT, self._store.last)
            if str(snapshot.get("checksum")) == self._store.checksum_of(self._store.last).hex():
                return part(snapshot, "state.")
        state: dict[str, Any] = self.replay().state_dict()
        return state

    def attachment(self, round_index: int, name: str) -> dict[str, Any] | None:
        """What was attached to a round under that name; None if nothing is there."""
        return self._files().attachment(round_index, name)

    def last_attachments(self) -> dict[str, dict[str, Any]]:
        """By name, what was attached last; a name whose last file is damaged is left out."""
        files, found = self._files(), {}
        for name in files.attachment_names():
            with suppress(LedgerError, OSError):
                kept = files.attachment(files.numbers(ATTACHMENT + name)[-1], name)
                if kept is not None:
                    found[name] = kept
        return found

    @property
    def has_memory(self) -> bool:
        """Whether the state of a ``Memory`` is attached, or of Flower clients that hold theirs.

        Then the norms are of residuals: what had changed since a client was drawn last.
        """
        files = self._files()
        for name in files.attachment_names():
            with suppress(LedgerError, OSError):
                for entry, value in files.outline(
                    ATTACHMENT + name, files.numbers(ATTACHMENT + name)[-1]
                ).items():
                    if (entry.rpartition(".")[2] == "kind" and value == "Memory") or entry.startswith(
                        CLIENT_MEMORY
                    ):
                        return True
        return False

    def notes(self, name: str) -> dict[int, dict[str, Any]]:
        """What was noted under that name, by round; the last note of each round."""
        return notes_in(self._store.events_of(NOTED), name)

    def logged(self) -> dict[str, dict[int, float]]:
        """What was logged, by name and round; -1 is the model before the first round."""
        return Noted(self._store.events_of(NOTED)).logged

    @property
    def client_names(self) -> dict[int, str]:
        """The names of clients, by id, as far as the run has them."""
        found = Noted(self._store.events_of(NOTED)).client_names
        return {client: printable(name) for client, name in found.items()}

    def _files(self) -> RunFiles:
        return RunFiles(side_directory(self.path), bytes.fromhex(self._first["run_id"]))

    def events(self) -> Iterator[Event]:
        """The rows; each is checked."""
        return self._store.events()

    def rounds(self) -> Iterator[Round]:
        """Every round, in the order of the draws; first the answered ones of a loaded state."""
        observed = self._store.numbers("observed")
        for round_index in sorted(observed.keys() - self._store.numbers("drawn").keys()):
            yield self._round_of_loaded_state(self._store.event(observed[round_index]))
        for event in self._store.events():
            if event.kind == "drawn":
                yield self._round(event, observed.get(event.round_index))

    def memberships(self) -> Iterator[Membership]:
        """Every change of the clients."""
        next_round = self.first_round
        for event in self._store.events():
            if event.kind == "drawn":
                next_round = event.round_index + 1
            elif change := membership_of(event, next_round):
                yield change

    def close(self) -> None:
        """Close the file."""
        self._store.close()

    def __enter__(self) -> RunRecord:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _round_of_loaded_state(self, observed: Event) -> Round:
        values = observed.values()
        cohort = cohort_of(observed.round_index, values)
        return Round(cohort, None, _norms(observed, cohort), observed.time)

    def _round(self, drawn: Event, number: int | None) -> Round:
        cohort = cohort_of(drawn.round_index, drawn.values())
        if number is None:
            return Round(cohort, drawn.time, None, None)
        observed = self._store.event(number)
        return Round(cohort, drawn.time, _norms(observed, cohort), observed.time)


def membership_of(event: Event, next_round: int) -> Membership | None:
    """The change of the clients that a row records, if it does, before ``next_round`` was drawn."""
    if event.kind == "joined":
        values = event.values()
        masses = None if values.get("client_weights") is None else column_of(values, "client_weights")
        return Membership(next_round, event.time, ids_of(values, "ids"), None, masses)
    if event.kind == "left":
        return Membership(next_round, event.time, None, ids_of(event.values(), "clients"))
    return None


def _size_in(values: Mapping[str, Any], name: str) -> int | None:
    """A size in the state of a sampler. A portfolio has those of its experts."""
    state = part(values, "state.")
    while state and f"config.{name}" not in state:
        state = part(state, "expert0.")
    found = state.get(f"config.{name}")
    if not isinstance(found, int):
        return None
    if not 1 <= found <= MOST_CLIENTS:
        raise LedgerError(f"config.{name} of the recorded state must be from 1 to 2**53, got {shown(found)}")
    return found


def _norms(observed: Event, cohort: Cohort) -> FloatArray:
    norms: FloatArray = column_of(observed.values(), "norms")
    if observed.kind != "observed" or len(norms) != len(cohort):
        raise LedgerError(
            f"norms in row {observed.number} are not the feedback of round {cohort.round_index}"
        )
    return norms


@named_keywords
def read_run(path: str | os.PathLike[str], *, good: bool = False, on_row: OnRow | None = None) -> RunRecord:
    """The run at ``path``, for reading. It may be written at the same time, and is not changed.

    A damaged row is a LedgerError. With ``good`` the record ends before the first damaged row, and its
    ``left_out`` says what is left out. While rows are read, ``on_row(done, total)`` is called.
    """
    return RunRecord(run_file(path), good, on_row)
