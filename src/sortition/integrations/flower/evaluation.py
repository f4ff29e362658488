r"""Sampled evaluation: a few clients are drawn, so that on average the means are those of all clients.

A client counts by its number of examples :math:`e_m`, as in Flower's own evaluation. Exactly K clients are
drawn, with inclusion probabilities :math:`\pi_m = \min(1, c\,n_m)`, where :math:`n_m` is the size that is
known of client m; one that is not known is taken to be the mean of the known ones. The mean of a metric x is

.. math:: \bar x = \sum_{m \in \mathrm{drawn}} \frac{e_m}{\pi_m} x_m
          \Big/ \sum_{m \in \mathrm{drawn}} \frac{e_m}{\pi_m}.

If the :math:`e_m` are in proportion to the known sizes, the denominator is the same for every draw, and
:math:`\bar x` is unbiased. Otherwise it is a ratio of two unbiased estimates, with a bias of the order of
1/K (docs/research/flower-rules.md has figures). The order of the clients is shuffled before the draw, so
equal sizes give a simple random sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Message, MetricRecord, RecordDict

from sortition.core.designs import draw_fixed_size
from sortition.core.types import FloatArray, IntArray
from sortition.integrations.flower.metrics import floats, metrics_of
from sortition.integrations.flower.replies import (
    Complaints,
    UnusableError,
    log_failures,
    only,
    reported_size,
)

STREAM = 0x6576616C
"""Evaluation has random numbers of its own, so that it never changes who trains."""


def draw_evaluators(
    sizes: FloatArray, cohort_size: int, generator: np.random.Generator
) -> tuple[IntArray, FloatArray]:
    """The places of the clients that evaluate, and their inclusion probabilities; nan is an unknown size.

    >>> places, inclusion = draw_evaluators(np.array([6.0, 1.0, 1.0]), 2, np.random.default_rng(0))
    >>> bool(0 in places), inclusion.tolist()
    (True, [1.0, 0.5])
    """
    if cohort_size >= len(sizes):
        return np.arange(len(sizes)), np.ones(len(sizes))
    known = sizes[~np.isnan(sizes)]
    masses = np.where(np.isnan(sizes), known.mean() if known.sum() > 0.0 else 1.0, sizes)
    if not masses.sum() > 0.0:
        masses = np.ones(len(sizes))
    order = generator.permutation(len(sizes))
    drawn, _, inclusion, _ = draw_fixed_size(masses[order] / masses.sum(), cohort_size, generator)
    places = order[drawn]
    ascending = np.argsort(places)
    return places[ascending], inclusion[ascending]


@dataclass(frozen=True)
class EvaluationReplies:
    """The replies that can be used. All are aligned."""

    contents: list[RecordDict]
    metrics: list[dict[str, Any]]
    sizes: FloatArray
    inclusion: FloatArray
    """The probability that a client was drawn and replied, if all are equally likely to reply."""

    @property
    def weights(self) -> FloatArray:
        """How much each counts: its examples over its probability."""
        return self.sizes / self.inclusion


@dataclass(frozen=True)
class OpenEvaluation:
    """An evaluation whose messages are out. Arrays are aligned with the clients that were drawn."""

    names: Sequence[str]
    inclusion: FloatArray
    given_sizes: FloatArray
    """Sizes that were given on the server; nan if the client is to report its own."""
    num_available: int
    messages: list[Message]
    places: dict[int, int]
    """The place of each node that was asked."""

    def read(
        self,
        replies: Iterable[Message],
        size_key: str,
        counted: Callable[[float], float],
        complaints: Complaints,
    ) -> EvaluationReplies:
        """Check each reply; one that is malformed counts as none and is named in the log."""
        asked = {
            message.metadata.message_id: self.places[message.metadata.dst_node_id]
            for message in self.messages
        }
        found: dict[int, tuple[RecordDict, float]] = {}
        failed: dict[str, str | None] = dict.fromkeys(self.names)
        for reply in replies:
            place = asked.get(reply.metadata.reply_to_message_id)
            if place is None:
                continue
            name = self.names[place]
            if reply.has_error():
                failed[name] = str(reply.error.reason)
                continue
            failed.pop(name, None)
            size = float(self.given_sizes[place])
            try:
                _check_metrics(reply.content, size_key)
                if np.isnan(size):
                    size = counted(reported_size(reply.content, size_key))
            except UnusableError as error:
                complaints.refused(name, error, "for evaluation ")
                continue
            found[place] = reply.content, size
        log_failures(failed, "evaluation by")
        heard = sorted(found)
        replied = len(heard) / max(len(self.names), 1)
        return EvaluationReplies(
            contents=[found[place][0] for place in heard],
            metrics=[metrics_of(found[place][0], size_key) for place in heard],
            sizes=np.array([found[place][1] for place in heard]),
            inclusion=replied * self.inclusion[heard],
        )


def _check_metrics(content: RecordDict, size_key: str) -> None:
    """Raise an UnusableError unless there is one record of metrics, all of them finite."""
    for name, value in only(content, MetricRecord).items():
        if name != size_key and not np.all(np.isfinite(floats(value))):
            raise UnusableError(f"its {name!r} must be finite")
