"""A round whose messages are out: who was asked what, and what came back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict

from sortition.core.types import FloatArray
from sortition.integrations.flower.arrays import Model
from sortition.integrations.flower.lottery import Drawn
from sortition.integrations.flower.replies import contents_of, only, size_of

log = logging.getLogger("flwr.sortition")


@dataclass(frozen=True)
class Heard:
    """What came back. ``norms`` and ``sizes`` are aligned with the cohort, nan for who is silent."""

    norms: FloatArray
    sizes: FloatArray
    contents: dict[int, RecordDict]
    """The replies that count, by place in the cohort."""


@dataclass(frozen=True)
class OpenRound:
    """What was drawn, the messages to it, and the model that they carry."""

    drawn: Drawn
    messages: list[Message]
    places: dict[int, int]
    """Node id -> place in the cohort."""
    model: Model

    def hear(
        self, replies: Iterable[Message], size_key: str, given_size: Callable[[Drawn, int], float | None]
    ) -> Heard:
        """Add every update to the model's sum; one that is not finite counts as no reply."""
        drawn, cohort = self.drawn, self.drawn.cohort
        norms, sizes = np.full(len(cohort), np.nan), np.full(len(cohort), np.nan)
        contents: dict[int, RecordDict] = {}
        asked = {
            message.metadata.message_id: self.places[message.metadata.dst_node_id]
            for message in self.messages
        }
        for place, content in sorted(contents_of(replies, asked, drawn.names).items()):
            name, size = drawn.names[place], given_size(drawn, place)
            if size is None:
                size = size_of(content, size_key, name)
            norm = self.model.add(name, only(content, ArrayRecord, name), size * cohort.weights[place])
            if np.isnan(norm):
                log.warning("\t> The update of %s is not finite: no reply", name)
                continue
            norms[place], sizes[place], contents[place] = norm, size, content
        return Heard(norms, sizes, contents)
