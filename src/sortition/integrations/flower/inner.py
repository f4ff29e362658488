"""The inner strategy: which ones are accepted, how one is called in a round, and its state."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    Bulyan,
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedMedian,
    FedTrimmedAvg,
    FedXgbBagging,
    FedXgbCyclic,
    FedYogi,
    Krum,
    MultiKrum,
    QFedAvg,
    Strategy,
)

from sortition.core.errors import CohortError, ConfigurationError, StateError
from sortition.core.state import text
from sortition.core.types import FloatArray
from sortition.integrations.flower.arrays import NUMBERS, AnyArray, arrays_of, is_finite, record_of
from sortition.integrations.flower.identities import NodeInfo
from sortition.integrations.flower.metrics import metrics_of, weighted_means
from sortition.integrations.flower.replies import UnusableError

log = logging.getLogger("flwr.sortition")

OPTIMISERS = (FedAdagrad, FedAdam, FedYogi)
"""These take note of the model (``current_arrays``) when a round is configured."""
PLAIN = FedAvg()
DEFAULT_AGGREGATION = PLAIN.train_metrics_aggr_fn
"""What aggregates the metrics if the user gives no function of his own: their weighted means."""

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
    for kind in type(inner).__mro__:
        if kind.__module__.startswith("flwr.server.strategy"):
            raise ConfigurationError(
                f"inner must come from flwr.serverapp.strategy, got {name} of flwr.server.strategy, which is "
                f"Flower's older interface: use 'from flwr.serverapp.strategy import {kind.__name__}'"
            )
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


def check_evaluation(inner: FedAvg, cohort_size: int) -> None:
    """Raise if ``inner`` would have other clients evaluate than those that are drawn."""
    if inner.fraction_evaluate != 1.0:
        raise ConfigurationError(
            "inner must have fraction_evaluate=1.0, because evaluate_cohort_size says how many clients "
            f"evaluate, got {inner.fraction_evaluate}"
        )
    if inner.min_evaluate_nodes > cohort_size:
        raise ConfigurationError(
            f"inner has min_evaluate_nodes={inner.min_evaluate_nodes}, but no more than "
            f"evaluate_cohort_size={cohort_size} clients evaluate"
        )


def check_train_nodes(inner: FedAvg, cohort_size: int) -> None:
    """Raise if ``inner`` wants more clients in a round than are drawn; Flower's default is nobody's wish."""
    if inner.min_train_nodes > max(cohort_size, PLAIN.min_train_nodes):
        raise ConfigurationError(
            f"inner has min_train_nodes={inner.min_train_nodes}, but no more than cohort_size={cohort_size} "
            "clients train in a round: lower min_train_nodes, or raise cohort_size"
        )


class InnerStrategy:
    """The inner strategy, called with the drawn nodes only and with a single reply."""

    def __init__(self, strategy: object) -> None:
        self.strategy = check_inner(strategy)
        self._initial = copy.deepcopy(_encoded(vars(self.strategy)))

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid, nodes: list[int]
    ) -> list[Message]:
        """Its messages to these nodes. Without nodes it is not called, since it would wait for some."""
        return self._messages(self.strategy.configure_train, server_round, arrays, config, grid, nodes)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid, nodes: list[int]
    ) -> list[Message]:
        """The same for evaluation."""
        return self._messages(self.strategy.configure_evaluate, server_round, arrays, config, grid, nodes)

    def _messages(
        self,
        configure: Callable[[int, ArrayRecord, ConfigRecord, Grid], Iterable[Message]],
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
        nodes: list[int],
    ) -> list[Message]:
        if not nodes:
            if isinstance(
                self.strategy, OPTIMISERS
            ):  # which takes note of the model, for a step from a memory
                self.strategy.current_arrays = arrays_of(arrays)
            return []
        settings = {"min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1}
        with _changed(self.strategy, settings), _quiet():
            messages = list(configure(server_round, arrays, config, CohortGrid(grid, nodes)))
        not_drawn = {message.metadata.dst_node_id for message in messages} - set(nodes)
        if not_drawn:
            raise CohortError(
                f"inner ({type(self.strategy).__name__}) may write messages to the drawn nodes only, "
                f"got one to node {min(not_drawn)}"
            )
        return messages

    @contextmanager
    def undone_if_refused(self) -> Iterator[None]:
        """If an UnusableError is raised inside, its attributes are set back to what they were.

        It is raised at the end, too, if arrays that were finite no longer are: moments that are infinite stay
        so for good, and the model stands still. A subclass that changes its own arrays in place keeps these
        changes.
        """
        before = {
            name: copy.copy(value) if isinstance(value, (dict, list)) else value
            for name, value in vars(self.strategy).items()
        }
        try:
            yield
            for name, (_, arrays) in _encoded(vars(self.strategy)).items():
                if not all(map(is_finite, arrays)) and all(
                    map(is_finite, _encoded(before).get(name, ((), []))[1])
                ):
                    raise UnusableError(f"{name!r} of inner is not finite")
        except UnusableError:
            vars(self.strategy).clear()
            vars(self.strategy).update(before)
            raise

    def aggregate_train(
        self,
        server_round: int,
        arrays: ArrayRecord,
        contents: Mapping[int, RecordDict],
        sizes: FloatArray,
        weights: FloatArray,
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Its step from a single reply that carries ``arrays``, and the metrics of the clients.

        ``contents`` are the clients' replies by place in the cohort. ``sizes`` and ``weights`` are aligned
        with the cohort: the clients' numbers of examples, and the weights that they were drawn with. The
        reply has the means of the clients' metrics, under the name that the clients use, and the sum of
        their examples.
        """
        heard = list(contents)
        records, counted = [contents[place] for place in heard], (sizes * weights)[heard]
        reply = self._single_reply(records, sizes[heard], counted)
        reply[_name_of(ArrayRecord, records, "arrays")] = arrays
        with self._aggregated("train_metrics_aggr_fn", records, counted):
            return self.strategy.aggregate_train(server_round, [Message(reply, 0, MessageType.TRAIN)])

    def aggregate_evaluate(
        self, server_round: int, records: list[RecordDict], sizes: FloatArray, counted: FloatArray
    ) -> MetricRecord | None:
        """The metrics that it makes of an evaluation, likewise from a single reply.

        ``counted`` are the weights in the means, aligned with ``records`` as ``sizes`` are.
        """
        reply = self._single_reply(records, sizes, counted)
        with self._aggregated("evaluate_metrics_aggr_fn", records, counted):
            return self.strategy.aggregate_evaluate(server_round, [Message(reply, 0, MessageType.EVALUATE)])

    def _single_reply(self, records: list[RecordDict], sizes: FloatArray, counted: FloatArray) -> RecordDict:
        key, examples = self.strategy.weighted_by_key, float(sizes.sum())
        means = weighted_means([metrics_of(record, key) for record in records], counted)
        means[key] = examples if 0.0 < examples < np.inf else 1.0
        return RecordDict({_name_of(MetricRecord, records, "metrics"): means})

    @contextmanager
    def _aggregated(self, name: str, records: list[RecordDict], counted: FloatArray) -> Iterator[None]:
        """Without odd lines, and with a function of the user's own replaced by its result for these records.

        It gets the clients' records with our weights in the place of the sizes. If it fails, because of what
        a client sent or for any other reason, the round has the means instead.
        """
        own, key = getattr(self.strategy, name), self.strategy.weighted_by_key
        aggregate = DEFAULT_AGGREGATION
        if own is not DEFAULT_AGGREGATION and counted.sum() > 0.0:
            weighted = [
                _with_size(record, key, float(weight))
                for record, weight in zip(records, counted, strict=True)
                if record.metric_records
            ]
            try:
                found = own(weighted, key)
                aggregate = lambda records, weighted_by_key: found  # noqa: E731
            except Exception as error:
                log.warning("\t> %s of inner failed, so the means are given instead: %r", name, error)
        with _changed(self.strategy, {name: aggregate}), _quiet():
            yield

    # State -------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """The attributes that have changed since the strategy was wrapped, such as moments and momentum.

        Settings do not change, so a program that resumes may use other ones. Attributes are kept if they are
        numbers, strings, arrays, or lists and dictionaries of these. Arrays are not copied.
        """
        anew = ("current_arrays",) if isinstance(self.strategy, OPTIMISERS) else ()  # set in every round
        arrays: list[AnyArray] = []
        changed = {
            name: _encode(getattr(self.strategy, name), arrays)
            for name, encoded in _encoded(vars(self.strategy)).items()
            if name not in anew and not _equal(encoded, self._initial.get(name))
        }
        return {
            "inner": type(self.strategy).__name__,
            "inner_settings": json.dumps(self._settings()),
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

    def changed_settings(self, state: Mapping[str, Any]) -> list[str]:
        """Settings of the strategy that are not those of ``state``, in words; none if it has none."""
        before = json.loads(str(text(state, "inner_settings"))) if "inner_settings" in state else {}
        return [
            f"{name} was {before[name]!r} and is {value!r}"
            for name, value in self._settings().items()
            if name in before and before[name] != value
        ]

    def _settings(self) -> dict[str, Any]:
        """The numbers and strings that the strategy was built with."""
        return {name: each["value"] for name, (each, _) in self._initial.items() if "value" in each}

    def restore(self, attributes: Mapping[str, Any]) -> None:
        """Set these attributes."""
        vars(self.strategy).update(attributes)


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

    def set_run(self, run: Any) -> None:
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
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


def _name_of(kind: type, records: Iterable[RecordDict], otherwise: str) -> str:
    """The name under which clients send a record of that kind."""
    names = (name for record in records for name, found in record.items() if isinstance(found, kind))
    return next(names, otherwise)


def _with_size(content: RecordDict, key: str, size: float) -> RecordDict:
    """The content with another size in its metrics."""
    return RecordDict(
        {
            name: MetricRecord({**record, key: size}) if isinstance(record, MetricRecord) else record
            for name, record in content.items()
        }
    )


class _WithoutOddLines(logging.Filter):
    """Leaves out what an inner strategy logs about the few nodes and the single reply that it is shown."""

    def filter(self, record: logging.LogRecord) -> bool:
        line = record.getMessage()
        return not line.startswith(("configure_train: Sampled", "configure_evaluate: Sampled")) and (
            "Received 1 results and 0 failures" not in line
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Flower's logger without the odd lines. Our own lines have a logger of their own."""
    flower, without = logging.getLogger("flwr"), _WithoutOddLines()
    flower.addFilter(without)
    try:
        yield
    finally:
        flower.removeFilter(without)


@contextmanager
def _changed(strategy: FedAvg, attributes: Mapping[str, Any]) -> Iterator[None]:
    """Set these attributes, and set them back at the end."""
    before = {name: getattr(strategy, name) for name in attributes}
    vars(strategy).update(attributes)
    try:
        yield
    finally:
        vars(strategy).update(before)


def _encoded(attributes: Mapping[str, Any]) -> dict[str, tuple[Any, list[AnyArray]]]:
    """Each attribute that can be kept, as a structure for JSON and the arrays in it."""
    encoded = {}
    for name, value in attributes.items():
        arrays: list[AnyArray] = []
        try:
            encoded[name] = (_encode(value, arrays), arrays)
        except TypeError:
            continue
    return encoded


def _encode(value: Any, arrays: list[AnyArray]) -> Any:
    """A structure for JSON. Arrays are appended to ``arrays``; the structure holds their places."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"value": value}
    if isinstance(value, np.generic) and value.dtype.kind in NUMBERS:
        return {"value": value.item()}
    if isinstance(value, np.ndarray) and value.dtype.kind in NUMBERS:
        arrays.append(value)
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
