"""Everything the library raises on purpose.

Each message names the argument, what was expected and what came; the object that raised is left as it was.
"""

from __future__ import annotations


class SortitionError(Exception):
    """Base of every exception of the library: catch this one to catch them all."""


class ConfigurationError(SortitionError, ValueError):
    """An argument of a constructor, or of a function, that makes no sense."""


class AvailabilityError(SortitionError, ValueError):
    """``available`` names no client, or one that does not exist."""


class FeedbackError(SortitionError, ValueError):
    """Norms that are no norms: wrong length, negative, infinite; or replies of which none is of any use."""


class CohortError(SortitionError, ValueError):
    """A cohort that this sampler did not draw, or that has had its feedback."""


class StateError(SortitionError, ValueError):
    """A state of another kind, another version or another configuration."""


class LedgerError(SortitionError, RuntimeError):
    """A record of a run that can't be read, can't be written, or is not what it should be."""


class WorkerError(SortitionError, RuntimeError):
    """A process that worked for us and was killed."""


class DataError(SortitionError):
    """Data files, or results of an earlier run, that are missing, damaged or of another kind."""
