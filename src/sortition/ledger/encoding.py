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
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from sortition.core.cohort import Cohort
from sortition.core.errors import CohortError, ConfigurationError, LedgerError
from sortition.core.types import FloatArray, IntArray

Plain: TypeAlias = Mapping[str, Any]

BITMAP_SHARE = 1 / 64
"""If more than this share of the ids up to the largest is available, one bit for each id is shorter."""
ALIGNMENT = 8
"""The arrays begin at a multiple of this, so that a row's can be used where they are."""
LONGEST_OUTLINE = 2**24
"""Bytes of a header that are read at most to look at a file."""
LONGEST_HEADER = 2**28
"""Bytes of all names, numbers and strings of a file or a row; arrays may have more."""
LONGEST_REMEMBERED = 1000
"""A header of at most this many bytes is read only once."""
AVAILABLE = b'"available'
"""What a row of a cohort that was drawn from available clients has in its header."""
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
        if isinstance(value, np.ma.MaskedArray):
            raise ConfigurationError(f"{name} must have no mask, which would be lost; see its filled()")
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
    if len(text) > LONGEST_HEADER:
        raise ConfigurationError(
            f"names and strings must have at most {LONGEST_HEADER} bytes in all, got {len(text)}; "
            "put what is long into arrays"
        )
    text += b" " * (-(_LENGTH.size + len(text)) % ALIGNMENT)
    return [_LENGTH.pack(len(text)), text, *arrays]


def unpack(data: bytes | memoryview, *, copy: bool = True) -> dict[str, Any]:
    """What ``pack`` was given; a LedgerError for bytes that it cannot have made.

    Without ``copy`` the arrays share the memory of ``data``, and can be changed only if that can be.
    """
    try:
        view = memoryview(data)
        (length,) = _LENGTH.unpack_from(view)
        start = _LENGTH.size + length
        header = bytes(view[_LENGTH.size : start])
        entries, size = (_remembered_layout if length <= LONGEST_REMEMBERED else _layout)(header)
        if start + size != len(view):
            raise ValueError("bytes are missing" if start + size > len(view) else "bytes are left over")
        values: dict[str, Any] = {}
        for name, dtype, value, place in entries:
            if dtype is not None:
                found = np.frombuffer(view, dtype, math.prod(value), start + place)
                value = found.reshape(value) if len(value) != 1 else found
                if copy or (start + place) % ALIGNMENT:
                    value = value.copy()
            values[name] = value
    except (ValueError, TypeError, KeyError, struct.error, OverflowError, RecursionError) as error:
        raise LedgerError(f"a record cannot be read: {error}") from None
    return values


def outline(file: BinaryIO) -> dict[str, Any]:
    """The plain values of what was packed, and None for each array: only the start of the file is read."""
    try:
        (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
        entries, _ = _layout(file.read(min(length, LONGEST_OUTLINE)))
    except (ValueError, TypeError, struct.error, OverflowError, RecursionError) as error:
        raise LedgerError(f"a record cannot be read: {error}") from None
    return {name: value if dtype is None else None for name, dtype, value, _ in entries}


def packed_size(file: BinaryIO) -> int:
    """How many bytes ``pack`` made, as their start says, which is all that is read of the file."""
    try:
        (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
        if length > LONGEST_HEADER + ALIGNMENT:
            raise ValueError(f"a header of {length} bytes")
        return int(length) + _LENGTH.size + _layout(file.read(length))[1]
    except (ValueError, TypeError, struct.error, OverflowError, RecursionError) as error:
        raise LedgerError(f"a record cannot be read: {error}") from None


Entry: TypeAlias = tuple[str, "np.dtype[Any] | None", Any, int]
"""The name of a value; itself or, of an array, its type, its shape, and its place after the header."""


def _layout(header: bytes) -> tuple[list[Entry], int]:
    """What the header says of each value, and how many bytes all arrays have."""
    entries: list[Entry] = []
    place = 0
    for name, kind, value in json.loads(header):
        if kind == "plain":
            if not (value is None or isinstance(value, (bool, int, str))):
                raise ValueError(f"a plain value that is a {type(value).__name__}")
            entries.append((str(name), None, value, 0))
        elif kind == "float":
            entries.append((str(name), None, float.fromhex(value), 0))
        else:
            if not isinstance(kind, str) or not _DTYPE.fullmatch(kind):
                raise ValueError(f"unknown type {kind!r}")
            lengths, dtype = tuple(int(length) for length in value), np.dtype(kind)
            if min(lengths, default=0) < 0:
                raise ValueError("a negative length")
            entries.append((str(name), dtype, lengths, place))
            place += dtype.itemsize * math.prod(lengths)
    return entries, place


_remembered_layout = lru_cache(maxsize=1024)(_layout)
"""Most rows of a run have one of a few headers, and reading JSON is most of the work."""


def unpack_columns(
    rows: Sequence[bytes], names: Mapping[str, type[np.generic]]
) -> tuple[IntArray, list[Any]]:
    """The lists called ``names``, which are equally long in each row: their lengths, and each end to end.

    Rows with the same header are read at once: there are few headers, and many rows.
    """
    alike: dict[bytes, list[int]] = {}
    for place, row in enumerate(rows):
        start = _LENGTH.size + int.from_bytes(row[: _LENGTH.size], "little")
        alike.setdefault(row[:start], []).append(place)
    sizes = np.zeros(len(rows), dtype=np.int64)
    found: list[tuple[list[int], list[Any]]] = []
    for header, places in alike.items():
        group, whole = [rows[place] for place in places], unpack(rows[places[0]], copy=False)
        columns = [column_of(whole, name) for name in names]
        if len({len(column) for column in columns}) > 1 or len({len(row) for row in group}) > 1:
            raise LedgerError(f"{', '.join(names)} must be equally long, and are not")
        table = np.frombuffer(b"".join(group), np.uint8).reshape(len(group), -1)
        sizes[places] = len(columns[0])
        begins = {name: len(header) + place for name, _, _, place in _layout(header[_LENGTH.size :])[0]}
        values = []
        for (name, wanted), column in zip(names.items(), columns, strict=True):
            if column.dtype != wanted:
                raise LedgerError(f"{name} must be {np.dtype(wanted)}, got {column.dtype}")
            values.append(np.ascontiguousarray(table[:, begins[name] :][:, : column.nbytes]).view(wanted))
        found.append((places, values))
    joined = [np.empty(int(sizes.sum()), dtype=dtype) for dtype in names.values()]
    for places, values in found:
        targets = (np.cumsum(sizes) - sizes)[places][:, None] + np.arange(values[0].shape[1])
        for column, value in zip(joined, values, strict=True):
            column[targets] = value
    return sizes, joined


def cohort_values(cohort: Cohort) -> dict[str, Any]:
    """A cohort without its round, which the row has in a column of its own."""
    return {
        "cohort_size": cohort.cohort_size,
        "ticket": np.array([cohort.ticket]),  # not in the header, which is then the same in many rows
        **{name: getattr(cohort, name) for name in _PARTS},
        **available_values(cohort.available),
    }


def cohort_bytes(cohort: Cohort) -> bytes:
    """``pack(cohort_values(cohort))``, with a header that is made once for all cohorts of one length."""
    if cohort.available is not None:
        return pack(cohort_values(cohort))
    ticket = int(cohort.ticket).to_bytes(8, "little", signed=True)
    header = _cohort_header(cohort.cohort_size, len(cohort))
    parts: Any = (header, ticket, cohort.clients, cohort.counts, cohort.probabilities, cohort.weights)
    return b"".join(parts)


@lru_cache(maxsize=1024)
def _cohort_header(cohort_size: int, clients: int) -> bytes:
    whole, real = np.zeros(clients, dtype=np.int64), np.zeros(clients)
    blank = pack(cohort_values(Cohort(0, cohort_size, whole, whole, real, real)))
    return blank[: -8 * (1 + len(_PARTS) * clients)]


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
    if isinstance(found, np.ndarray) and found.shape == (1,):
        found = found.item()
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
    return one.round_index == other.round_index and cohort_bytes(one) == cohort_bytes(other)


def same_norms(one: FloatArray, other: FloatArray) -> bool:
    """Whether two lists of norms are equal; nan equals nan."""
    return np.array_equal(one, other, equal_nan=True)
