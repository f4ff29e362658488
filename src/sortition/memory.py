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
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sortition.core.cohort import Cohort
from sortition.core.errors import AvailabilityError, ConfigurationError, FeedbackError, StateError
from sortition.core.state import array, count, number, text
from sortition.core.types import FloatArray, IntArray
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
LEAST_WRITES = 1000
"""The sum is made anew after this many rows were written, and as many as there are: rounding can't add up."""
SUM_TOLERANCE = 1e-6
"""How far the sum of a state may be from that of its rows, relative to the largest entry."""
STATE_VERSION = 2


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
    ``path``, in a scratch file, which must not exist yet. ``num_clients`` is the most that there will ever
    be, newcomers included. ``bytes_needed`` is what the rows take when all of them, or ``max_clients``, were
    seen; later ones are then not remembered. More than ``max_bytes`` is an error.

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
        self._dtype = np.dtype(dtype)
        one_of("dtype", self._dtype.name, ("float16", "float32", "float64"))
        self._most = most
        self.bytes_needed = most * self._num_parameters * self._dtype.itemsize
        if self.bytes_needed > whole_number("max_bytes", max_bytes, least=1):
            raise ConfigurationError(
                f"max_bytes is {max_bytes:,}, but {most:,} clients with {num_parameters:,} parameters of "
                f"{self._dtype.name} need {self.bytes_needed:,}; raise it, or take a smaller dtype or fewer "
                "max_clients"
            )
        self._file: NDArray[Any] | None = None if path is None else self._create(Path(path))
        self._rows: list[NDArray[Any]] = []  # y, by slot
        self._slots: dict[int, int] = {}
        self._lambda: list[float] = []  # the weights in the sum, by slot
        self._sum = np.zeros(self._num_parameters)
        self._writes = 0  # since the sum was made anew
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

    def forget(self, clients: ArrayLike) -> None:
        """Forget ``clients``, for example because they left. Clients that are not remembered are ignored."""
        gone = set(np.asarray(clients).tolist())
        kept = [client for client in self._slots if client not in gone]
        self._keep(kept, [self._lambda[self._slots[client]] for client in kept])

    def combine(
        self,
        cohort: Cohort,
        updates: Updates,
        client_weights: WeightsOf | ArrayLike,
        available: ArrayLike | None = None,
    ) -> tuple[FloatArray, FloatArray]:
        """The aggregate, and the norms of the residuals for ``sampler.observe``; then remember the updates.

        Combine each cohort once. ``client_weights`` tells lambda of client ids, and 0 for clients that left,
        as ``sampler.client_weights`` does. Where nobody joins or leaves, an array aligned with the cohort
        will do. ``available`` are the clients that the cohort was drawn from, if not from everybody: the
        aggregate is then that of the available clients, and what is remembered of the others is left out.
        If clients were drawn and none replied, the aggregate is zero. On an error nothing has changed.
        """
        vectors = self._checked(updates, len(cohort))
        weights, followed = self._checked_weights(cohort, client_weights)
        total = self._sum if followed is None else self._weighted_sum(followed)
        total = total - self._weighted_sum(self._absent(cohort, available, followed))
        replied = np.array([vector is not None for vector in vectors], dtype=bool)
        norms = np.full(len(cohort), np.nan)
        if len(cohort) and not replied.any():
            return np.zeros(self._num_parameters), norms
        heard, b = cohort.replied(replied), self.coefficient
        aggregate = b * total
        numerator = denominator = 0.0
        told: list[tuple[int, float, FloatArray, FloatArray]] = []
        with np.errstate(over="ignore", invalid="ignore"):  # checked below
            for place, weight, count in zip(
                np.flatnonzero(replied).tolist(), heard.weights, heard.counts, strict=True
            ):
                client, lam, update = int(cohort.clients[place]), float(weights[place]), vectors[place]
                assert update is not None
                old = self.remembered(client)
                residual = update - b * old
                norms[place] = np.linalg.norm(residual)
                aggregate += lam * weight * residual
                factor = lam * lam * weight * (max(weight / count - 1.0, 0.0) + LEAST_FACTOR)
                numerator += factor * float(update @ old)
                denominator += factor * float(old @ old)
                if not (math.isfinite(norms[place]) and math.isfinite(numerator + denominator)):
                    raise FeedbackError(
                        f"updates are too large: that of client {client} has no finite square"
                    )
                if lam > 0.0:
                    told.append((client, lam, update, old))
        newcomers = sum(client not in self._slots for client, _, _, _ in told)
        fresh = [
            self._new_row(len(self._slots) + i) for i in range(min(newcomers, self._most - len(self._slots)))
        ]
        # nothing can fail from here on
        if followed is not None:
            self._keep(list(followed), list(followed.values()))
            if self._file is not None:
                fresh = [self._new_row(len(self._slots) + i) for i in range(len(fresh))]
        for client, lam, update, old in told:
            self._remember(client, lam, update, old, fresh)
        if denominator > 0.0:
            self._numerator = KEPT * self._numerator + numerator
            self._denominator = KEPT * self._denominator + denominator
        return aggregate, norms

    # Details -----------------------------------------------------------------------------------------

    def _checked(self, updates: Updates, size: int) -> list[FloatArray | None]:
        """One vector for each client of the cohort, or None for no reply."""
        if not hasattr(updates, "__len__") or isinstance(updates, (Mapping, str, bytes)):
            raise FeedbackError(
                f"updates must be a matrix or a list of vectors, got {type(updates).__name__}"
            )
        if isinstance(updates, np.ndarray) and not updates.ndim:
            raise FeedbackError("updates must be a matrix or a list of vectors, got one number")
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
                given = np.asarray(update)
            except (TypeError, ValueError, RuntimeError) as error:
                raise FeedbackError(
                    f"updates must be vectors of numbers, but row {place} is not: {error}"
                ) from None
            if given.dtype.kind not in "iuf" or given.ndim != 1 or len(given) != self._num_parameters:
                raise FeedbackError(
                    f"updates must be vectors of num_parameters = {self._num_parameters} real numbers "
                    f"(flatten and join the layers of a model), got {given.dtype} of shape {given.shape} "
                    f"in row {place}"
                )
            vector = given.astype(np.float64)
            if np.isinf(vector).any():
                raise FeedbackError(
                    f"updates must be finite (nan or None for no reply), but row {place} is not"
                )
            vectors.append(None if np.isnan(vector).any() else vector)
        return vectors

    def _checked_weights(
        self, cohort: Cohort, client_weights: WeightsOf | ArrayLike
    ) -> tuple[FloatArray, dict[int, float] | None]:
        """lambda of the cohort and, where those of remembered clients have changed, all that are not 0."""
        if callable(client_weights):
            weights = _weights(client_weights(cohort.clients), len(cohort))
            remembered = np.fromiter(self._slots, dtype=np.int64, count=len(self._slots))
            now = _weights(client_weights(remembered), len(remembered)) if len(remembered) else np.zeros(0)
            if np.array_equal(now, self._lambda):
                return weights, None
            pairs = zip(remembered.tolist(), now.tolist(), strict=True)
            return weights, {client: lam for client, lam in pairs if lam > 0.0}
        weights = _weights(client_weights, len(cohort))
        for client, lam in zip(cohort.clients.tolist(), weights.tolist(), strict=True):
            slot = self._slots.get(client)
            if slot is not None and self._lambda[slot] != lam:
                raise FeedbackError(
                    f"client_weights have changed for client {client}: clients joined or left; pass a "
                    "function of client ids, such as sampler.client_weights, so that all weights can follow"
                )
        return weights, None

    def _absent(
        self, cohort: Cohort, available: ArrayLike | None, followed: dict[int, float] | None
    ) -> dict[int, float]:
        """The remembered clients that could not be drawn, with their weights."""
        if available is None:
            return {}
        ids = np.asarray(available)
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise AvailabilityError(
                f"available must be the client ids that the cohort was drawn from, got {ids.dtype} of shape "
                f"{ids.shape}"
            )
        missing = cohort.clients[~np.isin(cohort.clients, ids)]
        if len(missing):
            raise AvailabilityError(
                f"available must hold the clients of the cohort, but {missing[0]} is not there"
            )
        weights = followed
        if weights is None:
            weights = {client: self._lambda[slot] for client, slot in self._slots.items()}
        remembered = np.fromiter(weights, dtype=np.int64, count=len(weights))
        return {client: weights[client] for client in remembered[~np.isin(remembered, ids)].tolist()}

    def _weighted_sum(self, weights: Mapping[int, float]) -> FloatArray:
        """sum lambda_m y_m over these clients, row by row."""
        total = np.zeros(self._num_parameters)
        for client, lam in weights.items():
            total += lam * self._rows[self._slots[client]].astype(np.float64)
        return total

    def _keep(self, clients: list[int], weights: list[float]) -> None:
        """Keep these clients only, in this order, with these weights."""
        for slot, client in enumerate(clients):  # slots only become smaller
            old = self._slots[client]
            if old != slot:
                self._rows[slot][:] = self._rows[old]
        del self._rows[len(clients) :]
        self._slots = {client: slot for slot, client in enumerate(clients)}
        self._lambda = weights
        self._sum_up()

    def _remember(
        self, client: int, lam: float, update: FloatArray, old: FloatArray, fresh: list[NDArray[Any]]
    ) -> None:
        slot = self._slots.get(client)
        new, before = old + STEP * (update - old), old
        if slot is None:
            if not fresh:
                return  # all room is taken
            slot = self._slots[client] = len(self._slots)
            self._rows.append(fresh.pop(0))
            self._lambda.append(lam)
            new, before = update, np.zeros_like(update)
        largest = float(np.finfo(self._dtype).max)
        self._rows[slot][:] = np.clip(new, -largest, largest)
        self._sum += lam * self._rows[slot].astype(np.float64) - self._lambda[slot] * before
        self._lambda[slot] = lam
        self._writes += 1
        if self._writes > max(LEAST_WRITES, len(self._slots)):
            self._sum_up()

    def _sum_up(self) -> None:
        """Make the sum anew: what rounding has added up since the last time is gone."""
        self._sum = self._weighted_sum({c: self._lambda[slot] for c, slot in self._slots.items()})
        self._writes = 0

    def _new_row(self, slot: int) -> NDArray[Any]:
        if self._file is not None:
            row: NDArray[Any] = self._file[slot]
            return row
        return np.zeros(self._num_parameters, dtype=self._dtype)

    def _create(self, path: Path) -> NDArray[Any]:
        """A scratch file with room for all rows, which is taken from the disk at once."""
        try:
            with path.open("xb") as file:
                os.posix_fallocate(file.fileno(), 0, self.bytes_needed)
        except FileExistsError:
            raise ConfigurationError(
                f"path names the file {path}, which exists; a memory needs a new one, since rows without "
                "their state are of no use: delete it, or name another"
            ) from None
        except OSError as error:
            raise ConfigurationError(
                f"path must name a file of {self.bytes_needed:,} bytes: {error}"
            ) from None
        return np.memmap(path, dtype=self._dtype, mode="r+", shape=(self._most, self._num_parameters))

    # Saving and continuing ---------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All that a continued run needs: plain arrays, numbers and strings."""
        count = len(self._slots)
        rows = np.array(self._rows, dtype=self._dtype).reshape(count, self._num_parameters)
        return {
            "kind": "Memory",
            "version": STATE_VERSION,
            "num_parameters": self._num_parameters,
            "dtype": self._dtype.name,
            "clients": np.fromiter(self._slots, dtype=np.int64, count=count),
            "client_weights": np.array(self._lambda, dtype=np.float64),
            "rows": rows,
            "sum": self._sum.copy(),
            "writes": self._writes,
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
        number_of = len(clients)
        weights = array(state, "client_weights", np.float64, (number_of,))
        rows = array(state, "rows", self._dtype.type, (number_of, self._num_parameters))
        total = array(state, "sum", np.float64, (self._num_parameters,))
        writes = count(state, "writes")
        numerator, denominator = number(state, "numerator"), number(state, "denominator", least=0.0)
        if number_of > self._most or len(np.unique(clients)) < number_of or (clients < 0).any():
            raise StateError(f"state has clients that are negative, or twice, or more than {self._most}")
        if not all(np.isfinite(values).all() for values in (weights, rows, total)) or (weights < 0.0).any():
            raise StateError(
                "state has rows, a sum or client_weights that are not finite, or a negative weight"
            )
        exact, scale = np.zeros(self._num_parameters), np.zeros(self._num_parameters)
        for lam, row in zip(weights.tolist(), rows, strict=True):
            exact += lam * row.astype(np.float64)
            scale += lam * np.abs(row.astype(np.float64))
        if (np.abs(total - exact) > SUM_TOLERANCE * max(float(scale.max(initial=0.0)), 0.0)).any():
            raise StateError("state has a sum that is not the weighted sum of its rows")
        self._slots = {client: slot for slot, client in enumerate(clients.tolist())}
        self._rows = [self._new_row(slot) for slot in range(number_of)]
        for slot, row in enumerate(rows):
            self._rows[slot][:] = row
        self._lambda, self._sum, self._writes = weights.tolist(), total, writes
        self._numerator, self._denominator = numerator, denominator


def _weights(given: ArrayLike, size: int) -> FloatArray:
    """``size`` weights, finite and not negative."""
    weights = np.asarray(given, dtype=np.float64)
    if weights.shape != (size,) or not (np.isfinite(weights).all() and (weights >= 0.0).all()):
        raise FeedbackError(
            f"client_weights must be {size} numbers, one a client, finite and not negative, "
            f"got shape {weights.shape}"
        )
    return weights
