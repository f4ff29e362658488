"""Replies of clients: whose they are, how many examples they stand for, and what they report."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from sortition.core.errors import FeedbackError
from sortition.core.types import FloatArray

log = logging.getLogger("flwr.sortition")

Kind = TypeVar("Kind", ArrayRecord, MetricRecord)


def contents_of(
    replies: Iterable[Message], asked: Mapping[str, int], names: Sequence[str]
) -> dict[int, RecordDict]:
    """The content of each reply by the place in the cohort of whom it is from.

    ``asked`` has the places by message id: that is how a reply is attributed, since the error about a node
    that is gone comes from the SuperLink, in its own name.
    """
    contents: dict[int, RecordDict] = {}
    for reply in replies:
        place = asked.get(reply.metadata.reply_to_message_id)
        if place is None:
            log.warning("\t> A reply to no message of this round: ignored")
        elif reply.has_error():
            log.info("\t> No reply from %s: %s", names[place], reply.error.reason)
        else:
            contents[place] = reply.content
    return contents


def only(content: RecordDict, kind: type[Kind], name: str) -> Kind:
    """The one record of that kind in the reply of ``name``."""
    records = [record for record in content.values() if isinstance(record, kind)]
    if len(records) != 1:
        raise FeedbackError(f"the reply of {name} must hold exactly one {kind.__name__}, got {len(records)}")
    return records[0]


def size_of(content: RecordDict, key: str, name: str) -> float:
    """The number of examples that the reply of ``name`` reports under ``key``."""
    value = only(content, MetricRecord, name).get(key)
    if not isinstance(value, (int, float)) or not np.isfinite(value) or value < 0:
        raise FeedbackError(
            f"the reply of {name} must report its number of examples as {key!r}, or num_examples must "
            f"give it, got {value!r}"
        )
    return float(value)


def aggregated_metrics(
    inner: FedAvg, contents: Mapping[int, RecordDict], weighted_sizes: FloatArray
) -> MetricRecord:
    """The clients' own metrics as ``inner`` aggregates them, each weighted by its size and its draw."""
    key, records, weighed = inner.weighted_by_key, [], 0.0
    for place, content in contents.items():
        weight = float(weighted_sizes[place])
        parts = {
            name: MetricRecord({**part, key: weight}) if isinstance(part, MetricRecord) else part
            for name, part in content.items()
        }
        if any(isinstance(part, MetricRecord) for part in parts.values()):
            records.append(RecordDict(parts))
            weighed += weight
    if not weighed:
        return MetricRecord()  # nobody reports anything, or nobody has any data to weigh it by
    return inner.train_metrics_aggr_fn(records, key)
