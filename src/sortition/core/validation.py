"""Checks of what users pass in: each names the argument, the expectation and the value."""

from __future__ import annotations

import difflib
import inspect
import math
import operator
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from sortition.core.errors import AvailabilityError, ConfigurationError, FeedbackError, SortitionError
from sortition.core.types import FloatArray, IntArray

SUM_TOLERANCE = 1e-8
SMALLEST_MASS = 1e-100
LARGEST_MASS = 1e100
MOST_CLIENTS = 2**53
"""Ids above could not be told apart by a double."""
MOST_REPEATED = 10**6
"""Rounds, repeats and the like of an experiment: each has its entry in an array."""
NORMS = "real numbers, nan for no reply"
"""What errors ask for in the place of norms."""
LONGEST_SHOWN = 500
"""An error shows at most this many characters of a wrong value."""
LONGEST_TEXT = 2000
"""A text from a file is shown with at most this many characters."""
GLOSSARY = {
    "M": "num_clients",
    "K": "cohort_size",
    "T": "num_rounds",
    "horizon": "num_rounds",
    "clients_per_round": "cohort_size",
    "lam": "client_weights",
    "lambda_": "client_weights",
    "weights": "client_weights",
    "eta": "learning_rate",
    "lr": "learning_rate",
    "alpha": "exploration",
    "epsilon": "exploration",
    "gamma": "meta_rate",
    "p": "probabilities",
    "q": "prior",
    "A_max": "feedback_bound",
    "random_state": "seed",
}
"""Symbols of the paper, and other habits, with the keyword that they stand for."""

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def named_keywords(call: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorate a function: an unknown keyword is a ConfigurationError that names the nearest right one.

    >>> @named_keywords
    ... def draw(*, cohort_size: int) -> int:
    ...     return cohort_size
    >>> draw(cohort_sise=3)
    Traceback (most recent call last):
    sortition.core.errors.ConfigurationError: draw has no keyword 'cohort_sise'; did you mean 'cohort_size'?
    """
    parameters = inspect.signature(call).parameters
    known = [name for name, p in parameters.items() if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    by_place = sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters.values())
    if any(p.kind is p.VAR_POSITIONAL for p in parameters.values()):
        by_place = sys.maxsize

    @wraps(call)
    def checked(*args: Parameters.args, **keywords: Parameters.kwargs) -> Result:
        if len(args) > by_place:
            names = [name for name in known if name != "self"][by_place - (known[:1] == ["self"]) :]
            raise ConfigurationError(
                f"{_called(call, args)} takes {', '.join(names)} by name, as in {names[0]}=..."
            )
        if not open_ended and not keywords.keys() <= set(known):
            wrong = next(name for name in keywords if name not in known)
            raise ConfigurationError(
                unknown_keyword(_called(call, args), wrong, [name for name in known if name != "self"])
            )
        return call(*args, **keywords)

    return checked


def _called(call: Callable[..., Any], args: tuple[Any, ...]) -> str:
    """The name of the function or, for a constructor, of the class that was called."""
    return type(args[0]).__name__ if call.__name__ == "__init__" and args else call.__name__


def unknown_keyword(called: str, wrong: str, known: Sequence[str]) -> str:
    """The message for the keyword ``wrong`` of ``called``, which takes the keywords ``known``."""
    meant = GLOSSARY.get(wrong)
    near = [meant] if meant in known else [name for name in known if name.startswith(wrong)]
    near = near or difflib.get_close_matches(wrong, known, n=1)
    advice = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(known)}"
    return f"{called} has no keyword {wrong!r}; {advice}"


def whole_number(name: str, value: Any, least: int, most: int | None = None) -> int:
    """``value`` as an int of at least ``least`` and at most ``most``."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    wrong = (bool, np.bool_, np.ma.MaskedArray)
    if number is None or isinstance(value, wrong) or number < least:
        raise ConfigurationError(f"{name} must be a whole number of at least {least}, got {shown(value)}")
    if most is not None and number > most:
        raise ConfigurationError(f"{name} must be at most {most}, got {shown(value)}")
    return number


def real_number(name: str, value: Any) -> float:
    """``value`` as a float; it may be infinite or nan."""
    number = _real(value)
    if number is None:
        raise ConfigurationError(f"{name} must be one number, got {shown(value)}")
    return number


def one_of(name: str, value: Any, words: Sequence[str]) -> None:
    """``value`` must be one of ``words``."""
    if len(words) == 1 and value != words[0]:
        raise ConfigurationError(f"{name} must be {words[0]!r}, got {shown(value)}")
    if not (isinstance(value, str) and value in words):
        raise ConfigurationError(f"{name} must be one of {', '.join(words)}, got {shown(value)}")


def positive_number(name: str, value: Any, above: float = 0.0) -> float:
    """``value`` as a finite float above zero, or above ``above``."""
    number = _real(value)
    if number is None or not (math.isfinite(number) and number > above):
        raise ConfigurationError(f"{name} must be a finite number above {above:g}, got {shown(value)}")
    return number


def fraction(name: str, value: Any) -> float:
    """``value`` as a float in (0, 1]."""
    number = _real(value)
    if number is None or not 0.0 < number <= 1.0:
        raise ConfigurationError(f"{name} must lie in (0, 1], got {shown(value)}")
    return number


def number_between(name: str, value: Any, least: float, most: float) -> float:
    """``value`` as a float in [least, most]."""
    number = _real(value)
    if number is None or not least <= number <= most:
        raise ConfigurationError(f"{name} must lie in [{least}, {most}], got {shown(value)}")
    return number


def distribution(name: str, values: ArrayLike, num_clients: int) -> FloatArray:
    """``values`` as ``num_clients`` masses that sum to one, none negative; a copy of them."""
    masses = _floats(name, values, ConfigurationError)
    if masses.shape != (num_clients,):
        raise ConfigurationError(
            f"{name} must have one entry for each of the {num_clients} clients, got shape {masses.shape}"
        )
    wrong = np.flatnonzero(~(masses >= 0.0) | np.isinf(masses))
    if len(wrong):
        raise ConfigurationError(
            f"{name} must be finite and not negative, got {masses[wrong[0]]} for client {wrong[0]}"
        )
    if not abs(masses.sum() - 1.0) <= SUM_TOLERANCE:
        raise ConfigurationError(
            f"{name} must sum to one, got a sum of {masses.sum()}; divide them by their sum"
        )
    tiny = np.flatnonzero((masses > 0.0) & (masses < SMALLEST_MASS))
    if len(tiny):
        raise ConfigurationError(
            f"{name} must be 0 or at least {SMALLEST_MASS}, got {masses[tiny[0]]} for client {tiny[0]}"
        )
    return masses.copy()


def masses_of(name: str, values: ArrayLike) -> FloatArray:
    """``values`` as masses of newcomers: a sequence of finite numbers above zero."""
    masses = _floats(name, values, ConfigurationError)
    if masses.ndim != 1 or not len(masses):
        raise ConfigurationError(f"{name} must be a sequence of numbers, got shape {masses.shape}")
    wrong = np.flatnonzero(~((masses >= SMALLEST_MASS) & (masses <= LARGEST_MASS)))
    if len(wrong):
        raise ConfigurationError(
            f"{name} must lie in [{SMALLEST_MASS}, {LARGEST_MASS}], "
            f"got {masses[wrong[0]]} at position {wrong[0]}"
        )
    return masses


def require_support(name: str, masses: FloatArray, client_weights: FloatArray | None) -> None:
    """A client that counts must be possible to draw."""
    counts = np.ones(len(masses)) if client_weights is None else client_weights
    missing = np.flatnonzero((masses == 0.0) & (counts > 0.0))
    if len(missing):
        raise ConfigurationError(
            f"{name} must be above 0 for every client with a weight, or the aggregate is biased, "
            f"got 0 for client {missing[0]}"
        )


def norms_of(name: str, values: ArrayLike, size: int, whose: str) -> FloatArray:
    """``values`` as ``size`` norms: finite and not negative, or nan for no reply."""
    norms = one_each(name, values, size, whose, NORMS)
    check_norms(name, norms)
    return norms


def one_each(name: str, values: ArrayLike, size: int, whose: str, what: str = "real numbers") -> FloatArray:
    """``values`` as ``size`` floats; ``what`` is what an error asks for."""
    numbers = _floats(name, values, FeedbackError, what)
    if numbers.shape != (size,):
        raise FeedbackError(f"{name} must have {size} entries, one for {whose}, got shape {numbers.shape}")
    return numbers


def check_norms(name: str, norms: FloatArray) -> None:
    """Norms must be finite and not negative, or nan for no reply."""
    wrong = np.flatnonzero((norms < 0.0) | np.isinf(norms))
    if len(wrong):
        raise FeedbackError(
            f"{name} must be finite and not negative, got {norms[wrong[0]]} at position {wrong[0]}; "
            "give nan for no reply, or for an update that is not finite"
        )


def client_ids(name: str, values: ArrayLike, num_clients: int) -> IntArray:
    """``values`` as ids of existing clients, in the order given."""
    if getattr(values, "dtype", None) == np.bool_:
        raise AvailabilityError(
            f"{name} must be client ids, got booleans; of a mask, take np.flatnonzero(mask)"
        )
    ids = real_numbers(name, values, AvailabilityError)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind == "f"):
        raise AvailabilityError(
            f"{name} must be a sequence of client ids (whole numbers), got {ids.dtype} of shape {ids.shape}"
        )
    ids = ids.astype(np.int64)
    unknown = ids[(ids < 0) | (ids >= num_clients)]
    if len(unknown):
        raise AvailabilityError(
            f"{name} must hold ids of existing clients, 0 to {num_clients - 1}, got {unknown[0]}"
        )
    return ids


def printable(text: str) -> str:
    """``text`` from a file, for a terminal: without control characters, and shortened if it is long."""
    shown = "".join(
        each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text[:LONGEST_TEXT]
    )
    return shown if len(text) <= LONGEST_TEXT else f"{shown}..."


def shown(value: Any) -> str:
    """``value`` in an error, shortened if it is long."""
    try:
        words = repr(value)
    except ValueError:  # Python writes out no number of thousands of digits
        return "a number of too many digits"
    return words if len(words) <= LONGEST_SHOWN else f"{words[:LONGEST_SHOWN]}..."


def real_numbers(
    name: str, values: ArrayLike, error: type[SortitionError], what: str = "real numbers"
) -> np.ndarray[Any, Any]:
    """``values`` as an array of integers or floats; strings, booleans, dates and the like are no numbers.

    ``what`` is what an error asks for.
    """
    if type(values) is np.ndarray and values.dtype == np.float64:
        return values
    raw = isinstance(values, (bytearray, memoryview))  # bytes, which numpy would take for numbers
    if raw or (isinstance(values, (list, tuple)) and any(map(_is_no_number, values))):
        raise error(f"{name} must be {what}, got {shown(values)}")
    try:
        found = np.asarray(values)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last: a tensor that keeps gradients
        raise error(f"{name} must be {what}, got {shown(values)}") from None
    if found.dtype.kind not in "iuf":
        raise error(f"{name} must be {what}, got {found.dtype}: {shown(values)}")
    if isinstance(values, np.ma.MaskedArray):
        raise error(f"{name} must be {what} without a mask, got a masked array; see its filled()")
    return found


def _is_no_number(value: Any) -> bool:
    """Whether a member of a list is a boolean or masked: beside numbers numpy would take it for one."""
    if isinstance(value, float) or type(value) is int:
        return False
    masked = isinstance(value, np.ma.MaskedArray)
    return masked or isinstance(value, bool) or str(getattr(value, "dtype", "")) in ("bool", "torch.bool")


def _real(value: Any) -> float | None:
    """``value`` as a float; None where it is not one number."""
    if isinstance(value, (float, int)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            return None
    try:
        found = real_numbers("", value, ConfigurationError)
    except ConfigurationError:
        return None
    return float(found) if found.ndim == 0 else None


def _floats(
    name: str, values: ArrayLike, error: type[SortitionError], what: str = "real numbers"
) -> FloatArray:
    return np.asarray(real_numbers(name, values, error, what), dtype=np.float64)
