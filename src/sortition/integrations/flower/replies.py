"""What a client returns is checked here: a reply that can't be used counts as no reply, and is named."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from flwr.app import ArrayRecord, MetricRecord, RecordDict

from sortition.integrations.flower.arrays import NUMBERS, AnyArray, view
from sortition.integrations.flower.identities import some
from sortition.integrations.flower.memory_sum import RECORD
from sortition.integrations.flower.sizes import number_of_examples

log = logging.getLogger("flwr.sortition")

Record = TypeVar("Record", ArrayRecord, MetricRecord)


class UnusableError(Exception):
    """Why a reply or a new model can't be used, what was found, and which clients it is due to."""

    def __init__(self, reason: str, found: object = "", due_to: Sequence[int] = ()) -> None:
        super().__init__(reason)
        self.reason, self.found = reason, str(found)[:200]
        self.due_to = list(due_to)  # places in the cohort


@dataclass(frozen=True)
class CheckedReply:
    """A reply whose arrays and size make sense."""

    size: float
    """The number of examples: the one told before if there is one, otherwise the one in this reply."""
    arrays: dict[str, AnyArray]
    """The arrays by name, with the names and shapes of the model."""
    memory: ArrayRecord | None
    """What the client remembers, if it holds a memory."""


def check_reply(
    content: RecordDict, model: Mapping[str, AnyArray], size_key: str, told_size: float
) -> CheckedReply:
    """The reply, or an UnusableError; ``told_size`` is nan if the client is to report its size.

    The arrays and the memory are taken out of ``content``, so that they need not stay in memory.
    """
    memory = content.pop(RECORD, None)
    size = reported_size(content, size_key) if np.isnan(told_size) else told_size
    arrays = _checked_arrays(only(content, ArrayRecord), model)
    for name in list(content.array_records):
        content[name] = ArrayRecord()
    return CheckedReply(size, arrays, memory if isinstance(memory, ArrayRecord) else None)


def only(content: RecordDict, kind: type[Record]) -> Record:
    """The one record of that kind, or an UnusableError."""
    records = [record for record in content.values() if isinstance(record, kind)]
    if len(records) != 1:
        raise UnusableError(f"it must hold exactly one {kind.__name__}", f"got {len(records)}")
    return records[0]


def reported_size(content: RecordDict, key: str) -> float:
    """The number of examples that a reply holds, or an UnusableError."""
    value = only(content, MetricRecord).get(key)
    size = number_of_examples(value)
    if np.isnan(size):
        raise UnusableError(
            f"it must report the number of examples as {key!r}, a number that is finite and not negative; or "
            "let the client tell it in answer to the query, or give it on the server with num_examples=",
            f"got {value!r}",
        )
    return size


def size_in(content: RecordDict, key: str) -> float:
    """The number of examples that a reply holds; nan if there is none."""
    records = [record for record in content.metric_records.values() if key in record]
    return number_of_examples(records[0][key]) if records else math.nan


def _checked_arrays(record: ArrayRecord, model: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
    """The arrays, which have the names and the shapes of the model's and can be averaged."""
    if set(record) != set(model):
        missing, unknown = sorted(set(model) - set(record)), sorted(set(record) - set(model))
        raise UnusableError(
            "its arrays must have the names of the model's",
            f"missing are {missing[:5]}, not in the model are {unknown[:5]}",
        )
    arrays = {}
    for key, wanted in model.items():
        try:
            array = view(record[key])
        except Exception as error:  # whatever the bytes make of numpy, it is the client's fault
            raise UnusableError(f"its array {key!r} can't be read", error) from None
        if array.shape != wanted.shape:
            raise UnusableError(
                f"its array {key!r} must have the shape {wanted.shape} of the model's", f"got {array.shape}"
            )
        if array.dtype.kind not in NUMBERS:
            raise UnusableError(
                f"its array {key!r} must hold floats, integers or booleans", f"got {array.dtype}"
            )
        arrays[key] = array
    return arrays


def log_failures(failed: Mapping[str, str | None], what: str = "reply from") -> None:
    """Name clients that sent no reply, by the errors that came instead; None means that nothing came."""
    for client, reason in failed.items():
        if reason is not None:
            log.info("\t> No %s %s: %s", what, client, last_line(reason))
    if late := [client for client, reason in failed.items() if reason is None]:
        log.info("\t> No %s %s: not in time", what, some(late, most=10))


def last_line(reason: str, longest: int = 200) -> str:
    r"""What an error says at its end; a simulation sends all of its traceback.

    >>> last_line("<class 'RayTaskError'>:<'Traceback ...\n\nValueError: no data\n'>")
    'ValueError: no data'
    """
    lines = [line.strip() for line in reason.removesuffix("'>").splitlines() if line.strip()]
    line = lines[-1] if len(lines) > 1 else reason.strip()
    return line if len(line) <= longest else line[:longest] + "..."


class Complaints:
    """Says what is wrong with a client's replies, once for each client and reason."""

    def __init__(self) -> None:
        self._said: set[tuple[str, str]] = set()
        self.last_refusal = ""
        """What was refused last, and why."""

    def refused(self, client: str, error: UnusableError, what: str = "") -> None:
        """A reply was refused; ``what`` says to what question."""
        found = f" ({error.found})" if error.found else ""
        self.last_refusal = f"what {client} returned: {error.reason}{found}"
        self.say(client, f"{what}counts as no reply: {error.reason}", found)

    def once(self, message: str) -> None:
        """Something is wrong that is not due to one client."""
        if ("", message) not in self._said:
            self._said.add(("", message))
            log.warning("\t> %s", message)

    def say(self, client: str, reason: str, found: str = "") -> None:
        """Something is wrong with what ``client`` returned."""
        if (client, reason) not in self._said:
            self._said.add((client, reason))
            log.warning("\t> What %s returned %s%s", client, reason, found)
