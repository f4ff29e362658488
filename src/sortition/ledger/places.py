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

    def check(self) -> None:
        """A LedgerError if another file, or none, is at one of the paths now."""
        for file, found in self._found.items():
            if _identity(file) != found:
                raise LedgerError(
                    f"{file} must stay where it is while {self._run} is open for writing, but it was moved, "
                    "removed or replaced; put it back, or close the run and open it again"
                )


def _identity(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
