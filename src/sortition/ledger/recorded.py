"""A sampler whose every draw and every feedback is on disk before the call returns."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sortition.core.cohort import Cohort
from sortition.core.errors import CohortError, ConfigurationError, LedgerError, SortitionError, StateError
from sortition.core.types import FloatArray, IntArray
from sortition.core.validation import whole_number
from sortition.ledger.attachments import Attachments
from sortition.ledger.codec import cohort_of, cohort_values, drawn_values, same_cohort, same_norms
from sortition.ledger.encoding import Plain
from sortition.ledger.files import SealedFiles
from sortition.ledger.lock import WriterLock
from sortition.ledger.replay import SNAPSHOT, MakeSampler, Replayed, rebuild, snapshot_values
from sortition.ledger.store import Store
from sortition.ledger.view import SamplerView, method_of


class RecordedSampler(SamplerView):
    """The sampler of a run, and its record. ``open_run`` makes it.

    A call first changes the sampler in memory and then commits the row. Where anything goes wrong between the
    two, be it a full disk or Ctrl-C, the sampler in memory is dropped and the next call rebuilds it from the
    disk: memory is never ahead of it. A call that the sampler refuses changes neither.
    """

    def __init__(
        self,
        store: Store,
        files: SealedFiles,
        lock: WriterLock,
        make_sampler: MakeSampler,
        snapshot_every: int,
    ) -> None:
        self._store, self._files, self._lock = store, files, lock
        self._attachments = Attachments(files)
        self._make_sampler = make_sampler
        self._snapshot_every = snapshot_every
        self._mutex = threading.RLock()
        self._handed_out: set[int] = set()  # rounds that a caller in this process has
        self._closed = False
        self._standing: Replayed | None = None  # None: what is in memory may differ from the disk
        self._snapshot_at, self._snapshot_round = -1, 0
        self._current()

    # The protocol, beside what SamplerView has --------------------------------------------------------

    @property
    def round_index(self) -> int:
        """The round of the next new cohort: the rounds drawn so far."""
        return self._current().round_index

    def draw(self, available: ArrayLike | None = None) -> Cohort:
        """An open cohort that this process has not had yet, the oldest first; else a new one, committed.

        A cohort that is handed out again is the one that was drawn, whoever is available now: report nan for
        those who can't take part.
        """
        with self._changing() as standing:
            for round_index, cohort in standing.open.items():
                if round_index not in self._handed_out:
                    self._handed_out.add(round_index)
                    return cohort
            with self._refusable(standing):
                new: Cohort = standing.sampler.draw(available)
            self._commit("drawn", new.round_index, drawn_values(new, available))
            standing.open[new.round_index] = new
            standing.round_index = new.round_index + 1
            self._snapshot_if_due(standing)
            self._handed_out.add(new.round_index)  # last: whoever is interrupted before has not had it
            return new

    def observe(self, cohort: Cohort, norms: ArrayLike) -> None:
        """Commit the feedback and learn from it; the same feedback again changes nothing."""
        with self._changing() as standing:
            values = _floats(norms)
            known = standing.open.get(getattr(cohort, "round_index", -1))
            try:
                with self._refusable(standing):
                    standing.sampler.observe(cohort, norms if values is None else values)
            except CohortError:
                if values is None or known is not None or not self._taken_already(cohort, values):
                    raise
                return
            row: dict[str, Any] = {"norms": values}
            if known is None:  # drawn before the state was loaded: its row is not in this ledger
                row |= cohort_values(cohort)
            self._commit("observed", cohort.round_index, row)
            standing.open.pop(cohort.round_index, None)
            standing.last_observed = cohort.round_index
            self._handed_out.discard(cohort.round_index)
            self._snapshot_if_due(standing)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin this run where another one stood; to be called before the first draw."""
        with self._changing() as standing:
            with self._refusable(standing):
                if self._store.last > 0:
                    raise StateError("state must be loaded before anything else, got a run under way")
                standing.sampler.load_state_dict(state)
            round_index = int(state.get("round_index", 0))
            row = {f"state.{name}": value for name, value in state.items()}
            self._commit("loaded", -1, {"round_index": round_index, **row})
            standing.round_index = round_index

    # Joining and leaving -----------------------------------------------------------------------------

    def add_clients(self, clients: int | ArrayLike, *, client_weights: ArrayLike | None = None) -> IntArray:
        """Let clients join, as the sampler's ``add_clients`` does, and commit it."""
        with self._changing() as standing:
            with self._refusable(standing):
                add_clients = method_of(standing.sampler, "add_clients")
                newcomers: IntArray = add_clients(clients, client_weights=client_weights)
            joined = int(np.asarray(clients)) if np.ndim(clients) == 0 else np.asarray(clients, dtype=float)
            weights = None if client_weights is None else np.asarray(client_weights, dtype=float)
            self._commit("joined", -1, {"clients": joined, "client_weights": weights, "ids": newcomers})
            return newcomers

    def remove_clients(self, clients: ArrayLike) -> None:
        """Let clients leave, as the sampler's ``remove_clients`` does, and commit it."""
        with self._changing() as standing:
            with self._refusable(standing):
                method_of(standing.sampler, "remove_clients")(clients)
            self._commit("left", -1, {"clients": np.asarray(clients, dtype=np.int64)})

    def calibrate(self, norms: ArrayLike, clients: ArrayLike | None = None) -> None:
        """Set the feedback bound, as the sampler's ``calibrate`` does, and commit it."""
        with self._changing() as standing:
            with self._refusable(standing):
                method_of(standing.sampler, "calibrate")(norms, clients)
            asked = None if clients is None else np.asarray(clients, dtype=np.int64)
            self._commit("calibrated", -1, {"norms": _floats(norms), "clients": asked})

    # Beyond the protocol -----------------------------------------------------------------------------

    @property
    def sampler(self) -> Any:
        """The sampler itself, to look at: what it is told behind the ledger's back is not recorded."""
        return self._current().sampler

    def open_cohorts(self) -> list[Cohort]:
        """The cohorts that await feedback, oldest first."""
        return list(self._current().open.values())

    @property
    def last_observed(self) -> int | None:
        """The round that had feedback last, be it an old one that was late; None before the first."""
        return self._current().last_observed

    def attach(self, round_index: int, name: str, arrays: Plain) -> None:
        """Keep plain arrays, numbers and strings beside a round that was drawn, or the next one, durably.

        The last two that were attached under a name stay, and that of ``last_observed``.
        """
        with self._mutex:
            standing = self._current()
            if whole_number("round_index", round_index, least=0) > standing.round_index:
                raise ConfigurationError(
                    f"round_index must be a round that was drawn, or the next one, {standing.round_index}, "
                    f"got {round_index}"
                )
            self._attachments.write(round_index, name, arrays, needed=standing.last_observed)

    def attachment(self, round_index: int, name: str) -> dict[str, Any] | None:
        """What was attached to that round under that name; None if nothing was, or it is there no more."""
        with self._mutex:
            return self._attachments.read(round_index, name)

    def close(self) -> None:
        """Take a snapshot, unless there is one already, and let the next one write; also if it raises.

        A run that was dropped before has let go already: it takes none.
        """
        with self._mutex:
            if self._closed:
                return
            try:
                self._lock.check_process()
                if self._lock.is_held:
                    self._check_places(closing=True)
                    if self._standing is not None and self._snapshot_at < self._store.last:
                        self._snapshot(self._standing)
            finally:
                self._abandon()

    def __enter__(self) -> RecordedSampler:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Details -----------------------------------------------------------------------------------------

    def _abandon(self) -> None:
        """Let go of everything as it is: what a crash does."""
        self._closed = True
        self._standing = None
        self._store.close()
        self._lock.release()

    def _check_open(self) -> None:
        if self._closed:
            raise LedgerError(f"{self._store.path} must be open, but this run was closed")
        self._lock.check_process()
        if not self._lock.is_held:
            raise LedgerError(
                f"{self._store.path} must be open, but this run was dropped, and its lock with it"
            )
        self._check_places()

    def _check_places(self, *, closing: bool = False) -> None:
        """Whoever has files that are elsewhere by now is not the writer."""
        self._lock.check_place(closing=closing)
        self._store.check_place(closing=closing)

    def _current(self) -> Replayed:
        with self._mutex:
            self._check_open()
            if self._standing is None:
                self._store.refresh()
                standing, self._snapshot_at, self._snapshot_round = rebuild(
                    self._make_sampler, self._store, self._files
                )
                self._lock.note(self._store.last, self._store.last_checksum)
                self._standing = standing
            return self._standing

    @contextmanager
    def _changing(self) -> Iterator[Replayed]:
        """Memory counts as out of date until the change is through, or the sampler refuses it."""
        with self._mutex:
            standing = self._current()
            self._standing = None
            yield standing
            self._standing = standing

    @contextmanager
    def _refusable(self, standing: Replayed) -> Iterator[None]:
        """Around a call of the sampler, and nothing else: what it refuses leaves it as it was."""
        try:
            yield
        except LedgerError:
            raise
        except SortitionError:
            self._standing = standing
            raise

    def _commit(self, kind: str, round_index: int, values: Plain) -> None:
        self._store.append(kind, round_index, values)
        self._lock.note(self._store.last, self._store.last_checksum)

    def _taken_already(self, cohort: Cohort, norms: FloatArray) -> bool:
        """Whether this very feedback to this very cohort is on disk."""
        observed = self._store.find("observed", getattr(cohort, "round_index", -1))
        if observed is None:
            return False
        values = observed.values()
        drawn = self._store.find("drawn", cohort.round_index) or observed
        if not same_cohort(cohort, cohort_of(cohort.round_index, drawn.values())):
            return False
        if not same_norms(values["norms"], norms):
            raise CohortError(
                f"cohort must await feedback, but round {cohort.round_index} has had other feedback already"
            )
        return True

    def _snapshot_if_due(self, standing: Replayed) -> None:
        if standing.round_index - self._snapshot_round >= self._snapshot_every:
            self._snapshot(standing)

    def _snapshot(self, standing: Replayed) -> None:
        """Save the time of a replay. A disk that has no room for it does no harm: the rows are there."""
        self._snapshot_round = standing.round_index
        try:
            values = snapshot_values(standing, self._store.last_checksum)
            self._files.write(SNAPSHOT, self._store.last, values)
        except OSError as error:
            warnings.warn(f"no snapshot of {self._store.path}: {error}", RuntimeWarning, stacklevel=5)
        else:
            self._snapshot_at = self._store.last


def _floats(norms: ArrayLike) -> FloatArray | None:
    """A copy of ``norms`` that nobody else can change; None where the sampler shall say what is wrong."""
    try:
        return np.array(norms, dtype=np.float64)
    except (TypeError, ValueError):
        return None
