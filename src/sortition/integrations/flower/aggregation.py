"""From the replies of a round to one weighted update: assign, check, measure and sum them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from sortition.core.errors import ConfigurationError, FeedbackError
from sortition.core.types import FloatArray
from sortition.integrations.flower.memory_sum import RECORD, MemorySum
from sortition.integrations.flower.model_memory import ClientUpdate, Combined, ModelMemory, remembered_keys
from sortition.integrations.flower.pool import ClientPool, CountedReplies, DrawnCohort

log = logging.getLogger("flwr.sortition")

AnyArray = NDArray[Any]
Record = TypeVar("Record", ArrayRecord, MetricRecord)

NUMBERS = "fiub"
"""Kinds of array that can be averaged: floats, integers and booleans."""


class UpdateSum:
    r"""The weighted sum of a round's updates, :math:`\sum_m n_m \mathrm{weight}_m (w_m - w)`, in float64.

    :math:`w` is the model that the round starts from, :math:`w_m` the model that client m returns and
    :math:`n_m` its number of examples. Integer and boolean arrays (batch counters, masks) are averaged too,
    but only floating-point arrays count towards the norm of an update.

    With a memory, the arrays that are remembered are not summed here: their sum comes from the memory.
    """

    def __init__(self, model: ArrayRecord, *, memory: bool = False) -> None:
        self._model = arrays_of(model)
        self._remembered = remembered_keys(self._model) if memory else []
        for key, array in self._model.items():
            if array.dtype.kind not in NUMBERS:
                raise ConfigurationError(
                    f"initial_arrays may hold floats, integers and booleans, but {key!r} is {array.dtype}"
                )
        self._start = {key: array.astype(np.float64) for key, array in self._model.items()}
        self._sum = {key: np.zeros_like(array) for key, array in self._start.items()}
        self._difference = {key: np.empty_like(array) for key, array in self._start.items()}

    def add(
        self, client: str, returned: ArrayRecord, size: float, weight: float
    ) -> tuple[float, FloatArray] | None:
        """Add the update of ``client`` times ``size`` and ``weight``; None if it is not finite.

        Returns the norm of what was added, times ``size``, and the update of the remembered arrays.
        """
        arrays = arrays_of(returned)
        self._check(client, arrays)
        squared_norm = squared_remembered = 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            for key, start in self._start.items():
                out = self._difference[key]
                difference = np.subtract(arrays[key], start, out=out, dtype=np.float64)
                if self._model[key].dtype.kind == "f":
                    # einsum instead of BLAS, whose threads would compete with those of the simulation.
                    flat = difference.reshape(-1)
                    squared = float(np.einsum("i,i->", flat, flat))
                    if key in self._remembered:
                        squared_remembered += squared
                    else:
                        squared_norm += squared
                elif not np.all(np.isfinite(difference)):
                    squared_norm = np.nan
        if not np.isfinite(size * size * (squared_norm + squared_remembered)):
            return None
        for key, difference in self._difference.items():
            if key not in self._remembered:
                difference *= size * weight
                self._sum[key] += difference
        remembered = [self._difference[key].reshape(-1) for key in self._remembered]
        return size * float(np.sqrt(squared_norm)), np.concatenate(remembered) if remembered else np.zeros(0)

    def raise_by(self, factor: float) -> None:
        """Multiply the sum by ``factor``, so that the replies stand in for the missing ones."""
        for total in self._sum.values():
            total *= factor

    def set_total(self, arrays: Iterable[FloatArray]) -> None:
        """Take the whole sum from elsewhere, in the order of the model's arrays."""
        for total, array in zip(self._sum.values(), arrays, strict=True):
            total[...] = array

    def set_remembered(self, aggregate: FloatArray) -> None:
        """Take the sum of the remembered arrays from the memory."""
        start = 0
        for key in self._remembered:
            total = self._sum[key]
            total[...] = aggregate[start : start + total.size].reshape(total.shape)
            start += total.size

    def moved_model(self, scale: float) -> ArrayRecord:
        """The model plus ``scale`` times the sum, each array in the type that the model has."""
        return ArrayRecord(
            {
                key: Array(_cast(start + scale * self._sum[key], self._model[key].dtype))
                for key, start in self._start.items()
            }
        )

    def with_model_types(self, stepped: ArrayRecord, moved: ArrayRecord) -> ArrayRecord:
        """The arrays in ``stepped`` with the types that the model has; integer arrays are those of ``moved``.

        ``stepped`` is what the inner strategy made of ``moved``. Its optimiser turns float32 into float64 and
        treats counters like weights. Both are undone here.
        """
        arrays: dict[str, Array] = {}
        for key, array in stepped.items():
            dtype = self._model[key].dtype if key in self._model else None
            if dtype is None or (dtype.kind == "f" and array.dtype == str(dtype)):
                arrays[key] = array
            elif dtype.kind == "f":
                arrays[key] = Array(_cast(array.numpy(), dtype))
            else:
                arrays[key] = moved[key]
        return ArrayRecord(arrays)

    def _check(self, client: str, returned: Mapping[str, AnyArray]) -> None:
        """Raise if the arrays that ``client`` returned can't be compared with the model."""
        if set(returned) != set(self._model):
            raise FeedbackError(
                f"the reply of {client} must hold the arrays {sorted(self._model)}, got {sorted(returned)}"
            )
        for key, array in self._model.items():
            shape, dtype = returned[key].shape, returned[key].dtype
            if shape != array.shape:
                raise FeedbackError(
                    f"the reply of {client} must hold {key!r} of shape {array.shape}, got {shape}"
                )
            if dtype.kind not in NUMBERS:
                raise FeedbackError(
                    f"the reply of {client} must hold {key!r} as floats, integers or booleans, got {dtype}"
                )


@dataclass(frozen=True)
class ClientReplies:
    """The replies of a round that can be used. Entries are aligned with the cohort; nan means no reply."""

    weighted_norms: FloatArray
    """Numbers of examples times norms; with a memory, the norms of the residuals."""
    sizes: FloatArray
    """Numbers of examples: the given one if there is one, otherwise the one that the client reports."""
    contents: dict[int, RecordDict]
    """What each client returned, by place in the cohort."""
    counted: CountedReplies
    """How much they count together."""
    combined: Combined | None = None
    """What the memory made of them; None if there is none, or nobody replied."""


@dataclass(frozen=True)
class OpenRound:
    """A round whose messages are out and whose replies are awaited."""

    drawn: DrawnCohort
    messages: list[Message]
    places: dict[int, int]
    """The place in the cohort of each node that was asked."""
    updates: UpdateSum
    memory: ModelMemory | MemorySum | None

    def read(self, replies: Iterable[Message], size_key: str, pool: ClientPool) -> ClientReplies:
        """Check each reply and add its update to the sum, weighted by size and cohort weight.

        Replies are read in the order of the cohort, so that the sum does not depend on which came first. An
        update that is not finite counts as no reply.
        """
        cohort, names = self.drawn.cohort, self.drawn.names
        norms, sizes = np.full(len(cohort), np.nan), np.full(len(cohort), np.nan)
        updates: list[ClientUpdate | None] = [None] * len(cohort)
        contents: dict[int, RecordDict] = {}
        for place, content in sorted(self._contents(replies).items()):
            name, size = names[place], float(self.drawn.given_sizes[place])
            memory = content.pop(RECORD, None)
            if np.isnan(size):
                size = pool.counted_size(int(cohort.clients[place]), _reported_size(content, size_key, name))
            arrays = _only(content, ArrayRecord, name)
            added = self.updates.add(name, arrays, size, float(cohort.weights[place]))
            if added is None:
                log.warning("\t> The update of %s is not finite and counts as no reply", name)
                continue
            norms[place], vector = added
            updates[place] = ClientUpdate(vector, size, memory if isinstance(memory, ArrayRecord) else None)
            sizes[place], contents[place] = size, content
        counted = pool.count(self.drawn, sizes)
        if contents:
            self.updates.raise_by(counted.factor * len(cohort) / len(contents))
        if self.memory is None or (len(cohort) and not contents):  # if nobody replied, nothing changes
            return ClientReplies(norms, sizes, contents, counted)
        combined = self.memory.combine(replace(cohort, weights=counted.factor * cohort.weights), updates)
        self.updates.set_remembered(combined.aggregate)
        return ClientReplies(np.hypot(norms, combined.norms), sizes, contents, counted, combined)

    def _contents(self, replies: Iterable[Message]) -> dict[int, RecordDict]:
        """What each client returned, by place in the cohort; errors are logged.

        A reply is assigned by the message it answers. Its sender would not do: if a node is gone, the error
        comes from the SuperLink and carries the SuperLink's own node id.
        """
        asked = {
            message.metadata.message_id: self.places[message.metadata.dst_node_id]
            for message in self.messages
        }
        contents: dict[int, RecordDict] = {}
        for reply in replies:
            place = asked.get(reply.metadata.reply_to_message_id)
            if place is None:
                log.warning("\t> Ignored a reply to a message of another round")
            elif reply.has_error():
                log.info("\t> No reply from %s: %s", self.drawn.names[place], reply.error.reason)
            else:
                contents[place] = reply.content
        return contents


def _only(content: RecordDict, kind: type[Record], name: str) -> Record:
    """The only record of this kind in the reply of client ``name``."""
    records = [record for record in content.values() if isinstance(record, kind)]
    if len(records) != 1:
        raise FeedbackError(f"the reply of {name} must hold exactly one {kind.__name__}, got {len(records)}")
    return records[0]


def _reported_size(content: RecordDict, key: str, name: str) -> float:
    """The number of examples that the reply of client ``name`` reports."""
    value = _only(content, MetricRecord, name).get(key)
    if not isinstance(value, (int, float)) or not np.isfinite(value) or value < 0:
        raise FeedbackError(
            f"the reply of {name} must report its number of examples as {key!r}, got {value!r}; "
            f"or give the number on the server: num_examples={{{name!r}: ...}}"
        )
    return float(value)


# Arrays and records ------------------------------------------------------------------------------------


def arrays_of(record: ArrayRecord) -> dict[str, AnyArray]:
    """The arrays of a record by name."""
    return {key: array.numpy() for key, array in record.items()}


def record_of(arrays: Mapping[str, AnyArray]) -> ArrayRecord:
    """The record that holds these arrays."""
    return ArrayRecord({key: Array(np.asarray(array)) for key, array in arrays.items()})


def _cast(values: FloatArray, dtype: np.dtype[Any]) -> AnyArray:
    """``values`` in the type ``dtype``: rounded and clipped for integers, compared with 0.5 for booleans."""
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            return np.asarray(values).astype(dtype)
    if dtype.kind == "b":
        return np.asarray(values >= 0.5)
    limits = np.iinfo(dtype)
    largest = float(limits.max)
    if int(largest) > limits.max:  # 2^63 - 1 rounds up to a double that int64 can't hold
        largest = float(np.nextafter(largest, 0.0))
    return np.asarray(np.clip(np.rint(values), float(limits.min), largest)).astype(dtype)
