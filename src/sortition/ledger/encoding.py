"""Plain values as bytes and back: arrays, numbers and strings by name, and nothing that could be run.

A JSON header, with its length before it, says what each value is; the arrays' bytes follow, little-endian, in
the same order. The same values always give the same bytes.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from sortition.core.errors import ConfigurationError, LedgerError

Plain: TypeAlias = Mapping[str, Any]

_LENGTH = struct.Struct("<I")
_DTYPE = re.compile(r"[<|][biuf](1|2|4|8)")


def pack(values: Plain) -> bytes:
    """``values`` as bytes: arrays of numbers or booleans, ints, floats, booleans, strings, None.

    >>> unpack(pack({"norms": np.array([1.0, np.nan]), "round": 3, "kind": "x"}))
    {'norms': array([ 1., nan]), 'round': 3, 'kind': 'x'}
    """
    return b"".join(pieces(values))


def pieces(values: Plain) -> list[bytes | memoryview]:
    """``pack`` without putting it together: large arrays are not copied."""
    header: list[list[Any]] = []
    arrays: list[bytes | memoryview] = []
    for name, value in values.items():
        if not isinstance(name, str):
            raise ConfigurationError(f"names of values must be strings, got {name!r}")
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
    """What ``pack`` was given; a LedgerError for anything that it can't have made."""
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
        raise LedgerError(f"a record must be readable, got bytes that are not ({error})") from None
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
