"""Files that must stay where they are while a run is open: rows in a moved one are lost."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sortition.core.errors import LedgerError


class Places:
    """Which file is at each of the paths of a run."""

    def __init__(self, run: Path, files: Iterable[Path]) -> None:
        self._run = run
        self._found = {file: _identity(file) for file in files}

    def check(self, *, closing: bool = False) -> None:
        """A LedgerError if another file, or none, is at one of the paths now; it says what to do."""
        advice = (
            "the run is closed now, without a snapshot, and all that was committed is in its files: "
            "put them together in one place and open it there"
            if closing
            else "put it back and call again, or close this run (which says so once more) and open it anew "
            "where its files are"
        )
        for file, found in self._found.items():
            if _identity(file) != found:
                raise LedgerError(
                    f"{file} must stay where it is while {self._run} is open for writing, but it was moved, "
                    f"removed or replaced; {advice}"
                )


def _identity(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
