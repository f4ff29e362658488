"""Identities of clients: node ids change from run to run, identities stay."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.proto.node_pb2 import NodeInfo as NodeInfo
from flwr.serverapp import Grid

from sortition.core.errors import ConfigurationError
from sortition.core.validation import named_keywords
from sortition.integrations.flower.sizes import number_of_examples

log = logging.getLogger("flwr.sortition")

IdentityFunction = Callable[[NodeInfo], str | None]
"""Returns the identity of a node from what the SuperLink knows about it, or None to ask the client."""

PUBLIC_KEY_START = b"-----BEGIN PUBLIC KEY-----"

UNREACHABLE = frozenset({3, 4, 5})
"""Error codes of the SuperLink: message, reply or node unavailable. The client itself has not answered."""

LONGEST_QUERY = 60.0
"""Seconds to wait for answers to a query. It is not the timeout of ``start``, which is for training."""
TRIALS = (1, 4)
"""So many clients are asked first, and so many next. If all of these fail, no more clients are asked."""
LONGEST_WAIT = 32
"""A node that could not be reached is asked again after 1, 2, 4, ... and at most this many rounds."""

NO_QUERY_FUNCTION = "No query function registered"
"""In Flower's error if the ClientApp has no query function. All clients run the same ClientApp."""
FAILED_IN_RAY = "An exception was raised when processing a message by RayBackend"
"""The line in which Flower's simulation announces such an error in the log."""

BY_NODE_ID = (
    " Clients without a registered identity are identified by their node ids, which change from run to run: "
    "a resumed run starts to learn anew about them."
)

QUERY_FUNCTION = """
    @app.query()
    def about_me(message: Message, context: Context) -> Message:
        answer = ConfigRecord({{{key!r}: context.node_config[{key!r}], {size!r}: len(...)}})
        return Message(RecordDict({{"answer": answer}}), reply_to=message)"""


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


def is_unreachable(reply: Message) -> bool:
    """Whether it is the SuperLink that says that the client has not answered."""
    return bool(reply.has_error() and reply.error.code in UNREACHABLE)


def natural_order(identity: str) -> tuple[str, bool, int, str]:
    """A sort key that puts 2 before 10.

    >>> sorted(["partition-id:10", "partition-id:2"], key=natural_order)
    ['partition-id:2', 'partition-id:10']
    """
    kind, _, value = identity.partition(":")
    number = int(value) if value.isdecimal() else 0
    return kind, not value.isdecimal(), number, value


def some(names: Sequence[str], most: int = 5) -> str:
    """The first of these names, and how many more there are.

    >>> some(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


@dataclass(frozen=True)
class _Node:
    identity: str
    activated_at: str


@dataclass
class _Asked:
    """What came of queries, by node id."""

    answers: dict[int, RecordDict] = field(default_factory=dict)
    """Empty if the query function failed."""
    silent: list[int] = field(default_factory=list)
    """Those that did not answer in time."""
    unreachable: list[int] = field(default_factory=list)


class Identities:
    """The identities of the nodes online, and the data sizes that their clients tell when they are asked.

    A client is asked if it has no registered identity or if its size is not known. It gets a query. Its
    answer holds ``reported_key``, if it has no registered identity, and ``size_key``, its number of examples.
    A client that answers without an identity, or not in time, is identified by its node id, which stays the
    same during this run only. If the ClientApp has no query function, nobody else is asked. Only a node that
    the SuperLink can't reach is left out, and asked again later.
    """

    def __init__(self, identity: IdentityFunction, reported_key: str, size_key: str) -> None:
        self._identity = identity
        self._reported_key = reported_key
        self._size_key = size_key
        self._nodes: dict[int, _Node] = {}
        self._reported_sizes: dict[str, float] = {}
        self._any_answer = False
        self._failures = 0
        self._gives_no_answers = self._has_no_query_function = False
        self._looks = 0  # how often ``online`` was called
        self._waits: dict[int, int] = {}  # of unreachable nodes: looks from one query to the next
        self._ask_at: dict[int, int] = {}
        self._warned: set[tuple[int, int]] = set()

    @property
    def reported_sizes(self) -> Mapping[str, float]:
        """The numbers of examples that clients have told when they were asked."""
        return self._reported_sizes

    def can_return(self, identity: str) -> bool:
        """Whether a client with this identity has the same one after a restart, unlike a node id."""
        return self._reported_key == "node" or not identity.startswith("node:")

    def online(self, grid: Grid, known_sizes: Callable[[], set[str]]) -> dict[str, int]:
        """The node id of each identity that is online; clients with ``known_sizes`` need not tell theirs."""
        self._looks += 1
        node_ids = set(grid.get_node_ids())
        unseen = {
            node_id
            for node_id in node_ids - self._nodes.keys()
            if self._ask_at.get(node_id, 0) <= self._looks
        }
        if unseen:
            nodes = [node for node in grid.get_nodes() if node.node_id in unseen]
            self._identify(nodes, grid, known_sizes())
        found: dict[str, int] = {}
        for node_id in sorted(node_ids & self._nodes.keys()):
            identity = self._nodes[node_id].identity
            found[identity] = (
                self._latest(identity, found[identity], node_id) if identity in found else node_id
            )
        return found

    def _identify(self, nodes: list[NodeInfo], grid: Grid, known_sizes: set[str]) -> None:
        """Find the identities of new nodes. Nodes that can't be reached stay unknown, and are asked again."""
        found: dict[int, str] = {}
        to_ask = []
        for node in nodes:
            identity = self._identity(node)
            if isinstance(identity, str):
                found[node.node_id] = identity
            elif identity is not None:
                raise ConfigurationError(
                    f"identity must return a string, or None to ask the client, got {identity!r}"
                )
            if identity is None or identity not in known_sizes:
                to_ask.append(node.node_id)
        to_ask.sort()
        asked = self._ask(to_ask, grid)
        nameless = [node_id for node_id in to_ask if node_id not in found]
        by_node_id = []
        for node_id in nameless:
            reported = _look_up(asked.answers.get(node_id, RecordDict()), self._reported_key)
            if reported is not None:
                found[node_id] = f"{self._reported_key}:{reported}"
            elif node_id in asked.unreachable:
                self._waits[node_id] = min(2 * self._waits.get(node_id, 0), LONGEST_WAIT) or 1
                self._ask_at[node_id] = self._looks + self._waits[node_id]
                if self._waits[node_id] == 1:
                    log.warning("Node %d can't be reached and is left out until it can", node_id)
            else:
                found[node_id] = f"node:{node_id}"
                by_node_id.append(node_id)
        if silent := [found[node_id] for node_id in asked.silent]:
            log.warning(
                "%d of %d new clients did not answer within %g seconds when asked who they are and how many "
                "examples they have: %s. They take part; their sizes are unknown until they have trained.%s",
                *(len(silent), len(to_ask), LONGEST_QUERY, some(silent)),
                BY_NODE_ID if set(asked.silent) & set(by_node_id) else "",
            )
        nameless_answers = [found[node_id] for node_id in by_node_id if node_id not in asked.silent]
        if nameless_answers and not self._has_no_query_function:
            log.warning(
                "%d of %d new clients did not report '%s' when asked: %s.%s",
                *(len(nameless_answers), len(nameless), self._reported_key, some(nameless_answers)),
                BY_NODE_ID,
            )
        for node_id, answer in asked.answers.items():
            value = _look_up(answer, self._size_key)
            size = number_of_examples(value)
            if not math.isnan(size):
                self._reported_sizes[found[node_id]] = size
            elif value is not None:
                log.warning(
                    "%s was asked for its number of examples and told '%s': %.50r. It must be a number that "
                    "is finite and not negative. Its size is unknown until it has trained.",
                    *(found[node_id], self._size_key, value),
                )
        for node in nodes:
            if node.node_id in found:
                self._nodes[node.node_id] = _Node(found[node.node_id], node.last_activated_at)

    # Queries -----------------------------------------------------------------------------------------

    def _ask(self, node_ids: list[int], grid: Grid) -> _Asked:
        """What clients answer.

        Unless somebody has answered before, one client is asked first, then four, then all others: if the
        ClientApp has no query function, only one fails.
        """
        asked = _Asked()
        start = 0
        for many in (*TRIALS, len(node_ids)):
            if self._any_answer:
                many = len(node_ids)
            if self._gives_no_answers or start >= len(node_ids):
                break
            self._query(node_ids[start : start + many], grid, asked)
            start += many
        return asked

    def _query(self, node_ids: list[int], grid: Grid, asked: _Asked) -> None:
        """Ask these clients at once, and add what comes of it to ``asked``."""
        question = RecordDict({"query": ConfigRecord({"key": self._reported_key})})
        messages = [Message(question, node_id, MessageType.QUERY) for node_id in node_ids]
        with _without_tracebacks():
            replies = list(grid.send_and_receive(messages, timeout=LONGEST_QUERY))
        sent = {message.metadata.message_id: message.metadata.dst_node_id for message in messages}
        for reply in replies:
            node_id = sent.get(reply.metadata.reply_to_message_id)
            if node_id is None:
                continue
            if is_unreachable(reply):
                asked.unreachable.append(node_id)
                continue
            asked.answers[node_id] = RecordDict() if reply.has_error() else reply.content
            self._any_answer |= not reply.has_error()
            self._failures += reply.has_error()
            reason = reply.error.reason if reply.has_error() else None
            if NO_QUERY_FUNCTION in (reason or "") and not self._has_no_query_function:
                self._gives_no_answers = self._has_no_query_function = True
                log.warning(
                    "The ClientApp has no query function, so clients can't be asked who they are and how "
                    "many examples they have. Training goes on, but its first steps are biased, and a "
                    "resumed simulation does not recognise its clients, unless you add:%s",
                    QUERY_FUNCTION.format(key=self._reported_key, size=self._size_key),
                )
        heard = {*asked.answers, *asked.unreachable}
        asked.silent += [node_id for node_id in node_ids if node_id not in heard]
        self._gives_no_answers |= not self._any_answer and self._failures >= sum(TRIALS)

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


@contextmanager
def _without_tracebacks() -> Iterator[None]:
    """Keep out of the log that the ClientApp has no query function, of which a simulation prints 50 lines."""

    def is_news(record: logging.LogRecord) -> bool:
        message = record.getMessage()
        return not (NO_QUERY_FUNCTION in message or message.startswith(FAILED_IN_RAY))

    flower = logging.getLogger("flwr")
    flower.addFilter(is_news)
    try:
        yield
    finally:
        flower.removeFilter(is_news)


def _look_up(content: RecordDict, key: str) -> object | None:
    """The value of ``key`` in the first record that has it; config records come before metric records."""
    for records in (content.config_records.values(), content.metric_records.values()):
        for record in records:
            if key in record:
                return record[key]
    return None
