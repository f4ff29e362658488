"""Files that are whole or not there: written aside, synced, renamed, and sealed with a checksum.

The side directory of ``run.db`` is ``run.db.d``. It holds the snapshots and attachments; the last two written
of each name are kept, so that there is one to fall back on.
"""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

from sortition.core.errors import ConfigurationError, LedgerError
from sortition.ledger.encoding import Plain, pieces, unpack

MAGIC = b"sortition sealed file 2\n"
RUN_BYTES = 16
DIGEST_BYTES = 32
KEPT = 2
UNFINISHED = ".unfinished"


def run_file(path: str | os.PathLike[str]) -> Path:
    """Where a run really is: whatever links lead to it, it has one side directory and so one lock."""
    try:
        given = Path(path)
        found = given.resolve()
    except (TypeError, ValueError, OSError, RuntimeError) as error:
        raise ConfigurationError(f"path must name a file, got {path!r} ({error})") from None
    if not given.name:
        raise LedgerError(f"path must name a file, got the directory {str(given)!r}")
    return found


def side_directory(run: Path) -> Path:
    """Where a run keeps what is not in its database."""
    return run.with_name(run.name + ".d")


def belongs_to(run: Path, file: Path) -> bool:
    """Whether ``file`` is one of the files of that run, or would be: nobody else may write there."""
    run, file = Path(os.path.realpath(run)), Path(os.path.realpath(file))
    own = {run, *(run.with_name(run.name + end) for end in ("-wal", "-shm", "-journal"))}
    return file in own or side_directory(run) in (file, *file.parents)


class SealedFiles:
    """Numbered files of one run: ``<name>-<number>``, each with the run's id and a checksum."""

    def __init__(self, directory: Path, run_id: bytes) -> None:
        self.directory = directory
        self._run_id = run_id

    def write(self, name: str, number: int, values: Plain, *, needed: int | None = None) -> None:
        """Write a file durably, and let go of all of its name but the last two written and ``needed``.

        Its time says when it was written; it is after that of all others, whatever the clock does.
        """
        target = self._file(name, number)
        unfinished = target.with_name(target.name + UNFINISHED)
        digest = blake2b(target.name.encode(), digest_size=DIGEST_BYTES)
        others = sorted((self._time(name, other), other) for other in self.numbers(name) if other != number)
        now = max(time.time_ns(), others[-1][0] + 1 if others else 0)
        try:
            with open(unfinished, "wb", opener=_private) as file:
                for piece in (MAGIC, self._run_id, *pieces(values)):
                    digest.update(piece)
                    file.write(piece)
                file.write(digest.digest())
                file.flush()
                os.utime(file.fileno(), ns=(now, now))
                os.fsync(file.fileno())
            os.replace(unfinished, target)
            sync(self.directory)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        for _, old in others[: -(KEPT - 1)]:
            if old != needed:
                self._file(name, old).unlink(missing_ok=True)

    def tidy(self) -> None:
        """Remove what a writer that was killed had not finished; for the one who holds the lock."""
        for leftover in self.directory.glob(f"*-*{UNFINISHED}"):
            with suppress(OSError):  # it takes room, and does no other harm
                leftover.unlink()

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
        with open(file, "rb", opener=plain_file) as opened:
            data = memoryview(opened.read())
        start = len(MAGIC) + RUN_BYTES
        magic, body = bytes(data[: len(MAGIC)]), data[:-DIGEST_BYTES]
        digest = blake2b(file.name.encode(), digest_size=DIGEST_BYTES)
        digest.update(body)
        if len(data) < start + DIGEST_BYTES or magic != MAGIC or digest.digest() != data[-DIGEST_BYTES:]:
            raise LedgerError(
                f"{file} must be as it was written, but its checksum says that it has changed, or its name"
            )
        if data[len(MAGIC) : start] != self._run_id:
            raise LedgerError(f"{file} must belong to this run, but it was written by another one")
        return unpack(body[start:])

    def _time(self, name: str, number: int) -> int:
        try:
            return self._file(name, number).stat().st_mtime_ns
        except FileNotFoundError:  # somebody else's: named almost as ours are
            return 0

    def _file(self, name: str, number: int) -> Path:
        return self.directory / f"{name}-{number:09d}"


def plain_file(path: str | Path, flags: int) -> int:
    """Opens a file that is one: to open a pipe would be to wait for whoever writes to it."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise LedgerError(f"{path} must be a plain file, got another kind of file")
    return descriptor


def _private(path: str, flags: int) -> int:
    """Opens a file that is its owner's alone: norms and keys are not for everybody."""
    return os.open(path, flags, 0o600)


def sync(path: Path) -> None:
    """Make durable what a file holds, whoever wrote it, or which names a directory has."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe can't be synced, nor waited for
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
