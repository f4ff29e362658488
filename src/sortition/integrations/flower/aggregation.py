"""From the replies of a round to a new model: measure the updates, add them up, check what comes out."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict
from numba import njit
from numpy.typing import NDArray

from sortition.core.errors import ConfigurationError
from sortition.core.types import FloatArray
from sortition.integrations.flower.arrays import (
    BLOCK,
    NUMBERS,
    AnyArray,
    arrays_of,
    cast,
    is_finite,
    packed,
    view,
)
from sortition.integrations.flower.model_memory import VARIANCE, averaged_keys
from sortition.integrations.flower.pool import ClientPool, DrawnCohort
from sortition.integrations.flower.replies import (
    CheckedReply,
    Complaints,
    UnusableError,
    check_reply,
    log_failures,
    size_in,
)
from sortition.integrations.flower.sizes import LARGEST_SIZE

log = logging.getLogger("flwr.sortition")

LONGEST = 1e140
"""The largest norm of an update, times its number of examples: sums of squares stay far from overflow."""


@njit(cache=True, fastmath={"reassoc", "contract"})
def _squared_distance(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Not finite if one of them is not."""
    total = 0.0
    for i in range(one.size):
        difference = np.float64(one[i]) - np.float64(other[i])
        total += difference * difference
    return total


@njit(cache=True)
def _add_difference(total: FloatArray, factor: float, one: NDArray[Any], other: NDArray[Any]) -> None:
    """total += factor * (one - other)."""
    for i in range(total.size):
        total[i] += factor * (np.float64(one[i]) - np.float64(other[i]))


def _flat(array: AnyArray) -> AnyArray:
    """One dimension, read-only, float32 or float64: the types that the kernels are compiled for."""
    flat = array.reshape(-1)
    if flat.dtype not in (np.float32, np.float64):
        flat = flat.astype(np.float64)
    flat = flat.view()
    flat.flags.writeable = False
    return flat


class RoundModel:
    r"""The model that a round starts from, and what the replies make of it, in float64.

    Most arrays are *summed*: :math:`w + \sum_m c_m (w_m - w)`, with coefficients whose sum is one on average.
    Integers, booleans and buffers of batch normalisation are *averaged*: :math:`\sum_m a_m w_m` with
    :math:`a_m \ge 0` and :math:`\sum_m a_m = 1`, so that a variance stays positive. Only summed arrays count
    towards the norm of an update.

    Nothing is copied. Sums are made block by block, so that they take no memory of the model's size.
    """

    def __init__(self, record: ArrayRecord, averaged_arrays: Collection[str] = ()) -> None:
        self._record = record
        self.arrays = arrays_of(record)
        for key, array in self.arrays.items():
            if array.dtype.kind not in NUMBERS:
                raise ConfigurationError(
                    f"initial_arrays may hold floats, integers and booleans, but {key!r} is {array.dtype}"
                )
            if not is_finite(array):
                raise ConfigurationError(
                    f"initial_arrays must be finite, but {key!r} is not. If it is a mask that never changes, "
                    "leave it out of the record"
                )
        unknown = sorted(set(averaged_arrays) - set(self.arrays))
        if unknown:
            raise ConfigurationError(
                f"averaged_arrays must name arrays of the model, which has {list(self.arrays)}, "
                f"got {unknown[0]!r}"
            )
        self._averaged = averaged_keys(self.arrays, averaged_arrays)
        self.summed = sorted(set(self.arrays) - self._averaged)  # sorted as a memory has them

    def length(self, arrays: Mapping[str, AnyArray]) -> float:
        """The norm of the update to these arrays; an UnusableError if one of them can't be used."""
        for key in sorted(self._averaged):
            if not is_finite(arrays[key]):
                raise UnusableError(f"its array {key!r} must be finite")
            if key.endswith(VARIANCE) and np.any(arrays[key] < 0):
                raise UnusableError(f"its array {key!r} holds variances, which can't be negative")
        squared = sum(_squared_distance(_flat(arrays[key]), _flat(self.arrays[key])) for key in self.summed)
        if not np.isfinite(squared):
            for key in self.summed:
                if not is_finite(arrays[key]):
                    raise UnusableError(f"its array {key!r} must be finite")
            raise UnusableError("its update is too long to be measured")
        return float(np.sqrt(squared))

    def update(self, arrays: Mapping[str, AnyArray]) -> FloatArray:
        """The update of the summed arrays, as one vector."""
        parts = [
            np.subtract(arrays[key], self.arrays[key], dtype=np.float64).reshape(-1) for key in self.summed
        ]
        return np.concatenate(parts) if parts else np.zeros(0)

    def moved(
        self,
        replies: Sequence[Mapping[str, AnyArray]],
        coefficients: FloatArray,
        factors: FloatArray,
        steps: Mapping[str, FloatArray],
    ) -> ArrayRecord:
        """The new model, each array in the type that it has.

        ``coefficients`` are c, before updates are multiplied by the ``factors`` that make long ones shorter.
        What is in ``steps`` has been added up elsewhere: the sum of c times the updates of an array.
        """
        total = float(coefficients.sum())
        shares = coefficients / total if total > 0.0 else np.zeros_like(coefficients)
        new: dict[str, Array] = {}
        for key, start in self.arrays.items():
            returned, is_averaged = [arrays[key] for arrays in replies], key in self._averaged
            if key in steps:
                with np.errstate(over="ignore", invalid="ignore"):
                    step = steps[key] / total if is_averaged and total > 0.0 else steps[key]
                    values = cast(start + step, start.dtype)
            elif is_averaged:
                values = _average(start, returned, shares * factors)
            else:
                values = _moved(start, returned, coefficients * factors)
            new[key] = packed(values)
        return ArrayRecord(new)

    def split(self, vector: FloatArray) -> dict[str, FloatArray]:
        """The parts of a vector of all summed arrays, as ``update`` joins them."""
        places = np.cumsum([self.arrays[key].size for key in self.summed])[:-1]
        parts = zip(self.summed, np.split(vector, places), strict=True)
        return {key: part.reshape(self.arrays[key].shape) for key, part in parts}

    def accepted(self, stepped: ArrayRecord, moved: ArrayRecord) -> ArrayRecord:
        """What the inner strategy made of ``moved``, with the types of the model; an UnusableError if unfit.

        Its optimiser turns float32 into float64, and treats counters and variances like weights. Both are
        undone here: averaged arrays are those of ``moved``.
        """
        if set(stepped) != set(self.arrays):
            raise UnusableError("its arrays have other names than the model's", sorted(stepped)[:5])
        arrays: dict[str, Array] = {}
        for key, wanted in self.arrays.items():
            if key in self._averaged:
                arrays[key] = moved[key]
                continue
            array = view(stepped[key])
            if array.shape != wanted.shape or array.dtype.kind not in NUMBERS:
                raise UnusableError(
                    f"its array {key!r} must be {wanted.dtype} of shape {wanted.shape}",
                    f"got {array.dtype} of shape {array.shape}",
                )
            if array.dtype != wanted.dtype:
                array = cast(array, wanted.dtype)
                arrays[key] = packed(array)
            else:
                arrays[key] = stepped[key]
            if not is_finite(array):
                raise UnusableError(f"its array {key!r} is not finite")
        return ArrayRecord(arrays)


def _moved(start: AnyArray, returned: Sequence[AnyArray], coefficients: FloatArray) -> AnyArray:
    """start + the sum of coefficients times (returned - start), block by block."""
    new = np.empty(start.shape, dtype=start.dtype)
    target, begin_from, flat = new.reshape(-1), _flat(start), [_flat(array) for array in returned]
    total = np.empty(BLOCK)
    for begin in range(0, start.size, BLOCK):
        end = min(begin + BLOCK, start.size)
        part = total[: end - begin]
        part[:] = 0.0
        for array, factor in zip(flat, coefficients.tolist(), strict=True):
            _add_difference(part, factor, array[begin:end], begin_from[begin:end])
        with np.errstate(over="ignore", invalid="ignore"):
            part += begin_from[begin:end]
        target[begin:end] = cast(part, start.dtype)
    return new


def _average(start: AnyArray, returned: Sequence[AnyArray], shares: FloatArray) -> AnyArray:
    """The sum of shares times what was returned; what the shares lack to one is the share of the start."""
    mean = np.multiply(start, max(1.0 - float(shares.sum()), 0.0), dtype=np.float64)
    for array, share in zip(returned, shares.tolist(), strict=True):
        mean += np.multiply(array, share, dtype=np.float64)
    return cast(mean, start.dtype)


# The replies of a round --------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClientReplies:
    """The replies of a round that can be used. Arrays are aligned with the cohort; nan means no reply."""

    lengths: FloatArray
    """Norms of the updates."""
    sizes: FloatArray
    """Numbers of examples, as they were told or reported."""
    checked: dict[int, CheckedReply] = field(default_factory=dict)
    """What each client returned, by place in the cohort."""
    contents: dict[int, RecordDict] = field(default_factory=dict)
    """The rest of it: metrics."""
    refused: int = 0
    """How many replies could not be used."""
    sums: dict[str, FloatArray] = field(default_factory=dict)
    """Sums of sizes times weights times updates that were made elsewhere, by array."""

    def without(self, places: Collection[int]) -> ClientReplies:
        """The replies without those at these places, which are refused."""
        left = [place for place in self.contents if place not in places]
        gone = np.isin(np.arange(len(self.lengths)), list(places))
        return replace(
            self,
            lengths=np.where(gone, np.nan, self.lengths),
            sizes=np.where(gone, np.nan, self.sizes),
            checked={place: self.checked[place] for place in left},
            contents={place: self.contents[place] for place in left},
            refused=self.refused + len(places),
        )


@dataclass(frozen=True)
class OpenRound:
    """A round whose messages are out and whose replies are awaited."""

    drawn: DrawnCohort
    messages: list[Message]
    places: dict[int, int]
    """The place in the cohort of each node that was asked."""
    model: RoundModel

    def read(
        self, replies: Iterable[Message], size_key: str, pool: ClientPool, complaints: Complaints
    ) -> ClientReplies:
        """Check and measure each reply. One that can't be used counts as no reply.

        Replies are taken in the order of the cohort, so that no sum depends on which came first.
        """
        names, num_drawn = self.drawn.names, len(self.drawn.cohort)
        found, refused = ClientReplies(np.full(num_drawn, np.nan), np.full(num_drawn, np.nan)), 0
        for place, content in sorted(self._contents(replies).items()):
            told_size = float(self.drawn.told_sizes[place])
            try:
                reply = check_reply(content, self.model.arrays, size_key, told_size)
                if not np.isnan(told_size):
                    pool.compare_size(int(self.drawn.cohort.clients[place]), size_in(content, size_key))
                length = self.model.length(reply.arrays)
                if not min(reply.size, LARGEST_SIZE) * length <= LONGEST:
                    raise UnusableError(f"its update times its number of examples is longer than {LONGEST:g}")
            except UnusableError as error:
                complaints.refused(names[place], error)
                refused += 1
                continue
            found.lengths[place], found.sizes[place] = length, reply.size
            found.checked[place], found.contents[place] = reply, content
        return replace(found, refused=refused)

    def _contents(self, replies: Iterable[Message]) -> dict[int, RecordDict]:
        """What each client returned, by place in the cohort; the others are named in the log.

        A reply is assigned by the message it answers. Its sender would not do: if a node is gone, the error
        comes from the SuperLink and carries the SuperLink's own node id.
        """
        asked = {
            message.metadata.message_id: self.places[message.metadata.dst_node_id]
            for message in self.messages
        }
        contents: dict[int, RecordDict] = {}
        failed: dict[int, str | None] = dict.fromkeys(sorted(asked.values()))
        for reply in replies:
            place = asked.get(reply.metadata.reply_to_message_id)
            if place is None:
                log.warning("\t> Ignored a reply to a message of another round")
            elif reply.has_error():
                failed[place] = str(reply.error.reason)
            else:
                contents[place] = reply.content
                failed.pop(place, None)
        log_failures({self.drawn.names[place]: reason for place, reason in failed.items()})
        return contents
