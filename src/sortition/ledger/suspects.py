"""Who lied, by what a record says: the clients that hit the clip of the sampler's guard."""

from __future__ import annotations

from dataclasses import dataclass

from sortition.core.errors import LedgerError
from sortition.ledger.record import RunRecord
from sortition.samplers.guard import Suspect

SUSPECT_COLUMNS = ("client", "clipped reports", "times the bound", "draws", "last norms")


@dataclass(frozen=True, slots=True)
class Suspicion:
    """The suspects of a run, the most frequent first, or why they are not known."""

    suspects: tuple[Suspect, ...] = ()
    unknown: str | None = None

    def in_words(self) -> str:
        """One line."""
        if self.unknown is not None:
            return self.unknown
        if not self.suspects:
            return "none: no report was above the guard's clip"
        reports = sum(suspect.hits for suspect in self.suspects)
        return f"{len(self.suspects)}, with {reports} reports above the guard's clip"


def suspicion_of(record: RunRecord) -> Suspicion:
    """The guard's own list, as the newest snapshot and the rows after it leave it.

    The clip is no row of the record: it follows from the rows, by replay. A sampler that only its own program
    can build, or that draws otherwise in this version, leaves the question open.
    """
    if record.guard is None:
        return Suspicion(unknown="not known: the sampler is not one of the library's")
    if record.guard == "none":
        return Suspicion(unknown="not looked for: the sampler has no guard")
    try:
        sampler = record.replay()
    except LedgerError as error:
        return Suspicion(unknown=f"not known: {error}")
    if sampler is None:
        return Suspicion(unknown="not known: only the program that made the sampler can build it")
    return Suspicion(tuple(sampler.suspects()))
