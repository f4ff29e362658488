"""One writer: a lock that the kernel lets go of when its process ends, however it ends.

The lock file also holds a witness, the number and checksum of the last row committed. It is written after the
commit and not synced, so it may lag behind, but never runs ahead: a database that knows less than its witness
has lost rows.
"""

from __future__ import annotations

import fcntl
import os
import re
import weakref
import zlib
from pathlib import Path

from sortition.core.errors import LedgerError
from sortition.ledger.places import Places

LOCK = "lock"
"""The name of the lock file, in the side directory of a run."""
_WITNESS = re.compile(rb"row (\d+) ([0-9a-f]{32}) check ([0-9a-f]{8})\n")


class WriterLock:
    """Held from construction to ``release``; a LedgerError at once if somebody else holds it."""

    def __init__(self, file: Path, run: Path) -> None:
        self._run = run
        self._process = os.getpid()
        try:
            self._descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LedgerError(f"{run} must be writable, got {error}") from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._descriptor)
            raise LedgerError(
                f"{run} must have one writer, but it is open for writing elsewhere; "
                "read_run and the sortition runs commands read it all the same"
            ) from None
        self._places = Places(run, (file,))
        _held.add(self)

    def check_process(self) -> None:
        """A forked child has the run in memory too, but it is not the writer."""
        if os.getpid() != self._process:
            raise LedgerError(f"{self._run} must be written by the process that opened it, got a fork of it")

    def check_place(self, *, closing: bool = False) -> None:
        """Where the lock file is gone, somebody else may hold another one."""
        self._places.check(closing=closing)

    def note(self, number: int, checksum: bytes) -> None:
        """Let the witness know of a row; a disk that can't take it does not matter."""
        text = b"row %d %s" % (number, checksum.hex().encode())
        try:
            os.pwrite(self._descriptor, b"%s check %08x\n" % (text, zlib.crc32(text)), 0)
        except OSError:
            return

    def release(self) -> None:
        """Let the next one write."""
        if os.getpid() == self._process:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self.close()

    def close(self) -> None:
        """Let go of this process's hold; the lock stays while another one has the descriptor too."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1


_held: weakref.WeakSet[WriterLock] = weakref.WeakSet()


def _close_in_a_fork() -> None:
    """Else a worker that outlives a killed writer would keep the lock for it."""
    for lock in tuple(_held):
        lock.close()


os.register_at_fork(after_in_child=_close_in_a_fork)


def witness(file: Path) -> tuple[int, bytes] | None:
    """The number and checksum that the witness knows of; None where it knows nothing."""
    try:
        found = _WITNESS.match(file.read_bytes())
    except OSError:
        return None
    if found is None or zlib.crc32(found[0].partition(b" check")[0]) != int(found[3], 16):
        return None
    return int(found[1]), bytes.fromhex(found[2].decode())
