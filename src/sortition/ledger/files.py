"""Snapshots and attachments: files of a run that are whole or not there, each with a checksum.

The side directory of ``run.db`` is ``run.db.d``. A file is written aside, synced and renamed. The two files
of each name that were written last are kept, so there is one to fall back on.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

from sortition.core.errors import ConfigurationError, LedgerError
from sortition.core.validation import whole_number
from sortition.ledger.encoding import Plain, pieces, unpack

SNAPSHOT = "snapshot"
ATTACHMENT = "attachment_"
"""The name of an attachment's file starts with this."""
MAGIC = b"sortition sealed file 2\n"
RUN_BYTES = 16
DIGEST_BYTES = 32
KEPT = 2
UNFINISHED = ".unfinished"
_ATTACHMENT_NAME = re.compile(r"[A-Za-z0-9_]{1,64}")


def run_file(path: str | os.PathLike[str]) -> Path:
    """The real path of a run. Whatever links lead to it, it has one side directory and so one lock."""
    try:
        given = Path(path)
        found = given.resolve()
    except (TypeError, ValueError, OSError, RuntimeError) as error:
        raise ConfigurationError(f"path must name a file, got {path!r} ({error})") from None
    if not given.name:
        raise LedgerError(f"path must name a file, got the directory {str(given)!r}")
    return found


def side_directory(run: Path) -> Path:
    """Where a run keeps everything that is not in its database."""
    return run.with_name(run.name + ".d")


def belongs_to(run: Path, file: Path) -> bool:
    """Whether ``file`` is, or would be, one of the files of that run. Nothing else may be written there."""
    run, file = Path(os.path.realpath(run)), Path(os.path.realpath(file))
    own = {run, *(run.with_name(run.name + end) for end in ("-wal", "-shm", "-journal"))}
    return file in own or side_directory(run) in (file, *file.parents)


class RunFiles:
    """The numbered files of one run, ``<name>-<number>``; each holds the run's id and a checksum."""

    def __init__(self, directory: Path, run_id: bytes) -> None:
        self.directory = directory
        self._run_id = run_id

    def write(self, name: str, number: int, values: Plain, *, needed: int | None = None) -> None:
        """Write a file durably, then remove all others of its name except the last one and ``needed``.

        Its modification time is later than that of all others of its name, even if the clock went back.
        """
        target = self._file(name, number)
        unfinished = target.with_name(target.name + UNFINISHED)
        digest = blake2b(target.name.encode(), digest_size=DIGEST_BYTES)
        others = sorted((self._time(name, other), other) for other in self.numbers(name) if other != number)
        now = max(time.time_ns(), others[-1][0] + 1 if others else 0)
        try:
            with open(unfinished, "wb", opener=private) as file:
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

    def read(self, name: str, number: int) -> dict[str, Any]:
        """The values of a file; a LedgerError if it is damaged, a FileNotFoundError if there is none."""
        file = self._file(name, number)
        with open(file, "rb", opener=plain_file) as opened:
            data = memoryview(opened.read())
        start = len(MAGIC) + RUN_BYTES
        magic, body = bytes(data[: len(MAGIC)]), data[:-DIGEST_BYTES]
        digest = blake2b(file.name.encode(), digest_size=DIGEST_BYTES)
        digest.update(body)
        if len(data) < start + DIGEST_BYTES or magic != MAGIC or digest.digest() != data[-DIGEST_BYTES:]:
            raise LedgerError(f"{file} or its name has changed since it was written: its checksum is wrong")
        if data[len(MAGIC) : start] != self._run_id:
            raise LedgerError(f"{file} belongs to another run")
        return unpack(body[start:])

    def attach(self, round_index: int, name: str, arrays: Plain, *, needed: int | None) -> None:
        """Write an attachment durably; of that name the last two stay, and the one of round ``needed``."""
        number, file_name = whole_number("round_index", round_index, least=0), _attachment_file(name)
        if not isinstance(arrays, Mapping):
            raise ConfigurationError(f"arrays must be a mapping of names to plain values, got {arrays!r}")
        try:
            self.write(file_name, number, arrays, needed=needed)
        except OSError as error:
            raise LedgerError(f"{self.directory} cannot be written to: {error}") from error

    def attachment(self, round_index: int, name: str) -> dict[str, Any] | None:
        """An attachment, or None if there is none; the error for a damaged one names those that are good."""
        number, file_name = whole_number("round_index", round_index, least=0), _attachment_file(name)
        try:
            return self.read(file_name, number)
        except FileNotFoundError:
            return None
        except LedgerError as error:
            advice = self._good_attachments(file_name, number)
            raise LedgerError(f"{error}; put a copy of it there, or {advice}") from error

    def remove_unfinished(self) -> None:
        """Remove what a killed writer left unfinished. Only the holder of the lock may do this."""
        for leftover in self.directory.glob(f"*-*{UNFINISHED}"):
            with suppress(OSError):  # it takes space and does no other harm
                leftover.unlink()

    def numbers(self, name: str) -> list[int]:
        """The numbers of the files with that name, damaged or not, ascending."""
        found = []
        for file in self.directory.glob(f"{name}-*"):
            number = file.name[len(name) + 1 :]
            if number.isdecimal():
                found.append(int(number))
        return sorted(found)

    def attachment_names(self) -> list[str]:
        """The names of all attachments."""
        files = (file.name.rpartition("-") for file in self.directory.glob(f"{ATTACHMENT}*-*"))
        return sorted({name.removeprefix(ATTACHMENT) for name, _, number in files if number.isdecimal()})

    def _good_attachments(self, file_name: str, damaged: int) -> str:
        good, name = [], file_name.removeprefix(ATTACHMENT)
        for number in self.numbers(file_name):
            with suppress(LedgerError, OSError):
                if number != damaged:
                    self.read(file_name, number)
                    good.append(f'attachment({number}, "{name}")')
        if not good:
            return f'go on without it: no other attachment "{name}" is good'
        return f"go on from another round: {' and '.join(good)} can be read"

    def _time(self, name: str, number: int) -> int:
        try:
            return self._file(name, number).stat().st_mtime_ns
        except FileNotFoundError:  # a foreign file with a similar name
            return 0

    def _file(self, name: str, number: int) -> Path:
        return self.directory / f"{name}-{number:09d}"


def _attachment_file(name: Any) -> str:
    if not isinstance(name, str) or not _ATTACHMENT_NAME.fullmatch(name):
        raise ConfigurationError(f"name must be 1 to 64 letters, digits and underscores, got {name!r}")
    return ATTACHMENT + name


def plain_file(path: str | Path, flags: int) -> int:
    """Open a regular file, and nothing else: a pipe would wait for a writer, a link may lead anywhere."""
    if os.path.islink(path):
        raise LedgerError(f"{path} must be a plain file, got a link")
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise LedgerError(f"{path} must be a plain file, got another kind of file")
    return descriptor


def make_side_directory(run: Path) -> Path:
    """The side directory of a run that is to be written: made if need be, and ours alone to write to."""
    directory = side_directory(run)
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        found = directory.lstat()
    except OSError as error:
        raise LedgerError(f"the directory of {run} cannot be written to: {error}") from None
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if not ours or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise LedgerError(
            f"{directory} must be a directory that belongs to you and that nobody else may write to: "
            "others could put links there, and what is written would go where they lead"
        )
    return directory


def private(path: str, flags: int) -> int:
    """Open a file that only its owner may read: it holds norms, and perhaps the key of the noise."""
    return os.open(path, flags, 0o600)


def sync(path: Path) -> None:
    """Make the contents of a file, or the names in a directory, durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # do not wait where a pipe is in the way
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
