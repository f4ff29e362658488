"""Updates of clients: differences, norms and their weighted sum, in float64 and back in their own types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from sortition.core.errors import ConfigurationError, FeedbackError
from sortition.core.types import FloatArray

AnyArray = NDArray[Any]
NUMBERS = "fiub"


class Model:
    """The arrays that a round starts from, and the weighted sum of the updates that come back.

    With w the model and w_m what client m returns, the sum is of c_m (w_m - w). Floating-point arrays make
    up the norm; integer ones (batch counters and the like) are averaged too, but take no part in it.
    """

    def __init__(self, record: ArrayRecord) -> None:
        self._own: dict[str, AnyArray] = {key: array.numpy() for key, array in record.items()}
        for key, array in self._own.items():
            if array.dtype.kind not in NUMBERS:
                raise ConfigurationError(
                    f"arrays must be of floats, integers or booleans, got {array.dtype} for {key!r}"
                )
        self._start = {key: array.astype(np.float64) for key, array in self._own.items()}
        self._sum = {key: np.zeros_like(array) for key, array in self._start.items()}
        self._difference = {key: np.empty_like(array) for key, array in self._start.items()}

    def add(self, client: str, record: ArrayRecord, coefficient: float) -> float:
        """Add c_m (w_m - w) to the sum and return the norm; nan, and nothing added, if it is not finite."""
        if set(record) != set(self._own):
            raise FeedbackError(
                f"the reply of {client} must hold the arrays {sorted(self._own)}, got {sorted(record)}"
            )
        squared = 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            for key, start in self._start.items():
                returned = record[key].numpy()
                if returned.shape != start.shape:
                    raise FeedbackError(
                        f"the reply of {client} must hold {key!r} of shape {start.shape}, "
                        f"got {returned.shape}"
                    )
                if returned.dtype.kind not in NUMBERS:
                    raise FeedbackError(
                        f"the reply of {client} must hold {key!r} in floats, integers or booleans, "
                        f"got {returned.dtype}"
                    )
                difference = np.subtract(returned, start, out=self._difference[key], dtype=np.float64)
                if self._own[key].dtype.kind != "f":
                    squared += 0.0 if np.all(np.isfinite(difference)) else np.nan
                else:
                    # Not by BLAS: its threads are slow to start and get in the way of the simulation's.
                    flat = difference.reshape(-1)
                    squared += float(np.einsum("i,i->", flat, flat))
        if not np.isfinite(squared):
            return float("nan")
        for key, difference in self._difference.items():
            difference *= coefficient
            self._sum[key] += difference
        return float(np.sqrt(squared))

    def moved(self, scale: float) -> ArrayRecord:
        """w + scale times the sum, each array in its own type."""
        return ArrayRecord(
            {
                key: Array(_as(start + scale * self._sum[key], self._own[key].dtype))
                for key, start in self._start.items()
            }
        )

    def retyped(self, record: ArrayRecord, moved: ArrayRecord) -> ArrayRecord:
        """What the inner strategy made of ``moved``, in our types; integer arrays as they are in ``moved``.

        A server optimiser has no business with counters, and NumPy turns float32 into float64 on the way.
        """
        arrays: dict[str, Array] = {}
        for key, array in record.items():
            own = self._own[key].dtype if key in self._own else None
            if own is None or (own.kind == "f" and array.dtype == str(own)):
                arrays[key] = array
            elif own.kind == "f":
                arrays[key] = Array(_as(array.numpy(), own))
            else:
                arrays[key] = moved[key]
        return ArrayRecord(arrays)


def to_plain(record: ArrayRecord) -> dict[str, AnyArray]:
    """The arrays of a record by name."""
    return {key: array.numpy() for key, array in record.items()}


def to_record(arrays: Mapping[str, AnyArray]) -> ArrayRecord:
    """The record of these arrays."""
    return ArrayRecord({key: Array(np.asarray(array)) for key, array in arrays.items()})


def _as(values: FloatArray, dtype: np.dtype[Any]) -> AnyArray:
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
