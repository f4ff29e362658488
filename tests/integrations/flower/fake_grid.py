"""A federation in this process: a Flower grid whose clients are plain functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from uuid import uuid4

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MessageType,
    Metadata,
    MetricRecord,
    RecordDict,
)
from flwr.app.message import make_message
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from sortition.integrations.flower import remember_updates

SUPERLINK = 1
CLIENT_APP_RAISED, NODE_UNAVAILABLE = 2, 5

Train = Callable[[dict[str, np.ndarray], int], dict[str, np.ndarray]]


@dataclass
class Client:
    """A client: what it has, how it trains (model, round -> model) and how it fails."""

    target: float = 1.0
    examples: float = 1.0
    partition: int | None = None
    fails: Callable[[int], str | None] = lambda server_round: None
    train: Train | None = None
    extra: dict[str, float] = field(default_factory=dict)
    query_error: str = "<class 'ValueError'>:<'No query function registered with name 'default''>"
    """What a query gives if there is no ``partition``."""
    tells_size: bool = False
    """Whether it answers a query with its number of examples, too."""
    context: Context | None = None
    """With one, the client has the mod ``remember_updates``."""

    def trained(self, model: dict[str, np.ndarray], server_round: int) -> dict[str, np.ndarray]:
        """One local step of half the way to the target, unless ``train`` says otherwise."""
        if self.train is not None:
            return self.train(model, server_round)
        return {
            key: (array + 0.5 * (self.target - array)).astype(array.dtype) for key, array in model.items()
        }


class FakeGrid(Grid):
    """Nodes by id; clients answer in a shuffled order, as they do in life."""

    def __init__(self, nodes: dict[int, tuple[NodeInfo, Client]], shuffle: int | None = 0) -> None:
        self.nodes = nodes
        self.sent: list[Message] = []
        self.queries = 0
        self._rng = np.random.default_rng(shuffle)

    def get_node_ids(self) -> Iterable[int]:
        return set(self.nodes)

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [info for info, _ in self.nodes.values()]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        messages = list(messages)
        replies = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid4())
            if message.metadata.message_type == MessageType.QUERY:
                self.queries += 1
            else:
                self.sent.append(message)
            reply = self._reply(message)
            if reply is not None:
                replies.append(reply)
        return [replies[place] for place in self._rng.permutation(len(replies))]

    def _reply(self, message: Message) -> Message | None:
        _, client = self.nodes[message.metadata.dst_node_id]
        if client.context is None or message.metadata.message_type != MessageType.TRAIN:
            return self._handled(message, client)
        reply = remember_updates(message, client.context, lambda asked, _: self._handled(asked, client))
        lost = client.fails(int(message.content["config"]["server-round"])) == "reply is lost"
        return None if lost else reply

    def _handled(self, message: Message, client: Client) -> Message | None:
        kind = message.metadata.message_type
        if kind == MessageType.QUERY:
            if client.partition is None:
                error = Error(CLIENT_APP_RAISED, client.query_error)
                return Message(error, reply_to=message)
            answer = ConfigRecord({"partition-id": client.partition})
            if client.tells_size:
                answer["num-examples"] = client.examples
            return Message(RecordDict({"answer": answer}), reply_to=message)
        server_round = int(message.content["config"]["server-round"])
        failure = client.fails(server_round)
        if failure == "raises":
            return Message(Error(CLIENT_APP_RAISED, "ValueError: no data"), reply_to=message)
        if failure == "crashes":
            return superlink_error(message)
        if failure == "times out":
            return None
        metrics = MetricRecord({"num-examples": client.examples, "loss": client.target, **client.extra})
        if kind == MessageType.EVALUATE:
            return Message(RecordDict({"metrics": metrics}), reply_to=message)
        model = {key: array.numpy() for key, array in message.content["arrays"].items()}
        arrays = ArrayRecord(
            {key: Array(np.asarray(value)) for key, value in client.trained(model, server_round).items()}
        )
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Run:
        raise NotImplementedError

    def create_message(self, *arguments: object, **options: object) -> Message:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError


def round_of(messages: list[Message]) -> int:
    """The round that these messages are of; 0 if they are queries."""
    configs = [message.content["config"] for message in messages if "config" in message.content]
    return int(configs[0]["server-round"]) if configs else 0


def superlink_error(message: Message) -> Message:
    """What the SuperLink says of a node that is gone: the reply carries its own id."""
    metadata = Metadata(
        run_id=message.metadata.run_id,
        message_id=str(uuid4()),
        src_node_id=SUPERLINK,
        dst_node_id=SUPERLINK,
        reply_to_message_id=message.metadata.message_id,
        group_id="",
        created_at=0.0,
        ttl=0.0,
        message_type=message.metadata.message_type,
    )
    return make_message(metadata, error=Error(NODE_UNAVAILABLE, "Node unavailable"))


def empty_context() -> Context:
    """The context of a client that was started anew."""
    return Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})


def federation(clients: Iterable[Client], first_node: int = 100, shuffle: int | None = 0) -> FakeGrid:
    """Registered by the names client-0, client-1, ..."""
    nodes = {
        first_node + 7 * place: (NodeInfo(node_id=first_node + 7 * place, name=f"client-{place}"), client)
        for place, client in enumerate(clients)
    }
    return FakeGrid(nodes, shuffle)


def one_round(strategy, grid: FakeGrid, start: ArrayRecord, server_round: int = 1):
    """Configure, send, aggregate."""
    messages = strategy.configure_train(server_round, start, ConfigRecord(), grid)
    return strategy.aggregate_train(server_round, grid.send_and_receive(messages, timeout=1.0))


def model(*values: float, dtype: type = np.float64) -> ArrayRecord:
    """A model of one array."""
    return ArrayRecord({"w": Array(np.array(values, dtype=dtype))})


def weights(record: ArrayRecord) -> np.ndarray:
    """The one array of that model."""
    return record["w"].numpy()
