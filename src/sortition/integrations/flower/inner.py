"""The inner strategy: which ones are accepted, how one is called in a round, and its state."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    Bulyan,
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    FedMedian,
    FedTrimmedAvg,
    FedXgbBagging,
    FedXgbCyclic,
    Krum,
    MultiKrum,
    QFedAvg,
    Strategy,
)
from flwr.supercore.run import Run

from sortition.core.errors import CohortError, ConfigurationError, StateError
from sortition.core.state import text
from sortition.core.types import FloatArray
from sortition.integrations.flower.aggregation import NUMBERS, AnyArray, arrays_of, record_of

NOT_PRIVATE = (
    "differential privacy calibrates its noise for clients that are drawn uniformly and count equally. With "
    "adaptive sampling an update can count for more than the clipping norm allows, and the draw depends on "
    "the data, so the promised privacy would not hold"
)
_ROBUST = (
    "it compares the replies of the clients, but adaptive sampling hands it a single reply that is already "
    "weighted. It would do the same as FedAvg"
)
_REFUSED: dict[type[Strategy], str] = {
    DifferentialPrivacyClientSideAdaptiveClipping: NOT_PRIVATE,
    DifferentialPrivacyClientSideFixedClipping: NOT_PRIVATE,
    DifferentialPrivacyServerSideAdaptiveClipping: NOT_PRIVATE,
    DifferentialPrivacyServerSideFixedClipping: NOT_PRIVATE,
    FedMedian: _ROBUST,
    FedTrimmedAvg: _ROBUST,
    Krum: _ROBUST,
    MultiKrum: _ROBUST,
    Bulyan: _ROBUST,
    QFedAvg: "it weights each client by its loss, which would come on top of the weights of the sampler",
    FedXgbBagging: "it collects the trees of all clients, and trees have no weighted mean",
    FedXgbCyclic: "it chooses the clients itself, in turn, and passes trees on",
}


def check_inner(inner: object) -> FedAvg:
    """Return ``inner`` if it can work from a single weighted reply; otherwise raise, with the reason."""
    name = type(inner).__name__
    for refused, reason in _REFUSED.items():
        if isinstance(inner, refused):
            called = name if type(inner) is refused else f"{name} (a {refused.__name__})"
            raise ConfigurationError(f"inner can't be {called}: {reason}")
    if not isinstance(inner, FedAvg):
        raise ConfigurationError(
            "inner must be FedAvg, FedAdam, FedAvgM, FedProx, FedYogi, FedAdagrad or a subclass of one of "
            f"these, got {name}"
        )
    if inner.fraction_train != 1.0:
        raise ConfigurationError(
            "inner must have fraction_train=1.0, because the sampler decides how many clients train, "
            f"got {inner.fraction_train}"
        )
    return inner


class InnerStrategy:
    """The inner strategy, called with the drawn nodes only and with a single reply."""

    def __init__(self, strategy: object) -> None:
        self.strategy = check_inner(strategy)
        self._initial = self._encoded_attributes()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid, nodes: list[int]
    ) -> list[Message]:
        """Its messages to these nodes. Without nodes it is not called, since it would wait for some."""
        if not nodes:
            return []
        with _changed(self.strategy, {"min_train_nodes": 1, "min_available_nodes": 1}):
            messages = list(
                self.strategy.configure_train(server_round, arrays, config, CohortGrid(grid, nodes))
            )
        not_drawn = {message.metadata.dst_node_id for message in messages} - set(nodes)
        if not_drawn:
            raise CohortError(
                f"inner ({type(self.strategy).__name__}) may write messages to the drawn nodes only, "
                f"got one to node {min(not_drawn)}"
            )
        return messages

    def aggregate_train(
        self,
        server_round: int,
        arrays: ArrayRecord,
        contents: Mapping[int, RecordDict],
        metric_weights: FloatArray,
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Its step from a single reply that carries ``arrays``, and the metrics of the clients.

        ``contents`` are the clients' replies by place in the cohort, ``metric_weights`` their weights in the
        metrics, aligned with the cohort.
        """
        metrics = self._client_metrics(contents, metric_weights)
        size = MetricRecord({self.strategy.weighted_by_key: 1.0})
        reply = Message(RecordDict({"arrays": arrays, "metrics": size}), 0, MessageType.TRAIN)
        with _changed(self.strategy, {"train_metrics_aggr_fn": lambda records, weighted_by_key: metrics}):
            return self.strategy.aggregate_train(server_round, [reply])

    def _client_metrics(self, contents: Mapping[int, RecordDict], weights: FloatArray) -> MetricRecord:
        """The clients' own metrics, aggregated by its function with our weights in place of the sizes."""
        key, records, total = self.strategy.weighted_by_key, [], 0.0
        for place, content in contents.items():
            if content.metric_records:
                weight = float(weights[place])
                weighted = {
                    name: MetricRecord({**record, key: weight})
                    if isinstance(record, MetricRecord)
                    else record
                    for name, record in content.items()
                }
                records.append(RecordDict(weighted))
                total += weight
        if not total:  # no client reports metrics, or none has any data
            return MetricRecord()
        return self.strategy.train_metrics_aggr_fn(records, key)

    # State -------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """The attributes that have changed since the strategy was wrapped, such as moments and momentum.

        Settings do not change, so a program that resumes may use other ones. Attributes are kept if they are
        numbers, strings, arrays, or lists and dictionaries of these.
        """
        arrays: list[AnyArray] = []
        changed = {
            name: _encode(getattr(self.strategy, name), arrays)
            for name, encoded in self._encoded_attributes().items()
            if not _equal(encoded, self._initial.get(name))
        }
        return {
            "inner": type(self.strategy).__name__,
            "inner_attributes": json.dumps(changed),
            **{f"inner_array.{place}": array for place, array in enumerate(arrays)},
        }

    def attributes_in(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The attributes that ``state`` returned; an error if they are of another strategy."""
        name, own = text(state, "inner"), type(self.strategy).__name__
        if name != own:
            raise StateError(f"state is of inner={name}, but this strategy has inner={own}")
        try:
            attributes = json.loads(str(text(state, "inner_attributes")))
            return {key: _decode(structure, state) for key, structure in attributes.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StateError(f"state must hold 'inner_attributes' of {own}, got {error!r}") from None

    def restore(self, attributes: Mapping[str, Any]) -> None:
        """Set these attributes."""
        vars(self.strategy).update(attributes)

    def _encoded_attributes(self) -> dict[str, tuple[Any, list[AnyArray]]]:
        """Each attribute that can be kept, as a structure for JSON and the arrays in it."""
        encoded = {}
        for name, value in vars(self.strategy).items():
            arrays: list[AnyArray] = []
            try:
                encoded[name] = (_encode(value, arrays), arrays)
            except TypeError:
                continue
        return encoded


class CohortGrid(Grid):
    """A grid on which only the drawn nodes can be seen. Everything else is done by the real grid."""

    def __init__(self, grid: Grid, nodes: list[int]) -> None:
        self._grid = grid
        self._nodes = nodes

    def get_node_ids(self) -> Iterable[int]:
        """The drawn nodes."""
        return list(self._nodes)

    def get_nodes(self) -> Iterable[NodeInfo]:
        """What the SuperLink knows about the drawn nodes."""
        drawn = set(self._nodes)
        return [node for node in self._grid.get_nodes() if node.node_id in drawn]

    def set_run(self, run: Run) -> None:
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        return self._grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self._grid.send_and_receive(messages, timeout=timeout)


@contextmanager
def _changed(strategy: FedAvg, attributes: Mapping[str, Any]) -> Iterator[None]:
    """Set these attributes, and set them back at the end."""
    before = {name: getattr(strategy, name) for name in attributes}
    vars(strategy).update(attributes)
    try:
        yield
    finally:
        vars(strategy).update(before)


def _encode(value: Any, arrays: list[AnyArray]) -> Any:
    """A structure for JSON. Arrays are appended to ``arrays``; the structure holds their places."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"value": value}
    if isinstance(value, np.generic) and value.dtype.kind in NUMBERS:
        return {"value": value.item()}
    if isinstance(value, np.ndarray) and value.dtype.kind in NUMBERS:
        arrays.append(np.array(value))
        return {"array": len(arrays) - 1}
    if isinstance(value, ArrayRecord):
        return {"record": _encode(arrays_of(value), arrays)}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": [[key, _encode(item, arrays)] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        return {type(value).__name__: [_encode(item, arrays) for item in value]}
    raise TypeError(f"a {type(value).__name__} can't be kept in a state")


def _decode(structure: Any, state: Mapping[str, Any]) -> Any:
    """The value that ``_encode`` turned into ``structure``."""
    ((kind, content),) = structure.items()
    if kind == "value":
        return content
    if kind == "array":
        return np.array(state[f"inner_array.{content}"])
    if kind == "record":
        return record_of(_decode(content, state))
    if kind == "dict":
        return {key: _decode(item, state) for key, item in content}
    items = [_decode(item, state) for item in content]
    return tuple(items) if kind == "tuple" else items


def _equal(one: tuple[Any, list[AnyArray]], other: tuple[Any, list[AnyArray]] | None) -> bool:
    return (
        other is not None
        and one[0] == other[0]
        and all(
            a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
            for a, b in zip(one[1], other[1], strict=True)
        )
    )
