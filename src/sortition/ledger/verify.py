"""Checking a run: every checksum, and every round repeated from the start."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from sortition.core.errors import LedgerError
from sortition.core.validation import named_keywords, printable
from sortition.ledger.encoding import pack
from sortition.ledger.files import ATTACHMENT, SNAPSHOT, RunFiles, plain_file, run_file, side_directory
from sortition.ledger.lock import LOCK, witness
from sortition.ledger.replay import MakeSampler, Replayed, begin, maker_from, snapshot_values
from sortition.ledger.store import OnRow, Store


@dataclass(frozen=True, slots=True)
class Verified:
    """What was checked and found to be right."""

    rows: int
    rounds: int
    snapshots: int
    attachments: int
    replayed: bool
    """Whether the sampler was built and drew every cohort again; if not, only checksums were checked."""
    sampler: str
    """The class of the sampler."""


@named_keywords
def verify_run(
    path: str | os.PathLike[str],
    make_sampler: MakeSampler | None = None,
    *,
    on_row: OnRow | None = None,
) -> Verified:
    """Check everything that is on disk of a run; a LedgerError says what is wrong.

    The rounds are drawn and learnt from again and compared with the record, and so are the snapshots. A
    sampler of the library is built from the settings in the record. For a class of your own, give
    ``make_sampler``. While rows are read, ``on_row(done, total)`` is called.
    """
    run = run_file(path)
    directory = side_directory(run)
    _check_readable(directory)
    known = witness(directory / LOCK)
    store = Store(run, write=False)
    store.on_row = on_row
    try:
        store.check_structure()
        store.check_witness(known)
        first = store.event(0)
        values = first.values()
        files = RunFiles(directory, bytes.fromhex(values["run_id"]))
        snapshots = files.numbers(SNAPSHOT)
        make = make_sampler or maker_from(values)
        replayed = None if make is None else begin(make, first)
        compared = 0
        rounds = set()
        for event in store.events():
            if event.kind in ("drawn", "observed"):
                rounds.add(event.round_index)
            if replayed is not None and event.number > 0:
                replayed.apply(event)
            if event.number in snapshots:
                compared += _check_snapshot(files, event.number, event.checksum, replayed)
        beyond = [number for number in snapshots if number > store.last]
        if beyond and not _being_written(store, run):
            raise store.damage(f"rows are missing from {run}: a snapshot was taken after row {beyond[0]}")
        return Verified(
            rows=store.last + 1,
            rounds=len(rounds),
            snapshots=compared,
            attachments=_check_attachments(files),
            replayed=replayed is not None,
            sampler=printable(str(values.get("sampler"))),
        )
    finally:
        store.close()


def _check_readable(directory: Path) -> None:
    """A LedgerError if the side directory cannot be read; a run without one may still be whole."""
    try:
        if directory.exists():
            os.listdir(directory)
        os.close(plain_file(directory / LOCK, os.O_RDONLY))
    except FileNotFoundError:
        return
    except OSError as error:
        raise LedgerError(f"{error.filename} cannot be read: {error.strerror}") from None


def _check_snapshot(files: RunFiles, number: int, checksum: bytes, replayed: Replayed | None) -> int:
    try:
        snapshot = files.read(SNAPSHOT, number)
    except FileNotFoundError:  # a writer has replaced it by a newer one meanwhile
        return 0
    except LedgerError as error:
        raise LedgerError(f"{error}; remove it: open_run does not need it") from error
    if str(snapshot.get("checksum")) != checksum.hex():
        raise LedgerError(f"the snapshot after row {number} has the checksum of another row; remove it")
    if replayed is not None and pack(snapshot) != pack(snapshot_values(replayed, checksum)):
        raise LedgerError(
            f"the snapshot after row {number} differs from the replay up to that row; remove it"
        )
    return 1


def _being_written(store: Store, run: Path) -> bool:
    """Whether rows were added since ``store`` was opened."""
    later = Store(run, write=False)
    try:
        return later.last > store.last
    finally:
        later.close()


def _check_attachments(files: RunFiles) -> int:
    checked = 0
    for name in files.attachment_names():
        for number in files.numbers(ATTACHMENT + name):
            checked += files.attachment(number, name) is not None
    return checked
