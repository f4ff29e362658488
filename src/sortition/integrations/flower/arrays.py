"""Flower's arrays as numpy arrays and back, with as few copies as can be."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from math import prod
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from sortition.core.types import FloatArray

AnyArray = NDArray[Any]

NUMBERS = "fiub"
"""Kinds of array that can be averaged: floats, integers and booleans."""
BLOCK = 32768
"""So many numbers are added up at once: in float64 they fit into the cache."""
STYPE = "numpy.ndarray"
"""How Flower calls an array that is serialised by ``numpy.save``."""


def view(array: Array) -> AnyArray:
    """The array in the memory that holds its bytes, read-only; an error if the bytes hold none.

    >>> view(Array(np.array([[1, 2], [3, 4]])))
    array([[1, 2],
           [3, 4]])
    """
    if array.stype != STYPE:
        raise ValueError(f"it is serialised as {array.stype!r}, not as {STYPE!r}")
    stream = BytesIO(array.data)
    if np.lib.format.read_magic(stream) != (1, 0):  # others are for types that are no numbers
        raise ValueError("it is no array of numbers")
    shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    size = prod(shape)
    if not size:
        return np.zeros(shape, dtype)
    flat: AnyArray = np.frombuffer(array.data, dtype, size, stream.tell())
    return flat.reshape(shape, order="F" if is_fortran else "C")


def packed(values: AnyArray) -> Array:
    """As ``Array(values)``, with one copy of the numbers instead of two."""
    header = BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(values))
    is_fortran = values.flags.f_contiguous and not values.flags.c_contiguous
    flat = np.ascontiguousarray((values.T if is_fortran else values).reshape(-1))
    data = b"".join((header.getvalue(), flat.view(np.uint8).data))
    return Array(str(values.dtype), values.shape, STYPE, data)


def arrays_of(record: ArrayRecord) -> dict[str, AnyArray]:
    """The arrays of a record by name, read-only."""
    return {key: view(array) for key, array in record.items()}


def record_of(arrays: Mapping[str, AnyArray]) -> ArrayRecord:
    """The record that holds these arrays."""
    return ArrayRecord({key: packed(np.asarray(array)) for key, array in arrays.items()})


def cast(values: FloatArray, dtype: np.dtype[Any]) -> AnyArray:
    """``values`` in the type ``dtype``: rounded and clipped for integers, compared with 0.5 for booleans.

    >>> cast(np.array([1.6, -3.0, 300.0]), np.dtype("uint8"))
    array([  2,   0, 255], dtype=uint8)
    """
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            return np.asarray(values).astype(dtype)
    if dtype.kind == "b":
        return np.asarray(values >= 0.5)
    limits = np.iinfo(dtype)
    largest = float(limits.max)
    if int(largest) > limits.max:  # 2^63 - 1 rounds up to a double that int64 can't hold
        largest = float(np.nextafter(largest, 0.0))
    return np.asarray(np.clip(np.rint(values), float(limits.min), largest)).astype(dtype)


def is_finite(array: AnyArray) -> bool:
    """Whether all numbers are; block by block, so that little memory is needed."""
    if array.dtype.kind != "f":
        return True
    flat = array.reshape(-1)
    return all(bool(np.isfinite(flat[begin : begin + BLOCK]).all()) for begin in range(0, flat.size, BLOCK))
