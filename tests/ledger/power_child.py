"""A run to be traced: made in three sittings, with a mark on stdout after each call that returned.

Started as a program: ``python power_child.py RUN``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from sortition.ledger import RecordedSampler
from sortition.ledger.store import Store
from tests.ledger.crash_child import drive

SITTINGS = (9, 25)
"""The marks after which the run is closed and opened again: both leave a cohort open."""
LOG_PAGES = 24
"""SQLite copies the log into the database at this many pages, not at 1000, so a small run does it too."""


def patch() -> None:
    """Marks for attachments too, and the short log."""
    begin, attach = Store.__init__, RecordedSampler.attach

    def short_log(store: Store, path: Path, *, write: bool) -> None:
        begin(store, path, write=write)
        store._connection.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")

    def marked(run: RecordedSampler, round_index: int, name: str, arrays: Any) -> None:
        attach(run, round_index, name, arrays)
        mark(f"attached {round_index} 0\n")

    Store.__init__ = short_log  # type: ignore[assignment,method-assign]
    RecordedSampler.attach = marked  # type: ignore[assignment,method-assign]


def mark(text: str) -> None:
    """Tell the trace."""
    os.write(1, text.encode())


def main(path: str) -> None:
    """The whole run."""
    patch()
    for last in (*SITTINGS, None):
        made = 0

        def note(text: str, last: int | None = last) -> None:
            nonlocal made
            mark(text)
            made += 1
            if made == last:
                raise KeyboardInterrupt  # out of ``drive``, by way of the run's ``close``

        try:
            drive(path, note)
        except KeyboardInterrupt:
            mark("closed 0 0\n")


if __name__ == "__main__":
    main(sys.argv[1])
