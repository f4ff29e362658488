"""``open_run`` gives a sampler whose every draw and feedback is on disk before the call returns."""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

import sortition
from sortition.core.cohort import Cohort
from sortition.core.errors import (
    CohortError,
    ConfigurationError,
    FeedbackError,
    LedgerError,
    SortitionError,
    StateError,
)
from sortition.core.guard_settings import Suspect
from sortition.core.protocols import check_available
from sortition.core.types import FloatArray, IntArray
from sortition.core.validation import client_ids, named_keywords, real_numbers, shown, whole_number
from sortition.ledger.encoding import Plain, cohort_of, cohort_values, same_cohort, same_norms
from sortition.ledger.files import SNAPSHOT, RunFiles, make_side_directory, run_file, sync
from sortition.ledger.lock import LOCK, WriterLock, file_identity, witness
from sortition.ledger.notes import CLIENT_NAMES, NOTED, RESERVED, Noted, logged_values, note_values, notes_in
from sortition.ledger.replay import (
    MakeSampler,
    Replayed,
    built,
    rebuild,
    recorded_settings,
    snapshot_values,
)
from sortition.ledger.store import Store, check_beside, check_header, sqlite_problem, wal_of
from sortition.samplers.privacy import PrivacySpent

NEW = "new.db"
"""A new run is written under this name in its side directory, and then moved into place."""


@named_keywords
def open_run(
    path: str | os.PathLike[str], make_sampler: MakeSampler, *, snapshot_every: int = 1000
) -> RecordedSampler:
    """Continue the run at ``path``, or begin it with the sampler that ``make_sampler()`` builds.

    The sampler must be built with the same settings each time; the seed is the one of the first time. A
    snapshot is taken every ``snapshot_every`` rounds and when the run is closed.
    """
    snapshot_every = whole_number("snapshot_every", snapshot_every, least=1)
    run = run_file(path)
    check_beside(run)
    if run.exists():
        check_header(run)
    directory = make_side_directory(run)
    lock = WriterLock(directory / LOCK, run)
    try:
        if not run.exists():
            _begin(run, directory, make_sampler)
        _sync_all(run, directory)
        store = Store(run, write=True)
        try:
            store.check_witness(witness(directory / LOCK))
            run_id = bytes.fromhex(store.event(0).values()["run_id"])
            files = RunFiles(directory, run_id)
            files.remove_unfinished()
            return RecordedSampler(store, files, lock, make_sampler, snapshot_every)
        except BaseException:
            store.close()
            raise
    except BaseException:
        lock.release()
        raise


def _begin(run: Path, directory: Path, make_sampler: MakeSampler) -> None:
    """Write a new run aside and move it into place, so that ``run`` is whole or not there."""
    remains = [file.name for file in directory.iterdir() if not file.name.startswith((LOCK, NEW))]
    wal = wal_of(run)
    if wal.exists():
        remains.append(wal.name)
    if remains or witness(directory / LOCK) is not None:
        raise LedgerError(
            f"{run} is missing, but {directory} and {wal} hold the rest of a run; put it back, or move these "
            "away to begin a new one"
        )
    sampler = built(make_sampler)
    new = directory / NEW
    try:
        for leftover in directory.glob(NEW + "*"):
            leftover.unlink()
        first = {
            "run_id": secrets.token_hex(16),
            **recorded_settings(sampler),
            **{f"state.{name}": value for name, value in sampler.state_dict().items()},
        }
        Store.create(new, first)
        os.rename(new, run)
    except sqlite3.Error as error:
        raise LedgerError(sqlite_problem(run, "created", error)) from error
    except OSError as error:
        raise LedgerError(f"{run} cannot be created: {error}") from error


def _sync_all(run: Path, directory: Path) -> None:
    """Make everything that is there durable before anything is built on it.

    A killed writer may have left a row that it had not synced yet. That row counts: its cohort is handed out
    again and the witness learns of it. So a power cut must not take it any more.
    """
    try:
        if wal_of(run).exists():
            sync(wal_of(run))
        sync(directory)
        sync(run.parent)
    except OSError as error:
        raise LedgerError(f"{run} cannot be synced to its disk: {error}") from error


class RecordedSampler:
    """The sampler of a run, and its record. ``open_run`` makes it.

    A call first changes the sampler in memory and then commits the row. If anything goes wrong between the
    two, for example a full disk or Ctrl-C, the sampler in memory is dropped and the next call rebuilds it
    from the disk. So memory is never ahead of the disk. A call that the sampler refuses changes neither.
    """

    def __init__(
        self,
        store: Store,
        files: RunFiles,
        lock: WriterLock,
        make_sampler: MakeSampler,
        snapshot_every: int,
    ) -> None:
        self._store, self._files, self._lock = store, files, lock
        self._identities = {file: file_identity(file) for file in (store.path, wal_of(store.path))}
        self._identities[lock.file] = lock.identity
        self._make_sampler = make_sampler
        self._snapshot_every = snapshot_every
        self._mutex = threading.RLock()
        self._handed_out: set[int] = set()  # rounds whose cohorts a caller in this process has
        self._closed = False
        self._replayed: Replayed | None = None  # None: memory may differ from the disk
        self._snapshot_at, self._snapshot_round = -1, 0
        self._current()

    def __repr__(self) -> str:
        state = "closed" if self._closed else repr(self._current().sampler)
        return f"<RecordedSampler of {self._store.path}: {state}>"

    # The protocol of samplers -------------------------------------------------------------------------

    @property
    def num_clients(self) -> int:
        """M, the number of clients that can be drawn."""
        return int(self.sampler.num_clients)

    @property
    def cohort_size(self) -> int:
        """K, the draws of a round."""
        return int(self.sampler.cohort_size)

    @property
    def round_index(self) -> int:
        """The round of the next new cohort, which is the number of rounds drawn so far."""
        return self._current().round_index

    def probabilities(self, clients: ArrayLike | None = None) -> FloatArray:
        """The probabilities of the next new draw: all of them, which sum to one, or those of ``clients``."""
        found: FloatArray = self.sampler.probabilities(clients)
        return found

    def draw(self, available: ArrayLike | None = None) -> Cohort:
        """The oldest open cohort that this process has not had yet; if there is none, a new one, committed.

        A cohort that is handed out again is the one that was drawn, even if some of its clients are not
        available now: report nan for them.
        """
        again = self.draw_again()
        if again is not None:
            return again
        with self._changing() as current:
            with self._refusable(current):
                new: Cohort = current.sampler.draw(available)
            check_available(current.sampler, new, available)
            self._commit("drawn", new.round_index, cohort_values(new))
            current.open[new.round_index] = new
            current.round_index = new.round_index + 1
            self._snapshot_if_due(current)
            self._handed_out.add(new.round_index)  # last: an interrupted caller has not had it
            return new

    def draw_again(self) -> Cohort | None:
        """The oldest open cohort that this process has not had yet; None if the next draw is a new one."""
        with self._mutex:
            for round_index, cohort in self._current().open.items():
                if round_index not in self._handed_out:
                    self._handed_out.add(round_index)
                    return cohort
        return None

    def observe(self, cohort: Cohort, norms: ArrayLike) -> None:
        """Commit the feedback and learn from it; the same feedback again changes nothing."""
        with self._changing() as current:
            values = _floats(norms)
            known = current.open.get(getattr(cohort, "round_index", -1))
            try:
                with self._refusable(current):
                    current.sampler.observe(cohort, norms if values is None else values)
            except CohortError:
                if values is None or known is not None or not self._observed_already(cohort, values):
                    raise
                return
            row: dict[str, Any] = {"norms": values}
            if known is None:  # drawn before the state was loaded: this ledger has no row of the draw
                row |= cohort_values(cohort)
            self._commit("observed", cohort.round_index, row)
            current.open.pop(cohort.round_index, None)
            current.last_observed = cohort.round_index
            self._handed_out.discard(cohort.round_index)
            self._snapshot_if_due(current)

    def state_dict(self) -> dict[str, Any]:
        """The sampler's state."""
        state: dict[str, Any] = self.sampler.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin this run where another one ended; only before the first draw."""
        with self._changing() as current:
            with self._refusable(current):
                if self._store.last > 0:
                    raise StateError(
                        f"state can only be loaded into a new run, got one with {self._store.last + 1} rows"
                    )
                current.sampler.load_state_dict(state)
            round_index = int(state.get("round_index", 0))
            row = {f"state.{name}": value for name, value in state.items()}
            self._commit("loaded", -1, {"round_index": round_index, **row})
            current.round_index = round_index

    # Calls of the sampler that are recorded -----------------------------------------------------------

    def add_clients(self, clients: int | ArrayLike, *, client_weights: ArrayLike | None = None) -> IntArray:
        """Let clients join, as the sampler's ``add_clients`` does, and commit it."""
        with self._changing() as current:
            with self._refusable(current):
                add_clients = _method_of(current.sampler, "add_clients")
                newcomers: IntArray = add_clients(clients, client_weights=client_weights)
            joined = int(np.asarray(clients)) if np.ndim(clients) == 0 else np.asarray(clients, dtype=float)
            weights = None if client_weights is None else np.asarray(client_weights, dtype=float)
            self._commit("joined", -1, {"clients": joined, "client_weights": weights, "ids": newcomers})
            return newcomers

    def remove_clients(self, clients: ArrayLike) -> None:
        """Let clients leave, as the sampler's ``remove_clients`` does, and commit it."""
        with self._changing() as current:
            with self._refusable(current):
                _method_of(current.sampler, "remove_clients")(clients)
            self._commit("left", -1, {"clients": np.asarray(clients, dtype=np.int64)})

    def calibrate(self, norms: ArrayLike, clients: ArrayLike | None = None) -> None:
        """Set the feedback bound, as the sampler's ``calibrate`` does, and commit it."""
        with self._changing() as current:
            with self._refusable(current):
                _method_of(current.sampler, "calibrate")(norms, clients)
            asked = None if clients is None else np.asarray(clients, dtype=np.int64)
            self._commit("calibrated", -1, {"norms": _floats(norms), "clients": asked})

    # What the sampler says ----------------------------------------------------------------------------

    @property
    def sampler(self) -> Any:
        """The sampler itself, to look at. Changes that are made to it directly are not recorded."""
        return self._current().sampler

    def client_weights(self, clients: ArrayLike | None = None) -> FloatArray:
        """The sampler's lambda of all clients, or of ``clients``."""
        weights: FloatArray = _method_of(self.sampler, "client_weights")(clients)
        return weights

    def reply_rate(self, clients: ArrayLike | None = None) -> FloatArray:
        """The learnt chance to reply of all clients, or of ``clients``."""
        rates: FloatArray = _method_of(self.sampler, "reply_rate")(clients)
        return rates

    def reply_weights(self, clients: ArrayLike, largest: float = 10.0) -> FloatArray:
        """The sampler's ``reply_weights``: one over the rates of replies in the whole run."""
        weights: FloatArray = _method_of(self.sampler, "reply_weights")(clients, largest)
        return weights

    @property
    def norm_bound(self) -> float:
        """Larger norms are clipped to this in the next feedback; inf if nothing is clipped."""
        return float(self.sampler.norm_bound)

    def norm_bound_with(self, cohort: Cohort, norms: ArrayLike) -> float:
        """``norm_bound`` as it will be after ``observe(cohort, norms)``; nothing is learnt or recorded."""
        return float(_method_of(self.sampler, "norm_bound_with")(cohort, norms))

    def suspects(self) -> list[Suspect]:
        """The clients whose norms were clipped by the sampler's guard, the most frequent first."""
        found: list[Suspect] = _method_of(self.sampler, "suspects")()
        return found

    def privacy_spent(self, delta: float = 1e-5) -> PrivacySpent:
        """What the replies so far have cost: (epsilon, delta)-differential privacy of the reported norms."""
        spent: PrivacySpent = _method_of(self.sampler, "privacy_spent")(delta)
        return spent

    # What only a run has ------------------------------------------------------------------------------

    def open_cohorts(self) -> list[Cohort]:
        """The cohorts that await feedback, oldest first."""
        return list(self._current().open.values())

    @property
    def last_observed(self) -> int | None:
        """The round whose feedback came last, even if it is an old one; None before the first feedback."""
        return self._current().last_observed

    def note(self, round_index: int, name: str, values: Plain) -> None:
        """Commit a row with small values, such as the metrics of a round that was drawn or of the next one.

        Unlike an attachment it is never removed. The sampler knows nothing of it.
        """
        with self._changing() as current, self._refusable(current):
            self._check_round(current, round_index)
            if name in RESERVED:
                raise ConfigurationError(f"name must not be {name!r}: call {RESERVED[name]}")
            self._commit(NOTED, round_index, note_values(name, values))

    def notes(self, name: str) -> dict[int, dict[str, Any]]:
        """What was noted under that name, by round; the last note of each round."""
        with self._mutex:
            self._current()
            return notes_in(self._store.events_of(NOTED), name)

    def log(
        self, numbers: Mapping[str, float] | None = None, /, *, round_index: int | None = None, **named: float
    ) -> None:
        """Commit numbers of a round by name, as in ``run.log(loss=0.3)`` or ``run.log({"test/loss": 0.3})``.

        They belong to the round that was drawn last, or to ``round_index``; -1 is the model before the first
        round. So it does not matter whether they are logged before or after the feedback of that round.
        Further names may be logged for a round; of the same name the last number counts. nan and infinities
        are numbers: training may diverge.
        """
        if numbers is not None and not isinstance(numbers, Mapping):
            raise ConfigurationError(f"numbers must be a mapping of names to numbers, got {shown(numbers)}")
        values = logged_values({**(numbers or {}), **named})
        with self._changing() as current, self._refusable(current):
            last = current.round_index - 1
            at = last if round_index is None else whole_number("round_index", round_index, least=-1)
            if at > last:
                raise ConfigurationError(
                    f"round_index must be at most {last}, the round that was drawn last, got {at}"
                )
            self._commit(NOTED, at, values)

    def logged(self) -> dict[str, dict[int, float]]:
        """What was logged, by name and round."""
        with self._mutex:
            self._current()
            return Noted(self._store.events_of(NOTED)).logged

    @property
    def client_names(self) -> dict[int, str]:
        """The names of clients, by id, as far as they were given to ``name_clients``."""
        with self._mutex:
            self._current()
            return Noted(self._store.events_of(NOTED)).client_names

    def name_clients(self, clients: ArrayLike, names: Sequence[str]) -> None:
        """Commit the names of clients, by which ``sortition runs show`` and ``sortition report`` call them.

        A client that is named again has its last name.
        """
        ids = client_ids("clients", clients, self.num_clients)
        if isinstance(names, str) or len(names) != len(ids) or not all(isinstance(n, str) for n in names):
            raise ConfigurationError(f"names must be {len(ids)} strings, one for each client, got {names!r}")
        with self._changing() as current, self._refusable(current):
            named = {"clients": ids, "names": json.dumps(list(names))}
            self._commit(NOTED, current.round_index, note_values(CLIENT_NAMES, named))

    def attach(self, round_index: int, name: str, arrays: Plain) -> None:
        """Keep arrays, numbers and strings durably beside a round that was drawn, or beside the next one.

        The two that were attached last under a name stay, and the one of ``last_observed``.
        """
        with self._mutex:
            current = self._current()
            self._check_round(current, round_index)
            self._files.attach(round_index, name, arrays, needed=current.last_observed)

    def attachment(self, round_index: int, name: str) -> dict[str, Any] | None:
        """What was attached to that round under that name; None if nothing was, or if it is gone."""
        with self._mutex:
            return self._files.attachment(round_index, name)

    def close(self) -> None:
        """Take a snapshot, if the newest row has none, and release the lock, also if an error is raised.

        A run that was dropped has lost its lock already, and takes no snapshot.
        """
        with self._mutex:
            if self._closed:
                return
            try:
                self._lock.check_process()
                if self._lock.is_held:
                    self._check_in_place(
                        "the run is closed now, without a snapshot; everything committed is in its files: "
                        "put them together in one place and open it there"
                    )
                    if self._replayed is not None and self._snapshot_at < self._store.last:
                        self._snapshot(self._replayed)
            finally:
                self._abandon()

    def __enter__(self) -> RecordedSampler:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Details ------------------------------------------------------------------------------------------

    def _abandon(self) -> None:
        """Release everything as it is, as a crash does."""
        self._closed = True
        self._replayed = None
        self._store.close()
        self._lock.release()

    def _check_open(self) -> None:
        if self._closed:
            raise LedgerError(f"{self._store.path} was closed; open it again with open_run")
        self._lock.check_process()
        if not self._lock.is_held:
            raise LedgerError(f"{self._store.path} was dropped without close(), so its lock is released")
        self._check_in_place(
            "put it back and call again, or close this run and open it again where its files are"
        )

    def _check_in_place(self, advice: str) -> None:
        """A LedgerError if a file of the run was moved or replaced: rows written now would be lost."""
        for file, identity in self._identities.items():
            if file_identity(file) != identity:
                raise LedgerError(
                    f"{file} was moved, removed or replaced while {self._store.path} was open; {advice}"
                )

    def _current(self) -> Replayed:
        with self._mutex:
            self._check_open()
            if self._replayed is None:
                self._store.refresh()
                replayed, self._snapshot_at, self._snapshot_round = rebuild(
                    self._make_sampler, self._store, self._files
                )
                self._lock.note(self._store.last, self._store.last_checksum)
                self._replayed = replayed
            return self._replayed

    def _check_round(self, current: Replayed, round_index: int) -> None:
        if whole_number("round_index", round_index, least=0) > current.round_index:
            raise ConfigurationError(
                f"round_index must be at most {current.round_index}, the round of the next cohort, "
                f"got {round_index}"
            )

    @contextmanager
    def _changing(self) -> Iterator[Replayed]:
        """Memory counts as out of date until the change is committed, or the sampler refuses it."""
        with self._mutex:
            current = self._current()
            self._replayed = None
            yield current
            self._replayed = current

    @contextmanager
    def _refusable(self, current: Replayed) -> Iterator[None]:
        """Around a call of the sampler and nothing else: a refused call leaves the sampler unchanged."""
        try:
            yield
        except LedgerError:
            raise
        except SortitionError:
            self._replayed = current
            raise

    def _commit(self, kind: str, round_index: int, values: Plain) -> None:
        self._store.append(kind, round_index, values)
        self._lock.note(self._store.last, self._store.last_checksum)

    def _observed_already(self, cohort: Cohort, norms: FloatArray) -> bool:
        """Whether the same feedback for the same cohort is on disk; a CohortError if other feedback is."""
        observed = self._store.find("observed", getattr(cohort, "round_index", -1))
        if observed is None:
            return False
        values = observed.values()
        drawn = self._store.find("drawn", cohort.round_index) or observed
        if not same_cohort(cohort, cohort_of(cohort.round_index, drawn.values())):
            return False
        if not same_norms(values["norms"], norms):
            raise CohortError(
                f"cohort no longer awaits feedback: other feedback for round {cohort.round_index} is recorded"
            )
        return True

    def _snapshot_if_due(self, current: Replayed) -> None:
        if current.round_index - self._snapshot_round >= self._snapshot_every:
            self._snapshot(current)

    def _snapshot(self, current: Replayed) -> None:
        """Save the time of a replay. If the disk has no room for it, the rows are still there."""
        self._snapshot_round = current.round_index
        try:
            values = snapshot_values(current, self._store.last_checksum)
            self._files.write(SNAPSHOT, self._store.last, values)
        except OSError as error:
            warnings.warn(f"no snapshot of {self._store.path}: {error}", RuntimeWarning, stacklevel=5)
        else:
            self._snapshot_at = self._store.last


def _method_of(sampler: Any, name: str) -> Any:
    """That method of the sampler; if it has none, an error that names the samplers that do."""
    method = getattr(sampler, name, None)
    if callable(method):
        return method
    kinds = [kind for kind in sortition.__all__ if kind.endswith("Sampler")]
    able = [kind for kind in kinds if callable(getattr(getattr(sortition, kind), name, None))]
    raise ConfigurationError(
        f"{name} is not a method of {type(sampler).__name__}, the sampler of this run; these have it: "
        f"{', '.join(able)}"
    )


def _floats(norms: ArrayLike) -> FloatArray | None:
    """A copy of ``norms`` that nobody else can change; None if the sampler has to say what is wrong."""
    try:
        return np.array(real_numbers("norms", norms, FeedbackError), dtype=np.float64)
    except FeedbackError:
        return None
