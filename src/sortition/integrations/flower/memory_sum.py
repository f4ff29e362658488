r"""A memory of updates that the clients hold: the server keeps one vector, their weighted sum.

The estimate is that of :class:`sortition.Memory`. Client m keeps :math:`y_m` in its ``context.state`` and
sends it along with its model. The server keeps :math:`\sum_m n_m y_m`, with :math:`n_m` the number of
examples, and the digest of each :math:`y_m` in this sum.

A message to a client names the digest. The client sends the :math:`y_m` that has it, and then keeps two: this
one and the new one. So it does not matter whether the server gets the reply: its next message names one of
the two. If the client has neither, because it was started anew, it sends none. Then its part can't be taken
out of the sum: the round is done without a memory, and the sum begins anew. It also begins anew after a round
in which rounding can have changed it too much, for example since a huge update was put in and taken out.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message
from numpy.typing import NDArray

from sortition.core.cohort import Cohort
from sortition.core.state import array, check, number, part
from sortition.core.types import FloatArray
from sortition.integrations.flower.model_memory import (
    ClientUpdate,
    Combined,
    check_num_parameters,
    remembered_keys,
)
from sortition.memory import STEP, Coefficient, largest_entry, rounding, scale_of, variance_factors

log = logging.getLogger("flwr.sortition")

ClientAppCallable: TypeAlias = Callable[[Message, Context], Message]
"""The rest of a ClientApp behind a mod."""
RECORD = "sortition-memory"
"""The record in a message that names a digest, that in a reply with y, and that in the client's state."""
NO_MEMORY_MOD = (
    "No reply of this round has a part for the memory, so nothing is remembered. memory='clients' needs "
    "ClientApp(mods=[remember_updates]), from sortition.integrations.flower"
)
DIGEST = "digest"
"""In the message: the digest of the y that the server counts on; empty if there is none."""
AVERAGED = "averaged"
"""In the message: the arrays that are averaged, beside those that the client can tell by itself."""
DIGEST_BYTES = 16
CLIENT_MEMORY = "client_memory."
"""Prefix of the memory's entries in the state."""
STYPE = "sortition.float32"
"""How y is serialised: its bytes, so that the digest is known before anything is read."""
LARGEST = float(np.finfo(np.float32).max)
SUM_TOLERANCE = 1e-6
"""The sum begins anew when rounding may have changed it by more than this, relative to its scale."""


# The client ----------------------------------------------------------------------------------------------


def remember_updates(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """A mod for the ClientApp: remember this client's updates for ``AdaptiveSampling(memory="clients")``.

    It must be the first in ``ClientApp(mods=[...])``, so that it sees the model that is sent. It does nothing
    unless the server asks for it.
    """
    question = message.content.pop(RECORD, None)
    if not isinstance(question, ConfigRecord):
        return call_next(message, context)
    sent = list(message.content.array_records.values())
    reply = call_next(message, context)
    returned = [] if reply.has_error() else list(reply.content.array_records.values())
    if len(sent) != 1 or [_shapes(record) for record in sent] != [_shapes(record) for record in returned]:
        return reply  # the server will say what is wrong with it
    try:
        update = _update(sent[0], returned[0], _strings(question.get(AVERAGED)))
    except (ValueError, TypeError):
        return reply
    wanted = str(question.get(DIGEST, ""))
    kept = dict(context.state.array_records.get(RECORD, {}))
    known = {wanted: kept[wanted]} if wanted in kept else {}
    new = moved(_numbers(known[wanted].data) if known else None, update).tobytes()
    reply.content[RECORD] = ArrayRecord(known)
    known[digest_of(new)] = Array("float32", update.shape, STYPE, new)
    context.state[RECORD] = ArrayRecord(known)
    return reply


def _shapes(record: ArrayRecord) -> dict[str, tuple[int, ...]]:
    return {key: tuple(each.shape) for key, each in record.items()}


def _strings(value: Any) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else []


def _update(sent: ArrayRecord, returned: ArrayRecord, averaged: list[str]) -> FloatArray:
    """The update of the arrays that are remembered, as one vector."""
    start = {key: sent[key].numpy() for key in sent}
    parts = [
        np.subtract(returned[key].numpy(), start[key].astype(np.float64), dtype=np.float64).reshape(-1)
        for key in remembered_keys(start, averaged)
    ]
    return np.concatenate(parts) if parts else np.zeros(0)


# Client and server must get the same bytes ---------------------------------------------------------------


def moved(old: NDArray[np.float32] | None, update: FloatArray) -> NDArray[np.float32]:
    """The new y: half of the way from the old one to the update, or the update if there is no old one.

    >>> moved(np.float32([1.0, 2.0]), np.array([3.0, 2.0]))
    array([2., 2.], dtype=float32)
    """
    new = update if old is None else old + STEP * (update - old)
    return np.clip(new, -LARGEST, LARGEST).astype("<f4")


def digest_of(data: bytes) -> str:
    """The digest of a y, given as bytes."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).hexdigest()


def _numbers(data: bytes) -> NDArray[np.float32]:
    return np.frombuffer(data, dtype="<f4")


# The server ----------------------------------------------------------------------------------------------


class _Counted(NamedTuple):
    """What is in the sum for a client: y, by its digest and its largest entry, times a size."""

    digest: str
    largest_entry: float
    size: float


class MemorySum:
    r"""The server's side: :math:`\sum_m n_m y_m`, and what is in it for each client.

    As with ``ModelMemory``, a client that is offline counts by what is remembered of it; but it is never
    forgotten, as its y is not here. The aggregate estimates

    .. math:: \sum_{m\,\mathrm{online}} n_m g_m + b \sum_{m\,\mathrm{offline}} n_m y_m

    and is divided by :math:`\sum_{\mathrm{online}} n_m + b \sum_{\mathrm{offline}} n_m`: a mean in which an
    offline client counts b times, by what it remembers. With b = 1 this is FedVARP.
    """

    def __init__(self) -> None:
        self._sum = np.zeros(0)
        self._counted: dict[int, _Counted] = {}
        self._rounding = 0.0  # how far it can have changed the sum since that began
        self._coefficient = Coefficient()
        self._averaged: list[str] = []

    @property
    def coefficient(self) -> float:
        """b of the next round."""
        return self._coefficient.value

    @property
    def num_bytes(self) -> int:
        """What the sum takes."""
        return int(self._sum.nbytes)

    def make_room(
        self, model: Mapping[str, NDArray[Any]], num_clients: int, averaged: Collection[str] = ()
    ) -> None:
        """Make the sum, or raise if it is that of another model. The number of clients is of no account."""
        num_parameters = check_num_parameters(model, len(self._sum), averaged)
        self._averaged = sorted(averaged)
        if not len(self._sum):
            self._sum = np.zeros(num_parameters)

    def question(self, client: int) -> ConfigRecord:
        """The record that goes to ``client`` with its message."""
        counted = self._counted.get(client)
        averaged = {AVERAGED: self._averaged} if self._averaged else {}
        return ConfigRecord({DIGEST: "" if counted is None else counted.digest, **averaged})

    def combine(self, cohort: Cohort, updates: Sequence[ClientUpdate | None]) -> Combined:
        """The aggregate, the norms of the residuals, and the memory with what the clients keep now.

        ``updates`` are aligned with the cohort; None means no reply. A client whose update was clipped
        is not remembered, since what it keeps was not.
        """
        replied = np.array([update is not None for update in updates], dtype=bool)
        heard, places = cohort.replied(replied), np.flatnonzero(replied).tolist()
        clients = heard.clients.tolist()
        kept = [self._kept(client, updates[place]) for client, place in zip(clients, places, strict=True)]
        lost = sum(
            y is None and client in self._counted for client, (y, _) in zip(clients, kept, strict=True)
        )
        b = 0.0 if lost else self.coefficient
        could_be_drawn = set(self._counted if cohort.available is None else cohort.available.tolist())
        offline_examples = b * sum(
            counted.size for client, counted in self._counted.items() if client not in could_be_drawn
        )

        aggregate, norms = b * self._sum, np.full(len(cohort), np.nan)
        numerator = denominator = 0.0
        total = self._sum.copy()
        moved_to: dict[int, tuple[float, NDArray[np.float32]]] = {}
        for place, client, weight, factor, (y, keeps) in zip(
            places, clients, heard.weights.tolist(), variance_factors(heard).tolist(), kept, strict=True
        ):
            update = updates[place]
            assert update is not None
            new = update.size * update.vector
            old = np.zeros_like(new) if y is None else self._counted[client].size * y.astype(np.float64)
            residual = new - b * old
            norms[place] = np.sqrt(_product(residual, residual))
            aggregate += weight * residual
            numerator += factor * _product(new, old)
            denominator += factor * _product(old, old)
            total -= old
            if keeps and not update.is_clipped:
                moved_to[client] = update.size, moved(y, update.vector)
        after = MemorySum()
        after._averaged, after._coefficient = self._averaged, replace(self._coefficient)
        after._coefficient.learn(numerator, denominator)

        asked = set(clients)
        others = {client: each for client, each in self._counted.items() if client not in asked}
        counted = {
            client: _Counted(digest_of(y.tobytes()), largest_entry(y), size)
            for client, (size, y) in moved_to.items()
        }
        scale = _scale({**others, **counted})
        after._rounding = self._rounding + rounding(len(clients), _scale(self._counted) + scale)
        reason = f"{lost} clients no longer have what they remembered" if lost else ""
        if not lost and after._rounding > SUM_TOLERANCE * scale:
            reason = "rounding can have changed the sum"
        if reason:
            log.warning("\t> The memory begins anew: %s", reason)
            total, others = np.zeros_like(total), {}
            after._rounding = rounding(len(counted), _scale(counted))
        for size, y in moved_to.values():
            total += size * y.astype(np.float64)
        after._sum, after._counted = total, {**others, **counted}
        return Combined(aggregate, norms, b, offline_examples, lost, after)

    def _kept(self, client: int, update: ClientUpdate | None) -> tuple[NDArray[np.float32] | None, bool]:
        """The y that is in the sum for this client, if it sent it; and whether it keeps a new one.

        A client without the mod keeps none. Nor does one whose y is not the one that it was asked for: what
        it has now is unknown, so it is not counted.
        """
        record = None if update is None else update.memory
        if record is None:
            return None, False
        if not len(record):
            return None, True
        counted = self._counted.get(client)
        if counted is None or list(record) != [counted.digest]:
            return None, False
        data = record[counted.digest].data
        return (_numbers(data), True) if digest_of(data) == counted.digest else (None, False)

    # Saving and continuing ---------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What a resumed run needs to know."""
        digests = b"".join(bytes.fromhex(each.digest) for each in self._counted.values())
        kept = {
            "sum": self._sum.copy(),
            "clients": np.array(list(self._counted), dtype=np.int64),
            "digests": np.frombuffer(digests, dtype=np.uint8).reshape(-1, DIGEST_BYTES),
            "sizes": np.array([each.size for each in self._counted.values()], dtype=np.float64),
            "largest_entries": np.array(
                [each.largest_entry for each in self._counted.values()], dtype=np.float64
            ),
            "rounding": self._rounding,
            **self._coefficient.state(),
        }
        return {CLIENT_MEMORY + name: value for name, value in kept.items()}

    def restored(self, state: Mapping[str, Any]) -> MemorySum:
        """The memory that is in ``state``; an empty one if there is none."""
        kept = part(state, CLIENT_MEMORY)
        restored = MemorySum()
        if kept:
            total, clients = (
                array(kept, "sum", np.float64, (None,)),
                array(kept, "clients", np.int64, (None,)),
            )
            shape = (len(clients),)
            sizes, largest = (array(kept, name, np.float64, shape) for name in ("sizes", "largest_entries"))
            digests = array(kept, "digests", np.uint8, (*shape, DIGEST_BYTES))
            check("sum", total, np.isfinite(total), "finite")
            for name, values in (("sizes", sizes), ("largest_entries", largest)):
                check(name, values, np.isfinite(values) & (values >= 0.0), "finite, not negative")
            restored._sum = total
            restored._counted = {
                client: _Counted(digest.tobytes().hex(), entry, size)
                for client, digest, entry, size in zip(
                    clients.tolist(), digests, largest.tolist(), sizes.tolist(), strict=True
                )
            }
            restored._rounding = number(kept, "rounding", least=0.0)
            restored._coefficient = Coefficient.from_state(kept)
        return restored


def _scale(counted: Mapping[int, _Counted]) -> float:
    return scale_of(
        (each.size for each in counted.values()), (each.largest_entry for each in counted.values())
    )


def _product(one: FloatArray, other: FloatArray) -> float:
    """By einsum, since the threads of BLAS would compete with those of a simulation."""
    return float(np.einsum("i,i->", one, other))
