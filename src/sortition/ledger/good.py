"""What is good of a damaged run: the rows before the first one that has changed or is lost."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from sortition.core.errors import LedgerError
from sortition.ledger.rows import Event
from sortition.ledger.salvage import salvaged
from sortition.ledger.schema import cut_short
from sortition.ledger.store import Store
from sortition.ledger.trouble import is_damage, sqlite_trouble


class GoodStore(Store):
    """The rows of a run, for reading, as if those from the first damaged one on were not there.

    Where the database itself is whole, SQLite gives them; else they are gathered page by page, in a private
    copy, and the run is left as it is.
    """

    damaged: str | None
    """What is wrong with the database itself, in words; a row may have changed all the same."""
    there: int
    """The number of the last row that can be seen, good or not."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damaged = cut_short(path) or self._opened()
        if self.damaged is None:
            self.there = self.last
        else:
            self._connection, self.there = salvaged(path)
        try:
            self.last, self._last_checksum = self._good_row()
        except BaseException:
            self.close()
            raise

    def _opened(self) -> str | None:
        """Open the database as it is; where that is not possible because it is damaged, how, in words."""
        try:
            super().__init__(self.path, write=False)
        except LedgerError as error:
            cause = error.__cause__
            if not is_damage(cause):
                raise
            return str(error) if cause is None else sqlite_trouble(self.path, "be readable", cause)
        try:
            flaw = self.flaw()
        except LedgerError as error:
            flaw = str(error)
        if flaw is not None:
            self.close()
        return flaw

    def _good_row(self) -> tuple[int, bytes]:
        """The last row before the first damaged one."""
        found: Event | None = None
        with suppress(LedgerError):
            for event in self._chain(-1, 2**62):
                found = event
        if found is None:
            raise LedgerError(f"{self.path} must have a good first row; put a copy of the run in its place")
        return found.number, found.checksum
