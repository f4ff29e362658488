"""The cohort: the clients that train in a round, and what was true when they were drawn."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sortition.core.designs import Weighed
from sortition.core.errors import CohortError
from sortition.core.types import BoolArray, FloatArray, IntArray
from sortition.core.validation import real_numbers, shown

WHOLE, REAL = np.dtype(np.int64), np.dtype(np.float64)
ARRAYS = (("clients", WHOLE), ("counts", WHOLE), ("probabilities", REAL), ("weights", REAL))


@dataclass(frozen=True, slots=True, eq=False)
class Cohort:
    r"""The ticket of a round: distinct clients and, aligned with them, how they were drawn.

    With :math:`S^t` the draws of round t, ``clients`` are the distinct members of :math:`S^t`,
    ``counts`` is :math:`\mathcal N\{m \in S^t\}`, ``probabilities`` is :math:`p^t_m`, and ``weights`` has
    mean one for every client, whatever the design. The probabilities of all clients sum to one; but for draws
    that are independent or of fixed size they are the chances to be in the cohort, which sum to K, and 1
    where all the available take part. The aggregate is

    .. math:: g^t = \sum_m \lambda_m \, \mathrm{weight}_m \, g^t_m            (Equation 2)

    A cohort can be stored, sent to another process and come back late: feedback is weighted by what it
    carries. ``ticket`` lets the sampler recognise a cohort of its own. ``available`` are the ids of the
    clients that it was drawn from; None for everybody.

    >>> cohort = Cohort(
    ...     0, 3, clients=[4, 7], counts=[2, 1], probabilities=[0.5, 0.25], weights=[4 / 3, 4 / 3]
    ... )
    >>> cohort.replied([True, False]).weights
    array([2.66666667])
    """

    round_index: int
    cohort_size: int
    clients: IntArray
    counts: IntArray
    probabilities: FloatArray
    weights: FloatArray
    ticket: int = field(default=0)
    available: IntArray | None = field(default=None)

    def __post_init__(self) -> None:
        for name, dtype in ARRAYS:
            array = getattr(self, name)
            plain = type(array) is np.ndarray and array.dtype == dtype and array.ndim == 1
            if plain and array.flags.c_contiguous and not array.flags.writeable:
                continue  # as a sampler makes them
            object.__setattr__(self, name, _read_only_copy(name, array, dtype))
        if not len(self.clients) == len(self.counts) == len(self.probabilities) == len(self.weights):
            raise CohortError(
                "clients, counts, probabilities and weights must have one length, got "
                f"{len(self.clients)}, {len(self.counts)}, {len(self.probabilities)}, {len(self.weights)}"
            )
        if self.available is not None:
            ids = _read_only_copy("available", self.available, WHOLE)
            missing = self.clients[~np.isin(self.clients, ids)]
            if len(missing):
                raise CohortError(
                    f"available must hold the clients of the cohort, but {missing[0]} is not there"
                )
            object.__setattr__(self, "available", ids)

    def __len__(self) -> int:
        return len(self.clients)

    def replied(self, mask: ArrayLike) -> Cohort:
        r"""The cohort of the clients that replied, with weights raised so that they stay mean-one.

        With n distinct clients drawn and r of them replying, every weight is multiplied by n / r. If all
        clients fail with the same probability, then, whatever it is and whatever the design, each
        client's expected weight given the cohort and r >= 1 is the weight that it was drawn with:
        each set of r repliers is as likely as any other, so a client is among them with probability r / n.

        What it can't repair: failure that depends on the client. A client that always fails is missing
        from the aggregate however its companions are weighted, and one that fails more often than others
        counts for less than its :math:`\lambda_m`.

        Deviation: putting the replying draws in the place of K (factor K / K', K' the draws that
        replied) is the same where nobody was drawn twice. Where somebody was, a client's draws fail
        together, and that factor favours those drawn once; this one is exact.
        """
        present = np.asarray(mask)
        masked = isinstance(mask, np.ma.MaskedArray)  # what is masked would be lost
        if masked or present.dtype != np.bool_ or present.shape != self.clients.shape:
            raise CohortError(
                f"mask must be {len(self)} booleans, one for each client of the cohort, "
                f"got {'a masked array' if masked else present.dtype} of shape {present.shape}"
            )
        count = int(np.count_nonzero(present))
        if count == len(self):
            return self
        return self._part(present, self.weights[present] * (len(self) / max(count, 1)))

    def only(self, mask: BoolArray) -> Cohort:
        """The part of the cohort where ``mask`` is true, with its weights as they were."""
        return self._part(mask, self.weights[mask])

    def _part(self, mask: BoolArray, weights: FloatArray) -> Cohort:
        arrays = (self.clients[mask], self.counts[mask], self.probabilities[mask], weights)
        return self.owning(self.round_index, self.cohort_size, arrays, self.ticket, self.available)

    @staticmethod
    def owning(
        round_index: int, cohort_size: int, arrays: Weighed, ticket: int, available: IntArray | None
    ) -> Cohort:
        """A cohort of arrays that are right and that nobody else has: neither checked nor copied."""
        for array in arrays:
            array.setflags(write=False)
        cohort = object.__new__(Cohort)
        values = (round_index, cohort_size, *arrays, ticket, available)
        for name, value in zip(Cohort.__slots__, values, strict=True):
            object.__setattr__(cohort, name, value)
        return cohort

    def checksum(self, identity: int) -> int:
        """What the sampler called ``identity`` writes on the ticket: it covers all that the cohort says."""
        start = b"%d %d %d" % (identity, self.round_index, self.cohort_size)
        available = b"" if self.available is None else self.available
        parts: Any = (start, self.clients, self.counts, self.probabilities, self.weights, available)
        return zlib.crc32(b"".join(parts))  # one copy takes less than six calls


def _read_only_copy(name: str, values: ArrayLike, dtype: np.dtype[Any]) -> Any:
    numbers = real_numbers(name, values, CohortError)
    if numbers.ndim != 1:
        raise CohortError(f"{name} must be a list or vector of numbers, got shape {numbers.shape}")
    if dtype == WHOLE and np.any((numbers != np.floor(numbers)) | (np.abs(numbers) >= 2.0**63)):
        raise CohortError(f"{name} must be whole numbers, got {shown(values)}")
    array = np.array(numbers, dtype=dtype, order="C", subok=False)
    array.flags.writeable = False
    return array
