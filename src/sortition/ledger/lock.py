"""One writer: a lock that the kernel lets go of when its process ends, however it ends.

The lock file also holds a witness, the number and checksum of the last row committed. It is written after the
commit and not synced, so it may lag behind, but never runs ahead: a database that knows less than its witness
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
from sortition.ledger.places import Places

LOCK = "lock"
"""The name of the lock file, in the side directory of a run."""
_LONGEST_WITNESS = 128
_WITNESS = re.compile(rb"row (\d{1,18}) ([0-9a-f]{32}) check ([0-9a-f]{8})\n")


class WriterLock:
    """Held from construction to ``release``; a LedgerError at once if somebody else holds it.

    Whoever drops a run without closing it lets go of its lock too, as soon as Python notices.
    """

    def __init__(self, file: Path, run: Path) -> None:
        self._run = run
        self._hold = _Hold(file, run)
        weakref.finalize(self, self._hold.release).atexit = False  # the end of the process does it as well
        self._places = Places(run, (file,))

    @property
    def is_held(self) -> bool:
        """Not once it was released; also where a ``__del__`` has a run that Python found dropped."""
        return self._hold.descriptor >= 0

    def check_process(self) -> None:
        """A forked child has the run in memory too, but it is not the writer."""
        if os.getpid() != self._hold.process:
            raise LedgerError(f"{self._run} must be written by the process that opened it, got a fork of it")

    def check_place(self, *, closing: bool = False) -> None:
        """Where the lock file is gone, somebody else may hold another one."""
        self._places.check(closing=closing)

    def note(self, number: int, checksum: bytes) -> None:
        """Let the witness know of a row; a disk that can't take it does not matter."""
        text = b"row %d %s" % (number, checksum.hex().encode())
        try:
            os.pwrite(self._hold.descriptor, b"%s check %08x\n" % (text, zlib.crc32(text)), 0)
        except OSError:
            return

    def release(self) -> None:
        """Let the next one write."""
        self._hold.release()


class _Hold:
    """The open lock file; what is left to do when its ``WriterLock`` is dropped."""

    def __init__(self, file: Path, run: Path) -> None:
        self.run = run
        self.process = os.getpid()
        with _no_fork:
            try:
                self.descriptor = plain_file(file, os.O_RDWR | os.O_CREAT)
            except OSError as error:
                raise LedgerError(f"{run} must be writable, got {error}") from None
            _held.add(self)  # before it is locked: whoever forks from now on closes it
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise LedgerError(f"{run} must have one writer, but {_who_holds(run)}") from None

    def release(self) -> None:
        """Unlock, if this process may (C code can fork unnoticed); once closed, there is nothing to do."""
        if self.descriptor >= 0 and os.getpid() == self.process:
            fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        self.close()

    def close(self) -> None:
        """Close the file; the number may be another file's afterwards, so that it is forgotten first."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


_held: weakref.WeakSet[_Hold] = weakref.WeakSet()
_no_fork = threading.RLock()
"""Held while a lock file is open and ``_held`` does not know of it."""


def _who_holds(run: Path) -> str:
    """Why the lock of a run can't be had, and what to do."""
    if any(hold.run == run and hold.descriptor >= 0 for hold in tuple(_held)):
        return (
            "this process has it open for writing already: call close() on that run first, or open it in a "
            "with block, which does"
        )
    return "it is open for writing elsewhere; read_run and the sortition runs commands read it all the same"


def _close_in_a_fork() -> None:
    """Else a worker that outlives a killed writer would keep the lock for it."""
    _no_fork.release()
    for hold in tuple(_held):
        hold.close()


os.register_at_fork(
    before=_no_fork.acquire, after_in_parent=_no_fork.release, after_in_child=_close_in_a_fork
)


def witness(file: Path) -> tuple[int, bytes] | None:
    """The number and checksum that the witness knows of; None where it knows nothing."""
    try:
        with open(file, "rb", opener=plain_file) as opened:
            found = _WITNESS.match(opened.read(_LONGEST_WITNESS))
    except (OSError, LedgerError):
        return None
    if found is None or zlib.crc32(found[0].partition(b" check")[0]) != int(found[3], 16):
        return None
    return int(found[1]), bytes.fromhex(found[2].decode())
