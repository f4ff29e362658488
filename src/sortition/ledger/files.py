"""Files that are whole or not there: written aside, synced, renamed, and sealed with a checksum.

The side directory of ``run.db`` is ``run.db.d``. It holds the snapshots and attachments; the newest two of
each name are kept, so that there is one to fall back on.
"""

from __future__ import annotations

import os
from hashlib import blake2b
from pathlib import Path
from typing import Any

from sortition.core.errors import LedgerError
from sortition.ledger.encoding import Plain, pieces, unpack

MAGIC = b"sortition sealed file 1\n"
RUN_BYTES = 16
DIGEST_BYTES = 32
KEPT = 2


def side_directory(path: Path) -> Path:
    """Where a run keeps what is not in its database."""
    if not path.name:
        raise LedgerError(f"path must name a file, got the directory {str(path)!r}")
    return path.with_name(path.name + ".d")


class SealedFiles:
    """Numbered files of one run: ``<name>-<number>``, each with the run's id and a checksum."""

    def __init__(self, directory: Path, run_id: bytes) -> None:
        self.directory = directory
        self._run_id = run_id

    def write(self, name: str, number: int, values: Plain) -> None:
        """Write a file durably, and let go of all but the newest of its name."""
        target = self._file(name, number)
        unfinished = target.with_name(target.name + ".unfinished")
        digest = blake2b(digest_size=DIGEST_BYTES)
        try:
            with open(unfinished, "wb") as file:
                for piece in (MAGIC, self._run_id, *pieces(values)):
                    digest.update(piece)
                    file.write(piece)
                file.write(digest.digest())
                file.flush()
                os.fsync(file.fileno())
            os.replace(unfinished, target)
            sync_directory(self.directory)
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise
        for old in self.numbers(name)[:-KEPT]:
            self._file(name, old).unlink(missing_ok=True)

    def numbers(self, name: str) -> list[int]:
        """The numbers of the files of that name, ascending; whole or not."""
        found = []
        for file in self.directory.glob(f"{name}-*"):
            number = file.name[len(name) + 1 :]
            if number.isdecimal():
                found.append(int(number))
        return sorted(found)

    def names(self) -> set[str]:
        """The names of all files there are."""
        files = (file.name.rpartition("-") for file in self.directory.glob("*-*"))
        return {name for name, _, number in files if number.isdecimal()}

    def read(self, name: str, number: int) -> dict[str, Any]:
        """What was written, or a LedgerError; FileNotFoundError if there is no such file."""
        file = self._file(name, number)
        data = memoryview(file.read_bytes())
        start = len(MAGIC) + RUN_BYTES
        body = data[:-DIGEST_BYTES]
        if (
            len(data) < start + DIGEST_BYTES
            or bytes(data[: len(MAGIC)]) != MAGIC
            or blake2b(body, digest_size=DIGEST_BYTES).digest() != data[-DIGEST_BYTES:]
        ):
            raise LedgerError(f"{file} must be as it was written, but its checksum says that it has changed")
        if data[len(MAGIC) : start] != self._run_id:
            raise LedgerError(f"{file} must belong to this run, but it was written by another one")
        return unpack(body[start:])

    def _file(self, name: str, number: int) -> Path:
        return self.directory / f"{name}-{number:09d}"


def sync_directory(directory: Path) -> None:
    """Make renames in ``directory`` durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
