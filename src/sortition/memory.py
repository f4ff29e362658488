r"""A memory of earlier updates: the lottery then pays only for what has changed.

Let :math:`y_m` be what is remembered of client m's update, 0 if nothing is. For every b that was fixed before
the draw

.. math:: g = b \sum_m \lambda_m y_m + \sum_{m \in S} \lambda_m\,\mathrm{weight}_m\,(g_m - b\,y_m)

is an unbiased estimate of :math:`\sum_m \lambda_m g_m`, whatever y holds. Its variance is that of the
*residuals* :math:`g_m - b\,y_m`, so the sampler learns their norms, and draws the clients that have changed.
With b = 1 this is FedVARP (Jhunjhunwala et al. 2022), the federated form of SAGA.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sortition.core.cohort import Cohort
from sortition.core.errors import ConfigurationError, FeedbackError, StateError
from sortition.core.state import array, number, text
from sortition.core.types import BoolArray, FloatArray, IntArray
from sortition.core.validation import named_keywords, one_of, whole_number

Updates: TypeAlias = ArrayLike | Sequence[ArrayLike | None]
"""One update a client of the cohort: a matrix, or a list of vectors. None or nan: no reply."""
WeightsOf: TypeAlias = Callable[[IntArray], FloatArray]
"""lambda of client ids, such as ``sampler.client_weights``."""

KEPT = 0.9
"""How much of the sums behind b is kept from one round to the next."""
STEP = 0.5
"""How far a memory moves towards a new update, so that one noisy update does not fill it."""
LEAST_FACTOR = 1e-3
"""What a certain client counts for when b is learnt, whose residual adds no variance."""
STATE_VERSION = 1


class Memory:
    r"""Remembers the last updates of the clients, and combines them with a cohort's.

        memory = Memory(num_parameters=len(model), num_clients=1000)
        while training:
            cohort = sampler.draw()
            updates = train(cohort)
            aggregate, norms = memory.combine(cohort, updates, sampler.client_weights)
            model -= step * aggregate
            sampler.observe(cohort, norms)   # the norms of the residuals

    b is learnt from earlier rounds only: a regression of new updates on remembered ones, with the weights
    that they have in the variance, in [0, 1]. Where a memory is useless b goes to 0, and the estimate is the
    plain one. A memory moves half of the way to a new update, all of it the first time.

    Only clients that were seen take memory: ``num_parameters`` numbers of ``dtype`` each, in RAM or, with
    ``path``, in a file. ``bytes_needed`` is the most that it can take, when ``max_clients`` of them (all, if
    not given) were seen; later ones are then not remembered. More than ``max_bytes`` is an error.

    >>> memory = Memory(num_parameters=2, num_clients=4)
    >>> cohort = Cohort(0, 1, clients=[2], counts=[1], probabilities=[0.25], weights=[4.0])
    >>> memory.combine(cohort, [[3.0, 4.0]], np.array([0.25]))
    (array([3., 4.]), array([5.]))
    """

    @named_keywords
    def __init__(
        self,
        *,
        num_parameters: int,
        num_clients: int,
        dtype: Literal["float16", "float32", "float64"] = "float32",
        path: str | Path | None = None,
        max_clients: int | None = None,
        max_bytes: int = 4 * 2**30,
    ) -> None:
        self._num_parameters = whole_number("num_parameters", num_parameters, least=1)
        most = whole_number("num_clients", num_clients, least=1)
        if max_clients is not None:
            most = min(most, whole_number("max_clients", max_clients, least=1))
        one_of("dtype", dtype, ("float16", "float32", "float64"))
        self._dtype = np.dtype(dtype)
        self._most = most
        self.bytes_needed = most * self._num_parameters * self._dtype.itemsize
        if self.bytes_needed > whole_number("max_bytes", max_bytes, least=1):
            raise ConfigurationError(
                f"max_bytes is {max_bytes:,}, but {most:,} clients with {num_parameters:,} parameters of "
                f"{dtype} need {self.bytes_needed:,}; take a smaller dtype, fewer max_clients, a path for a "
                "file, or a memory that the clients hold"
            )
        self._path = None if path is None else Path(path)
        self._slots: dict[int, int] = {}
        self._lambda = np.zeros(0)  # the weights in the sum, by slot
        self._rows = self._room(0)
        self._sum = np.zeros(self._num_parameters)
        self._numerator = self._denominator = 0.0

    @property
    def coefficient(self) -> float:
        """b of the next round."""
        if self._denominator <= 0.0:
            return 0.0
        return float(min(max(self._numerator / self._denominator, 0.0), 1.0))

    @property
    def clients_remembered(self) -> int:
        """How many clients take memory."""
        return len(self._slots)

    def remembered(self, client: int) -> FloatArray:
        """y of ``client``: zeros if nothing is remembered."""
        slot = self._slots.get(client)
        if slot is None:
            return np.zeros(self._num_parameters)
        return np.array(self._rows[slot], dtype=np.float64)

    def combine(
        self,
        cohort: Cohort,
        updates: Updates,
        client_weights: WeightsOf | ArrayLike,
        available: ArrayLike | None = None,
    ) -> tuple[FloatArray, FloatArray]:
        """The aggregate, and the norms of the residuals for ``sampler.observe``; then remember the updates.

        ``client_weights`` tells lambda of client ids, as ``sampler.client_weights`` does. Where nobody joins
        or leaves, an array aligned with the cohort will do. ``available`` are the clients that the cohort was
        drawn from, if not from everybody: the aggregate is then that of the available clients, and what is
        remembered of the others is left out. On an error nothing has changed.
        """
        vectors = self._checked(updates, len(cohort))
        weights = self._weights_of(cohort, client_weights)
        replied = np.array([vector is not None for vector in vectors], dtype=bool)
        if callable(client_weights):
            self._follow(client_weights)
        heard, b = cohort.replied(replied), self.coefficient
        aggregate, norms = b * self._sum_of(available), np.full(len(cohort), np.nan)
        numerator = denominator = 0.0
        remembered: list[tuple[int, float, FloatArray]] = []
        places = np.flatnonzero(replied)
        with np.errstate(over="ignore", invalid="ignore"):  # checked below
            for place, weight, count in zip(places.tolist(), heard.weights, heard.counts, strict=True):
                client, lam, update = int(cohort.clients[place]), float(weights[place]), vectors[place]
                assert update is not None
                old = self.remembered(client)
                residual = update - b * old
                norms[place] = np.linalg.norm(residual)
                aggregate += lam * weight * residual
                factor = lam * lam * weight * (max(weight / count - 1.0, 0.0) + LEAST_FACTOR)
                numerator += factor * float(update @ old)
                denominator += factor * float(old @ old)
                remembered.append((client, lam, update))
        sums = (numerator, denominator, float(norms[replied].sum()), float(np.abs(aggregate).sum()))
        if not all(map(math.isfinite, sums)):
            raise FeedbackError("updates are too large: their sum, or a product of two, is no finite number")
        for client, lam, update in remembered:
            self._remember(client, lam, update)
        if denominator > 0.0:
            self._numerator = KEPT * self._numerator + numerator
            self._denominator = KEPT * self._denominator + denominator
        return aggregate, norms

    # Details -----------------------------------------------------------------------------------------

    def _sum_of(self, available: ArrayLike | None) -> FloatArray:
        """sum lambda_m y_m over the ``available`` clients."""
        if available is None:
            return self._sum
        absent = self._slots.keys() - set(np.asarray(available).tolist())
        slots = np.array([self._slots[client] for client in sorted(absent)], dtype=np.int64)
        left_out: FloatArray = self._lambda[slots] @ self._rows[slots].astype(np.float64)
        return self._sum - left_out

    def _checked(self, updates: Updates, size: int) -> list[FloatArray | None]:
        """One vector for each client of the cohort, or None for no reply."""
        several: Any = updates
        if len(several) != size:
            raise FeedbackError(
                f"updates must have {size} rows, one a client of the cohort, got {len(several)}"
            )
        vectors: list[FloatArray | None] = []
        for place, update in enumerate(several):
            if update is None:
                vectors.append(None)
                continue
            try:
                vector = np.asarray(update, dtype=np.float64).reshape(-1)
            except (TypeError, ValueError):
                raise FeedbackError(f"updates must be numbers, but row {place} is not") from None
            if len(vector) != self._num_parameters:
                raise FeedbackError(
                    f"updates must have num_parameters = {self._num_parameters} entries each, "
                    f"got {len(vector)} in row {place}"
                )
            if np.isinf(vector).any():
                raise FeedbackError(
                    f"updates must be finite (nan or None for no reply), but row {place} is not"
                )
            vectors.append(None if np.isnan(vector).any() else vector)
        return vectors

    def _weights_of(self, cohort: Cohort, client_weights: WeightsOf | ArrayLike) -> FloatArray:
        given = client_weights(cohort.clients) if callable(client_weights) else client_weights
        weights = np.asarray(given, dtype=np.float64)
        if weights.shape != (len(cohort),) or not (np.isfinite(weights).all() and (weights >= 0.0).all()):
            raise FeedbackError(
                f"client_weights must be {len(cohort)} numbers, one a client of the cohort, finite and not "
                f"negative, got shape {weights.shape}"
            )
        for client, lam in zip(cohort.clients.tolist(), weights.tolist(), strict=True):
            slot = self._slots.get(client)
            if slot is not None and self._lambda[slot] != lam and not callable(client_weights):
                raise FeedbackError(
                    f"client_weights have changed for client {client}: clients joined or left; pass a "
                    "function of client ids, such as sampler.client_weights, so that all weights can follow"
                )
        return weights

    def _follow(self, weights_of: WeightsOf) -> None:
        """Let the sum follow weights that have changed; a client without a weight is forgotten."""
        if not self._slots:
            return
        clients = np.fromiter(self._slots, dtype=np.int64, count=len(self._slots))
        now = np.asarray(weights_of(clients), dtype=np.float64)
        if np.array_equal(now, self._lambda[: len(clients)]):
            return
        stay: BoolArray = now > 0.0
        rows = self._rows[: len(clients)][stay]
        self._rows = self._room(len(rows))
        self._rows[: len(rows)] = rows
        self._slots = {client: slot for slot, client in enumerate(clients[stay].tolist())}
        self._lambda = now[stay]
        self._sum = self._lambda @ rows.astype(np.float64)

    def _remember(self, client: int, lam: float, update: FloatArray) -> None:
        slot = self._slots.get(client)
        old = self.remembered(client)
        if slot is None:
            if len(self._slots) == self._most:
                return
            slot = self._slots[client] = len(self._slots)
            if slot >= len(self._rows):
                rows = self._rows
                self._rows = self._room(slot + 1)
                self._rows[: len(rows)] = rows
            if slot >= len(self._lambda):
                self._lambda = np.concatenate((self._lambda, np.zeros(slot + 1 - len(self._lambda))))
            new = update
        else:
            new = old + STEP * (update - old)
        largest = float(np.finfo(self._dtype).max)
        self._rows[slot] = np.clip(new, -largest, largest)
        self._sum += lam * np.asarray(self._rows[slot], dtype=np.float64) - self._lambda[slot] * old
        self._lambda[slot] = lam

    def _room(self, rows: int) -> NDArray[Any]:
        """An array for at least ``rows`` clients; the room doubles. A file has room for all of them."""
        if self._path is not None:
            return np.lib.format.open_memmap(
                self._path, mode="w+", dtype=self._dtype, shape=(self._most, self._num_parameters)
            )
        return np.zeros((min(max(2 * rows, 16), self._most), self._num_parameters), dtype=self._dtype)

    # Saving and continuing ---------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All that a continued run needs: plain arrays, numbers and strings."""
        count = len(self._slots)
        return {
            "kind": "Memory",
            "version": STATE_VERSION,
            "num_parameters": self._num_parameters,
            "dtype": self._dtype.name,
            "clients": np.fromiter(self._slots, dtype=np.int64, count=count),
            "client_weights": self._lambda[:count].copy(),
            "rows": np.array(self._rows[:count]),
            "sum": self._sum.copy(),
            "numerator": self._numerator,
            "denominator": self._denominator,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, to the bit; on a StateError nothing has changed."""
        if not isinstance(state, Mapping):
            raise StateError(f"state must be a mapping, as state_dict gives it, got {type(state).__name__}")
        wanted = ("Memory", STATE_VERSION, self._num_parameters, self._dtype.name)
        for name, value in zip(("kind", "version", "num_parameters", "dtype"), wanted, strict=True):
            if text(state, name) != value:
                raise StateError(f"state has {name} = {text(state, name)!r}, this memory has {value!r}")
        clients = array(state, "clients", np.int64, (None,))
        count = len(clients)
        weights = array(state, "client_weights", np.float64, (count,))
        rows = array(state, "rows", self._dtype.type, (count, self._num_parameters))
        total = array(state, "sum", np.float64, (self._num_parameters,))
        numerator, denominator = number(state, "numerator"), number(state, "denominator", least=0.0)
        if count > self._most or len(np.unique(clients)) < count:
            raise StateError(f"state has {count} clients, one of them twice or more than {self._most}")
        if not all(np.isfinite(values).all() for values in (weights, rows, total)) or (weights < 0.0).any():
            raise StateError(
                "state has rows, a sum or client_weights that are not finite, or a negative weight"
            )
        if not np.allclose(
            weights @ rows.astype(np.float64), total, rtol=1e-6, atol=1e-6 * (1 + np.abs(total).max())
        ):
            raise StateError("state has a sum that is not the weighted sum of its rows")
        self._slots = {client: slot for slot, client in enumerate(clients.tolist())}
        self._lambda, self._sum = weights, total
        self._rows = self._room(count)
        self._rows[:count] = rows
        self._numerator, self._denominator = numerator, denominator
