"""How many examples each client has: given, reported, or not known yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sortition.core.errors import ConfigurationError, StateError
from sortition.core.state import array
from sortition.core.types import FloatArray, IntArray

FEWEST_COMPARED = 10
"""With fewer sizes known, nobody is called a giant."""


class DataSizes:
    r"""The numbers of examples :math:`n_m`, and the total over those available, known or estimated.

    The client weights of a round are :math:`\lambda_m = n_m / n` with n the examples of the clients that are
    available. A client's :math:`n_m` is known from the start if it was given or reported in answer to a
    query, and from its first reply on otherwise. For those not met yet the mean is taken over the first
    meetings of all rounds, each counted by its cohort weight,

    .. math:: \hat n = \sum_{m\,\mathrm{known}} n_m + \#\{m\,\mathrm{unknown}\} \cdot
              \frac{\sum_{\mathrm{met}} \mathrm{weight}_m n_m}{\sum_{\mathrm{met}} \mathrm{weight}_m}

    so that a sampler that prefers large clients does not mislead it. The total of a round is fixed *before*
    its cohort is drawn. Given what is known then, the aggregate has expectation
    :math:`(n / \hat n) \sum_m \lambda_m g_m`: its direction is unbiased whatever :math:`\hat n` is, only the
    step is longer or shorter, and once everybody was met or has reported it is exact. A total made from the
    replies of the round itself would depend on the draw, and so bias the aggregate: that is what plain
    FedAvg does. We do it in one case only, the first round of clients of whom nothing is known.

    >>> sizes = DataSizes()
    >>> sizes.join(["a", "b", "c"])
    >>> sizes.total(np.arange(3))
    nan
    >>> sizes.meet(np.array([0, 1]), np.array([10.0, 20.0]), np.array([1.5, 1.5]))
    >>> sizes.total(np.arange(3))
    45.0
    """

    def __init__(self, given: Mapping[str, float] | None = None) -> None:
        if given is not None and not isinstance(given, Mapping):
            raise ConfigurationError(f"num_examples must map identities to numbers, got {given!r}")
        self._given = {name: _size(name, value) for name, value in (given or {}).items()}
        self._sizes: FloatArray = np.zeros(0)
        self._fixed: list[bool] = []
        self._met_examples = 0.0
        self._met_weight = 0.0

    def join(self, identities: Sequence[str], reported: Mapping[str, float] | None = None) -> None:
        """Clients join, in the order of their ids; some have reported a size already."""
        reported = {} if reported is None else reported
        known = [self._given.get(name, reported.get(name, np.nan)) for name in identities]
        self._sizes = np.concatenate([self._sizes, known])
        self._fixed += [name in self._given for name in identities]

    def given(self, client: int) -> float | None:
        """The size that was given for this client, which no reply changes."""
        return float(self._sizes[client]) if self._fixed[client] else None

    def meet(self, clients: IntArray, sizes: FloatArray, weights: FloatArray) -> None:
        """These clients replied, with these sizes; ``weights`` are those of the cohort."""
        new = np.isnan(self._sizes[clients])
        self._met_examples += float(np.sum(weights[new] * sizes[new]))
        self._met_weight += float(np.sum(weights[new]))
        self._sizes[clients] = sizes

    def total(self, available: IntArray) -> float:
        """The examples of the clients available; nan if nothing is known of anybody."""
        sizes = self._sizes[available]
        known = ~np.isnan(sizes)
        examples = float(sizes[known].sum())
        unknown = len(sizes) - int(known.sum())
        return examples + unknown * self._mean() if unknown else examples

    def giant(self) -> int | None:
        """Who says to have more examples than all others known together, of ten at least."""
        known = ~np.isnan(self._sizes)
        if known.sum() < FEWEST_COMPARED:
            return None
        largest = int(np.nanargmax(self._sizes))
        alone = self._sizes[largest] > 0.5 * self._sizes[known].sum()
        return largest if alone and not self._fixed[largest] else None

    def known_shares(self, clients: IntArray) -> FloatArray:
        """The shares of these clients in the data if the sizes of all are known; otherwise all alike."""
        sizes = self._sizes[clients]
        total = float(sizes.sum())
        return sizes / total if total > 0.0 else np.full(len(sizes), 1.0 / len(sizes))

    def relative_sizes(self, clients: IntArray, others: IntArray) -> FloatArray:
        """The sizes of these clients over the mean size of the others; 1 where that is not known."""
        mean = self.total(others) / len(others)
        sizes = self._sizes[clients]
        known = (sizes > 0.0) & (mean > 0.0)
        return np.divide(sizes, mean, out=np.ones(len(sizes)), where=known)

    def _mean(self) -> float:
        if self._met_weight > 0.0:
            return self._met_examples / self._met_weight
        known = self._sizes[~np.isnan(self._sizes)]
        return float(known.mean()) if len(known) else float("nan")

    def state(self) -> dict[str, Any]:
        """What a continued run needs."""
        return {
            "sizes": self._sizes.copy(),
            "sizes_met": np.array([self._met_examples, self._met_weight]),
        }

    def restored(self, state: Mapping[str, Any], identities: Sequence[str]) -> DataSizes:
        """Sizes as ``state`` has them; those that were given to this object stay as given."""
        sizes = array(state, "sizes", np.float64, (len(identities),))
        met = array(state, "sizes_met", np.float64, (2,))
        if not np.all((sizes >= 0.0) | np.isnan(sizes)):
            raise StateError(f"state must hold 'sizes' that are not negative, got {np.nanmin(sizes)}")
        found = DataSizes(self._given)
        found.join(identities, dict(zip(identities, sizes.tolist(), strict=True)))
        found._met_examples, found._met_weight = met.tolist()
        return found


def _size(name: str, value: float) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = np.nan
    if not (np.isfinite(number) and number >= 0.0):
        raise ConfigurationError(f"num_examples must be finite and not negative, got {value!r} for {name!r}")
    return number
