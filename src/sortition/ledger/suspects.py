"""Who lied, by what a record says: the clients that hit the clip of the sampler's guard."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sortition.core.errors import LedgerError
from sortition.ledger.record import RunRecord
from sortition.samplers.guard import Suspect

SUSPECT_COLUMNS = ("client", "clipped reports", "times the bound", "draws", "last norms")

NAMED = 3
"""Suspects that the one line names, each with how often."""


@dataclass(frozen=True, slots=True)
class Suspicion:
    """The suspects of a run, the most frequent first, or why they are not known."""

    suspects: tuple[Suspect, ...] = ()
    unknown: str | None = None
    norm_bound: str | None = None
    """Where privacy clips the norms before the guard sees them."""
    on_trial: bool = False
    """Whether the guard has heard too few replies to judge anybody by."""

    def in_words(self) -> str:
        """One line."""
        if self.unknown is not None:
            return self.unknown
        blind = ""
        if self.norm_bound is not None:
            blind = (
                f"; privacy clips norms at {self.norm_bound} before the guard sees them, "
                "so that liars are not found"
            )
        if self.on_trial:
            return f"none yet: the first replies are on trial, and judged when there are more{blind}"
        if not self.suspects:
            return "none: no report was above the guard's clip" if not blind else f"not known{blind}"
        reports = sum(suspect.hits for suspect in self.suspects)
        clients = [f"{suspect.client} ({suspect.hits})" for suspect in self.suspects[:NAMED]]
        named = ", ".join([*clients, *(["..."] if len(self.suspects) > NAMED else [])])
        return f"{len(self.suspects)}, with {reports} reports above the guard's clip: {named}{blind}"


def suspicion_of(record: RunRecord) -> Suspicion:
    """The guard's own list, as the newest snapshot and the rows after it leave it.

    The clip is no row of the record: it follows from the rows, by replay. A sampler that only its own program
    can build, or that draws otherwise in this version, leaves the question open.
    """
    if record.guard is None:
        return Suspicion(unknown="not known: the sampler is not one of the library's")
    if record.guard == "none":
        return Suspicion(unknown="not looked for: the sampler has no guard")
    if not record.rebuildable:
        return Suspicion(unknown="not known: only the program that made the sampler can build it")
    try:
        sampler = record.replay()
    except LedgerError as error:
        return Suspicion(unknown=f"not known: {error}")
    clip = re.search(r"norm_bound=([^,)]+)", str(record.config.get("privacy")))
    return Suspicion(tuple(sampler.suspects()), norm_bound=clip and clip[1], on_trial=sampler.on_trial)
