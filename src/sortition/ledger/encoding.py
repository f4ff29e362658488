"""Plain values as bytes, cohorts and available clients as plain values, and back.

Plain values are arrays, numbers and strings by name, and nothing that could be executed. As bytes they are a
JSON header, with its length before it, that says what each value is; the arrays follow in the same order,
little-endian. The same values always give the same bytes.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from sortition.core.cohort import Cohort
from sortition.core.errors import CohortError, ConfigurationError, LedgerError
from sortition.core.types import FloatArray, IntArray

Plain: TypeAlias = Mapping[str, Any]

BITMAP_SHARE = 1 / 64
"""If more than this share of the ids up to the largest is available, one bit for each id is shorter."""
_PARTS = ("clients", "counts", "probabilities", "weights")
_LENGTH = struct.Struct("<I")
_DTYPE = re.compile(r"[<|][biuf](1|2|4|8)")


def pack(values: Plain) -> bytes:
    """``values`` as bytes: arrays of numbers or booleans, ints, floats, booleans, strings, None.

    >>> unpack(pack({"norms": np.array([1.0, np.nan]), "round": 3, "kind": "x"}))
    {'norms': array([ 1., nan]), 'round': 3, 'kind': 'x'}
    """
    return b"".join(pieces(values))


def pieces(values: Plain) -> list[bytes | memoryview]:
    """The parts of ``pack``, not joined, so that large arrays are not copied."""
    header: list[list[Any]] = []
    arrays: list[bytes | memoryview] = []
    for name, value in values.items():
        if not isinstance(name, str):
            raise ConfigurationError(f"arrays must have strings as names, got {name!r}")
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, np.ndarray):
            data = np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("<")).reshape(value.shape)
            if not _DTYPE.fullmatch(data.dtype.str):
                raise ConfigurationError(f"{name} must hold numbers or booleans, got dtype {value.dtype}")
            header.append([name, data.dtype.str, list(data.shape)])
            arrays.append(data.reshape(-1).view(np.uint8).data)
        elif isinstance(value, bool) or value is None or isinstance(value, (int, str)):
            header.append([name, "plain", value])
        elif isinstance(value, float):
            header.append([name, "float", value.hex()])  # exact, nan and infinities too
        else:
            raise ConfigurationError(
                f"{name} must be an array, a number, a string or None, got {type(value).__name__}"
            )
    text = json.dumps(header, separators=(",", ":")).encode()
    return [_LENGTH.pack(len(text)), text, *arrays]


def unpack(data: bytes | memoryview) -> dict[str, Any]:
    """What ``pack`` was given; a LedgerError for bytes that it cannot have made."""
    try:
        view = memoryview(data)
        (length,) = _LENGTH.unpack_from(view)
        header = json.loads(bytes(view[_LENGTH.size : _LENGTH.size + length]))
        place = _LENGTH.size + length
        values: dict[str, Any] = {}
        for name, kind, value in header:
            if kind == "plain":
                if not (value is None or isinstance(value, (bool, int, str))):
                    raise ValueError(f"a plain value that is a {type(value).__name__}")
                values[str(name)] = value
            elif kind == "float":
                values[str(name)] = float.fromhex(value)
            else:
                values[str(name)], place = _array(view, place, kind, value)
        if place != len(view):
            raise ValueError("bytes are left over")
    except (ValueError, TypeError, KeyError, struct.error, OverflowError, RecursionError) as error:
        raise LedgerError(f"a record cannot be read: {error}") from None
    return values


def _array(view: memoryview, place: int, kind: Any, shape: Any) -> tuple[np.ndarray[Any, Any], int]:
    if not isinstance(kind, str) or not _DTYPE.fullmatch(kind):
        raise ValueError(f"unknown type {kind!r}")
    lengths = tuple(int(length) for length in shape)
    if min(lengths, default=0) < 0:
        raise ValueError("a negative length")
    dtype = np.dtype(kind)
    end = place + dtype.itemsize * math.prod(lengths)
    if end > len(view):
        raise ValueError("bytes are missing")
    return np.frombuffer(view[place:end], dtype=dtype).reshape(lengths).copy(), end


def cohort_values(cohort: Cohort) -> dict[str, Any]:
    """A cohort without its round, which the row has in a column of its own."""
    return {
        "cohort_size": cohort.cohort_size,
        "ticket": cohort.ticket,
        **{name: getattr(cohort, name) for name in _PARTS},
        **available_values(cohort.available),
    }


def cohort_of(round_index: int, values: Mapping[str, Any]) -> Cohort:
    """The cohort of a row, as it was drawn."""
    try:
        parts = {name: column_of(values, name) for name in _PARTS}
        size, ticket = whole_of(values, "cohort_size"), whole_of(values, "ticket")
        return Cohort(round_index, size, **parts, ticket=ticket, available=available_of(values))
    except (LedgerError, CohortError) as error:
        raise LedgerError(f"the row of round {round_index} does not hold a cohort: {error}") from None


def column_of(values: Mapping[str, Any], name: str) -> Any:
    """The list of numbers with that name in a row; a LedgerError if it is missing or something else."""
    found = values.get(name)
    if not isinstance(found, np.ndarray) or found.ndim != 1:
        raise LedgerError(f"{name} must be a list of numbers, got {_shortened(found)}")
    return found


def ids_of(values: Mapping[str, Any], name: str) -> IntArray:
    """The client ids with that name in a row."""
    found: IntArray = column_of(values, name)
    if found.dtype.kind not in "iu":
        raise LedgerError(f"{name} must be whole numbers, got {_shortened(found)}")
    return found


def whole_of(values: Mapping[str, Any], name: str) -> int:
    """The whole number with that name in a row."""
    found = values.get(name)
    if not isinstance(found, int) or isinstance(found, bool):
        raise LedgerError(f"{name} must be a whole number, got {_shortened(found)}")
    return found


def _shortened(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} of shape {value.shape}"
    return repr(value)[:80]


def available_values(ids: IntArray | None) -> dict[str, Any]:
    """The available clients: as ids or, if that is shorter, as one bit for each id up to the largest."""
    if ids is None:
        return {}
    if len(ids) and np.all(np.diff(ids) > 0) and len(ids) > BITMAP_SHARE * (ids[-1] + 1):
        bits = np.zeros(ids[-1] + 1, dtype=np.bool_)
        bits[ids] = True
        return {"available_bits": np.packbits(bits)}
    return {"available": ids}


def available_of(values: Mapping[str, Any]) -> IntArray | None:
    """The ids that ``available_values`` was given; None for everybody."""
    if "available_bits" in values:
        bits = column_of(values, "available_bits")
        if bits.dtype != np.uint8:
            raise LedgerError(f"available_bits must be bytes, got {_shortened(bits)}")
        return np.flatnonzero(np.unpackbits(bits))
    return ids_of(values, "available") if "available" in values else None


def same_cohort(one: Cohort, other: Cohort) -> bool:
    """Whether two cohorts are equal to the bit."""
    return (
        one.round_index == other.round_index
        and one.cohort_size == other.cohort_size
        and one.ticket == other.ticket
        and all(getattr(one, name).tobytes() == getattr(other, name).tobytes() for name in _PARTS)
        and pack(available_values(one.available)) == pack(available_values(other.available))
    )


def same_norms(one: FloatArray, other: FloatArray) -> bool:
    """Whether two lists of norms are equal; nan equals nan."""
    return np.array_equal(one, other, equal_nan=True)
