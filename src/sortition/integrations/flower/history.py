"""The metrics of all rounds: what ``Result`` and ``on_round`` get, and how they are kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp.strategy import Result

from sortition.core.errors import StateError
from sortition.core.state import count, text
from sortition.ledger.summary import TROUBLES

OnRound: TypeAlias = Callable[[int, dict[str, Any], ArrayRecord], object]
"""Called with the number of a round, its metrics and the model."""

TRAIN, EVALUATE, SERVER = "train", "evaluate", "server"
"""Who a metric is from: the clients in training or evaluation, or ``evaluate_fn`` on the server."""


class History:
    """The metrics of all rounds so far. Round 0 is the model before the first round.

    >>> history = History()
    >>> history.add(1, TRAIN, MetricRecord({"loss": 0.5}))
    >>> history.add(1, SERVER, MetricRecord({"loss": 0.6}))
    >>> history.of_round(1)
    {'train/loss': 0.5, 'server/loss': 0.6}
    """

    def __init__(self) -> None:
        self._rounds: dict[int, dict[str, dict[str, Any]]] = {}
        self.evaluated = 0
        """The last round whose evaluation is done."""

    def add(self, server_round: int, source: str, metrics: MetricRecord | None) -> None:
        """Take note of metrics of a round, if there are any."""
        if metrics is not None:
            self._rounds.setdefault(server_round, {})[source] = dict(metrics)

    def of_round(self, server_round: int) -> dict[str, Any]:
        """All metrics of a round as numbers and lists of numbers, each with its source before its name."""
        return {
            f"{source}/{name}": value
            for source, metrics in self._rounds.get(server_round, {}).items()
            for name, value in metrics.items()
        }

    def logged(self, server_round: int) -> dict[str, Any]:
        """Those of a round for the ledger's log.

        It has the draws, so ``sampling-*`` is left out, but for what went wrong.
        """
        found = self.of_round(server_round)
        return {
            name: value
            for name, value in found.items()
            if not name.startswith(f"{TRAIN}/sampling-") or (name in TROUBLES and value)
        }

    def result(self, arrays: ArrayRecord) -> Result:
        """What ``start`` returns."""

        def of(source: str) -> dict[int, MetricRecord]:
            return {
                server_round: MetricRecord(metrics[source])
                for server_round, metrics in sorted(self._rounds.items())
                if source in metrics
            }

        return Result(arrays, of(TRAIN), of(EVALUATE), of(SERVER))

    def state(self, *, since: int = 0) -> dict[str, Any]:
        """The metrics of round ``since`` and later ones, as plain values; round 0 goes with round 1."""
        first = 0 if since == 1 else since
        kept = {str(number): metrics for number, metrics in self._rounds.items() if number >= first}
        return {"metrics": json.dumps(kept), "evaluated": self.evaluated}

    @staticmethod
    def restored(*states: Mapping[str, Any]) -> History:
        """What ``state`` returned at one or more times, the latest last."""
        history = History()
        for state in states:
            for number, metrics in _decoded(state):
                history._rounds[number] = metrics
            history.evaluated = max(history.evaluated, count(state, "evaluated"))
        return history


def _decoded(state: Mapping[str, Any]) -> Iterator[tuple[int, dict[str, dict[str, Any]]]]:
    try:
        for number, metrics in json.loads(str(text(state, "metrics"))).items():
            yield int(number), {source: dict(MetricRecord(found)) for source, found in metrics.items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise StateError(f"state must hold 'metrics' of rounds, got {error!r}") from None
