"""The inner strategy: driven by one weighted reply, and its state kept for a resumed run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from sortition.core.errors import StateError
from sortition.core.state import text
from sortition.integrations.flower.arrays import AnyArray, to_plain, to_record
from sortition.integrations.flower.grid import OfferedGrid
from sortition.integrations.flower.refusals import check_inner


class Inner:
    """An inner strategy and what is changed about it for the time of a call."""

    def __init__(self, strategy: object) -> None:
        self.strategy: FedAvg = check_inner(strategy)
        self._initial = self._encoded()

    def configure(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid, nodes: list[int]
    ) -> list[Message]:
        """Its messages to exactly these nodes; it isn't asked where there are none, or it would wait."""
        if not nodes:
            return []
        with _set(self.strategy, min_train_nodes=1, min_available_nodes=1):
            offered = OfferedGrid(grid, nodes)
            return list(self.strategy.configure_train(server_round, arrays, config, offered))

    def aggregate(
        self, server_round: int, arrays: ArrayRecord, metrics: MetricRecord
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """What it makes of a single reply that carries ``arrays``; the metrics are aggregated already."""
        key = self.strategy.weighted_by_key
        content = RecordDict({"arrays": arrays, "metrics": MetricRecord({key: 1.0})})
        reply = Message(content, 0, MessageType.TRAIN)
        with _set(self.strategy, train_metrics_aggr_fn=lambda records, weighted_by_key: metrics):
            return self.strategy.aggregate_train(server_round, [reply])

    # State -------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """The attributes that changed since the strategy was wrapped: moments, momentum, own arrays.

        Settings don't change, and so are free to differ in the program that resumes. What isn't made of
        numbers, strings, arrays and dictionaries or lists of these is not kept.
        """
        arrays: list[AnyArray] = []
        changed = {
            name: _encode(getattr(self.strategy, name), arrays)
            for name, encoded in self._encoded().items()
            if not _same(encoded, self._initial.get(name))
        }
        return {
            "inner": type(self.strategy).__name__,
            "inner_attributes": json.dumps(changed),
            **{f"inner_array.{place}": array for place, array in enumerate(arrays)},
        }

    def decoded(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The attributes that ``state`` gave."""
        name, own = text(state, "inner"), type(self.strategy).__name__
        if name != own:
            raise StateError(f"state must be of an inner strategy {own}, got {name!r}")
        try:
            attributes = json.loads(str(text(state, "inner_attributes")))
            return {key: _decode(structure, state) for key, structure in attributes.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StateError(f"state must hold the attributes of {own}, got {error!r}") from None

    def become(self, attributes: Mapping[str, Any]) -> None:
        """Take these attributes."""
        vars(self.strategy).update(attributes)

    def _encoded(self) -> dict[str, tuple[Any, list[AnyArray]]]:
        encoded = {}
        for name, value in vars(self.strategy).items():
            arrays: list[AnyArray] = []
            try:
                encoded[name] = (_encode(value, arrays), arrays)
            except TypeError:
                continue
        return encoded


@contextmanager
def _set(strategy: FedAvg, **attributes: Any) -> Iterator[None]:
    """These attributes, for as long as this lasts."""
    before = {name: getattr(strategy, name) for name in attributes}
    vars(strategy).update(attributes)
    try:
        yield
    finally:
        vars(strategy).update(before)


def _encode(value: Any, arrays: list[AnyArray]) -> Any:
    """A structure that JSON can hold, and the arrays in it, by their place."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"value": value}
    if isinstance(value, np.generic) and value.dtype.kind in "fiub":
        return {"value": value.item()}
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        arrays.append(np.array(value))
        return {"array": len(arrays) - 1}
    if isinstance(value, ArrayRecord):
        return {"record": _encode(to_plain(value), arrays)}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": [[key, _encode(item, arrays)] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        return {type(value).__name__: [_encode(item, arrays) for item in value]}
    raise TypeError(f"can't keep a {type(value).__name__}")


def _decode(structure: Any, state: Mapping[str, Any]) -> Any:
    ((kind, content),) = structure.items()
    if kind == "value":
        return content
    if kind == "array":
        return np.array(state[f"inner_array.{content}"])
    if kind == "record":
        return to_record(_decode(content, state))
    if kind == "dict":
        return {key: _decode(item, state) for key, item in content}
    items = [_decode(item, state) for item in content]
    return tuple(items) if kind == "tuple" else items


def _same(one: tuple[Any, list[AnyArray]], other: tuple[Any, list[AnyArray]] | None) -> bool:
    return (
        other is not None
        and one[0] == other[0]
        and all(
            a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
            for a, b in zip(one[1], other[1], strict=True)
        )
    )
