"""The numbers of examples that clients have: given, reported or estimated, and what a report may count."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sortition.core.errors import ConfigurationError, StateError
from sortition.core.state import array
from sortition.core.types import BoolArray, FloatArray, IntArray
from sortition.core.validation import positive_number

log = logging.getLogger("flwr.sortition")

FEWEST_COMPARED = 10
"""Sizes are compared with each other once this many are known, or all."""
LARGEST_MULTIPLE = 10.0
"""Without ``max_examples``, a client may report this many times the examples of all others together."""
LARGEST_SIZE = 1e12
"""No client has more examples than this."""


class DataSizes:
    r"""The numbers of examples :math:`n_m`, and the total of the available clients, known or estimated.

    The client weights of a round are :math:`\lambda_m = n_m / n`, where n is the number of examples of all
    available clients. A client's :math:`n_m` is known from the start if it was given, or reported in answer
    to a query. Otherwise it is known from the client's first reply on. The unknown sizes are estimated by a
    mean over first replies, each counted by its cohort weight:

    .. math:: \hat n = \sum_{m\,\mathrm{known}} n_m + \#\{m\,\mathrm{unknown}\} \cdot
              \frac{\sum_{\mathrm{first\ replies}} \mathrm{weight}_m n_m}
                   {\sum_{\mathrm{first\ replies}} \mathrm{weight}_m}

    The cohort weights correct for a sampler that prefers large clients.

    A size that was given is taken as it is. A reported one is bounded: by ``max_examples`` or, without it,
    by ``LARGEST_MULTIPLE`` times what all other clients have together, as far as that is known.

    >>> sizes = DataSizes()
    >>> sizes.join(["a", "b", "c"])
    >>> sizes.total(np.arange(3))
    nan
    >>> sizes.record(np.array([0, 1]), np.array([10.0, 20.0]), np.array([1.5, 1.5]))
    >>> sizes.total(np.arange(3))
    45.0
    >>> sizes.bounded(2, 1e308)
    300.0
    """

    def __init__(self, given: Mapping[str, float] | None = None, max_examples: float | None = None) -> None:
        if given is not None and not isinstance(given, Mapping):
            raise ConfigurationError(f"num_examples must map identities to numbers, got {given!r}")
        self._given = {name: _checked_size(name, value) for name, value in (given or {}).items()}
        self._max_examples = None if max_examples is None else positive_number("max_examples", max_examples)
        self._names: list[str] = []
        self._sizes: FloatArray = np.zeros(0)
        self._is_given: BoolArray = np.zeros(0, dtype=bool)
        self._first_weights: FloatArray = np.zeros(0)  # cohort weights of replies that told a size
        self._bounded: set[str] = set()  # those whose report was too large

    def copy(self) -> DataSizes:
        """One that can learn more without changing this one."""
        copied = copy.copy(self)
        copied._names, copied._bounded = list(self._names), set(self._bounded)
        for name in ("_sizes", "_is_given", "_first_weights"):
            setattr(copied, name, getattr(self, name).copy())
        return copied

    # What is known -----------------------------------------------------------------------------------

    def join(self, identities: Sequence[str], reported: Mapping[str, float] | None = None) -> None:
        """Append clients in the order of their ids, some with a size that they have reported."""
        self._names += identities
        known = [self._given.get(name, np.nan) for name in identities]
        self._sizes = np.concatenate([self._sizes, known])
        is_given = np.array([name in self._given for name in identities], dtype=bool)
        self._is_given = np.concatenate([self._is_given, is_given])
        self._first_weights = np.concatenate([self._first_weights, np.zeros(len(identities))])
        self.learn({} if reported is None else reported)

    def learn(self, reported: Mapping[str, float]) -> None:
        """Take in sizes that clients reported before they trained; those already known stay."""
        unknown = np.flatnonzero(np.isnan(self._sizes))
        self._set(unknown, np.array([reported.get(self._names[client], np.nan) for client in unknown]))

    def record(self, clients: IntArray, sizes: FloatArray, weights: FloatArray) -> None:
        """Take note of the sizes of clients that replied; ``weights`` are their cohort weights."""
        is_first = np.isnan(self._sizes[clients])
        self._first_weights[clients[is_first]] = weights[is_first]
        self._set(clients, sizes)

    def given(self, clients: IntArray) -> FloatArray:
        """The sizes that were given for these clients, which no reply changes; nan for the others."""
        return np.where(self._is_given[clients], self._sizes[clients], np.nan)

    def known(self, clients: IntArray) -> FloatArray:
        """The sizes of these clients that are known; nan for the others."""
        return self._sizes[clients]

    def by_name(self, names: Sequence[str]) -> tuple[FloatArray, FloatArray]:
        """The sizes of these clients that are known, and those that were given; nan for the others."""
        known = {**dict(zip(self._names, self._sizes.tolist(), strict=True)), **self._given}
        given = np.array([self._given.get(name, np.nan) for name in names])
        return np.array([known.get(name, np.nan) for name in names]), given

    def all_known(self, clients: IntArray) -> bool:
        """Whether the sizes of all these clients are known."""
        return not np.isnan(self._sizes[clients]).any()

    def known_by_name(self) -> set[str]:
        """The clients whose sizes are known, also those given that were never seen."""
        return set(self._given) | {
            name for name, size in zip(self._names, self._sizes, strict=True) if not np.isnan(size)
        }

    def matched_nobody(self) -> list[str]:
        """The names in ``num_examples`` that no client has had so far."""
        return sorted(self._given.keys() - set(self._names))

    # What follows from it ----------------------------------------------------------------------------

    def total(self, available: IntArray) -> float:
        """The number of examples of these clients, known or estimated; nan if no size at all is known."""
        sizes = self._sizes[available]
        known = ~np.isnan(sizes)
        examples = float(sizes[known].sum())
        unknown = len(sizes) - int(known.sum())
        return examples + unknown * self._estimated_mean() if unknown else examples

    def bounded(self, client: int, size: float) -> float:
        """What a reported size counts for. The log names a client whose report is too large, once."""
        bound = LARGEST_SIZE if self._max_examples is None else self._max_examples
        if self._max_examples is None:
            bound = min(bound, LARGEST_MULTIPLE * self._others_total(client))
        if size <= bound:
            return size
        name = self._names[client]
        if name not in self._bounded:
            self._bounded.add(name)
            reason = "no client may have more"
            if self._max_examples is not None:
                reason = "max_examples"
            elif bound < LARGEST_SIZE:
                reason = f"{LARGEST_MULTIPLE:g} times what all others have together"
            log.warning(
                "\t> %s reports %g examples and is counted with %g: %s. If it really has more, say so on "
                "the server: num_examples={%r: ...}",
                *(name, size, bound, reason, name),
            )
        return bound

    def dominant(self) -> str | None:
        """The client that reports more examples than all others known together, if there is one."""
        known = ~np.isnan(self._sizes)
        if known.sum() < FEWEST_COMPARED:
            return None
        largest = int(np.nanargmax(self._sizes))
        is_dominant = self._sizes[largest] > 0.5 * self._sizes[known].sum() and not self._is_given[largest]
        name = self._names[largest]
        return name if is_dominant and name not in self._bounded else None

    def known_shares(self, clients: IntArray) -> FloatArray:
        """The shares of these clients in their data if all sizes are known; otherwise equal shares."""
        sizes = self._sizes[clients]
        total = float(sizes.sum())
        return sizes / total if total > 0.0 else np.full(len(sizes), 1.0 / len(sizes))

    def relative_sizes(self, clients: IntArray, others: IntArray) -> FloatArray:
        """The sizes of these clients over the mean size of the others; 1 where one of them is not known."""
        mean = self.total(others) / len(others)
        sizes = self._sizes[clients]
        known = (sizes > 0.0) & (mean > 0.0)
        return np.divide(sizes, mean, out=np.ones(len(sizes)), where=known)

    # State -------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What a resumed run needs to know."""
        return {"sizes": self._sizes.copy(), "first_weights": self._first_weights.copy()}

    def restored(self, state: Mapping[str, Any], identities: Sequence[str]) -> DataSizes:
        """The sizes that are in ``state``. A size that was given to this object takes precedence."""
        sizes = array(state, "sizes", np.float64, (len(identities),))
        first_weights = array(state, "first_weights", np.float64, (len(identities),))
        if not np.all((sizes >= 0.0) | np.isnan(sizes)):
            raise StateError(f"state must hold 'sizes' that are not negative, got {np.nanmin(sizes)}")
        if not np.all((first_weights >= 0.0) & np.isfinite(first_weights)):
            raise StateError("state must hold 'first_weights' that are finite and not negative")
        restored = DataSizes(self._given, self._max_examples)
        restored.join(identities, dict(zip(identities, sizes.tolist(), strict=True)))
        restored._first_weights = first_weights
        return restored

    # Details -----------------------------------------------------------------------------------------

    def _set(self, clients: IntArray, sizes: FloatArray) -> None:
        """Set sizes. Only the largest of all can be more than a multiple of the others' total."""
        self._sizes[clients] = sizes
        reported = np.where(self._is_given, np.nan, self._sizes)
        ceiling = LARGEST_SIZE if self._max_examples is None else self._max_examples
        for client in np.flatnonzero(reported > ceiling):
            self._sizes[client] = reported[client] = self.bounded(int(client), float(reported[client]))
        if not np.isnan(reported).all():
            largest = int(np.nanargmax(reported))
            self._sizes[largest] = self.bounded(largest, float(reported[largest]))

    def _others_total(self, client: int) -> float:
        """The examples of all clients but one, as far as they can be compared with; else infinite."""
        others = np.delete(self._sizes, client)
        known = others[~np.isnan(others)]
        total = float(np.minimum(known, LARGEST_SIZE).sum())
        enough = len(known) == len(others) or len(known) + 1 >= FEWEST_COMPARED
        return total * len(others) / len(known) if enough and total > 0.0 else np.inf

    def _estimated_mean(self) -> float:
        """The mean of the sizes that first replies have told or, without any, of those known."""
        weights = self._first_weights
        if not weights.any():
            weights = (~np.isnan(self._sizes)).astype(float)
        told = (weights > 0.0) & ~np.isnan(self._sizes)
        return float(np.average(self._sizes[told], weights=weights[told])) if told.any() else float("nan")


def number_of_examples(reported: object) -> float:
    """What a client reports as its number of examples; nan if it is not a number, negative or not finite.

    >>> [number_of_examples(reported) for reported in (3, 2.5, -1, True, "7", [3.0], float("inf"), 10**400)]
    [3.0, 2.5, nan, nan, nan, nan, nan, nan]
    """
    if isinstance(reported, bool) or not isinstance(reported, (int, float)):
        return math.nan
    try:
        number = float(reported)
    except OverflowError:
        return math.nan
    return number if 0.0 <= number < math.inf else math.nan


def _checked_size(name: str, value: float) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = np.nan
    if not (np.isfinite(number) and number >= 0.0):
        raise ConfigurationError(f"num_examples must be finite and not negative, got {value!r} for {name!r}")
    return number
