"""What is good of a damaged run: the rows before the first one that has changed or is lost."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from sortition.core.errors import LedgerError
from sortition.ledger.rows import Event
from sortition.ledger.salvage import salvaged
from sortition.ledger.schema import cut_short
from sortition.ledger.store import Store
from sortition.ledger.trouble import is_damage, sqlite_trouble, what_is_left_out


class GoodStore(Store):
    """The rows of a run, for reading, as if those from the first damaged one on were not there.

    Where the database itself is whole, SQLite gives them; else they are gathered page by page, in a private
    copy, and the run is left as it is.
    """

    missing: int
    """Rows that were left out because they, or one before them, are damaged or lost; as far as known."""
    left_out: str | None
    """In words, what was left out, or what is damaged though nothing was; None for a whole run."""

    def __init__(self, path: Path, witness: tuple[int, bytes] | None) -> None:
        self.path = path
        damaged, doubts = cut_short(path) or self._opened(), []
        if damaged is not None:
            found = salvaged(path, witness)
            self._connection, self.last, there = found.connection, found.last, found.there
            if found.forked:
                doubts.append(f"two rows {found.last + 1} follow, and it is not known which is this run's")
        try:
            if damaged is None:
                there = self._rows() - 1
            self.last, self._last_checksum = self._good_row()
            if witness is not None and self._is_another(witness):
                doubts.append(f"its lock file knows another row {witness[0]}: is this another run's file?")
                witness = None
        except BaseException:
            self.close()
            raise
        self.missing = max(there, -1 if witness is None else witness[0]) - self.last
        self.left_out = what_is_left_out(self.last + 1, self.missing, damaged, witness is not None, doubts)

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

    def _rows(self) -> int:
        """How many rows there are; what their numbers say may have changed."""
        with self._trouble("be readable"):
            query = "SELECT count(*) FROM events WHERE number <= ?"
            return int(self._connection.execute(query, (self.last,)).fetchone()[0])

    def _good_row(self) -> tuple[int, bytes]:
        """The last row before the first damaged one, of those that were there when this was opened."""
        found: Event | None = None
        with suppress(LedgerError):
            for event in self._chain(-1, self.last):
                found = event
        if found is None:
            raise LedgerError(f"{self.path} must have a good first row; put a copy of the run in its place")
        return found.number, found.checksum

    def _is_another(self, witness: tuple[int, bytes]) -> bool:
        """Whether the row that the witness knows should be among the good ones, and another one is."""
        number, seal = witness
        return number <= self.last and self._seal_of(number) != seal
