"""Identities of clients: node ids change from run to run, identities stay."""

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
from sortition.core.validation import named_keywords

log = logging.getLogger("flwr.sortition")

IdentityFunction = Callable[[NodeInfo], str | None]
"""Returns the identity of a node from what the SuperLink knows about it, or None to ask the client."""

PUBLIC_KEY_START = b"-----BEGIN PUBLIC KEY-----"

UNREACHABLE = frozenset({3, 4, 5})
"""Error codes of the SuperLink: message, reply or node unavailable. The client itself has not answered."""

TRIAL_QUERIES = 5
"""If this many clients fail to report an identity and none succeeds, no more clients are asked."""


@named_keywords
def registered_identity(node: NodeInfo) -> str | None:
    """The name or, without one, the public key that the SuperNode was registered with; else None.

    Simulated nodes have neither: random bytes take the place of their key. These clients are asked.

    >>> registered_identity(NodeInfo(node_id=7, name="clinic-3"))
    'name:clinic-3'
    >>> registered_identity(NodeInfo(node_id=7, public_key=b"32 random bytes")) is None
    True
    """
    if node.name:
        return f"name:{node.name}"
    if node.public_key.startswith(PUBLIC_KEY_START):
        return f"key:{hashlib.sha256(node.public_key).hexdigest()[:32]}"
    return None


@named_keywords
def reported_identity(node: NodeInfo) -> str | None:
    """None, so that the client is asked: for SuperNodes without registered keys.

    Such a SuperNode makes a new key whenever it starts, so its key does not identify it.

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
    activated_at: str


class Identities:
    """The identities of the nodes online. Each client is asked at most once.

    A client that is asked gets a query. Its answer holds ``reported_key`` and may hold ``size_key``, its
    number of examples. A client that gives no such answer is identified by its node id, which stays the same
    during this run only. After ``TRIAL_QUERIES`` failures and no success, all clients that would have to be
    asked are identified by their node ids.
    """

    def __init__(self, identity: IdentityFunction, reported_key: str, size_key: str) -> None:
        self._identity = identity
        self._reported_key = reported_key
        self._size_key = size_key
        self._nodes: dict[int, _Node] = {}
        self._reported_sizes: dict[str, float] = {}
        self._any_answer = False
        self._failures = 0
        self._warned: set[tuple[int, int]] = set()

    @property
    def reported_sizes(self) -> Mapping[str, float]:
        """The numbers of examples that clients reported together with their identity."""
        return self._reported_sizes

    def online(self, grid: Grid, timeout: float) -> dict[str, int]:
        """The node id of each identity that is online."""
        node_ids = set(grid.get_node_ids())
        unseen = node_ids - self._nodes.keys()
        if unseen:
            self._identify([node for node in grid.get_nodes() if node.node_id in unseen], grid, timeout)
        found: dict[str, int] = {}
        for node_id in sorted(node_ids & self._nodes.keys()):
            identity = self._nodes[node_id].identity
            found[identity] = (
                self._latest(identity, found[identity], node_id) if identity in found else node_id
            )
        return found

    def _identify(self, nodes: list[NodeInfo], grid: Grid, timeout: float) -> None:
        """Find the identities of new nodes. Nodes that can't be reached stay unknown until the next round."""
        found: dict[int, str] = {}
        to_ask = []
        for node in nodes:
            identity = self._identity(node)
            if identity is None:
                to_ask.append(node.node_id)
            elif isinstance(identity, str):
                found[node.node_id] = identity
            else:
                raise ConfigurationError(
                    f"identity must return a string, or None to ask the client, got {identity!r}"
                )
        if to_ask:
            found |= self._ask(sorted(to_ask), grid, timeout)
        for node in nodes:
            if node.node_id in found:
                self._nodes[node.node_id] = _Node(found[node.node_id], node.last_activated_at)

    def _ask(self, node_ids: list[int], grid: Grid, timeout: float) -> dict[int, str]:
        """Ask a few clients first: if the ClientApp has no query function, only these fail."""
        failures_before = self._failures
        first = 0 if self._any_answer else max(TRIAL_QUERIES - self._failures, 0)
        found = self._query(node_ids[:first], grid, timeout)
        if not self._gives_no_answers:
            found |= self._query(node_ids[first:], grid, timeout)
        unanswered = self._failures - failures_before
        if self._gives_no_answers:
            found, unanswered = {node_id: f"node:{node_id}" for node_id in node_ids}, len(node_ids)
        if unanswered:
            log.warning(
                "%d of %d new clients did not report '%s' when asked. They are identified by their node ids, "
                "which change from run to run: a resumed run starts to learn anew about them.",
                unanswered,
                len(node_ids),
                self._reported_key,
            )
        return found

    @property
    def _gives_no_answers(self) -> bool:
        return not self._any_answer and self._failures >= TRIAL_QUERIES

    def _query(self, node_ids: list[int], grid: Grid, timeout: float) -> dict[int, str]:
        """The identities of clients that could be reached: what they report or, failing that, the node id."""
        question = RecordDict({"query": ConfigRecord({"key": self._reported_key})})
        messages = [Message(question, node_id, MessageType.QUERY) for node_id in node_ids]
        replies = list(grid.send_and_receive(messages, timeout=timeout)) if messages else []
        asked = {message.metadata.message_id: message.metadata.dst_node_id for message in messages}
        found: dict[int, str] = {}
        for reply in replies:
            node_id = asked.get(reply.metadata.reply_to_message_id)
            if node_id is None or (reply.has_error() and reply.error.code in UNREACHABLE):
                continue
            content = RecordDict() if reply.has_error() else reply.content
            reported = _look_up(content, self._reported_key)
            if reported is None:
                self._failures += 1
                found[node_id] = f"node:{node_id}"
            else:
                self._any_answer = True
                found[node_id] = f"{self._reported_key}:{reported}"
            size = _look_up(content, self._size_key)
            if isinstance(size, (int, float)) and not isinstance(size, bool) and 0 <= size < math.inf:
                self._reported_sizes[found[node_id]] = float(size)
        return found

    def _latest(self, identity: str, one: int, other: int) -> int:
        """The node that was activated last of two with one identity: the other has stopped unnoticed."""
        older, newer = sorted((one, other), key=lambda node_id: (self._nodes[node_id].activated_at, node_id))
        if (older, newer) not in self._warned:
            self._warned.add((older, newer))
            log.warning(
                "Nodes %d and %d are both %s. Node %d is used, since it was activated last.",
                one,
                other,
                identity,
                newer,
            )
        return newer


def _look_up(content: RecordDict, key: str) -> object | None:
    """The value of ``key`` in the first record that has it; config records come before metric records."""
    for records in (content.config_records.values(), content.metric_records.values()):
        for record in records:
            if key in record:
                return record[key]
    return None
