"""Is a run what it was? Every checksum, and every round once more from the start."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from sortition.core.errors import LedgerError
from sortition.ledger.attachments import PREFIX, Attachments
from sortition.ledger.encoding import pack
from sortition.ledger.files import SealedFiles, run_file, side_directory
from sortition.ledger.lock import LOCK, witness
from sortition.ledger.recipe import maker
from sortition.ledger.record import OnRow, told
from sortition.ledger.replay import SNAPSHOT, MakeSampler, Replayed, begin, snapshot_values
from sortition.ledger.store import Store


@dataclass(frozen=True, slots=True)
class Verified:
    """What was found to be right."""

    rows: int
    rounds: int
    snapshots: int
    attachments: int
    replayed: bool
    """Whether the sampler could be built, and drew every cohort again; else only checksums were checked."""
    sampler: str
    """The kind of sampler."""


def verify_run(
    path: str | os.PathLike[str],
    make_sampler: MakeSampler | None = None,
    *,
    on_row: OnRow | None = None,
) -> Verified:
    """Check all that is on disk of a run; a LedgerError says what is wrong.

    The rounds are drawn and learnt from again and compared with the record, as are the snapshots. A sampler
    of the library is built from the settings in the record; for another one, give ``make_sampler``.
    ``on_row`` is told how many rows are done, and of how many.
    """
    run = run_file(path)
    directory = side_directory(run)
    _check_readable(directory)
    known = witness(directory / LOCK)
    store = Store(run, write=False)
    if on_row is not None:
        store.on_row = told(on_row, store)
    try:
        store.check_structure()
        store.check_witness(known)
        first = store.event(0)
        values = first.values()
        files = SealedFiles(directory, bytes.fromhex(values["run_id"]))
        snapshots = files.numbers(SNAPSHOT)
        make = make_sampler or maker(values)
        replayed = None if make is None else begin(make, first)
        compared = 0
        for event in store.events():
            if replayed is not None and event.number > 0:
                replayed.apply(event)
            if event.number in snapshots:
                compared += _check_snapshot(files, event.number, event.checksum, replayed)
        beyond = [number for number in snapshots if number > store.last]
        if beyond and not _being_written(store, run):
            raise store.damage(f"{run} must have the row {beyond[0]} of a snapshot: rows are missing")
        return Verified(
            rows=store.last + 1,
            rounds=len(store.numbers("drawn").keys() | store.numbers("observed").keys()),
            snapshots=compared,
            attachments=_check_attachments(files),
            replayed=replayed is not None,
            sampler=str(values.get("sampler")),
        )
    finally:
        store.close()


def _check_readable(directory: Path) -> None:
    """What can't be read can't be checked; a run without such a directory is whole all the same."""
    try:
        if directory.exists():
            os.listdir(directory)
        (directory / LOCK).open("rb").close()
    except FileNotFoundError:
        return
    except OSError as error:
        raise LedgerError(f"{error.filename} must be readable, got {error.strerror}") from None


def _check_snapshot(files: SealedFiles, number: int, checksum: bytes, replayed: Replayed | None) -> int:
    try:
        snapshot = files.read(SNAPSHOT, number)
    except FileNotFoundError:  # a writer has taken a newer one meanwhile
        return 0
    except LedgerError as error:
        raise LedgerError(f"{error}; remove it: open_run goes on without it, from the rows") from error
    if snapshot.get("checksum") != checksum.hex():
        raise LedgerError(f"the snapshot after row {number} must belong to that row, got another checksum")
    if replayed is not None and pack(snapshot) != pack(snapshot_values(replayed, checksum)):
        raise LedgerError(f"the snapshot after row {number} must equal the replay, but it differs")
    return 1


def _being_written(store: Store, run: Path) -> bool:
    """Whether rows were added since ``store`` was opened."""
    later = Store(run, write=False)
    try:
        return later.last > store.last
    finally:
        later.close()


def _check_attachments(files: SealedFiles) -> int:
    attachments, checked = Attachments(files), 0
    for name in sorted(files.names()):
        if name.startswith(PREFIX):
            for number in files.numbers(name):
                checked += attachments.read(number, name.removeprefix(PREFIX)) is not None
    return checked
