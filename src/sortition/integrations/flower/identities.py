"""Who a node is: node ids change, identities stay."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

from sortition.core.errors import ConfigurationError

log = logging.getLogger("flwr.sortition")

IdentityFunction = Callable[[NodeInfo], str | None]
"""The identity of a node from what the SuperLink knows of it; None means that the client is to be asked."""

PEM = b"-----BEGIN PUBLIC KEY-----"
NOT_REACHED = frozenset({3, 4, 5})
"""Error codes of the SuperLink itself: message, reply or node unavailable. The client was not heard."""
HANDFUL = 5
"""So many clients must fail, and none answer, before the ClientApp is taken to answer no queries."""


def registered_identity(node: NodeInfo) -> str | None:
    """The name that the SuperNode was registered with, else its public key, else ask the client.

    A simulated node has neither: what stands in the place of its key are random bytes.

    >>> registered_identity(NodeInfo(node_id=7, name="clinic-3"))
    'name:clinic-3'
    >>> registered_identity(NodeInfo(node_id=7, public_key=b"32 random bytes")) is None
    True
    """
    if node.name:
        return f"name:{node.name}"
    if node.public_key.startswith(PEM):
        return f"key:{hashlib.sha256(node.public_key).hexdigest()[:32]}"
    return None


def reported_identity(node: NodeInfo) -> str | None:
    """Always ask the client: for SuperNodes without registered keys, which get a new key at every start.

    >>> reported_identity(NodeInfo(node_id=7, name="clinic-3")) is None
    True
    """
    return None


def natural_order(identity: str) -> tuple[str, bool, int, str]:
    """A sort key that puts 2 before 10.

    >>> sorted(["partition-id:10", "partition-id:2"], key=natural_order)
    ['partition-id:2', 'partition-id:10']
    """
    kind, _, value = identity.partition(":")
    number = int(value) if value.isdecimal() else 0
    return kind, not value.isdecimal(), number, value


@dataclass(frozen=True)
class _Node:
    identity: str
    activated: str


class Identities:
    """Finds out who is online, anew each round, asking a client at most once.

    A client that is asked answers a query with a record that holds ``reported_key`` and, if it likes,
    ``size_key``. One that fails to goes by its node id, which stays the same for this run, but not for the
    next. After a handful of failures and not a single answer nobody is asked any more, and all go by node id.
    """

    def __init__(self, identity: IdentityFunction, reported_key: str, size_key: str) -> None:
        self._identity = identity
        self._reported_key = reported_key
        self._size_key = size_key
        self._nodes: dict[int, _Node] = {}
        self._sizes: dict[str, float] = {}
        self._answered = False
        self._failures = 0
        self._warned: set[tuple[int, int]] = set()

    @property
    def reported_sizes(self) -> Mapping[str, float]:
        """The numbers of examples that clients gave together with their identity."""
        return self._sizes

    def online(self, grid: Grid, timeout: float) -> dict[str, int]:
        """The node of each identity that is online."""
        node_ids = set(grid.get_node_ids())
        strangers = node_ids - self._nodes.keys()
        if strangers:
            self._meet([node for node in grid.get_nodes() if node.node_id in strangers], grid, timeout)
        found: dict[str, int] = {}
        for node_id in sorted(node_ids & self._nodes.keys()):
            identity = self._nodes[node_id].identity
            found[identity] = (
                self._later(identity, found[identity], node_id) if identity in found else node_id
            )
        return found

    def _meet(self, nodes: list[NodeInfo], grid: Grid, timeout: float) -> None:
        activated = {node.node_id: node.last_activated_at for node in nodes}
        names = {node.node_id: self._identity(node) for node in nodes}
        for name in names.values():
            if not (name is None or isinstance(name, str)):
                raise ConfigurationError(f"identity must return a string, or None to ask, got {name!r}")
        named = {node_id: name for node_id, name in names.items() if name is not None}
        unnamed = sorted(names.keys() - named.keys())
        if unnamed:
            named |= self._ask(unnamed, grid, timeout)
        for node_id, name in named.items():
            self._nodes[node_id] = _Node(name, activated[node_id])

    def _ask(self, node_ids: list[int], grid: Grid, timeout: float) -> dict[int, str]:
        """Ask a handful first: an app without queries then fails a few times, and not a thousand."""
        before = self._failures
        first = 0 if self._answered else max(HANDFUL - self._failures, 0)
        found = self._query(node_ids[:first], grid, timeout)
        if not self._answers_no_queries:  # also where some were not heard: they may never be
            found |= self._query(node_ids[first:], grid, timeout)
        nameless = self._failures - before
        if self._answers_no_queries:
            found, nameless = {node_id: f"node:{node_id}" for node_id in node_ids}, len(node_ids)
        if nameless:
            log.warning(
                "%d of %d new clients gave no answer with '%s' to a query: they go by their node ids, which "
                "other runs do not share, so that a resumed run would start to learn anew about them.",
                nameless,
                len(node_ids),
                self._reported_key,
            )
        return found

    @property
    def _answers_no_queries(self) -> bool:
        return not self._answered and self._failures >= HANDFUL

    def _query(self, node_ids: list[int], grid: Grid, timeout: float) -> dict[int, str]:
        """Those that were heard: by what they report, or by node id if they report nothing."""
        question = RecordDict({"query": ConfigRecord({"key": self._reported_key})})
        messages = [Message(question, node_id, MessageType.QUERY) for node_id in node_ids]
        replies = list(grid.send_and_receive(messages, timeout=timeout)) if messages else []
        asked = {message.metadata.message_id: message.metadata.dst_node_id for message in messages}
        found: dict[int, str] = {}
        for reply in replies:
            node_id = asked.get(reply.metadata.reply_to_message_id)
            if node_id is None or (reply.has_error() and reply.error.code in NOT_REACHED):
                continue
            content = RecordDict() if reply.has_error() else reply.content
            reported = _look_up(content, self._reported_key)
            self._answered |= reported is not None
            self._failures += reported is None
            found[node_id] = f"node:{node_id}" if reported is None else f"{self._reported_key}:{reported}"
            size = _look_up(content, self._size_key)
            if isinstance(size, (int, float)) and not isinstance(size, bool) and 0 <= size < math.inf:
                self._sizes[found[node_id]] = float(size)
        return found

    def _later(self, identity: str, one: int, other: int) -> int:
        """Of two nodes with one identity the one that was activated last: the other is its dead past."""
        earlier, later = sorted((one, other), key=lambda node_id: (self._nodes[node_id].activated, node_id))
        if (earlier, later) not in self._warned:
            self._warned.add((earlier, later))
            log.warning(
                "Nodes %d and %d are both %s: the later one, %d, counts.", one, other, identity, later
            )
        return later


def _look_up(content: RecordDict, key: str) -> object | None:
    """The value of ``key`` in whatever record holds it."""
    configs, metrics = content.config_records.values(), content.metric_records.values()
    from_config = next((record[key] for record in configs if key in record), None)
    return (
        next((record[key] for record in metrics if key in record), None)
        if from_config is None
        else from_config
    )
