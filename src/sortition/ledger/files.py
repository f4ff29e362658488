"""Snapshots and attachments: files of a run that are whole or not there, each with a checksum.

The side directory of ``run.db`` is ``run.db.d``. A file is written aside, synced and renamed. The two files
of each name that were written last are kept, so there is one to fall back on.

Arrays of an attachment that are constant (``core.state.constant``) go to a file of their own, once: an
attachment says for each of them which file holds it. Such a file stays while an attachment needs it.
"""

from __future__ import annotations

import json
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
from sortition.core.state import constant, is_constant
from sortition.core.validation import whole_number
from sortition.ledger.encoding import Plain, outline, packed_size, pieces, unpack

SNAPSHOT = "snapshot"
ATTACHMENT = "attachment_"
"""The name of an attachment's file starts with this."""
CONSTANTS = "constants_"
"""The name of a file with constant arrays of an attachment starts with this."""
CONSTANT_FILES = ".constants"
"""The entry of an attachment that says which file holds each of its constant arrays."""
MOST_BYTES = 2
"""Files of constants take at most this many times the bytes in use; then the oldest are written again."""
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
        self._held: dict[str, dict[str, tuple[Any, int]]] = {}  # constant arrays and their files, by name
        self._needs: dict[str, dict[int, set[int]]] = {}  # the files that each attachment of a name needs

    def write(self, name: str, number: int, values: Plain, *, needed: int | None = None) -> None:
        """Write a file durably, then remove all others of its name except the last one and ``needed``.

        Its modification time is later than that of all others of its name, even if the clock went back.
        """
        others = sorted((self._time(name, other), other) for other in self.numbers(name) if other != number)
        self._write(name, number, values, max(time.time_ns(), others[-1][0] + 1 if others else 0))
        for _, old in others[: -(KEPT - 1)]:
            if old != needed:
                self._file(name, old).unlink(missing_ok=True)

    def _write(self, name: str, number: int, values: Plain, now: int) -> None:
        target = self._file(name, number)
        unfinished = target.with_name(target.name + UNFINISHED)
        digest = blake2b(target.name.encode(), digest_size=DIGEST_BYTES)
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

    def read(self, name: str, number: int) -> dict[str, Any]:
        """The values of a file; a LedgerError if it is damaged, a FileNotFoundError if there is none."""
        file = self._file(name, number)
        data = _sealed(file)
        start = len(MAGIC) + RUN_BYTES
        if data[len(MAGIC) : start] != self._run_id:
            raise LedgerError(f"{file} belongs to another run")
        return unpack(data[start:-DIGEST_BYTES])

    def outline(self, name: str, number: int) -> dict[str, Any]:
        """The plain values of a file, and None for each array. Its checksum is not looked at."""
        with open(self._file(name, number), "rb", opener=plain_file) as opened:
            opened.seek(len(MAGIC) + RUN_BYTES)
            return outline(opened)

    def attach(self, round_index: int, name: str, arrays: Plain, *, needed: int | None) -> None:
        """Write an attachment durably; of that name the last two stay, and the one of round ``needed``.

        A constant array that was in the last attachment of that name, or in the first one that was read, is
        not written again.
        """
        number, file_name = whole_number("round_index", round_index, least=0), _attachment_file(name)
        if not isinstance(arrays, Mapping):
            raise ConfigurationError(f"arrays must be a mapping of names to plain values, got {arrays!r}")
        if CONSTANT_FILES in arrays:
            raise ConfigurationError(
                f"arrays must not hold the name {CONSTANT_FILES!r}, which the ledger uses"
            )
        try:
            files = self._write_constants(name, arrays)
            rest = {entry: value for entry, value in arrays.items() if entry not in files}
            self.write(file_name, number, {**rest, CONSTANT_FILES: json.dumps(files)}, needed=needed)
            self._needs.setdefault(name, {})[number] = set(files.values())
            self._remove_constants(name)
        except OSError as error:
            raise LedgerError(f"{self.directory} cannot be written to: {error}") from error

    def _write_constants(self, name: str, arrays: Plain) -> dict[str, int]:
        """The file of each constant array; one file is written, with those that are in none yet."""
        constants = {entry: value for entry, value in arrays.items() if is_constant(value)}
        present = self.numbers(CONSTANTS + name)
        files = {
            entry: number
            for entry, (value, number) in self._held.get(name, {}).items()
            if value is constants.get(entry) and number in present
        }
        in_use = sum(value.nbytes for value in constants.values())
        sizes = {
            number: self._file(CONSTANTS + name, number).stat().st_size for number in set(files.values())
        }
        while sizes and sum(sizes.values()) > MOST_BYTES * in_use:
            oldest = min(sizes)
            del sizes[oldest]
            files = {entry: number for entry, number in files.items() if number != oldest}
        new = {entry: value for entry, value in constants.items() if entry not in files}
        if new:
            number = max(present, default=-1) + 1
            self._write(CONSTANTS + name, number, new, time.time_ns())
            files |= dict.fromkeys(new, number)
        self._held[name] = {entry: (value, files[entry]) for entry, value in constants.items()}
        return files

    def _remove_constants(self, name: str) -> None:
        """Remove the files of constants that no attachment needs, unless an attachment can't be read."""
        present, attached = self.numbers(CONSTANTS + name), self.numbers(ATTACHMENT + name)
        known = self._needs[name]
        needs = self._needs[name] = {number: known[number] for number in attached if number in known}
        for number in attached if present else []:
            if number not in needs:
                try:
                    needs[number] = set(self._read_attachment(name, number)[1].values())
                except (LedgerError, OSError):
                    return
        gone = set(present).difference(*needs.values())
        if gone:
            sync(self.directory)  # first, the attachments that needed them must be gone for good
        for number in gone:
            self._file(CONSTANTS + name, number).unlink(missing_ok=True)

    def attachment(self, round_index: int, name: str) -> dict[str, Any] | None:
        """An attachment, or None if there is none; the error for a damaged one names those that are good."""
        number, file_name = whole_number("round_index", round_index, least=0), _attachment_file(name)
        try:
            values, held = self._attached(name, number)
            self._held.setdefault(name, held)
            return values
        except FileNotFoundError:
            return None
        except LedgerError as error:
            advice = self._good_attachments(file_name, number)
            raise LedgerError(f"{error}; put a copy of it there, or {advice}") from error

    def _attached(self, name: str, number: int) -> tuple[dict[str, Any], dict[str, tuple[Any, int]]]:
        """An attachment with its constant arrays, and these alone with the numbers of their files."""
        values, files = self._read_attachment(name, number)
        held: dict[str, tuple[Any, int]] = {}
        try:
            for holder in sorted(set(files.values())):
                found = self.read(CONSTANTS + name, holder)
                held |= {entry: (constant(found[entry]), holder) for entry, n in files.items() if n == holder}
        except (FileNotFoundError, KeyError) as error:
            file = self._file(ATTACHMENT + name, number)
            if not file.exists():  # a writer has removed both meanwhile
                raise FileNotFoundError(file) from None
            raise LedgerError(f"{file} has arrays in another file that are missing: {error}") from None
        return {**values, **{entry: value for entry, (value, _) in held.items()}}, held

    def _read_attachment(self, name: str, number: int) -> tuple[dict[str, Any], dict[str, int]]:
        """An attachment without its constant arrays, and the numbers of their files."""
        values = self.read(ATTACHMENT + name, number)
        try:
            files = {str(entry): int(n) for entry, n in json.loads(values.pop(CONSTANT_FILES)).items()}
        except (KeyError, ValueError, TypeError, AttributeError):
            raise LedgerError(f"{self._file(ATTACHMENT + name, number)} is no attachment") from None
        return values, files

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
                    self._attached(name, number)
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


def _sealed(file: Path) -> memoryview:
    """The bytes of a snapshot, an attachment or constants; a LedgerError if they are not as written.

    No more is read than the start of the file says: a damaged one may be longer than the memory.
    """
    changed = LedgerError(f"{file} or its name has changed since it was written: its checksum is wrong")
    with open(file, "rb", opener=plain_file) as opened:
        if opened.read(len(MAGIC)) != MAGIC:
            raise changed
        try:
            opened.seek(RUN_BYTES, os.SEEK_CUR)
            size = len(MAGIC) + RUN_BYTES + packed_size(opened) + DIGEST_BYTES
            if size != os.fstat(opened.fileno()).st_size:
                raise changed
            opened.seek(0)
            data = memoryview(opened.read(size))
        except (LedgerError, MemoryError):
            raise changed from None
    digest = blake2b(file.name.encode(), digest_size=DIGEST_BYTES)
    digest.update(data[:-DIGEST_BYTES])
    if digest.digest() != data[-DIGEST_BYTES:]:
        raise changed
    return data


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
