"""What the rows say: cohorts, feedback and changes of membership as plain values, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sortition.core.cohort import Cohort
from sortition.core.errors import CohortError, LedgerError
from sortition.core.types import FloatArray, IntArray

BITMAP_SHARE = 1 / 64
"""If more of the ids up to the largest are available than this, a bit for each is shorter than the ids."""
_PARTS = ("clients", "counts", "probabilities", "weights")


def drawn_values(cohort: Cohort, available: ArrayLike | None) -> dict[str, Any]:
    """A draw: the cohort, and whom it could be drawn from."""
    return {**cohort_values(cohort), **available_values(available)}


def cohort_values(cohort: Cohort) -> dict[str, Any]:
    """All that a cohort says but its round, which the row says."""
    return {
        "cohort_size": cohort.cohort_size,
        "ticket": cohort.ticket,
        **{name: getattr(cohort, name) for name in _PARTS},
    }


def cohort_of(round_index: int, values: Mapping[str, Any]) -> Cohort:
    """The cohort of a row, as it was drawn."""
    try:
        parts = {name: column_of(values, name) for name in _PARTS}
        size, ticket = whole_of(values, "cohort_size"), whole_of(values, "ticket")
        return Cohort(round_index, size, **parts, ticket=ticket)
    except (LedgerError, CohortError) as error:
        raise LedgerError(f"the row of round {round_index} must hold a cohort, got {error}") from None


def column_of(values: Mapping[str, Any], name: str) -> Any:
    """A list of numbers that a row has by that name; a LedgerError if that is something else, or missing."""
    found = values.get(name)
    if not isinstance(found, np.ndarray) or found.ndim != 1:
        raise LedgerError(f"{name} must be a list of numbers, got {_in_short(found)}")
    return found


def ids_of(values: Mapping[str, Any], name: str) -> IntArray:
    """The clients that a row has by that name."""
    found: IntArray = column_of(values, name)
    if found.dtype.kind not in "iu":
        raise LedgerError(f"{name} must be whole numbers, got {_in_short(found)}")
    return found


def whole_of(values: Mapping[str, Any], name: str) -> int:
    """The whole number that a row has by that name."""
    found = values.get(name)
    if not isinstance(found, int) or isinstance(found, bool):
        raise LedgerError(f"{name} must be a whole number, got {_in_short(found)}")
    return found


def _in_short(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} of shape {value.shape}"
    return repr(value)[:80]


def available_values(available: ArrayLike | None) -> dict[str, Any]:
    """The available clients: as ids or, where that is shorter, as one bit for each id up to the largest."""
    if available is None:
        return {}
    ids = np.asarray(available, dtype=np.int64)
    if len(ids) and np.all(np.diff(ids) > 0) and len(ids) > BITMAP_SHARE * (ids[-1] + 1):
        bits = np.zeros(ids[-1] + 1, dtype=np.bool_)
        bits[ids] = True
        return {"available_bits": np.packbits(bits)}
    return {"available": ids}


def available_of(values: Mapping[str, Any]) -> IntArray | None:
    """The ids that ``available_values`` stood for, ascending; None for everybody."""
    if "available_bits" in values:
        bits = column_of(values, "available_bits")
        if bits.dtype != np.uint8:
            raise LedgerError(f"available_bits must be bytes, got {_in_short(bits)}")
        return np.flatnonzero(np.unpackbits(bits))
    return ids_of(values, "available") if "available" in values else None


def same_cohort(one: Cohort, other: Cohort) -> bool:
    """Whether two cohorts say the same, to the bit."""
    return (
        one.round_index == other.round_index
        and one.cohort_size == other.cohort_size
        and one.ticket == other.ticket
        and all(getattr(one, name).tobytes() == getattr(other, name).tobytes() for name in _PARTS)
    )


def same_norms(one: FloatArray, other: FloatArray) -> bool:
    """Whether two reports say the same; nan is the same as nan."""
    return np.array_equal(one, other, equal_nan=True)
