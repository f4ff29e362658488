"""Opening a run for writing: the one that is there, or a new one."""

from __future__ import annotations

import os
import secrets
import sqlite3
from pathlib import Path

from sortition.core.errors import LedgerError
from sortition.core.validation import whole_number
from sortition.ledger.files import SealedFiles, run_file, side_directory, sync
from sortition.ledger.lock import LOCK, WriterLock, witness
from sortition.ledger.recipe import recipe
from sortition.ledger.recorded import RecordedSampler
from sortition.ledger.replay import MakeSampler, built
from sortition.ledger.schema import check_header
from sortition.ledger.store import Store
from sortition.ledger.trouble import sqlite_trouble, wal_of

NEW = "new.db"


def open_run(
    path: str | os.PathLike[str], make_sampler: MakeSampler, *, snapshot_every: int = 1000
) -> RecordedSampler:
    """Continue the run at ``path``, or begin it; ``make_sampler()`` builds the sampler it is begun with.

    The sampler must be built with the same settings each time; the seed is that of the first time. A snapshot
    is taken every ``snapshot_every`` rounds and when the run is closed.
    """
    snapshot_every = whole_number("snapshot_every", snapshot_every, least=1)
    run = run_file(path)
    directory = side_directory(run)
    if run.exists():
        check_header(run)
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise LedgerError(f"{run} must be in a directory that can be written to, got {error}") from None
    lock = WriterLock(directory / LOCK, run)
    try:
        if not run.exists():
            _begin(run, directory, make_sampler)
        _settle(run, directory)
        store = Store(run, write=True)
        try:
            store.check_witness(witness(directory / LOCK))
            run_id = bytes.fromhex(store.event(0).values()["run_id"])
            files = SealedFiles(directory, run_id)
            files.tidy()
            return RecordedSampler(store, files, lock, make_sampler, snapshot_every)
        except BaseException:
            store.close()
            raise
    except BaseException:
        lock.release()
        raise


def _begin(run: Path, directory: Path, make_sampler: MakeSampler) -> None:
    """Write a new run aside and move it into place: ``run`` is whole or not there."""
    remains = [file.name for file in directory.iterdir() if not file.name.startswith((LOCK, NEW))]
    wal = wal_of(run)
    if wal.exists():
        remains.append(wal.name)
    if remains or witness(directory / LOCK) is not None:
        raise LedgerError(
            f"{run} must be there, for {directory} and {wal} hold the rest of it, but it is missing; "
            "put it back, or move these away to begin anew"
        )
    sampler = built(make_sampler)
    new = directory / NEW
    try:
        for leftover in directory.glob(NEW + "*"):
            leftover.unlink()
        first = {
            "run_id": secrets.token_hex(16),
            **recipe(sampler),
            **{f"state.{name}": value for name, value in sampler.state_dict().items()},
        }
        Store.create(new, first)
        os.rename(new, run)
    except sqlite3.Error as error:
        raise LedgerError(sqlite_trouble(run, "be in a directory that can be written to", error)) from error
    except OSError as error:
        raise LedgerError(f"{run} must be in a directory that can be written to, got {error}") from error


def _settle(run: Path, directory: Path) -> None:
    """Make durable what is there, before anything is built on it.

    A writer that was killed may have left a row that it had not synced yet. It counts: its cohort is handed
    out again, the witness learns of it. If the power went then, it would be missing.
    """
    try:
        if wal_of(run).exists():
            sync(wal_of(run))
        sync(directory)
        sync(run.parent)
    except OSError as error:
        raise LedgerError(f"{run} must be on a disk that can be written to, got {error}") from error
