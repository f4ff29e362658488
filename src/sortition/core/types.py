"""The two kinds of array that the library passes around."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]
Fields: TypeAlias = tuple[Any, ...]
"""The fields of a named tuple of arrays, as a plain tuple: how Python hands it to a compiled function.

numba takes a microsecond to recognise the type of a named tuple, and a tenth of that for a plain one. So a
function that Python calls often takes plain tuples, and names them in its first lines: ``Trees(*trees)``.
"""
