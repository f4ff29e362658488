"""One writer: a lock that the kernel releases when its process ends, however it ends.

The lock file also holds a witness: the number and checksum of the last committed row. It is written after the
commit and not synced, so it may lag behind but is never ahead. A database that knows less than its witness
has lost rows.
"""

from __future__ import annotations

import fcntl
import os
import re
import threading
import weakref
import zlib
from pathlib import Path

from sortition.core.errors import LedgerError
from sortition.ledger.files import plain_file

LOCK = "lock"
"""The name of the lock file, in the side directory of a run."""
_LONGEST_WITNESS = 128
_WITNESS = re.compile(rb"row (\d{1,18}) ([0-9a-f]{32}) check ([0-9a-f]{8})\n")


class WriterLock:
    """Held from construction to ``release``; a LedgerError at once if another writer holds it.

    If a run is dropped without being closed, its lock is released as soon as Python collects it.
    """

    def __init__(self, file: Path, run: Path) -> None:
        self.file = file
        self._run = run
        self._hold = _Hold(file, run)
        weakref.finalize(self, self._hold.release).atexit = False  # the end of the process does it as well

    @property
    def is_held(self) -> bool:
        """False once it was released, also if Python released it for a run that was dropped."""
        return self._hold.descriptor >= 0

    @property
    def identity(self) -> tuple[int, int] | None:
        """Which file is locked, whatever is at its path now."""
        return file_identity(self._hold.descriptor)

    def check_process(self) -> None:
        """A LedgerError in a forked child: it has a copy of the run in memory but is not the writer."""
        if os.getpid() != self._hold.process:
            raise LedgerError(
                f"{self._run} can only be written by the process that opened it, and this is a fork of it"
            )

    def note(self, number: int, checksum: bytes) -> None:
        """Write the witness of a row. If the disk cannot take it, the old one stays."""
        text = b"row %d %s" % (number, checksum.hex().encode())
        try:
            os.pwrite(self._hold.descriptor, b"%s check %08x\n" % (text, zlib.crc32(text)), 0)
        except OSError:
            return

    def release(self) -> None:
        """Let another writer in."""
        self._hold.release()


class _Hold:
    """The open lock file. It outlives its ``WriterLock``, so that a dropped one can still be released."""

    def __init__(self, file: Path, run: Path) -> None:
        self.run = run
        self.process = os.getpid()
        with _no_fork:
            try:
                self.descriptor = plain_file(file, os.O_RDWR | os.O_CREAT)
            except OSError as error:
                raise LedgerError(f"{run} cannot be opened for writing: {error}") from None
            _held.add(self)  # before it is locked: from now on every forked child closes it
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise LedgerError(f"{run} is open for writing already, {_holder(run)}") from None

    def release(self) -> None:
        """Unlock and close. A child that C code forked must not unlock: the lock is its parent's."""
        if self.descriptor >= 0 and os.getpid() == self.process:
            fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        self.close()

    def close(self) -> None:
        """Close the file, once: afterwards the number of the descriptor may be another file's."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


_held: weakref.WeakSet[_Hold] = weakref.WeakSet()
_no_fork = threading.RLock()
"""Held while a lock file is open that ``_held`` does not contain yet."""


def _holder(run: Path) -> str:
    """Where the run is open, and what to do."""
    if any(hold.run == run and hold.descriptor >= 0 for hold in tuple(_held)):
        return "in this process: call close() on that run first, or open it in a with block"
    return "in another process; read_run and the sortition runs commands can read it all the same"


def _close_in_a_fork() -> None:
    """Without this a worker that outlives its killed parent would keep the parent's locks."""
    _no_fork.release()
    for hold in tuple(_held):
        hold.close()


os.register_at_fork(
    before=_no_fork.acquire, after_in_parent=_no_fork.release, after_in_child=_close_in_a_fork
)


def witness(file: Path) -> tuple[int, bytes] | None:
    """The number and checksum of the row in a lock file; None if it holds none."""
    try:
        with open(file, "rb", opener=plain_file) as opened:
            found = _WITNESS.match(opened.read(_LONGEST_WITNESS))
    except (OSError, LedgerError):
        return None
    if found is None or zlib.crc32(found[0].partition(b" check")[0]) != int(found[3], 16):
        return None
    return int(found[1]), bytes.fromhex(found[2].decode())


def file_identity(file: Path | int) -> tuple[int, int] | None:
    """Device and inode of a path or a descriptor: what tells a file from another one in its place."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_dev, found.st_ino
