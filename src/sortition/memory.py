r"""A memory of earlier updates: the lottery then pays only for what has changed.

Let :math:`y_m` be what is remembered of client m's update, 0 if nothing is. For every b that was fixed before
the draw

.. math:: g = b \sum_m \lambda_m y_m + \sum_{m \in S} \lambda_m\,\mathrm{weight}_m\,(g_m - b\,y_m)

is an unbiased estimate of :math:`\sum_m \lambda_m g_m`, whatever y holds. Its variance is that of the
*residuals* :math:`g_m - b\,y_m`, so the sampler learns their norms, and draws the clients that have changed.
A client that could not be drawn counts by :math:`b\,y_m`.
With b = 1 this is FedVARP (Jhunjhunwala et al. 2022), the federated form of SAGA.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import mul
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from sortition.core.cohort import Cohort
from sortition.core.errors import CohortError, ConfigurationError, FeedbackError, StateError
from sortition.core.state import array, check, constant, count, is_constant, number, text
from sortition.core.types import FloatArray, IntArray
from sortition.core.validation import named_keywords, one_of, real_numbers, whole_number

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
SUM_TOLERANCE = 1e-9
"""The sum is made anew when rounding may have changed it by more than this, relative to its scale."""
AWAY = 8
"""A client is forgotten when it was away for this many sweeps.

A sweep is as many replies as there are remembered clients.
"""
MOST_REPLIES = 2**62
"""No count of replies is larger."""
STATE_VERSION = 5


@dataclass
class Coefficient:
    r"""b: a regression of new updates on remembered ones, over earlier rounds, kept in [0, 1].

    .. math:: b = \sum_m f_m \langle g_m, y_m\rangle \Big/ \sum_m f_m \|y_m\|^2

    with :math:`f_m` the squared client weight times ``variance_factors``. A round counts ``KEPT`` times as
    much as the one after it.

    >>> b = Coefficient()
    >>> b.learn(1.0, 4.0)
    >>> b.value
    0.25
    """

    numerator: float = 0.0
    denominator: float = 0.0

    @property
    def value(self) -> float:
        """b of the next round."""
        if self.denominator <= 0.0:
            return 0.0
        return float(min(max(self.numerator / self.denominator, 0.0), 1.0))

    def learn(self, numerator: float, denominator: float) -> None:
        """Take in the two sums of a round."""
        if denominator > 0.0:
            self.numerator = KEPT * self.numerator + numerator
            self.denominator = KEPT * self.denominator + denominator

    def state(self) -> dict[str, float]:
        """The entries of a state."""
        return {"numerator": self.numerator, "denominator": self.denominator}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Coefficient:
        """The one that is in a state."""
        return cls(number(state, "numerator"), number(state, "denominator", least=0.0))


def variance_factors(cohort: Cohort) -> FloatArray:
    """What the squares of the clients' residuals count for in the variance of the aggregate, about."""
    return cohort.weights * (np.maximum(cohort.weights / cohort.counts - 1.0, 0.0) + LEAST_FACTOR)


def scale_of(weights: Iterable[float], largest_entries: Iterable[float]) -> float:
    r"""The scale of a weighted sum of rows, :math:`\sum_m \lambda_m \max_i |y_{mi}|`: no entry is larger."""
    return sum(map(mul, weights, largest_entries), float(np.finfo(np.float64).tiny))


def largest_entry(row: NDArray[Any]) -> float:
    """The largest absolute entry."""
    if row.dtype == np.float16:
        row = row.astype(np.float32)  # numpy is slow with float16
    return float(max(np.maximum.reduce(row), -np.minimum.reduce(row)))


def rounding(writes: int, scale: float) -> float:
    """How far rounding can take such a sum from the true one in this many writes.

    A write takes an old row out and puts a new one in. It rounds at most eight numbers, each of which is at
    most ``scale``, by half an epsilon.
    """
    return 4.0 * float(np.finfo(np.float64).eps) * writes * scale


@njit(cache=True, fastmath={"reassoc", "contract"})
def _measure(update: NDArray[Any], old: NDArray[Any], b: float) -> tuple[float, float, float]:
    """|g - b y|^2, <g, y> and |y|^2 in one pass; not finite if g is not."""
    residual = product = square = 0.0
    for i in range(update.size):
        g, y = np.float64(update[i]), np.float64(old[i])
        residual += (g - b * y) * (g - b * y)
        product += g * y
        square += y * y
    return residual, product, square


@njit(cache=True)
def _move(
    update: NDArray[Any],
    row: NDArray[Any],
    b: float,
    factor: float,
    step: float,
    weights: tuple[float, float],
    largest: float,
    aggregate: FloatArray,
    total: FloatArray,
) -> None:
    """Add a residual to the aggregate, move y by ``step``, and change its part of the sum, in one pass."""
    before, after = weights
    for i in range(update.size):
        g, y = np.float64(update[i]), np.float64(row[i])
        aggregate[i] += factor * (g - b * y)
        row[i] = min(max(y + step * (g - y), -largest), largest)
        total[i] += after * np.float64(row[i]) - before * y


@njit(cache=True)
def _add(total: FloatArray, factor: float, row: NDArray[Any]) -> None:
    for i in range(row.size):
        total[i] += factor * np.float64(row[i])


class Memory:
    r"""Remembers the last updates of the clients, and combines them with a cohort's.

    A round with a memory::

        memory = Memory(num_parameters=len(model), num_clients=1000)
        while training:
            cohort = sampler.draw()
            updates = train(cohort)
            aggregate, norms = memory.combine(cohort, updates, sampler.client_weights)
            model -= step * aggregate
            sampler.observe(cohort, norms)  # the norms of the residuals

    b is learnt from earlier rounds only: a regression of new updates on remembered ones, with the weights
    that they have in the variance, in [0, 1]. Where a memory is useless b goes to 0, and the estimate is the
    plain one. A memory moves half of the way to a new update, all of it the first time.

    If a cohort was not drawn from everybody, those *absent* are the clients that are not in
    ``cohort.available``. They count by what is remembered of them, and the aggregate is an unbiased
    estimate, over the draw, of

    .. math:: \sum_{m\,\mathrm{available}} \lambda_m g_m + b \sum_{m\,\mathrm{absent}} \lambda_m y_m

    A client that has left for good should leave the sampler (``remove_clients``), or be forgotten
    (``memory.forget``). One that was absent for ``AWAY`` = 8 sweeps is forgotten. A sweep is as many
    replies as there are remembered clients, and the memory looks once a sweep who is there.

    Only clients that were seen take memory: ``num_parameters`` numbers of ``dtype`` each, in RAM or, with
    ``path``, in a scratch file, which must not exist yet; ``state_dict`` then copies all rows into RAM.
    ``num_clients`` is the most that there will ever be, newcomers included. ``bytes_needed`` is what the rows
    take when all of them, or ``max_clients``, were seen; later ones are then not remembered. More than
    ``max_bytes`` is an error.

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
        self._largest = float(np.finfo(self._dtype).max)
        self._nothing = constant(np.zeros(self._num_parameters, dtype=np.result_type(self._dtype, "float32")))
        self._file: NDArray[Any] | None = None if path is None else self._create(Path(path))
        self._spare: list[NDArray[Any]] = []  # rows of the file that are free again
        self._rows: dict[int, NDArray[Any]] = {}  # y, by client
        self._lambda: dict[int, float] = {}  # the weights in the sum
        self._largest_entry: dict[int, float] = {}  # of each row
        self._sum = np.zeros(self._num_parameters)
        self._rounding = 0.0  # how far it can have changed the sum since that was made anew
        self._bounds: set[int] = set()  # 3 and 7 if rounds 3, 4, 5 and 6 were combined
        self._coefficient = Coefficient()
        self._replies = 0  # all that were combined
        self._seen: dict[int, int] = {}  # what that was when a client was heard, or there at a look, last
        self._looked = 0  # what it was at the last look

    @property
    def coefficient(self) -> float:
        """b of the next round."""
        return self._coefficient.value

    @property
    def clients_remembered(self) -> int:
        """How many clients take memory."""
        return len(self._rows)

    @property
    def clients(self) -> IntArray:
        """The clients that are remembered."""
        return np.fromiter(self._rows, dtype=np.int64, count=len(self._rows))

    def remembered(self, client: int) -> FloatArray:
        """y of ``client``: zeros if nothing is remembered."""
        return np.array(self._old(client), dtype=np.float64)

    def copied(self) -> Memory:
        """Another memory that holds the same. Rows are shared until one of the two changes them."""
        if self._file is not None:
            raise ConfigurationError("a memory in a file can't be copied: build it without path")
        self._rows = {client: constant(row) for client, row in self._rows.items()}
        other = copy.copy(self)
        other._rows, other._lambda = dict(self._rows), dict(self._lambda)
        other._largest_entry, other._bounds = dict(self._largest_entry), set(self._bounds)
        other._seen = dict(self._seen)
        other._sum, other._coefficient = self._sum.copy(), replace(self._coefficient)
        return other

    def forget(self, clients: ArrayLike) -> None:
        """Forget ``clients``, for example because they left. Clients that are not remembered are ignored."""
        gone = set(np.atleast_1d(real_numbers("clients", clients, ConfigurationError)).tolist())
        self._keep({client: lam for client, lam in self._lambda.items() if client not in gone})

    def combine(
        self, cohort: Cohort, updates: Updates, client_weights: WeightsOf | ArrayLike
    ) -> tuple[FloatArray, FloatArray]:
        r"""The aggregate, and the norms of the residuals for ``sampler.observe``; then remember the updates.

        ``client_weights`` tells lambda of client ids, and 0 for clients that left, as
        ``sampler.client_weights`` does. Where nobody joins or leaves, an array aligned with the cohort will
        do. If the cohort was not drawn from everybody, the aggregate estimates

        .. math:: \sum_{m\,\mathrm{available}} \lambda_m g_m + b \sum_{m\,\mathrm{absent}} \lambda_m y_m

        So remove clients that have left for good from the sampler, or ``forget`` them. If clients were drawn
        and none replied, the aggregate is zero. Each round can be combined once, in any order. On an error
        nothing has changed.
        """
        round_index = whole_number("cohort.round_index", cohort.round_index, least=0)
        if sum(bound <= round_index for bound in self._bounds) % 2:
            raise CohortError(f"cohort of round {round_index} was combined already; combine each cohort once")
        vectors = self._checked(updates, len(cohort))
        weights, followed = self._checked_weights(cohort, client_weights)
        b, clients = self.coefficient, cohort.clients.tolist()
        squares, products, old_squares = self._measured(clients, vectors, b)
        replied = np.array([vector is not None for vector in vectors], dtype=bool)
        norms, heard = np.sqrt(squares), cohort.replied(replied)
        with np.errstate(over="ignore", invalid="ignore"):
            factors = weights[replied] ** 2 * variance_factors(heard)
            numerator, denominator = (
                float((factors * sums[replied]).sum()) for sums in (products, old_squares)
            )
        if not np.isfinite(numerator + denominator):
            raise FeedbackError("updates are too large: their squares times client_weights are not finite")
        told = [(i, update) for i, update in enumerate(vectors) if update is not None and weights[i] > 0.0]
        moving = [self._writable(clients[place]) for place, _ in told]
        # nothing can fail from here on
        self._bounds ^= {round_index, round_index + 1}
        self._replies += len(told)
        if len(cohort) and not replied.any():
            return np.zeros(self._num_parameters), norms
        if followed is not None:
            self._keep(followed)
        aggregate = b * self._sum
        before = self._scale(self._rows)
        raised = np.zeros(len(cohort))
        raised[replied] = weights[replied] * heard.weights
        for (place, update), row in zip(told, moving, strict=True):
            client, lam = clients[place], float(weights[place])
            known = client in self._rows
            kept = lam if known or len(self._rows) < self._most else 0.0  # 0: all room is taken
            both, step = (self._lambda.get(client, 0.0), kept), STEP if known else 1.0
            _move(update, row, b, raised[place], step, both, self._largest, aggregate, self._sum)
            if kept > 0.0:
                self._remember(client, kept, row)
        after = self._scale(self._rows)
        self._rounding += rounding(len(told), before + after)
        if self._rounding > SUM_TOLERANCE * after:
            self._sum_up()
        self._coefficient.learn(numerator, denominator)
        self._forget_gone(cohort)
        return aggregate, norms

    # Details -----------------------------------------------------------------------------------------

    def _checked(self, updates: Updates, size: int) -> list[NDArray[Any] | None]:
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
        vectors: list[NDArray[Any] | None] = []
        for place, update in enumerate(several):
            if update is None:
                vectors.append(None)
                continue
            given = real_numbers(f"row {place} of updates", update, FeedbackError)
            if given.ndim != 1 or len(given) != self._num_parameters:
                raise FeedbackError(
                    f"updates must be vectors of num_parameters = {self._num_parameters} real numbers "
                    f"(flatten and join the layers of a model), got {given.dtype} of shape {given.shape} "
                    f"in row {place}"
                )
            kind = np.float32 if given.dtype == np.float32 else np.float64
            vectors.append(_read_only(np.ascontiguousarray(given, dtype=kind)))
        return vectors

    def _measured(
        self, clients: list[int], vectors: list[NDArray[Any] | None], b: float
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """|g - b y|^2, <g, y> and |y|^2 of each client; a vector with nan becomes None."""
        sums = np.full((3, len(vectors)), np.nan)
        for place, vector in enumerate(vectors):
            if vector is None:
                continue
            sums[:, place] = _measure(vector, self._old(clients[place]), b)
            if not np.isfinite(sums[0, place]):
                if np.isinf(vector).any():
                    raise FeedbackError(
                        f"updates must be finite (nan or None for no reply), but row {place} is not"
                    )
                if not np.isnan(vector).any():
                    raise FeedbackError(f"updates are too large: row {place} has no finite square")
                vectors[place], sums[:, place] = None, np.nan
        return sums[0], sums[1], sums[2]

    def _checked_weights(
        self, cohort: Cohort, client_weights: WeightsOf | ArrayLike
    ) -> tuple[FloatArray, dict[int, float] | None]:
        """lambda of the cohort and, where those of remembered clients have changed, all that are not 0."""
        if callable(client_weights):
            weights = _weights(client_weights(cohort.clients), len(cohort))
            remembered = self.clients
            now = _weights(client_weights(remembered), len(remembered)) if len(remembered) else np.zeros(0)
            if now.tolist() == list(self._lambda.values()):
                return weights, None
            pairs = zip(remembered.tolist(), now.tolist(), strict=True)
            return weights, {client: lam for client, lam in pairs if lam > 0.0}
        weights = _weights(client_weights, len(cohort))
        for client, lam in zip(cohort.clients.tolist(), weights.tolist(), strict=True):
            if self._lambda.get(client, lam) != lam:
                raise FeedbackError(
                    f"client_weights have changed for client {client}: clients joined or left; pass a "
                    "function of client ids, such as sampler.client_weights, so that all weights can follow"
                )
        return weights, None

    def _forget_gone(self, cohort: Cohort) -> None:
        """Once a sweep, see who is there, and forget those that were away for ``AWAY`` sweeps.

        All rows are then summed anew, so this is not done in every round.
        """
        sweep = len(self._rows)
        if self._replies - self._looked < sweep:
            return
        self._looked = self._replies
        here = self.clients if cohort.available is None else np.intersect1d(self.clients, cohort.available)
        self._seen.update(dict.fromkeys(here.tolist(), self._replies))
        gone = [client for client, seen in self._seen.items() if self._replies - seen >= AWAY * sweep > 0]
        if gone:
            self.forget(gone)

    def _scale(self, clients: Iterable[int]) -> float:
        clients = list(clients)
        return scale_of(map(self._lambda.__getitem__, clients), map(self._largest_entry.__getitem__, clients))

    def _old(self, client: int) -> NDArray[Any]:
        """y as float32 or float64; zeros if nothing is remembered."""
        return _read_only(np.asarray(self._rows.get(client, self._nothing), dtype=self._nothing.dtype))

    def _writable(self, client: int) -> NDArray[Any]:
        """The row itself if it may be changed in place, or a copy as float32 or float64."""
        row = self._rows.get(client)
        if row is None or row.dtype != self._nothing.dtype or self._file is not None or is_constant(row):
            return np.array(self._old(client))
        return np.asarray(row)

    def _remember(self, client: int, lam: float, new: NDArray[Any]) -> None:
        row = new.astype(self._dtype, copy=False)
        if row is not new:  # rounded to float16, so the sum must follow
            _add(self._sum, lam, row - new.astype(np.float64))
        self._put(client, row)
        self._lambda[client], self._seen[client] = lam, self._replies

    def _put(self, client: int, row: NDArray[Any]) -> None:
        if self._file is None:
            self._rows[client] = row
        else:
            if client not in self._rows:
                self._rows[client] = self._spare.pop() if self._spare else self._file[len(self._rows)]
            self._rows[client][:] = row
        self._largest_entry[client] = largest_entry(self._rows[client])

    def _keep(self, weights: dict[int, float]) -> None:
        """Keep these clients only, with these weights."""
        for client in [client for client in self._rows if client not in weights]:
            row = self._rows.pop(client)
            del self._largest_entry[client], self._seen[client]
            if self._file is not None:
                self._spare.append(row)
        self._lambda = weights
        self._sum_up()

    def _sum_up(self) -> None:
        """Make the sum anew: what rounding has added up since the last time is gone."""
        self._sum, self._rounding = np.zeros(self._num_parameters), 0.0
        for client, lam in self._lambda.items():
            _add(self._sum, lam, self._old(client))

    def _create(self, path: Path) -> NDArray[Any]:
        """A scratch file with room for all rows, which is taken from the disk at once."""
        try:
            with path.open("xb") as file:
                try:
                    if hasattr(os, "posix_fallocate"):
                        os.posix_fallocate(file.fileno(), 0, self.bytes_needed)
                    else:  # macOS
                        file.truncate(self.bytes_needed)
                except BaseException:
                    path.unlink()
                    raise
        except FileExistsError:
            raise ConfigurationError(
                f"path names the file {path}, which exists; a memory needs a new one, since rows without "
                "their state are of no use: delete it, or name another"
            ) from None
        except (OSError, OverflowError) as error:
            raise ConfigurationError(
                f"path must name a file of {self.bytes_needed:,} bytes: {error}"
            ) from None
        return np.memmap(path, dtype=self._dtype, mode="r+", shape=(self._most, self._num_parameters))

    # Saving and continuing ---------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All that a continued run needs: plain arrays, numbers and strings."""
        if self._file is None:  # from now on they are copied before they are changed
            rows = self._rows = {client: constant(row) for client, row in self._rows.items()}
        else:
            rows = {client: row.copy() for client, row in self._rows.items()}
        return {
            "kind": "Memory",
            "version": STATE_VERSION,
            "num_parameters": self._num_parameters,
            "dtype": self._dtype.name,
            "rounds": np.array(sorted(self._bounds), dtype=np.int64),
            "clients": np.array(list(rows), dtype=np.int64),
            "client_weights": np.array(list(self._lambda.values()), dtype=np.float64),
            "replies": self._replies,
            "looked": self._looked,
            "seen": np.array([self._seen[client] for client in rows], dtype=np.int64),
            "sum": self._sum.copy(),
            "rounding": self._rounding,
            **self._coefficient.state(),
            **{f"row.{client}": row for client, row in rows.items()},
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
        if len(clients) > self._most or len(np.unique(clients)) < len(clients) or (clients < 0).any():
            raise StateError(f"state has clients that are negative, or twice, or more than {self._most}")
        weights = array(state, "client_weights", np.float64, (len(clients),))
        shape = (self._num_parameters,)
        rows = {c: array(state, f"row.{c}", self._dtype.type, shape) for c in clients.tolist()}
        rounds = array(state, "rounds", np.int64, (None,))
        total = array(state, "sum", np.float64, shape)
        coefficient = Coefficient.from_state(state)
        replies, looked = count(state, "replies"), count(state, "looked")
        seen = array(state, "seen", np.int64, (len(clients),))
        if not looked <= replies <= MOST_REPLIES:
            raise StateError(
                f"state must hold 'looked' <= 'replies' <= {MOST_REPLIES}, got {looked} and {replies}"
            )
        check("seen", seen, (seen >= 1) & (seen <= replies), f"from 1 to replies = {replies}")
        if len(rounds) % 2 or (rounds < 0).any() or (np.diff(rounds, prepend=-1) < 1).any():
            raise StateError("state has rounds that are not where stretches of rounds begin and end")
        check("client_weights", weights, np.isfinite(weights) & (weights >= 0.0), "finite, not negative")
        check("sum", total, np.isfinite(total), "finite")
        exact = np.zeros(shape)
        for (client, row), lam in zip(rows.items(), weights.tolist(), strict=True):
            check(f"row.{client}", row, np.isfinite(row), "finite")
            exact += lam * row.astype(np.float64)
        scale = scale_of(weights.tolist(), map(largest_entry, rows.values()))
        rounded = number(state, "rounding", least=0.0, most=SUM_TOLERANCE * scale)
        if not np.abs(total - exact).max() <= rounded + rounding(len(rows), scale) < np.inf:
            raise StateError("state has a sum that is not the weighted sum of its rows")
        self._rows, self._spare, self._largest_entry = {}, [], {}
        for client, row in rows.items():
            self._put(client, row)
        self._lambda = dict(zip(rows, weights.tolist(), strict=True))
        self._sum, self._rounding, self._bounds = total, rounded, set(rounds.tolist())
        self._coefficient = coefficient
        self._replies, self._looked = replies, looked
        self._seen = dict(zip(rows, seen.tolist(), strict=True))


def _read_only(values: NDArray[Any]) -> NDArray[Any]:
    """A view: numba compiles a kernel anew for arrays that can be written to."""
    view = values.view(np.ndarray)
    view.flags.writeable = False
    return view


def _weights(given: ArrayLike, size: int) -> FloatArray:
    """``size`` weights, finite and not negative."""
    weights = real_numbers("client_weights", given, FeedbackError).astype(np.float64, copy=False)
    if weights.shape != (size,):
        raise FeedbackError(f"client_weights must be {size} numbers, one a client, got shape {weights.shape}")
    wrong = weights[~((weights >= 0.0) & np.isfinite(weights))]
    if len(wrong):
        raise FeedbackError(f"client_weights must be finite and not negative, got {wrong[0]}")
    return weights
