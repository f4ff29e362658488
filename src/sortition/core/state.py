"""Reading a state: plain arrays and scalars, checked before anything is believed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from sortition.core.errors import StateError
from sortition.core.types import BoolArray, FloatArray, IntArray
from sortition.core.validation import shown

LARGEST_WHOLE = 2**64
"""No whole number of a state is larger."""


class Constant(np.ndarray[Any, Any]):
    """An array of a state that is never changed again. A ledger that holds it does not write it twice."""


def constant(values: np.ndarray[Any, Any]) -> Constant:
    """``values``, from now on constant; nobody may hold a view that can change them."""
    if isinstance(values, Constant) and is_constant(values):
        return values
    values.flags.writeable = False
    return values.view(Constant)


def is_constant(value: Any) -> bool:
    """Whether it was made by ``constant``: what is computed from such an array can be changed."""
    return isinstance(value, Constant) and not value.flags.writeable


def part(state: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The entries whose names start with ``prefix``, under the rest of their names."""
    return {name.removeprefix(prefix): state[name] for name in state if name.startswith(prefix)}


def _unmasked(state: Mapping[str, Any], name: str) -> Any:
    """An entry of a state; a StateError for a masked array, whose hidden entries no check would see."""
    value = state.get(name)
    if isinstance(value, np.ma.MaskedArray):
        raise StateError(f"state must hold {name!r} without a mask, got a masked array; see its filled()")
    return value


def scalar(state: Mapping[str, Any], name: str) -> int | float:
    """A number out of a state."""
    value = _unmasked(state, name)
    if isinstance(value, (np.ndarray, np.generic)) and value.shape == () and value.dtype.kind in "iuf":
        value = value.item()  # as np.load gives it
    if isinstance(value, float) or (type(value) is int and abs(value) <= LARGEST_WHOLE):
        return value
    raise StateError(f"state must hold a number called {name!r}, got {shown(value)}")


def count(state: Mapping[str, Any], name: str) -> int:
    """A whole number out of a state, not negative."""
    value = scalar(state, name)
    if not (0 <= value <= LARGEST_WHOLE and value == int(value)):
        raise StateError(f"state must hold a whole number called {name!r}, got {value!r}")
    return int(value)


def text(state: Mapping[str, Any], name: str) -> Any:
    """A string or number out of a state, or None; as it was put in, or as ``np.load`` gives it."""
    value = _unmasked(state, name)
    if not isinstance(value, np.ndarray):
        return value
    if value.shape != ():
        raise StateError(f"state must hold one value called {name!r}, got an array of shape {value.shape}")
    return value.item()


def array(state: Mapping[str, Any], name: str, dtype: type[np.generic], shape: tuple[int | None, ...]) -> Any:
    """An array out of a state, a copy if it is not constant, with its type and shape checked (None: any)."""
    value = _unmasked(state, name)
    if (
        isinstance(value, np.ndarray)
        and value.dtype == dtype
        and value.ndim == len(shape)
        and all(want in (None, got) for want, got in zip(shape, value.shape, strict=True))
    ):
        return value if is_constant(value) else np.array(value)
    got = f"{value.dtype} of shape {value.shape}" if isinstance(value, np.ndarray) else shown(value)
    wanted = tuple("any" if length is None else length for length in shape)
    raise StateError(f"state must hold {name!r}, {np.dtype(dtype)} of shape {wanted}, got {got}")


def number(
    state: Mapping[str, Any],
    name: str,
    *,
    least: float = -math.inf,
    most: float = math.inf,
    nan: bool = False,
) -> float:
    """A finite number out of a state, from ``least`` to ``most``; or nan, where that says "not known yet"."""
    value = float(scalar(state, name))
    if nan and math.isnan(value):
        return value
    if not (math.isfinite(value) and least <= value <= most):
        within = "" if least == -math.inf else f" from {least:g} to {most:g}"
        raise StateError(f"state must hold {name!r}, a finite number{within}, got {value!r}")
    return value


def check(name: str, values: FloatArray | IntArray, right: BoolArray, expected: str) -> None:
    """A StateError with the first of ``values``, the entry called ``name``, that is not ``right``."""
    if not right.all():
        wrong = values[~right][0].item()
        raise StateError(f"state must hold {name!r}, numbers that are {expected}, got {wrong!r}")
