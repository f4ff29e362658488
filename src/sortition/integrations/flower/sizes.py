"""The numbers of examples that clients have: given, reported or estimated, and what a report may count."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sortition.core.errors import ConfigurationError, StateError
from sortition.core.state import array
from sortition.core.types import BoolArray, FloatArray, IntArray
from sortition.core.validation import positive_number

log = logging.getLogger("flwr.sortition")

FEWEST_COMPARED = 3
"""Sizes are compared with each other once this many are known, or all."""
FEWEST_NAMED = 10
"""Clients that report too much are named once this many sizes are known, or all."""
MANY_KNOWN = 100
"""Those that are not far beyond the bound are named once this many are known, or all: it still moves."""
LARGEST_MULTIPLE = 10.0
"""Without ``max_examples``, any client may report this many times the ninth decile of the sizes."""
TAIL_MULTIPLE = 1.5
"""It may also report this many times what the largest has if sizes follow a power law."""
LARGEST_ODDS = 2.0
"""But it may not report more than this many times what all others have together."""
GROWTH = 2.0
"""The log names a client whose replies report more than this many times what they did before."""
OUTLYING = 2.0
"""Sizes above this many times the bound do not help to set it."""
BEYOND_BELIEF = 10.0
"""A size above this many times the bound is not believed at all: the client counts like the median one."""
LARGEST_EXPONENT = 5.0
"""Of the power law; there are none in life that are steeper."""
LARGEST_SIZE = 1e12
"""No client has more examples than this."""


class DataSizes:
    r"""The numbers of examples :math:`n_m`, and the total of the available clients, known or estimated.

    The client weights of a round are :math:`\lambda_m = n_m / n`, where n is the number of examples of all
    available clients. A client's :math:`n_m` is known from the start if it was given, or reported in answer
    to a query. Replies do not change it then. Otherwise it is what the client's last reply has reported. The
    unknown sizes are estimated by a mean over first replies, each counted by its cohort weight:

    .. math:: \hat n = \sum_{m\,\mathrm{known}} n_m + \#\{m\,\mathrm{unknown}\} \cdot
              \frac{\sum_{\mathrm{first\ replies}} \mathrm{weight}_m n_m}
                   {\sum_{\mathrm{first\ replies}} \mathrm{weight}_m}

    The cohort weights correct for a sampler that prefers large clients.

    A size that was given is taken as it is. A reported one is bounded, by ``max_examples`` or, without it, by
    what is ``credible`` beside the sizes that are known. What was reported is kept: the bound moves as more
    sizes become known.

    >>> sizes = DataSizes()
    >>> sizes.join(["a", "b", "c"])
    >>> sizes.total(np.arange(3))
    nan
    >>> sizes.record(np.array([0, 1]), np.array([10.0, 20.0]), np.array([1.5, 1.5]))
    >>> sizes.total(np.arange(3))
    45.0
    >>> sizes.record(np.array([2]), np.array([300.0]), np.array([1.5]))
    >>> sizes.known(np.arange(3)).tolist()
    [10.0, 20.0, 200.0]
    """

    def __init__(self, given: Mapping[str, float] | None = None, max_examples: float | None = None) -> None:
        if given is not None and not isinstance(given, Mapping):
            raise ConfigurationError(f"num_examples must map identities to numbers, got {given!r}")
        self._given = {name: _checked_size(name, value) for name, value in (given or {}).items()}
        self._max_examples = None if max_examples is None else positive_number("max_examples", max_examples)
        self._names: list[str] = []
        self._reported: FloatArray = np.zeros(0)  # or given
        self._sizes: FloatArray = np.zeros(0)  # what these count for
        self._credible = Credible(LARGEST_SIZE, LARGEST_SIZE)
        if self._max_examples is not None:
            self._credible = Credible(self._max_examples, self._max_examples)
        self._is_given: BoolArray = np.zeros(0, dtype=bool)
        self._answered: BoolArray = np.zeros(0, dtype=bool)  # a query, with a size
        self._first_weights: FloatArray = np.zeros(0)  # cohort weights of replies that told a size
        self._said: set[str] = set()  # what the log says once, of this object and its copies

    def copy(self) -> DataSizes:
        """One that can learn more without changing this one."""
        copied = copy.copy(self)
        copied._names = list(self._names)
        for name in ("_reported", "_sizes", "_is_given", "_answered", "_first_weights"):
            setattr(copied, name, getattr(self, name).copy())
        return copied

    # What is known -----------------------------------------------------------------------------------

    def join(self, identities: Sequence[str], reported: Mapping[str, float] | None = None) -> None:
        """Append clients in the order of their ids, some with a size that they have told when asked."""
        self._names += identities
        known = np.array([self._given.get(name, np.nan) for name in identities])
        is_given = np.array([name in self._given for name in identities], dtype=bool)
        self._reported = np.concatenate([self._reported, known])
        self._is_given = np.concatenate([self._is_given, is_given])
        self._answered = np.concatenate([self._answered, np.zeros(len(identities), dtype=bool)])
        self._first_weights = np.concatenate([self._first_weights, np.zeros(len(identities))])
        unknown = np.flatnonzero(np.isnan(self._reported))
        told = {} if reported is None else reported
        answers = np.array([told.get(self._names[client], np.nan) for client in unknown])
        self._answered[unknown] = ~np.isnan(answers)
        self._set(unknown, answers)

    def record(self, clients: IntArray, sizes: FloatArray, weights: FloatArray) -> None:
        """Take note of the sizes in replies; ``weights`` are the cohort weights of these clients."""
        before = self._reported[clients]
        self._first_weights[clients[np.isnan(before)]] = weights[np.isnan(before)]
        untold = np.isnan(self.told(clients))
        for client in clients[untold & (sizes / GROWTH > before) & (before > 0.0)]:
            name = self._names[client]
            self._say_once(
                f"growth {name}",
                "\t> %s reports %g examples, and has reported %g before. From the next round on it counts "
                "with what it reports now, within the bound for all. If that is wrong, give the right number "
                "on the server: num_examples={%r: ...}",
                *(name, float(sizes[clients == client][0]), float(self._reported[client]), name),
            )
        self._set(clients[untold], sizes[untold])

    def compare(self, client: int, reported: float) -> None:
        """The log says so, once, if a reply has another size than the answer to the query."""
        size = float(self._reported[client])
        if self._answered[client] and not math.isnan(reported) and reported != size:
            self._say_once(
                "answers",
                "\t> %s has told %g examples when it was asked, and reports %g in its reply. What a client "
                "tells when asked counts, here and for others (replies may report examples times epochs). "
                "If that is wrong, give the right number on the server: num_examples={%r: ...}",
                *(self._names[client], size, reported, self._names[client]),
            )

    def told(self, clients: IntArray) -> FloatArray:
        """What these clients count for by what was given, or told in answer to a query; nan for the others.

        No reply changes it, but for an answer of 0: that client may have got data since.
        """
        is_told = self._is_given[clients] | (self._answered[clients] & (self._reported[clients] > 0.0))
        return np.where(is_told, self._sizes[clients], np.nan)

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

    def bounded(self, size: float) -> float:
        """What a reported size counts for."""
        return self._credible.counted(size)

    def dominant(self) -> str | None:
        """The client that reports more examples than all others known together, if there is one."""
        known = ~np.isnan(self._sizes)
        if known.sum() < FEWEST_NAMED:
            return None
        largest = int(np.nanargmax(self._sizes))
        is_dominant = self._sizes[largest] > 0.5 * self._sizes[known].sum() and not self._is_given[largest]
        name = self._names[largest]
        return name if is_dominant and f"bound {name}" not in self._said else None

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
        return {
            "sizes": self._sizes.copy(),
            "reported_sizes": self._reported.copy(),
            "answered_sizes": self._answered.copy(),
            "first_weights": self._first_weights.copy(),
        }

    def restored(self, state: Mapping[str, Any], identities: Sequence[str]) -> DataSizes:
        """The sizes that are in ``state``. A size that was given to this object takes precedence."""
        number = len(identities)
        name = "reported_sizes" if "reported_sizes" in state else "sizes"  # 0.2.0 kept only what counts
        sizes = array(state, name, np.float64, (number,))
        first_weights = array(state, "first_weights", np.float64, (number,))
        if not np.all((sizes >= 0.0) | np.isnan(sizes)):
            raise StateError(f"state must hold {name!r} that are not negative, got {np.nanmin(sizes)}")
        if not np.all((first_weights >= 0.0) & np.isfinite(first_weights)):
            raise StateError("state must hold 'first_weights' that are finite and not negative")
        restored = DataSizes(self._given, self._max_examples)
        restored.join(identities, dict(zip(identities, sizes.tolist(), strict=True)))
        restored._answered[:] = False
        if "answered_sizes" in state:
            restored._answered = array(state, "answered_sizes", np.bool_, (number,)) & ~restored._is_given
        restored._first_weights = first_weights
        return restored

    # Details -----------------------------------------------------------------------------------------

    def _set(self, clients: IntArray, sizes: FloatArray) -> None:
        """Set what these clients have reported, and find out anew what all count for."""
        self._reported[clients] = sizes
        known = self._reported[~np.isnan(self._reported)]
        all_known = len(known) == len(self._reported)
        if self._max_examples is None:
            is_compared = all_known or len(known) >= FEWEST_COMPARED
            self._credible = credible(known, len(self._reported) if is_compared else 0)
        bound = self._credible.largest
        too_large = ~self._is_given & (self._reported > bound)
        self._sizes = self._reported.copy()
        for client in np.flatnonzero(too_large):
            reported, name = float(self._reported[client]), self._names[client]
            self._sizes[client] = self._credible.counted(reported)
            enough = FEWEST_NAMED if reported > BEYOND_BELIEF * bound else MANY_KNOWN
            if self._max_examples is not None or all_known or len(known) >= enough:
                self._say_once(
                    f"bound {name}",
                    "\t> %s reports %g examples and is counted with %g: %s. If it really has more, say so on "
                    "the server: num_examples={%r: ...} for this client, or max_examples= for all",
                    *(name, reported, self._sizes[client]),
                    "far more than others have" if self._max_examples is None else "max_examples",
                    name,
                )

    def _say_once(self, what: str, message: str, *values: object) -> None:
        if what not in self._said:
            self._said.add(what)
            log.warning(message, *values)

    def _estimated_mean(self) -> float:
        """The mean of the sizes that first replies have told or, without any, of those known."""
        weights = self._first_weights
        if not weights.any():
            weights = (~np.isnan(self._sizes)).astype(float)
        told = (weights > 0.0) & ~np.isnan(self._sizes)
        return float(np.average(self._sizes[told], weights=weights[told])) if told.any() else float("nan")


class Credible(NamedTuple):
    """What reported sizes count for."""

    largest: float
    """Larger ones count for this."""
    ordinary: float
    """Those that are not believed at all count for this."""

    def counted(self, size: float) -> float:
        """What this size counts for."""
        return self.ordinary if size > BEYOND_BELIEF * self.largest else min(size, self.largest)


def credible(sizes: FloatArray, num_clients: int) -> Credible:
    r"""What is believed of ``num_clients`` clients that report their sizes, if these are the known ones.

    Let Q be the ninth decile of the sizes above 0, r its rank among all clients, from above, and a the
    exponent of the power law through the upper quartile and the median. Then the largest of all would have
    :math:`Q r^a`. The bound is :math:`Q \max(10, 1.5\, r^a)`. From ten sizes on it is also at most twice the
    sum of all others, each taken to be at most 10 Q. If some are more than twice the bound, it is made anew
    without them. docs/research/flower-rules.md says how far liars can move it.

    >>> credible(np.array([1e9] + 29 * [5.0]), 30)
    Credible(largest=50.0, ordinary=5.0)
    >>> round(credible(510.0 / np.arange(1, 31) ** 1.3, 30).largest)
    841
    """
    first = _credible(sizes, num_clients)
    others = sizes[sizes <= OUTLYING * first.largest]
    outlying = len(sizes) - len(others)
    return _credible(others, num_clients - outlying) if outlying and len(others) >= FEWEST_NAMED else first


def _credible(sizes: FloatArray, num_clients: int) -> Credible:
    """The same in one pass."""
    descending = np.sort(np.minimum(sizes[sizes > 0.0], LARGEST_SIZE))[::-1]
    number = len(descending)
    if number < 2 or num_clients < 1:
        return Credible(LARGEST_SIZE, LARGEST_SIZE)
    top = max(1, number // 10)
    upper = max(top, number // 4)
    middle = max(upper, number // 2)
    decile, quartile, median = (float(descending[place]) for place in (top, upper, middle))
    steps = math.log((middle + 1) / (upper + 1))
    exponent = math.log(quartile / median) / steps if steps else 0.0
    each = num_clients / len(sizes)  # how many clients one that is known stands for
    tail = TAIL_MULTIPLE * ((top + 1) * each) ** min(exponent, LARGEST_EXPONENT)
    bound = decile * max(LARGEST_MULTIPLE, tail)
    if number >= FEWEST_NAMED:
        others = np.minimum(descending[1:], LARGEST_MULTIPLE * decile)
        bound = min(bound, LARGEST_ODDS * each * float(others.sum()))
    return Credible(min(bound, LARGEST_SIZE), median)


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
